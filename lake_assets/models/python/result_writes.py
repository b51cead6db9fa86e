"""Apply the rows that a Python model returned, as it declares, in one commit with the watermarks."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from lake_assets.errors import ConcurrentWriteError, KeyMissingError, ModelError, SchemaConflictError
from lake_assets.lake import quote, thresholds
from lake_assets.lake.column_spelling import caseless, clashes
from lake_assets.lake.counts import plural
from lake_assets.lake.names import is_of_iceberg
from lake_assets.models.operators.kept_frames import Frame, Frames, has_bounds, types_of
from lake_assets.models.python.model_inputs import Span, matching
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.models.steps.model_step import StepResult
from lake_assets.tables.schema_changes import Change, evolve
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.row_differences import FOUND, duplicate_key, incomparable, signed
from lake_assets.tables.writing.table_ddl import alter, columns_of, definition_of, key_in
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY, PAST_PROPERTY
from lake_assets.tables.writing.table_writer import TableWriter

DELETED = "_deleted"
_FLOATING = ("float", "double")
# Columns that steps add to the rows while they apply them.
_OWN = re.compile(r"__(lake_.*|sign|copies|copy|coming|goes|going|left|new|stored|there)", re.IGNORECASE)


@dataclass(frozen=True)
class ResultWriter:
    """Writes the table of one Python model in one step."""

    commit: Commit
    spec: PythonModelSpec
    frames: Frames

    def nothing(self, why: str) -> StepResult:
        """Move only the watermarks."""
        TableWriter(self.commit).nothing()
        return StepResult("none", why)

    def columns_differ(self, rows: DataFrame, types: Mapping[str, str]) -> bool:
        """Whether returned rows have other columns, or other types, than the table."""
        is_twice = len(types_of(rows)) < len(rows.columns)
        return is_twice or self._types_of(rows) != dict(types)

    def with_columns_of(self, rows: DataFrame) -> ResultWriter:
        """Add the new columns of rows to the table, and return the writer of the table with them.

        Raises:
            ModelError: values of a column no longer fit its type.
            ConcurrentWriteError: another writer has changed the table.
        """
        commit, table = self.commit, self.spec.table
        types = self._types_of(rows)
        self._check(self._unflagged(rows), types)
        commit.check_unchanged()
        existing = columns_of(commit.lake, table)
        for change in [c for name, kind in types.items() for c in self._change(existing, name, kind)]:
            alter(commit.lake, table, change)
        return replace(self, commit=commit.after_own_changes())

    def _change(self, existing: Mapping[str, str], name: str, kind: str) -> list[Change]:
        try:
            changes = evolve(str(self.spec.table), existing, {name: kind})
        except SchemaConflictError:
            changes = [Change("replace", name, kind)]
        if any(c.kind == "replace" for c in changes):
            raise ModelError(
                f"{self.spec.model.where}: model {self.spec.table}: its column {name} is now of type {kind}, and the "
                f"table has {existing[name]}, which cannot hold it; stored rows are not written again: "
                f"{self.spec.model.past}. Cast the column to {existing[name]}, or give it another name"
            )
        return changes

    def everything(self, rows: DataFrame, why: str, *, again: bool) -> StepResult:
        """Replace all rows of the table by the returned ones.

        Args:
            again: whether the table was computed before, so that this is a rebuild.
        """
        rows, spec = self._without_deleted(rows), self.spec
        types, strategy = types_of(rows), "rebuild" if again else "full"
        self._check(rows, types)
        self.commit.check_audits(types)
        if spec.model.key:
            rows = self.frames.materialize(rows)
            self._check_key(rows)
        stored = {} if self.commit.base is None else columns_of(self.commit.lake, spec.table)
        own = {FINGERPRINT_PROPERTY: spec.definition, PAST_PROPERTY: spec.model.past}
        definition = definition_of(spec.pipeline, spec.model.key, own)
        TableWriter(self.commit, stored).all_rows(
            rows, spec.model.key, definition, spec.properties,
            partitioned_by=spec.partitions.field.sql if spec.partitions else "",
        )  # fmt: skip
        return StepResult(strategy, why)

    def apply(self, rows: DataFrame, affected: Frame | None, span: Span | None) -> StepResult:
        """Apply the rows of a change."""
        types, write = columns_of(self.commit.lake, self.spec.table), self.spec.model.write
        self.commit.check_audits(types)
        writer = TableWriter(self.commit, types)
        if self.spec.is_kept:
            # Another declaration may have built the table.
            self._check(self._unflagged(rows), self._types_of(rows))
        rows, columns = self._fitting(rows, types), [quote(c) for c in types]
        match write:
            case "append":
                writer.append(rows.select(*columns))
                return StepResult(write, "its rows are appended")
            case "merge":
                self._merge(writer, rows, types)
                return StepResult(write, f"its rows are merged by {', '.join(self.spec.model.key)}")
            case "overwrite":
                return self.everything(rows, "its rows replace all others", again=False)
            case "replace-keys" | "replace-ranges":
                assert affected is not None
                self._replace(writer, rows.select(*columns), affected, span, types)
                names = ", ".join(self.spec.model.replace)
                if span is None:
                    return StepResult(write, f"rows of {affected.rows:,} values of {names} are replaced")
                column = next(iter(self.spec.model.replace))
                return StepResult(write, f"rows are replaced where {column} is {span.text}")

    @property
    def _flag(self) -> str:
        """The column that marks deleted rows; not a column of the table."""
        return DELETED if self.spec.model.write == "merge" else ""

    def _types_of(self, rows: DataFrame) -> dict[str, str]:
        """Return the types of returned rows by column, without the flag."""
        return {c: k for c, k in types_of(rows).items() if c != self._flag}

    def _unflagged(self, rows: DataFrame) -> DataFrame:
        return rows.drop(self._flag) if self._flag else rows

    def _fitting(self, rows: DataFrame, types: Mapping[str, str]) -> DataFrame:
        """Return rows with the table's columns: those that its former rows alone have are null."""
        existing = types_of(rows)
        if not self.spec.model.past or self._types_of(rows) == dict(types):
            return rows
        own = [quote(c) for c in existing if c == self._flag]
        columns = [f"CAST({quote(c) if c in existing else 'NULL'} AS {k}) AS {quote(c)}" for c, k in types.items()]
        return rows.selectExpr(*columns, *own)

    def check_kept_rows(self, types: Collection[str] = ()) -> None:
        """Raise KeyMissingError if rows that were computed by another declaration share a key of the present one.

        `types` has the columns of new rows; before they are known, a key with a column that the table lacks is passed.
        """
        spec, lake, table = self.spec, self.commit.lake, self.commit.base
        key, before = spec.model.key, key_in(table) if table is not None else ()
        if table is None or not spec.is_kept or not key or (before and set(before) <= set(key)):
            return
        stored = columns_of(lake, spec.table)
        if any(k not in stored and k not in types for k in key):
            return
        columns = (quote(k) if k in stored else f"NULL AS {quote(k)}" for k in key)
        if duplicate := duplicate_key(lake.spark().table(self.commit.name).selectExpr(*columns), key):
            *values, copies = duplicate
            raise KeyMissingError(
                f"{spec.model.where}: model {spec.table}: {', '.join(key)} is declared as its key, and {copies} of the "
                f"rows that it keeps share {tuple(values)}: add columns to the key"
                + (f", or declare the former one ({', '.join(before)})" if before else "")
            ).quoting(tuple(values))

    def _check(self, rows: DataFrame, types: Mapping[str, str]) -> None:
        """Raise ModelError for rows that cannot become a table of this declaration."""
        model, where = self.spec.model, f"{self.spec.model.where}: model {self.spec.table}"
        for setting, names in (("key", model.key), ("replace", model.replace)):
            if missing := [c for c in names if c not in types]:
                raise ModelError(
                    f"{where}: `{setting}` names {', '.join(missing)}; the rows of its function have "
                    f"{', '.join(types)}: name columns among them"
                )
        if duplicates := sorted(caseless(names[0]) for names in clashes(rows.columns)):
            raise ModelError(f"{where}: two columns are called {', '.join(duplicates)}: rename one")
        if reserved := [c for c in types if is_of_iceberg(c)]:
            raise ModelError(f"{where}: {', '.join(reserved)}: Iceberg has columns of this name itself: rename them")
        if own := [c for c in types if _OWN.fullmatch(c)]:
            raise ModelError(f"{where}: {', '.join(own)}: steps add columns of this name to the rows: rename them")
        if unsupported := [f.name for f in rows.schema.fields if not is_storable(f.dataType)]:
            raise ModelError(f"{where}: a table cannot have columns of the type of {', '.join(unsupported)}: cast them")
        for setting, names in (("key", model.key), ("replace", model.replace)):
            if maps := [c for c in names if "map<" in types[c]]:
                raise ModelError(
                    f"{where}: `{setting}` names {', '.join(maps)}: values of MAP cannot be compared. Name other "
                    "columns, or return the values as texts (to_json)"
                )
        if model.write == "replace-ranges":
            check_range(self.spec, types)
        if self.spec.partitions:
            self.spec.partitions.check(self.spec.table, types)
        self.check_kept_rows(types)

    def _check_key(self, rows: DataFrame) -> None:
        if duplicate := duplicate_key(rows, key := self.spec.model.key):
            *values, copies = duplicate
            raise KeyMissingError(
                f"{self.spec.model.where}: model {self.spec.table}: {', '.join(key)} is declared as its key, and its "
                f"function returned {plural(copies, 'row')} for {tuple(values)}: group them, or declare another key"
            ).quoting(tuple(values))

    def _materialize_checked(self, rows: DataFrame) -> DataFrame:
        """Compute rows now and check their key in the same job.

        Rows that a function grouped by the key, or ordered within its first columns, are counted where they are,
        without another shuffle.
        """
        by = ", ".join(map(quote, self.spec.model.key))
        counted = rows.withColumn("__copies", F.expr(f"count(*) OVER (PARTITION BY {by})"))
        materialized, (most,) = self.frames.materialize_with_aggregates(counted, "max(__copies)")
        if most and most > 1:
            self._check_key(materialized)
        return materialized.drop("__copies")

    def _without_deleted(self, rows: DataFrame) -> DataFrame:
        if not self._flag or self._flag not in rows.columns:
            return rows
        self._check_flag(rows)
        return rows.where(f"NOT coalesce({quote(self._flag)}, false)").drop(self._flag)

    def _check_flag(self, rows: DataFrame) -> None:
        kind = types_of(rows).get(DELETED, "boolean")
        if kind != "boolean":
            raise ModelError(
                f"{self.spec.model.where}: model {self.spec.table}: {DELETED} marks rows to delete, and is of type "
                f"{kind}: make it a BOOLEAN"
            )

    def _merge(self, writer: TableWriter, rows: DataFrame, types: Mapping[str, str]) -> None:
        key, spark = self.spec.model.key, self.frames.spark
        self._check_flag(rows)
        materialized = self.frames.materialize(rows)
        self._check_key(materialized)
        if materialized.isEmpty():
            writer.nothing()
            return
        is_deleted = f"coalesce({quote(DELETED)}, false)" if DELETED in rows.columns else "false"
        if incomparable(types):
            # A MERGE cannot compare these rows, so all rows are written again.
            frame = self.frames.measure(materialized.select(*map(quote, key)))
            others = matching(spark.table(writer.commit.name), frame, {k: quote(k) for k in key}, are_not=True)
            new = materialized.where(f"NOT {is_deleted}").select(*map(quote, types))
            writer.overwrite(others.unionByName(new))
            return
        flagged = materialized.selectExpr(*map(quote, types), f"IF({is_deleted}, NULL, true) AS {FOUND}")
        writer.replace(flagged, key)

    def _replace(
        self, writer: TableWriter, rows: DataFrame, affected: Frame, span: Span | None, types: Mapping[str, str]
    ) -> None:
        """Replace the stored rows of the affected values by the returned ones, writing only rows that differ."""
        key = self.spec.model.key
        one_row_each = set(key) == set(self.spec.model.replace) and not any(types[k] in _FLOATING for k in key)
        if span is None and one_row_each and not incomparable(types):
            self._replace_each(writer, rows, affected, types)
            return
        stored = self.frames.spark.table(writer.commit.name)
        names = {c: quote(c) for c in self.spec.model.replace}
        if span is not None:
            where = span.condition(stored, next(iter(names.values())))
            new, old = rows.where(where), stored.where(where)
        else:
            where = ""
            new, old = matching(rows, affected, names), matching(stored, affected, names)
        new = self._materialize_checked(new) if key else self.frames.materialize(new)

        def others() -> DataFrame:
            if where:
                return stored.where(f"NOT coalesce({where}, false)")
            return matching(stored, affected, names, are_not=True)

        if incomparable(types):
            # Iceberg deletes by a condition only whole files: all rows are written again.
            writer.overwrite(others().unionByName(new))
            return
        delta = signed(self.frames.view(new), self.frames.view(old), types)
        if key:
            if not writer.change(delta, key):
                return
            self._check_others(new, others())
            # Another program gave the table several rows of a key: all are replaced.
        if refused := writer.count_copies(delta):
            raise ConcurrentWriteError(f"{self.spec.table}: another writer changed it meanwhile: {refused.reason}")

    def _check_others(self, new: DataFrame, others: DataFrame) -> None:
        """Raise KeyMissingError if stored rows that are not replaced share keys with the new rows."""
        key, model = self.spec.model.key, self.spec.model
        keys = self.frames.measure(new.select(*map(quote, key)).distinct())
        if shared := matching(others, keys, {k: quote(k) for k in key}).select(*map(quote, key)).first():
            by = ", ".join(c for c in model.replace if c not in key)
            raise KeyMissingError(
                f"{model.where}: model {self.spec.table}: {', '.join(key)} is declared as its key, and {tuple(shared)} "
                "is the key of a returned row and of a stored one that is not replaced, since it has other values of "
                f"{', '.join(model.replace)}: add {by} to the key, or correct the inputs"
            ).quoting(tuple(shared))

    def _replace_each(self, writer: TableWriter, rows: DataFrame, affected: Frame, types: Mapping[str, str]) -> None:
        """Replace the one row of each affected key, without reading the stored rows before the MERGE."""
        key = self.spec.model.key
        names = {k: f"__lake_key{i}" for i, k in enumerate(key)}
        keys = affected.frame.select(*(F.col(quote(k)).alias(n) for k, n in names.items()))
        new = rows.withColumn(FOUND, F.lit(True))
        new = F.broadcast(new) if affected.rows <= thresholds.BROADCAST_ROWS else new
        on = reduce(Column.__and__, (F.expr(f"{quote(k)} <=> {n}") for k, n in names.items()))
        columns = [f"{names[c]} AS {quote(c)}" if c in names else quote(c) for c in types]
        joined = self.frames.materialize(keys.join(new, on, "left").selectExpr(*columns, FOUND))
        self._check_key(joined)
        writer.replace(joined, key, at_most=affected.rows)


