"""Where a key is in the tables of a lake: the tables downstream of its events, and their columns that hold it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from lake_assets.errors import ErasureError, KeyMissingError
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.target import Target
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.ingest.records.rejects import rejected_of
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.column_spelling import spelled
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline.column_sources import copied_columns
from lake_assets.pipeline.table_graph import Spec
from lake_assets.sources.kept_dumps import kept_of
from lake_assets.tables.pending_windows import known_marks
from lake_assets.tables.writing.table_ddl import columns_of, key_in

_S = TypeVar("_S", RawSpec, StagingSpec)
Kind = Literal["raw", "rejected", "dump", "staging", "final", "model", "own"]


@dataclass(frozen=True)
class KeyedTable:
    """A table that may hold keys.

    Attributes:
        kind: what it is; `dump`: the rows of the last dump of a whole table; `own`: computed by a user's code, which
            does not say what becomes of its rows.
        columns: its columns that hold the key, in the order of the key; empty: none, or unknown.
        is_declared: whether a user named these columns.
    """

    table: TableId
    kind: Kind
    columns: tuple[str, ...] = ()
    is_declared: bool = False


@dataclass(frozen=True)
class KeySource:
    """The table that a key is named in, and the events of its rows.

    Attributes:
        table: the table that the user named.
        columns: its key, as the user spells it.
        staging, raw: where the events and the records are.
        key: SQL of the key's columns over rows of staging, by their names in staging.
        types: their Spark SQL types.
        names: the names of each column in staging and in records, in lower case.
    """

    table: TableId
    columns: tuple[str, ...]
    staging: StagingSpec
    raw: RawSpec
    key: Mapping[str, str]
    types: Mapping[str, str]
    names: tuple[tuple[str, ...], ...]


def source_of(lake: LakeBase, specs: Sequence[Spec], table: TableId) -> KeySource:
    """Return where the key of a final or staging table comes from.

    Raises:
        ErasureError: it is another table, or has no key.
        KeyMissingError, PipelineError: the table's declaration does not match its columns.
    """
    spec = next(s for s in specs if s.table == table)
    if not isinstance(spec, FinalSpec | StagingSpec):
        raise ErasureError(
            f"{table} is {'a raw table' if isinstance(spec, RawSpec) else 'computed from other tables'}: name the "
            "final or staging table whose key is that of the person, and everything downstream of its events follows"
        )
    if not lake.exists(table):
        raise ErasureError(f"{table} does not exist yet: run its pipeline, so that its records are read")
    staging = spec if isinstance(spec, StagingSpec) else _spec(specs, spec.staging, StagingSpec)
    loaded = lake.table(staging.table)
    if isinstance(spec, FinalSpec):
        target = Target(lake, spec, is_new=False)
        key, columns = target.source_key, target.key
        types = {k: target.projection.source[k][0] for k in key if k in target.projection.source}
        sql = {k: target.projection.source[k][1] for k in types}
        is_keyed = bool(key) and not spec.by_row
    else:
        key = columns = key_in(loaded)
        stored = columns_of(lake, table)
        types, sql, is_keyed = {k: stored[k] for k in key}, {k: f"`{k}`" for k in key}, bool(key) and not spec.by_row
    if not is_keyed:
        raise ErasureError(
            f"{table} has no key, so rows of a person cannot be told from others: declare `key` for "
            f"{staging.source_table} and run the pipeline"
        )
    former = [(new, old) for old, new in staging.rename.items()]
    names = tuple(tuple(n.lower() for n in (k, *(old for new, old in former if new == k))) for k in key)
    return KeySource(table, columns, staging, _spec(specs, staging.raw, RawSpec), sql, types, names)


def _spec(specs: Iterable[Spec], table: TableId, kind: type[_S]) -> _S:
    found = next((s for s in specs if s.table == table and isinstance(s, kind)), None)
    if found is None:
        raise ErasureError(f"{table} belongs to another pipeline: name the pipeline that lands its records")
    return found


def keyed_tables(
    lake: LakeBase, specs: Sequence[Spec], source: KeySource, declared: Mapping[TableId, tuple[str, ...]]
) -> list[KeyedTable]:
    """Return the existing tables that records and events of the key flow to, upstream first.

    Args:
        declared: columns that hold the key, of tables whose lineage is unknown.

    Raises:
        ErasureError: a declared column does not exist, or its table is none of these.
    """
    raw, staging = source.raw.table, source.staging.table
    found = {raw: KeyedTable(raw, "raw"), rejected_of(raw): KeyedTable(rejected_of(raw), "rejected")}
    if source.raw.dumps:
        found[kept_of(raw)] = KeyedTable(kept_of(raw), "dump")
    for spec in specs:
        if spec.table == staging:
            found[staging] = KeyedTable(staging, "staging", tuple(source.key))
        elif lake.exists(spec.table) and not isinstance(spec, RawSpec | StagingSpec) and found.keys() & {*spec.sources}:
            found[spec.table] = _keyed(lake, spec, source, found)
    for table, columns in declared.items():
        if table not in found or found[table].kind != "own":
            own = ", ".join(str(t.table) for t in found.values() if t.kind == "own") or "none"
            raise ErasureError(
                f"--column {table}: what becomes of its rows is known without. It is for tables of users' code "
                f"downstream of {source.table}: {own}"
            )
        existing = columns_of(lake, table)
        spelling = tuple(spelled(c, existing) for c in columns)
        missing = [c for c in spelling if c not in existing]
        if missing or len(columns) != len(source.key):
            raise ErasureError(
                f"--column {table}={','.join(columns)}: {table} has {', '.join(existing)}. Name one of them "
                f"for each of {', '.join(source.columns)}, in this order"
            )
        found[table] = KeyedTable(table, "own", spelling, is_declared=True)
    return [t for t in found.values() if lake.exists(t.table)]


def _keyed(lake: LakeBase, spec: Spec, source: KeySource, found: Mapping[TableId, KeyedTable]) -> KeyedTable:
    if isinstance(spec, FinalSpec):
        try:
            items = Target(lake, spec, is_new=False).items
        except KeyMissingError:
            return KeyedTable(spec.table, "final")
        plain = {i.sources[0]: i.name for i in items.values() if i.is_plain}
        return KeyedTable(
            spec.table, "final", tuple(plain[k] for k in source.key) if plain.keys() >= {*source.key} else ()
        )
    if not isinstance(spec, ModelSpec):
        return KeyedTable(spec.table, "own")
    copies = copied_columns(lake, spec)
    for table in (t for t in found.values() if t.columns):
        of = {column: name for name, (origin, column) in copies.items() if origin == table.table}
        if of.keys() >= {*table.columns}:
            return KeyedTable(spec.table, "model", tuple(of[c] for c in table.columns))
    return KeyedTable(spec.table, "model")


def not_covered(lake: LakeBase, specs: Sequence[Spec], source: KeySource, tables: Iterable[KeyedTable]) -> list[str]:
    """Return what an erasure of the key leaves as it is, and why."""
    left: list[str] = []
    raw = source.raw
    if raw.landing is not None:
        again = "; a row that the next dump still has arrives again" if raw.dumps else ""
        left.append(
            f"{raw.landing}: landed files are yours; the report names files and lines of the erased records{again}"
        )
    if raw.source is not None and raw.dumps:
        left.append(f"{raw.source}: a row that its owner's program still writes there arrives again")
    elif raw.source is not None:
        left.append(f"{raw.source}: its owner's program wrote the records there, and has to delete them")
    for t in tables:
        if t.kind == "own" and not t.columns:
            left.append(
                f"{t.table}: computed by code that does not say which column holds the key; if one does, name it: "
                f"--column {t.table}={','.join(c.upper() for c in source.columns)}"
            )
        elif t.kind == "final" and not t.columns:
            left.append(
                f"{t.table}: its columns leave out or change {', '.join(source.key)}: rows cannot be found by it"
            )
    return left


def readers(lake: LakeBase, tables: Collection[TableId]) -> dict[TableId, str]:
    """Return the tables of pipelines that have absorbed one of some tables, and the names of their pipelines."""
    found: dict[TableId, str] = {}
    for name in lake.all_tables():
        loaded = lake.find(name)
        # Commits to tables of rejected records may have the watermark of the step that rejected them.
        pipeline = loaded.properties.get(PIPELINE_PROPERTY) if loaded is not None else None
        if pipeline and {str(t) for t in tables} & known_marks(loaded).keys():
            found[name] = pipeline
    return found
