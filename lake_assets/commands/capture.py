"""`lake-assets capture` and `lake-assets changes`: changes of a table, as files and ranges or as rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table

from lake_assets.capture import Capture, FieldRange
from lake_assets.capture.captured import CapturedFile
from lake_assets.capture.changes_view import changed_rows
from lake_assets.commands.printing import check_folder_of, console, local, visible_json
from lake_assets.commands.table_lookup import AsJson, ShowSensitive, sensitive_of
from lake_assets.errors import ConfigError, KeyMissingError
from lake_assets.facade import Lake
from lake_assets.lake import TableId, quote
from lake_assets.lake.counts import plural
from lake_assets.lake.redaction import HIDDEN
from lake_assets.lake.sensitive_values import NOTHING, SensitiveColumns
from lake_assets.tables.changes_table import check_replaceable, write_changes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SHOWN_FILES = 30
# What `--json` tells of a file, and of a range.
_OF_FILES = ("path", "records", "bytes", "partition", "side", "why")
_OF_RANGES = ("low", "high", "exact", "nulls", "nans", "has_values")

Name = Annotated[str, typer.Argument(help="namespace.name", show_default=False)]
From = Annotated[
    str | None, typer.Option("--from", help="snapshot id, tag, branch or time (ISO 8601, UTC); default: the beginning")
]
To = Annotated[str | None, typer.Option("--to", help="like --from; default: the current snapshot")]
Kind = Literal["feed", "rows", "keys"]
Format = Literal["flat", "debezium"]
Images = Literal["before-after", "before", "key-only"]


def capture(
    table: Name,
    start: From = None,
    end: To = None,
    show_sensitive: ShowSensitive = False,
    as_json: AsJson = False,
) -> None:
    """Show which data files of TABLE changed between two snapshots, and their field ranges (without Spark)."""
    lake = Lake.load_existing()
    name = lake.named(table)
    with lake.capture(name, _bound(lake, name, start), _bound(lake, name, end)) as captured:
        facts = _facts(captured, NOTHING if show_sensitive else sensitive_of(lake, name))
        if as_json:
            print(json.dumps(facts, default=str, indent=2))
        else:
            _show(captured, facts)


def changes(
    table: Name,
    start: From = None,
    end: To = None,
    kind: Annotated[
        Kind, typer.Option("--kind", help="all changes; rows as of the end; distinct keys of all changed rows")
    ] = "feed",
    form: Annotated[Format, typer.Option("--format", help="one row per image, or Debezium's envelope")] = "flat",
    images: Annotated[
        Images, typer.Option("--images", help="rows before and after the change, rows before it, or keys only")
    ] = "before-after",
    key: Annotated[
        list[str] | None, typer.Option("--key", help="key column (repeatable); default: the identifier fields")
    ] = None,
    by_snapshot: Annotated[bool, typer.Option("--by-snapshot", help="write the changes of each snapshot")] = False,
    limit: Annotated[int | None, typer.Option("--limit", min=0, help="maximum number of rows to write")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="FILE.parquet, FILE.csv or FILE.jsonl; default: JSON lines on stdout")
    ] = None,
    into: Annotated[
        str | None, typer.Option("--as", help="write a table of this lake instead, for SQL of any session and engine")
    ] = None,
    show_sensitive: ShowSensitive = False,
) -> None:
    """Write the row-level changes of TABLE between two snapshots."""
    if out is not None and into is not None:
        raise ConfigError("--out and --as: choose a file or a table")
    if kind != "feed" and (form != "flat" or images != "before-after"):
        raise ConfigError(f"--kind {kind}: --format and --images apply to a feed only")
    if out is not None:
        if out.suffix not in _WRITERS:
            raise ConfigError(f"--out {out}: write a .parquet, .csv or .jsonl file")
        out = local(out, "--out")
        check_folder_of(out, "--out")
    lake = Lake.load_existing()
    name = lake.named(table)
    if into is not None:
        check_replaceable(lake, TableId.parse(into))
    first, last = _bound(lake, name, start), _bound(lake, name, end)
    with lake.capture(name, first, last, granularity="snapshot" if by_snapshot else "net") as captured:
        frame = _rows(lake, captured, kind, form, images, key)
        if limit is not None:
            frame = frame.limit(limit)
        from lake_assets.tables.hidden_columns import hand_on, without_values

        hidden = sensitive_of(lake, table) if into or not show_sensitive else NOTHING
        if into is not None:
            rows = write_changes(lake, TableId.parse(into), frame, captured)
            hand_on(lake, TableId.parse(into), hidden)
        elif out is not None:
            rows = _write(without_values(frame, hidden), out)
        else:
            for line in _lines(without_values(frame, hidden)):
                sys.stdout.write(visible_json(line) + "\n")
            return
        console.print(f"{rows} {'row' if rows == 1 else 'rows'} written to {into or out}", markup=False)


def _bound(lake: Lake, table: TableId, text: str | None) -> int | str | datetime | None:
    if text is None or text.isdecimal():
        return int(text) if text else None
    if text in lake.table(table).metadata.refs:
        return text
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text  # an unknown tag or branch: the capture's error names the existing ones


def _facts(captured: Capture, hidden: SensitiveColumns) -> dict[str, Any]:
    w = captured.window

    def of_file(file: CapturedFile) -> dict[str, Any]:
        # `truncate` leaves the beginning of a value, and the folder of a file has the values of its partition.
        covered = {c for c in file.partition if hidden.covers(c.removesuffix("_trunc"))}
        partition = {c: HIDDEN if c in covered else v for c, v in file.partition.items()}
        path = HIDDEN if covered else file.path
        return {**{n: getattr(file, n) for n in _OF_FILES}, "path": path, "partition": partition}

    def of_range(column: str, found: FieldRange) -> dict[str, Any]:
        ends = {name: hidden.value(column, getattr(found, name)) for name in ("low", "high")}
        return {**{name: getattr(found, name) for name in _OF_RANGES}, **ends}

    return {
        "table": str(w.table),
        "table_uuid": w.table_uuid,
        "start": {"snapshot_id": w.start_snapshot_id, "sequence_number": w.start_sequence_number},
        "end": {"snapshot_id": w.end_snapshot_id, "sequence_number": w.end_sequence_number},
        "operations": w.operations,
        "is_empty": captured.is_empty,
        "files": [of_file(f) for f in captured.files],
        "ranges": {column: of_range(column, r) for column, r in captured.ranges.items()},
    }


def _show(captured: Capture, facts: dict[str, Any]) -> None:
    w = captured.window
    first, last = w.start_snapshot_id or "the beginning", w.end_snapshot_id or "nothing"
    console.print(f"[bold]{escape(str(w.table))}[/] from {first} to {last}")
    console.print(f"operations inside: {', '.join(w.operations) or 'none'}")
    if captured.is_empty:
        console.print("nothing changed")
        return
    files = Table("side", "why", "partition", "records", "bytes", "path")
    for f in facts["files"][:SHOWN_FILES]:
        partition = ", ".join(f"{k}={v}" for k, v in f["partition"].items())
        counted = (f"{f['records']:,}", f"{f['bytes']:,}")
        files.add_row(f["side"], escape(f["why"]), escape(partition), *counted, escape(f["path"].rsplit("/", 1)[-1]))
    console.print(files)
    if len(captured.files) > SHOWN_FILES:
        console.print(f"... and {len(captured.files) - SHOWN_FILES} more (--json lists all)")
    total = sum(f.bytes for f in captured.files), sum(f.records for f in captured.files)
    files, records = plural(len(captured.files), "file"), plural(total[1], "record")
    console.print(f"{files}, {total[0]:,} bytes, {records} before deletes")
    ranges = Table("field", "low", "high", "exact", "nulls")
    for name, r in captured.ranges.items():
        is_hidden = HIDDEN in (facts["ranges"][name]["low"], facts["ranges"][name]["high"])
        ends = (HIDDEN, HIDDEN) if is_hidden else r.ends
        ranges.add_row(escape(name), *map(escape, ends), "yes" if r.exact else "no", "maybe" if r.nulls else "no")
    console.print(ranges)


def _rows(
    lake: Lake, captured: Capture, kind: Kind, form: Format, images: Images, declared: list[str] | None
) -> DataFrame:
    spark = lake.spark()
    if kind != "feed":
        return changed_rows(captured, spark, kind, declared)
    keys = declared or sorted(captured.schema.identifier_field_names())
    if images != "before-after" and not keys:
        raise KeyMissingError(
            f"{captured.window.table} has no identifier fields: name its key columns with --key, or write all images"
        )
    # With fewer images, only the key identifies an update, so a key change must be a delete and an insert.
    by = declared if images == "before-after" else keys
    frame = captured.events(spark, by) if form == "debezium" else captured.feed(spark, by)
    if images == "before-after":
        return frame
    from lake_assets.capture.rows.changed_rows import reduced

    return reduced(frame, keys, keep_before=images == "before")


def _lines(frame: DataFrame) -> Iterator[str]:
    from pyspark.sql import functions as F

    from lake_assets.capture.rows.value_differences import EXACT_JSON

    options = {**EXACT_JSON, "ignoreNullFields": "false"}
    lines = frame.select(F.to_json(F.struct("*"), options).alias("line"))
    return (row["line"] for row in lines.toLocalIterator())


def _write(frame: DataFrame, out: Path) -> int:
    """Write all rows to `out`, which appears once it is complete."""
    partial = out.with_name(f".{out.name}.partial")
    try:
        rows = _WRITERS[out.suffix](frame, partial)
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return rows


def _write_lines(frame: DataFrame, file: Path) -> int:
    rows = 0
    with file.open("w", encoding="utf-8") as f:
        for line in _lines(frame):
            f.write(line + "\n")
            rows += 1
    return rows


def _write_parquet(frame: DataFrame, file: Path) -> int:
    import pyarrow.parquet as pq

    table = frame.toArrow()
    pq.write_table(table, file, compression="zstd")
    return table.num_rows


def _write_csv(frame: DataFrame, file: Path) -> int:
    """Write CSV with a header: nested values as JSON, binary ones in base64; NULL is empty, an empty text is quoted."""
    import pyarrow.csv as pa_csv
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    from lake_assets.capture.rows.value_differences import EXACT_JSON

    def text(field: T.StructField) -> Column:
        column = F.col(quote(field.name))
        if isinstance(field.dataType, T.StructType | T.ArrayType | T.MapType | T.VariantType):
            column = F.to_json(column, {**EXACT_JSON, "ignoreNullFields": "false"})
        elif isinstance(field.dataType, T.BinaryType):
            column = F.base64(column)
        return column.alias(field.name)

    table = frame.select(*map(text, frame.schema.fields)).toArrow()
    pa_csv.write_csv(table, file)
    return table.num_rows


_WRITERS = {".parquet": _write_parquet, ".csv": _write_csv, ".jsonl": _write_lines}