def check_range(spec: PythonModelSpec, types: Mapping[str, str]) -> None:
    """Raise ModelError if ranges of the replaced column cannot be replaced, or not with `back` and `forward`."""
    (column,), where = spec.model.replace, f"{spec.model.where}: model {spec.table}"
    if not has_bounds(kind := types[column]):
        raise ModelError(
            f"{where}: `replace: {column}` has type {kind}, whose ranges cannot be replaced. Choose a column of "
            "integers, decimals, dates, times or texts, or declare `write: replace-keys`"
        )
    for setting in ("back", "forward"):
        value, by = getattr(spec.model, setting), getattr(spec, setting)
        if by and kind == "string":
            raise ModelError(f"{where}: `{setting}` is for dates, times and numbers, not for {kind}: leave it out")
        has_unit, is_time = not str(value).strip()[-1:].isdigit(), kind.startswith(("date", "timestamp"))
        if by and has_unit != is_time:
            wanted = "a duration, such as 6d or 12h" if is_time else "a number"
            raise ModelError(f"{where}: `{setting}` is {value}, and {column} of type {kind}: write {wanted}")


_UNSTORABLE = (NullType, VariantType, DayTimeIntervalType, YearMonthIntervalType, CalendarIntervalType)


def as_stored(rows: DataFrame) -> DataFrame:
    """Cast columns to the types that Iceberg has for them: it has no SMALLINT, for example."""
    fields = rows.schema.fields
    stored = [_stored(f.dataType) for f in fields]
    # Columns of one name are refused later, with a reason.
    if clashes(rows.columns) or stored == [f.dataType for f in fields]:
        return rows
    return rows.select(*(F.col(quote(f.name)).cast(kind).alias(f.name) for f, kind in zip(fields, stored, strict=True)))


def is_storable(kind: DataType) -> bool:
    """Whether a table can have a column of a type."""
    match kind:
        case ArrayType():
            return is_storable(kind.elementType)
        case MapType():
            return is_storable(kind.keyType) and is_storable(kind.valueType)
        case StructType():
            return all(is_storable(f.dataType) for f in kind.fields)
        case _:
            return not isinstance(kind, _UNSTORABLE)


def _stored(kind: DataType) -> DataType:
    match kind:
        case ByteType() | ShortType():
            return IntegerType()
        case StringType():
            return StringType()
        case ArrayType():
            return ArrayType(_stored(kind.elementType), kind.containsNull)
        case MapType():
            return MapType(_stored(kind.keyType), _stored(kind.valueType), kind.valueContainsNull)
        case StructType():
            return StructType([StructField(f.name, _stored(f.dataType), f.nullable, f.metadata) for f in kind.fields])
        case _:
            return kind
