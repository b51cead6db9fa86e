"""Which rows of its first table a backfill redoes, as conditions in SQL, cut into chunks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader
from pyspark.sql import functions as F

from lake_assets.errors import BackfillError, PipelineError
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.target import Target
from lake_assets.formats.event_model import EVENT_TIME
from lake_assets.lake import LakeBase, quote, thresholds
from lake_assets.lake.counts import plural
from lake_assets.lake.foreign_errors import first_line
from lake_assets.lake.metadata.row_counts import visible_rows
from lake_assets.lake.names import literal, nearest
from lake_assets.pipeline.row_scope import RowScope, rows_of_partitions
from lake_assets.pipeline.table_graph import ComputedSpec, Spec
from lake_assets.tables.writing.table_ddl import columns_of, key_in

_ORDERED = (
    "tinyint", "smallint", "int", "bigint", "decimal", "date", "timestamp", "timestamp_ntz", "float", "double", "string"
)  # fmt: skip
# Spark's column for lines that are not JSON.
_CORRUPT = "_corrupt_record"


@dataclass(frozen=True)
class Selection:
    """What a user asks to redo: partitions, a range, keys, or everything if nothing is given.

    Attributes:
        partitions: keys of partitions.
        low, high: a range, both ends included; a date as `high` includes the whole day. Of the column `by`; else of
            the partitions by time; else of the source time of a final table's events, whose keys are redone.
        keys: a file with values of the table's key: CSV with a header, JSON lines, or Parquet.
    """

    partitions: tuple[str, ...] = ()
    low: str | None = None
    high: str | None = None
    by: str | None = None
    keys: Path | None = None

    def __post_init__(self) -> None:
        ranged = self.low is not None or self.high is not None
        if (self.partitions and ranged) or (self.keys and (ranged or self.partitions)):
            raise BackfillError("partitions, a range and keys exclude each other: give one of them")
        if ranged and (self.low is None or self.high is None):
            raise BackfillError("a range needs both ends: --from and --to")
        if self.by and not ranged:
            raise BackfillError("--by names the column of a range: give --from and --to as well, or leave it out")

    @property
    def is_everything(self) -> bool:
        """Whether all rows are redone."""
        return not self.partitions and self.low is None and self.keys is None

    def __str__(self) -> str:
        if self.partitions:
            listed = ", ".join(self.partitions[:3]) + (", ..." if len(self.partitions) > 3 else "")
            return f"partition{'s' if len(self.partitions) > 1 else ''} {listed}"
        if self.keys:
            return f"keys in {self.keys.name}"
        if self.low is not None:
            return f"{f'{self.by} ' if self.by else ''}{self.low} to {self.high}"
        return "everything"


@dataclass(frozen=True)
class Chunks:
    """Rows to redo.

    Attributes:
        chunks: their conditions, in pieces of work.
        share: the estimated share of the table's rows, 1 being all.
    """

    chunks: tuple[RowScope, ...]
    share: float


def chunks_of(
    lake: LakeBase, spec: ComputedSpec, selection: Selection, max_rows: int = thresholds.ROWS_A_CHUNK
) -> Chunks:
    """Return the rows of a table that a selection redoes, in chunks of about `max_rows` rows.

    Reads the keys of a range of events with Spark, else metadata.

    Raises:
        BackfillError: the selection does not fit the table; says which ones do.
        PipelineError: a key is not one of its partitions.
    """
    if selection.keys:
        return _of_keys(lake, spec, _read_keys(lake, spec, selection.keys))
    if selection.partitions:
        return _of_partitions(lake, spec, selection.partitions, max_rows)
    assert selection.low is not None
    assert selection.high is not None
    types = columns_of(lake, spec.table)
    if selection.by:
        column, kind = selection.by, _kind_of(spec, selection.by, types)
        _check_ends(lake, spec, column, kind, selection.low, selection.high)
        where = f"coalesce({_between(quote(column), kind, selection.low, selection.high)}, false)"
        return Chunks((RowScope(where, (column,), f"{column} {selection.low} to {selection.high}"),), 1.0)
    if spec.partitions is not None and spec.partitions.every is not None:
        keys = spec.partitions.keys_between(selection.low, selection.high)
        return _of_partitions(lake, spec, keys, max_rows)
    if isinstance(spec, FinalSpec):
        return _of_keys(lake, spec, _keys_of_events(lake, spec, selection.low, selection.high))
    raise BackfillError(
        f"{spec.table} has no partitions by time: name the column of the range with --by: {_ordered(types)}"
    )


def _of_partitions(lake: LakeBase, spec: ComputedSpec, keys: Sequence[str], max_rows: int) -> Chunks:
    if spec.partitions is None:
        raise BackfillError(
            f"{spec.table} has no `partitions`: redo a range of a column (--by, --from, --to), keys (--keys), or "
            "everything (--all)"
        )
    table, types = lake.table(spec.table), columns_of(lake, spec.table)
    rows_of_partitions(spec, keys, types)  # refuses wrong keys before anything is counted
    present = max(1, _partitions_in(table))
    per_partition = max(1, visible_rows(table.current_snapshot()) // present)
    size = max(1, max_rows // per_partition)
    parts = tuple(rows_of_partitions(spec, part, types) for part in _parts(keys, size))
    return Chunks(parts, min(1.0, len(keys) / present))


def _partitions_in(table: Table) -> int:
    """Return the number of partitions that the table's files are in."""
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    return len({str(e.data_file.partition) for m in manifests for e in m.fetch_manifest_entry(table.io)})


