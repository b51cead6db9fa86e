"""The key of a table's rows, as a user names it: which columns, which values, and what identifies a version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.table import Table

from lake_assets.errors import ColumnNotFoundError, LakeError, RowHistoryError
from lake_assets.final.added_columns import FROM
from lake_assets.final.declaration import declaration, spelled_as
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.staging_projection import Projection
from lake_assets.formats.event_model import INDEX, POSITION
from lake_assets.history.wanted_rows import value_of
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.jobs.job_spec import JobSpec
from lake_assets.lake import LakeBase
from lake_assets.lake.column_spelling import spelled
from lake_assets.lake.names import nearest
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.models.steps.planned_models import planned
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables.writing.table_ddl import key_in


@dataclass(frozen=True)
class RowKey:
    """What identifies the rows of a table.

    Attributes:
        columns: the key; empty: rows have none, and any columns select some.
        identity: the columns that identify a version of a row; empty: none do.
        in_staging: for a final table, the name in staging of each column of the key, or of rows without one.
        mode: how a final table keeps its rows; empty for others.
    """

    columns: tuple[str, ...]
    identity: tuple[str, ...]
    in_staging: Mapping[str, str]
    mode: str = ""


def key_of(lake: LakeBase, spec: Spec | None, table: Table) -> RowKey:
    """Return the key of a table; without a declaration, its identifier fields.

    Raises:
        RowHistoryError: it is a raw table.
    """
    match spec:
        case RawSpec():
            raise RowHistoryError(
                f"{spec.table} holds records as they arrived, which have no key: name the final or staging table of a "
                "source table, and `--raw` shows the records"
            )
        case StagingSpec():
            key = () if spec.by_row else key_in(table)
            names = [f.name for f in table.schema().fields]
            return RowKey(key, tuple(c for c in (POSITION, INDEX) if c in names), {k: k for k in key})
        case FinalSpec():
            return _of_final(lake, spec, table)
        case ModelSpec():
            return _same(_of_model(lake, spec, table))
        case PythonModelSpec():
            return _same(spec.model.key)
        case JobSpec() | None:
            schema = table.schema()
            own = [f.name for f in schema.fields if f.field_id in schema.identifier_field_ids]
            return _same(own or key_in(table))


def _same(key: Iterable[str]) -> RowKey:
    return RowKey(tuple(key), tuple(key), {})


def _of_model(lake: LakeBase, spec: ModelSpec, table: Table) -> Sequence[str]:
    try:
        plan = planned(spec, {s: lake.table(s) for s in spec.sources})
    except LakeError:
        return key_in(table)  # its sources have changed, or are gone: its own step says so
    names = {f.name for f in table.schema().fields}
    return plan.key if set(plan.key) <= names else key_in(table)


def _of_final(lake: LakeBase, spec: FinalSpec, table: Table) -> RowKey:
    staging = lake.table(spec.staging)
    spec = spelled_as(spec, staging)
    names = {f.name for f in table.schema().fields}
    items = Projection(lake, spec).items
    plain = {i.name: i.sources[0] for i in items.values() if i.is_plain and i.name in names}
    if spec.by_row:
        return RowKey((), (), plain, "rows without a key")
    source_key: list[str] = declaration(spec, staging)["key"]
    by_source = {source: name for name, source in reversed(plain.items())}
    key = tuple(by_source[k] for k in source_key if k in by_source)
    if not key or len(key) < len(source_key):
        return RowKey((), (), plain, "append" if not source_key else spec.mode)
    identity = {"scd1": key, "scd2": (*key, FROM), "append": ()}[spec.mode]
    return RowKey(key, identity, dict(zip(key, source_key, strict=True)), spec.mode)


# --- what a user has named --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NamedKey:
    """A key that a user has named.

    Attributes:
        values: a value for each named column, spelled as in the table.
        missing: columns of the key without a value.
    """

    values: Mapping[str, Any]
    missing: tuple[str, ...]


def named_key(key: RowKey, table: Table, name: object, words: Sequence[str], nulls: Sequence[str]) -> NamedKey:
    """Return the key in words such as `id=17`, and in names of columns that are null.

    Raises:
        RowHistoryError: a word has no `=`, a column occurs twice, or a value does not fit its column.
        ColumnNotFoundError: the table has no such column, or it is not part of the key.
    """
    every = [f.name for f in table.schema().fields]
    texts: dict[str, str | None] = {}
    for word in words:
        column, found, text = word.partition("=")
        if not found or not column:
            raise RowHistoryError(f"--key {word}: write COLUMN=VALUE, such as --key {(key.columns or ('id',))[0]}=17")
        _add(texts, column, text, every)
    for column in nulls:
        _add(texts, column, None, every)
    known = key.columns or tuple(every)
    for column in texts:
        if column not in known:
            raise ColumnNotFoundError(_no_such(column, every, known, name))
    if not texts:
        example = " ".join(f"--key {c}=VALUE" for c in key.columns) or "--key COLUMN=VALUE"
        has = f"its key is {', '.join(key.columns)}" if key.columns else "it has no key: any columns select rows"
        raise RowHistoryError(f"name a row of {name}: {example} ({has})")
    values = {
        c: None if text is None else value_of(text, table.schema().find_field(c), name) for c, text in texts.items()
    }
    return NamedKey(values, tuple(c for c in key.columns if c not in values))


def _add(texts: dict[str, str | None], column: str, text: str | None, every: Sequence[str]) -> None:
    column = spelled(column, every)
    if column in texts:
        raise RowHistoryError(
            f"--key {column} occurs twice: a row has one value in each column of its key; ask for one row at a time"
        )
    texts[column] = text


def _no_such(column: str, every: Sequence[str], key: Sequence[str], name: object) -> str:
    if column in every:
        return (
            f"{column} is not part of the key of {name}{nearest(column, key)}: its key is {', '.join(key)}. Its "
            "rows are looked up by that"
        )
    near = nearest(column, key) or nearest(column, every)
    return f"{name} has no column {column}{near}: its key is {', '.join(key)}"
