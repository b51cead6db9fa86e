"""The sources of a model at both ends of a step's window, and their changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.capture import Capture
from lake_assets.capture.renamed_columns import reused_names, schema_at
from lake_assets.capture.rows.spark_types import spark_type
from lake_assets.capture.rows.value_differences import SIGN as CAPTURED_SIGN
from lake_assets.capture.source_tags import is_of_others
from lake_assets.lake import LakeBase, TableId, quote, thresholds
from lake_assets.lake.float_columns import guarded
from lake_assets.lake.metadata.row_counts import summary_of, visible_rows
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.names import literal
from lake_assets.lake.rows_in_memory import no_rows
from lake_assets.lake.sensitive_values import SensitiveColumns
from lake_assets.models.operators.kept_frames import Frame, Frames
from lake_assets.models.operators.operator_rows import At
from lake_assets.models.operators.query_tree import Scan
from lake_assets.models.steps.cost_estimate import changed_rows
from lake_assets.models.steps.shared_changes import ChangeId, SharedChanges, SharedRows
from lake_assets.tables.pending_windows import Window
from lake_assets.tables.spark_frames import new_name
from lake_assets.tables.spark_tuning import is_small, planned_once
from lake_assets.tables.writing.row_differences import SIGN

_FLOATS = ("float", "double")
_UNGROUPED = ("float", "double", "map<", "variant", "interval", "collate")


@dataclass
class Sources:
    """The tables that a model reads, in one step.

    Attributes:
        tables: the sources, as loaded at the start of the step.
        captures: the changes of the sources that changed.
        needed: the columns to read by table; all columns of a table that is not listed.
        model: the model that reads them; None: its changes are not shared with other models.
        shared: the changes that the models of the run share.
    """

    lake: LakeBase
    tables: Mapping[TableId, Table]
    windows: Mapping[TableId, Window]
    captures: Mapping[TableId, Capture]
    frames: Frames
    needed: Mapping[TableId, Collection[str]] = field(default_factory=dict[TableId, Collection[str]])
    model: TableId | None = None
    shared: SharedChanges = field(default_factory=SharedChanges)
    _views: dict[tuple[TableId, At], str] = field(default_factory=dict[tuple[TableId, At], str], init=False)
    _feeds: dict[TableId, Frame | None] = field(default_factory=dict[TableId, Frame | None], init=False)

    @property
    def are_sensitive(self) -> bool:
        """Whether one of the sources has columns whose values must not be told."""
        return any(SensitiveColumns.stored(table) for table in self.tables.values())

    def of(self, scan: Scan, at: At) -> str:
        """Return a view over an occurrence of a table."""
        return self.view(scan.table, at)

    def view(self, table: TableId, at: At) -> str:
        """Return a view over a table as of the start or the end of its window, with the current columns."""
        snapshot = self.windows[table].start if at == "start" else self.windows[table].head.snapshot
        if self.windows[table].is_absorbed:
            at = "end"
        if (table, at) not in self._views:
            rows = self._rows_at(table, snapshot)
            rows, columns = self._as_now(table, rows, schema_at(self.tables[table], snapshot))
            self._views[table, at] = self.frames.view(rows.selectExpr(*columns))
        return self._views[table, at]

    def _rows_at(self, table: TableId, snapshot: int | None) -> DataFrame:
        if snapshot is None:  # the source was empty
            columns = (f"{quote(f.name)} {spark_type(f.field_type)}" for f in self.tables[table].schema().fields)
            return no_rows(self.frames.spark, ", ".join(columns))
        return self.lake.rows_at(table, snapshot, self.frames.spark)

    def changed(self) -> bool:
        """Whether any row that the query reads has changed; computes the feeds of all tables in parallel."""
        todo = [t for t in self.captures if t not in self._feeds]
        # One feed is planned while another one is read.
        with planned_once(self.lake, when=self.has_few_changes()), ThreadPoolExecutor(max(1, len(todo))) as pool:
            self._feeds.update(zip(todo, pool.map(self._feed, todo), strict=True))
        return any(feed is not None for feed in self._feeds.values())

    def has_few_changes(self) -> bool:
        """Whether so few rows have changed in all tables together that one task is enough to group them."""
        # All rows of rewritten files are read to determine which have changed.
        rewritten = any(s.operation == "replace" for c in self.captures.values() for s in c.window.steps)
        return not rewritten and self._changed <= thresholds.ONE_TASK_ROWS

    @cached_property
    def _changed(self) -> int:
        return sum(changed_rows(self.tables[t], c)[0] for t, c in self.captures.items() if not c.is_empty)

    def size(self, table: TableId) -> int:
        """Return about how many rows a table has now."""
        return visible_rows(self.tables[table].current_snapshot())

    def feed(self, table: TableId) -> Frame | None:
        """Return the changed rows of a table with `SIGN`; None if no row changed."""
        if table not in self._feeds:
            self._feeds[table] = self._feed(table)
        return self._feeds[table]

    def _feed(self, table: TableId) -> Frame | None:
        shared = self._shared_rows(table)
        if shared and shared.columns == self._kinds(table).keys():
            return Frame(shared.view, shared.count, shared.bounds, self.frames.spark.table(shared.view))
        rows = self._changes(table, shared)
        if rows is None:
            return None
        frame = self.frames.measure(rows, self._kinds(table), self._within(table))
        return frame if frame.rows else None

    def changes(self, table: TableId) -> DataFrame | None:
        """Return the changed rows of a table with `SIGN`, computed only if they are many; None if no row changed."""
        return self._changes(table, self._shared_rows(table))

    def _changes(self, table: TableId, shared: SharedRows | None) -> DataFrame | None:
        capture = self.captures.get(table)
        if capture is None or capture.is_empty or (shared and not shared.count):
            return None
        if shared:
            rows, columns, sign = self.frames.spark.table(shared.view), [quote(c) for c in self._kinds(table)], SIGN
            if shared.columns == self._kinds(table).keys():
                return rows
        else:
            rows = capture.signed(self.frames.spark, self._names_in(capture.schema, table))
            rows, columns = self._as_now(table, rows, capture.schema)
            sign = f"CAST({CAPTURED_SIGN} AS INT) AS {SIGN}"
        return self._net(capture, rows, ", ".join([*columns, sign]), self._kinds(table))

    def _net(self, capture: Capture, rows: DataFrame, selection: str, kinds: Mapping[str, str]) -> DataFrame:
        """Return the selected columns of changed rows, without rows that only differ in other columns."""
        name = new_name()
        both = {f.side for f in capture.files} == {"after", "before"}
        if not both or any(t in k for k in kinds.values() if k not in _FLOATS for t in _UNGROUPED):
            return self.frames.sql(f"SELECT {selection} FROM {name}", {name: rows})
        if self.has_few_changes():
            # One task reads small files, so nothing is shuffled.
            selection = f"/*+ {'COALESCE' if is_small(capture) else 'REPARTITION'}(1) */ {selection}"
        else:
            rows = self.frames.in_one_piece(self.frames.sql(f"SELECT {selection} FROM {name}", {name: rows}))
            selection = "*"
        # Text distinguishes 0.0 from -0.0, and becomes the same number again.
        floats = {c for c, k in kinds.items() if k in _FLOATS}
        by = ", ".join(f"CAST({quote(c)} AS STRING)" if c in floats else quote(c) for c in kinds)
        keys = ", ".join(f"CAST({quote(c)} AS STRING) AS {quote(c)}" if c in floats else quote(c) for c in kinds)
        values = [f"CAST({quote(c)} AS {k}) AS {quote(c)}" if c in floats else quote(c) for c, k in kinds.items()]
        counted = f"{keys}{', ' if keys else ''}CAST(sum({SIGN}) AS INT) AS __n"
        by = f" GROUP BY {by}" if by else ""
        return self.frames.sql(
            f"SELECT {', '.join([*values, f'CAST(signum(__n) AS INT) AS {SIGN}'])} "
            f"FROM (SELECT {counted} FROM (SELECT {selection} FROM {name}){by}) "
            "LATERAL VIEW explode(array_repeat(0, abs(__n))) copies AS __copy",
            {name: rows},
        )

    def _shared_rows(self, table: TableId) -> SharedRows | None:
        """Return the changed rows of a table that another model of the run reads as well."""
        capture = self.captures.get(table)
        if self.model is None or capture is None or capture.is_empty:
            return None
        loaded, window = self.tables[table], self.windows[table]
        schema = loaded.metadata.current_schema_id
        change = ChangeId(table, str(loaded.metadata.table_uuid), window.start, window.head.snapshot, schema)

        def compute(columns: frozenset[str]) -> Frame:
            alone = replace(self, needed={table: columns}, model=None)
            rows = alone.changes(table)
            assert rows is not None
            return self.frames.measure(rows, alone._kinds(table), alone._within(table))

        shared = self.shared.rows(self.lake, self.model, change, compute)
        return shared if shared and self._kinds(table).keys() <= shared.columns else None

    def _names_in(self, schema: Schema, table: TableId) -> set[str] | None:
        """Return the names that the columns read from a table have in another of its schemas; None: all columns."""
        if table not in self.needed:
            return None
        ids = {f.field_id for f in self._fields(table)}
        return {f.name for f in schema.fields if f.field_id in ids}

    def _kinds(self, table: TableId) -> dict[str, str]:
        """Return Spark's types, as simple strings, of the columns that are read from a table."""
        return {f.name: spark_type(f.field_type).lower() for f in self._fields(table)}

    def _fields(self, table: TableId) -> list[NestedField]:
        """Return the columns that are read from a table."""
        fields = self.tables[table].schema().fields
        return [f for f in fields if table not in self.needed or f.name in self.needed[table]]

    def _within(self, table: TableId) -> dict[str, tuple[int, int]]:
        """Return the bounds of whole-number columns in the captured files as of the start, where statistics give
        them."""
        capture, bounds = self.captures[table], dict[str, tuple[int, int]]()
        names = {f.field_id: f.name for f in self.tables[table].schema().fields}
        for f in capture.schema.fields:
            hull = capture.ranges_before.get(f.name)
            if hull and f.field_id in names and isinstance(hull.low, int) and isinstance(hull.high, int):
                bounds[names[f.field_id]] = hull.low, hull.high
        return bounds

    def _as_now(self, table: TableId, rows: DataFrame, schema: Schema) -> tuple[DataFrame, list[str]]:
        """Return rows of an older schema, and the expressions that select the current columns from them. Columns are
        matched by field id; a column that the older schema lacks is null or its default.

        The expressions are SQL: each call of a PySpark function costs several messages to the JVM.
        """
        older_fields = {f.field_id: f for f in schema.fields}
        columns: list[str] = []
        for f in self._fields(table):
            kind, older = spark_type(f.field_type), older_fields.get(f.field_id)
            value = quote(older.name) if older else "NULL"
            if older is None and f.initial_default is not None:
                value = f"__default{f.field_id}"
                rows = rows.withColumn(value, F.lit(f.initial_default))
            value = _cast(value, older.field_type, f.field_type) if older else f"CAST({value} AS {kind})"
            columns.append(f"{guarded(value, kind.lower())} AS {quote(f.name)}")
        return rows, columns