# --- ranges -----------------------------------------------------------------------------------------------------------


def _kind_of(spec: ComputedSpec, column: str, types: Mapping[str, str]) -> str:
    """Return the type of a range's column, which has to have an order."""
    kind = types.get(column, "")
    if not _has_order(kind):
        problem = f": {column} is {kind}, which has no order" if kind else f" has no column {column}"
        raise BackfillError(
            f"{spec.table}{problem}{'' if kind else nearest(column, types)}: name a number, date, time or text column "
            f"with --by: {_ordered(types)}"
        )
    return kind


def _has_order(kind: str) -> bool:
    return kind.split("(")[0] in _ORDERED


def _ordered(types: Mapping[str, str]) -> str:
    return ", ".join(c for c, kind in types.items() if _has_order(kind))


def _check_ends(lake: LakeBase, spec: Spec, column: str, kind: str, low: str, high: str) -> None:
    """Raise BackfillError if an end of a range has not the type of its column, or the range is empty."""
    end, compare = _end_of(kind, high)
    first, last = (f"try_cast({literal(text)} AS {kind})" for text in (low, end))
    row = lake.spark().sql(f"SELECT {first} IS NULL, {last} IS NULL, {first} {compare} {last}").collect()[0]
    for option, text, is_wrong in (("--from", low, row[0]), ("--to", high, row[1])):
        if is_wrong:
            raise BackfillError(f"{spec.table}: {column} is {kind}, and {text!r} is not: correct {option}")
    if not row[2]:
        raise BackfillError(f"{spec.table}: {low} is after {high}: swap --from and --to")


def _end_of(kind: str, high: str) -> tuple[str, str]:
    """Return the end of a range, and how values compare with it: a day is included as a whole."""
    # Texts of times sort as the times do.
    if kind.startswith(("timestamp", "string")) and (day := _as_date(high)):
        return (day + timedelta(days=1)).isoformat(), "<"
    return high, "<="


def _between(column: str, kind: str, low: str, high: str) -> str:
    end, compare = _end_of(kind, high)
    return f"{column} >= CAST({literal(low)} AS {kind}) AND {column} {compare} CAST({literal(end)} AS {kind})"


def _as_date(text: str) -> date | None:
    try:
        # Python also accepts 20240105, which does not compare with 2024-01-06 as text.
        return date.fromisoformat(text) if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else None
    except ValueError:
        return None


# --- keys -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Keys:
    """Keys of a table: the columns, and their values as texts."""

    columns: tuple[str, ...]
    rows: list[tuple[str | None, ...]]


def _keys_of_events(lake: LakeBase, spec: FinalSpec, low: str, high: str) -> _Keys:
    """Return the keys of a final table that events of a range of source time touch."""
    key, target = _key_of(lake, spec), Target(lake, spec, is_new=False)
    # The key may have other names in the source.
    of = {} if spec.by_row else dict(zip(target.key, target.source_key, strict=True))
    if missing := [k for k in key if k not in of]:
        raise BackfillError(
            f"{spec.table}: the key column {', '.join(missing)} is computed, so the events of a range do not hold "
            "the keys to redo: name a column of the table with --by, or redo everything (--all)"
        )
    kind = columns_of(lake, spec.staging)[EVENT_TIME]
    _check_ends(lake, spec, EVENT_TIME, kind, low, high)
    events = lake.spark().table(lake.sql_name(spec.staging)).where(_between(EVENT_TIME, kind, low, high))
    keys = events.selectExpr(*(f"{target.projection.source[of[k]][1]} AS {quote(k)}" for k in key)).distinct()
    rows = [row[: len(key)] for row in _texts(keys, columns_of(lake, spec.table))]
    if not rows:
        raise BackfillError(
            f"{spec.table}: there is nothing to redo, since {spec.staging} has no event whose source time "
            f"({EVENT_TIME}) is from {low} to {high}: choose another range, or name a column of the table with --by"
        )
    return _Keys(key, rows)


def _key_of(lake: LakeBase, spec: ComputedSpec) -> tuple[str, ...]:
    if not (key := key_in(lake.table(spec.table))):
        raise BackfillError(
            f"{spec.table} has no key: redo a range of a column (--by, --from, --to), or everything (--all)"
        )
    return key


