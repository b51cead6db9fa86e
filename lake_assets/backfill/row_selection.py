"""Which rows of its first table a backfill redoes, as conditions in SQL, cut into chunks."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

from pyiceberg.table import Table
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import BackfillError, PipelineError
from lake_assets.final.final_spec import FinalSpec
from lake_assets.formats.event_model import EVENT_TIME
from lake_assets.lake import LakeBase, quote, thresholds
from lake_assets.lake.column_spelling import spelled
from lake_assets.lake.foreign_errors import first_line
from lake_assets.lake.metadata.row_counts import visible_rows
from lake_assets.lake.names import literal, nearest
from lake_assets.pipeline.row_scope import RowScope, rows_of_partitions
from lake_assets.pipeline.table_graph import ComputedSpec, Spec
from lake_assets.tables.writing.table_ddl import columns_of, key_in

_ORDERED = ("tinyint", "smallint", "int", "bigint", "date", "timestamp", "timestamp_ntz", "float", "double", "string")


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
            raise BackfillError("--by names the column of a range: give --from and --to as well")

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
        column, kind = selection.by, types.get(selection.by, "")
        if kind.split("(")[0] not in (*_ORDERED, "decimal"):
            problem = f"has no column {column}{nearest(column, types)}" if not kind else f"{column} is {kind}"
            raise BackfillError(f"{spec.table}: --by: {problem}; it has {', '.join(types)}")
        label = f"{column} {selection.low} to {selection.high}"
        with _wrong_values(spec, types, [column]):
            ends = (f"CAST({literal(end)} AS {kind})" for end in (selection.low, selection.high))
            lake.spark().sql(f"SELECT {', '.join(ends)}").collect()
        where = f"coalesce({_between(quote(column), kind, selection.low, selection.high)}, false)"
        return Chunks((RowScope(where, (column,), label),), 1.0)
    if spec.partitions is not None and spec.partitions.every is not None:
        keys = spec.partitions.keys_between(selection.low, selection.high)
        return _of_partitions(lake, spec, keys, max_rows)
    if isinstance(spec, FinalSpec):
        return _of_keys(lake, spec, _keys_of_events(lake, spec, selection.low, selection.high))
    raise BackfillError(
        f"{spec.table} has no partitions by time: name the column of the range with --by; it has {', '.join(types)}"
    )


def _of_partitions(lake: LakeBase, spec: ComputedSpec, keys: Sequence[str], max_rows: int) -> Chunks:
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


def _between(column: str, kind: str, low: str, high: str) -> str:
    end, compare = high, "<="
    # Texts of times sort as the times do.
    if kind.startswith(("timestamp", "string")) and (day := _as_date(high)):
        end, compare = (day + timedelta(days=1)).isoformat(), "<"
    return f"{column} >= CAST({literal(low)} AS {kind}) AND {column} {compare} CAST({literal(end)} AS {kind})"


def _as_date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


# --- keys -------------------------------------------------------------------------------------------------------------


def _keys_of_events(lake: LakeBase, spec: FinalSpec, low: str, high: str) -> DataFrame:
    """Return the keys of a final table that events of a range of source time touch."""
    key, staged = _key_of(lake, spec), columns_of(lake, spec.staging)
    if missing := [k for k in key if k not in staged]:
        raise BackfillError(
            f"{spec.table}: the key column {', '.join(missing)} is computed, so the events of a range do not hold "
            "the keys to redo: name a column of the table with --by, or redo everything (--all)"
        )
    events = lake.spark().table(lake.sql_name(spec.staging))
    return events.where(_between(EVENT_TIME, staged[EVENT_TIME], low, high)).select(*map(quote, key)).distinct()


def _key_of(lake: LakeBase, spec: ComputedSpec) -> tuple[str, ...]:
    key = key_in(lake.table(spec.table))
    if isinstance(spec, FinalSpec) and spec.key:
        key = tuple(spelled(k, columns_of(lake, spec.staging)) for k in spec.key)
    if not key:
        raise BackfillError(f"{spec.table} has no key: redo everything (--all), or a range of a column (--by)")
    return tuple(key)


def _read_keys(lake: LakeBase, spec: ComputedSpec, file: Path) -> DataFrame:
    key, reader = _key_of(lake, spec), lake.spark().read
    if not file.is_file():
        raise BackfillError(f"--keys: no file {file}")
    try:
        match file.suffix.lower():
            case ".csv":
                rows = reader.csv(str(file), header=True)
            case ".json" | ".jsonl" | ".ndjson":
                rows = reader.json(str(file))
            case ".parquet":
                rows = reader.parquet(str(file))
            case _:
                raise BackfillError(f"--keys: {file.name}: write a .csv with a header, .jsonl or .parquet")
        if missing := [k for k in key if k not in rows.columns]:
            raise BackfillError(
                f"--keys: {file.name} has no column {', '.join(missing)}; the key of {spec.table} is {', '.join(key)}"
            )
    except PySparkException as e:
        raise BackfillError(f"--keys: {file} cannot be read: {str(e).splitlines()[0]}") from e
    return rows.select(*map(quote, key)).distinct()


def _of_keys(lake: LakeBase, spec: ComputedSpec, keys: DataFrame) -> Chunks:
    types = columns_of(lake, spec.table)
    names = keys.columns
    casts = (F.col(quote(n)).cast(types[n]).cast("string") for n in names)
    with _wrong_values(spec, types, names):
        texts = keys.select(*casts).limit(thresholds.BACKFILL_KEYS + 1).collect()
    if not texts:
        raise BackfillError(f"{spec.table}: the selection has no keys, so there is nothing to redo")
    if len(texts) > thresholds.BACKFILL_KEYS:
        raise BackfillError(
            f"{spec.table}: more than {thresholds.BACKFILL_KEYS:,} keys: redo everything (--all) instead"
        )
    label = f"{len(texts):,} key{'s' if len(texts) != 1 else ''}"
    # Comparing structs, null equals null.
    left = f"struct({', '.join(map(quote, names))})"
    rows = [f"struct({', '.join(_value(v, types[n]) for n, v in zip(names, row, strict=True))})" for row in texts]
    most = thresholds.KEYS_A_CHUNK
    parts = [
        RowScope(f"{left} IN ({', '.join(part)})", tuple(names), label if len(rows) <= most else f"{len(part):,} keys")
        for part in _parts(rows, most)
    ]
    return Chunks(tuple(parts), min(1.0, len(rows) / max(1, visible_rows(lake.table(spec.table).current_snapshot()))))


@contextlib.contextmanager
def _wrong_values(spec: Spec, types: Mapping[str, str], columns: Sequence[str]) -> Generator[None]:
    """Raise BackfillError if Spark cannot convert the values of a selection within the context."""
    try:
        yield
    except PySparkException as e:
        kinds = ", ".join(f"{c} is {types[c]}" for c in columns)
        raise BackfillError(f"{spec.table}: {kinds}, and a value is none: {first_line(e)}") from e


def _value(text: str | None, kind: str) -> str:
    return f"CAST(NULL AS {kind})" if text is None else f"CAST({literal(text)} AS {kind})"


def _parts(values: Sequence[str], size: int) -> list[Sequence[str]]:
    return [values[at : at + size] for at in range(0, len(values), size)]


def check_exists(lake: LakeBase, spec: Spec) -> None:
    """Raise PipelineError if a table was never run."""
    table = lake.find(spec.table)
    if table is None or table.metadata.current_snapshot_id is None:
        raise PipelineError(f"{spec.table} was never run: `lake-assets run` fills it")
