"""`lake-assets generate-events`: a folder of generated change events, for trials and measurements."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import orjson
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
import typer

from lake_assets.commands.printing import check_folder_of, console, local
from lake_assets.errors import ConfigError
from lake_assets.examples import complete_file
from lake_assets.examples.event_generator import Source, Transaction, Workload, delivered
from lake_assets.examples.stream_writers import ENCODERS, encoder, feed_rows, flagged_rows
from lake_assets.lake.counts import plural

_TABLES = {"change-set": flagged_rows, "change-feed": feed_rows}


def generate_events(
    out: Annotated[Path, typer.Argument(help="folder for the files")],
    format: Annotated[str, typer.Option(help=f"one of {', '.join(ENCODERS)}")] = "debezium",
    files: Annotated[str, typer.Option(help="jsonl; csv or parquet for change-set and change-feed")] = "jsonl",
    events: Annotated[int, typer.Option(help="number of changes")] = 1_000,
    keys: Annotated[int, typer.Option(help="maximum number of rows")] = 100,
    distribution: Annotated[str, typer.Option(help="which rows change: uniform or zipf")] = "uniform",
    inserts: Annotated[float, typer.Option(help="weight of inserts")] = 0.3,
    updates: Annotated[float, typer.Option(help="weight of updates")] = 0.5,
    deletes: Annotated[float, typer.Option(help="weight of deletes")] = 0.2,
    key_changes: Annotated[float, typer.Option(help="share of updates that change the key")] = 0.0,
    unchanged: Annotated[float, typer.Option(help="share of updates that leave out an unchanged long text")] = 0.0,
    nulls: Annotated[float, typer.Option(help="share of nulls")] = 0.1,
    transaction: Annotated[int, typer.Option(help="maximum changes per transaction")] = 3,
    late: Annotated[float, typer.Option(help="share of transactions that arrive late")] = 0.0,
    lateness: Annotated[int, typer.Option(help="maximum delay, in transactions")] = 20,
    duplicates: Annotated[float, typer.Option(help="share of transactions that arrive twice")] = 0.0,
    schema_changes: Annotated[int, typer.Option(help="number of schema changes")] = 0,
    seed: Annotated[int, typer.Option(help="the same seed gives the same events")] = 0,
    table: Annotated[str, typer.Option(help="the source table")] = "public.items",
    events_a_file: Annotated[int, typer.Option(help="maximum records per file")] = 100_000,
    rows: Annotated[Path | None, typer.Option(help="file for the table's final rows, as JSON lines")] = None,
) -> None:
    """Write change events of a generated table, in any format, with constant memory."""
    if distribution not in ("uniform", "zipf"):
        raise ConfigError(f"--distribution {distribution}: choose uniform or zipf")
    schema, _, name = table.partition(".")
    if not schema or not name:
        raise ConfigError(f"--table {table}: write schema.table")
    if events < 0 or keys < 1 or transaction < 1 or events_a_file < 1:
        raise ConfigError("--events is 0 or more; --keys, --transaction and --events-a-file are 1 or more")
    if files not in ("jsonl", "csv", "parquet"):
        raise ConfigError(f"--files {files}: choose jsonl, csv or parquet")
    if files == "jsonl":
        encoder(format)
    elif format not in _TABLES:
        raise ConfigError(f"--format {format} comes as jsonl; as {files} come {' and '.join(_TABLES)}")
    out, rows = local(out, "OUT"), local(rows, "--rows") if rows else None
    if out.exists() and not out.is_dir():
        raise ConfigError(f"OUT {out} is a file: name a folder for the files of events")
    if rows:
        check_folder_of(rows, "--rows")
    workload = Workload(
        seed=seed, events=events, keys=keys, distribution=distribution,
        inserts=inserts, updates=updates, deletes=deletes, key_changes=key_changes, unchanged=unchanged, nulls=nulls,
        transaction=transaction, late=late, lateness=lateness, duplicates=duplicates, schema_changes=schema_changes,
        table=(schema, name),
    )  # fmt: skip
    source = Source(workload)
    stream = delivered(workload, source)
    out.mkdir(parents=True, exist_ok=True)
    if files == "jsonl":
        count, records = _write_lines(out, stream, workload, format, events_a_file)
    else:
        count, records = _write_tables(out, stream, format, files, events_a_file)
    if rows:
        rows.write_bytes(b"".join(orjson.dumps(dict(r), default=_plain) + b"\n" for r in source.rows.values()))
    console.print(
        f"{plural(records, 'record')} in {plural(count, 'file')} in {out}; the table holds "
        f"{plural(len(source.rows), 'row')}"
    )


def _write_lines(
    out: Path, stream: Iterable[Transaction], workload: Workload, format_name: str, a_file: int
) -> tuple[int, int]:
    encode = encoder(format_name)
    lines = (line for transaction in stream for line in encode(transaction, workload))
    count = total = 0
    for first in lines:
        count += 1
        with (
            complete_file(out / f"events-{count:05}.jsonl") as path,
            path.open("w", encoding="utf-8", newline="\n") as file,
        ):
            for line in itertools.chain([first], itertools.islice(lines, a_file - 1)):
                file.write(f"{line}\n")
                total += 1
    return count, total


def _write_tables(
    out: Path, stream: Iterable[Transaction], format_name: str, kind: str, a_file: int
) -> tuple[int, int]:
    count = total = 0
    for columns, batch in _batches(stream, format_name, a_file):
        count, total = count + 1, total + len(batch)
        arrow = _arrow(columns, batch)
        with complete_file(out / f"events-{count:05}.{kind}") as path:
            if kind == "parquet":
                pa_parquet.write_table(arrow, path, compression="zstd")
            else:
                pa_csv.write_csv(_as_text(arrow), path)
    return count, total


def _batches(
    stream: Iterable[Transaction], format_name: str, a_file: int
) -> Iterator[tuple[dict[str, str], list[dict[str, Any]]]]:
    """Yield batches of rows with one schema each, since a file has one header."""
    rows_of = _TABLES[format_name]
    columns: dict[str, str] = {}
    batch: list[dict[str, Any]] = []
    for transaction in stream:
        for change in transaction.changes:
            part = Transaction(transaction.xid, transaction.commit, transaction.last, transaction.time, (change,))
            now = dict(change.columns)
            if batch and (now != columns or len(batch) >= a_file):
                yield columns, batch
                batch = []
            columns = now
            batch += rows_of(part)
    if batch:
        yield columns, batch


_ARROW = {
    "bigint": pa.int64(), "integer": pa.int32(), "double precision": pa.float64(), "date": pa.date32(),
    "timestamp with time zone": pa.timestamp("us", "UTC"), "boolean": pa.bool_(), "bytea": pa.binary(),
    "text[]": pa.list_(pa.string()),
}  # fmt: skip


def _arrow(columns: dict[str, str], rows: list[dict[str, Any]]) -> pa.Table:
    def kind(name: str) -> pa.DataType:
        declared = columns.get(name, "")
        if declared.startswith("numeric"):
            precision, scale = map(int, declared[8:-1].split(","))
            return pa.decimal128(precision, scale)
        if name in ("CDC_TIMESTAMP", "_commit_timestamp"):
            return pa.timestamp("us", "UTC")
        return pa.int64() if name == "_commit_version" else _ARROW.get(declared, pa.string())

    return pa.Table.from_pylist(rows, schema=pa.schema([(n, kind(n)) for n in rows[0]]))


def _as_text(table: pa.Table) -> pa.Table:
    """Encode lists as JSON and bytes as base64, which CSV lacks."""
    for i, field in enumerate(table.schema):
        if pa.types.is_list(field.type):
            texts = [None if v is None else orjson.dumps(v).decode() for v in table.column(i).to_pylist()]
        elif pa.types.is_binary(field.type):
            texts = [None if v is None else base64.b64encode(v).decode() for v in table.column(i).to_pylist()]
        else:
            continue
        table = table.set_column(i, field.name, pa.array(texts, pa.string()))
    return table


def _plain(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