def _read_keys(lake: LakeBase, spec: ComputedSpec, file: Path) -> _Keys:
    """Return the keys in a file.

    Raises:
        BackfillError: the file cannot be read, has not the columns of the key, or a value has another type.
    """
    key, types = _key_of(lake, spec), columns_of(lake, spec.table)
    if not file.is_file():
        problem = "is a folder: name a file in it" if file.is_dir() else "does not exist: correct its name"
        raise BackfillError(f"--keys: {file.absolute()} {problem}")
    kinds = ", ".join(f"{k} is {types[k]}" for k in key)
    try:
        given = _given(lake.spark().read, file)
        if missing := [k for k in key if k not in given.columns]:
            raise BackfillError(
                f"--keys: {file.name} has no column {', '.join(missing)}, but {', '.join(given.columns) or 'none'}: "
                f"name its columns as the key of {spec.table}, {', '.join(key)}"
            )
        rows = _texts(given.select(*map(quote, key)).distinct(), types)
    except (PySparkException, pa.ArrowException, OSError) as e:
        raise BackfillError(f"--keys: {file.name} cannot be read as keys ({kinds}): {first_line(e)}") from e
    for row in rows:
        for column, value, text in zip(key, row[: len(key)], row[len(key) :], strict=True):
            if value is None and text is not None:
                raise BackfillError(
                    f"{spec.table}: {column} is {types[column]}, and {text!r} in {file.name} is not: correct the file"
                )
    if not rows:
        raise BackfillError(f"--keys: {file.name} has no keys, so there is nothing to redo: write one per line into it")
    return _Keys(key, [row[: len(key)] for row in rows])


def _given(reader: DataFrameReader, file: Path) -> DataFrame:
    # Spark may have begun in another folder, and its errors of files that it cannot read are stack traces.
    path = str(file.absolute())
    file.open("rb").close()
    match file.suffix.lower():
        case ".csv":
            return reader.csv(path, header=True)
        case ".parquet":
            pq.read_schema(path)
            return reader.parquet(path)
        case ".json" | ".jsonl" | ".ndjson":
            rows = reader.json(path)
        case _:
            raise BackfillError(f"--keys: {file.name}: write a .csv with a header, .jsonl or .parquet")
    if _CORRUPT in rows.columns:
        # Spark would give such a line a key of nulls.
        lines = rows.persist()
        try:
            line = lines.where(F.col(_CORRUPT).isNotNull()).collect()[0][_CORRUPT]
        finally:
            lines.unpersist()
        raise BackfillError(f"--keys: {file.name} has a line that is no JSON object, {line[:80]!r}: correct the file")
    return rows


def _texts(keys: DataFrame, types: Mapping[str, str]) -> list[tuple[str | None, ...]]:
    """Return keys as texts of the table's types, null if they have another one, then the same keys as they are given.

    Reads at most one key more than a backfill may redo.
    """
    columns = [F.col(quote(c)) for c in keys.columns]
    typed = [c.try_cast(types[n]).cast("string") for n, c in zip(keys.columns, columns, strict=True)]
    rows = keys.select(*typed, *(c.cast("string") for c in columns)).limit(thresholds.BACKFILL_KEYS + 1).collect()
    return [tuple(row) for row in rows]


def _of_keys(lake: LakeBase, spec: ComputedSpec, keys: _Keys) -> Chunks:
    types, names = columns_of(lake, spec.table), keys.columns
    if len(keys.rows) > thresholds.BACKFILL_KEYS:
        raise BackfillError(
            f"{spec.table}: more than {thresholds.BACKFILL_KEYS:,} keys: redo everything (--all) instead"
        )
    label = plural(len(keys.rows), "key")
    # Comparing structs, null equals null.
    left = f"struct({', '.join(map(quote, names))})"
    rows = [f"struct({', '.join(_value(v, types[n]) for n, v in zip(names, row, strict=True))})" for row in keys.rows]
    most = thresholds.KEYS_A_CHUNK
    parts = [
        RowScope(f"{left} IN ({', '.join(part)})", names, label if len(rows) <= most else plural(len(part), "key"))
        for part in _parts(rows, most)
    ]
    return Chunks(tuple(parts), min(1.0, len(rows) / max(1, visible_rows(lake.table(spec.table).current_snapshot()))))


def _value(text: str | None, kind: str) -> str:
    return f"CAST(NULL AS {kind})" if text is None else f"CAST({literal(text)} AS {kind})"


def _parts(values: Sequence[str], size: int) -> list[Sequence[str]]:
    return [values[at : at + size] for at in range(0, len(values), size)]


def check_exists(lake: LakeBase, spec: Spec) -> None:
    """Raise PipelineError if a table was never run."""
    table = lake.find(spec.table)
    if table is None or table.metadata.current_snapshot_id is None:
        raise PipelineError(
            f"{spec.table} was never run: `lake-assets run FILE` fills it, with the file of pipeline {spec.pipeline!r}"
        )