def _cast(value: str, was: IcebergType, now: IcebergType, depth: int = 0) -> str:
    """Return SQL of a value of an older type in the type of now. Fields of structs are matched by field id: Spark casts
    them by their places."""
    inner = f"x{depth}"
    match was, now:
        case _ if was == now:
            return value
        case StructType(), StructType():
            older = {f.field_id: f for f in was.fields}
            values: list[str] = []
            for f in now.fields:
                o = older.get(f.field_id)
                of_field = _cast(f"{value}.{quote(o.name)}", o.field_type, f.field_type, depth) if o else "NULL"
                values.append(f"{literal(f.name)}, {of_field}")
            value = f"IF({value} IS NULL, NULL, named_struct({', '.join(values)}))"
        case ListType(), ListType():
            value = f"transform({value}, {inner} -> {_cast(inner, was.element_type, now.element_type, depth + 1)})"
        case MapType(), MapType():
            of_value = _cast(inner, was.value_type, now.value_type, depth + 1)
            value = f"transform_values({value}, (k{depth}, {inner}) -> {of_value})"
        case _:
            pass
    return f"CAST({value} AS {spark_type(now)})"


def read_in(tables: Mapping[TableId, Table], windows: Mapping[TableId, Window]) -> dict[TableId, Table]:
    """Return the tables of a step with the columns that it reads at the ends of its windows: the current ones.

    If names of columns belong to others since, another program's table has the columns of the end, until a commit
    brings the others. (Steps of a pipeline change the rows of its tables first.)
    """
    return {t: _as_of(table, windows[t].head.snapshot) if t in windows else table for t, table in tables.items()}


def _as_of(table: Table, snapshot: int | None) -> Table:
    then = schema_at(table, snapshot)
    if not is_of_others(table) or not reused_names(then, table.schema()):
        return table
    read = copy(table)
    read.metadata = table.metadata.model_copy(update={"current_schema_id": then.schema_id})
    return read


def has_rows_without(table: Table, snapshot: int | None, field: NestedField) -> bool:
    """Whether a table may have rows, as of a snapshot, that were written before it had a field; if it was empty since,
    it has none."""
    oldest = None
    for oldest in ancestors(table, snapshot):
        if summary_of(oldest).get("total-records") == "0":
            return False
        if schema_at(table, oldest.snapshot_id).find_column_name(field.field_id) is None:
            return True
    return oldest is None or oldest.parent_snapshot_id is not None
