"""The sources of a model at both ends of a step's window, and their changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.capture import Capture
from lake_assets.capture.rows.spark_types import spark_type
from lake_assets.capture.rows.value_differences import SIGN as CAPTURED_SIGN
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.float_columns import guarded
from lake_assets.models.operators.operator_rows import At
from lake_assets.models.operators.query_tree import Scan, Tree, scans
from lake_assets.models.steps.cost_estimate import changed_rows
from lake_assets.models.steps.kept_frames import ONE_PIECE, SIGN, Frame, Frames
from lake_assets.tables.pending_windows import Window
from lake_assets.tables.spark_frames import new_name
from lake_assets.tables.spark_tuning import is_small, planned_once

_UNGROUPED = ("float", "double", "map<", "variant", "interval", "collate")


@dataclass
class Sources:
    """The tables that a model reads, in one step.

    Attributes:
        tables: the sources, as loaded at the start of the step.
        windows: the window of each source.
        captures: the changes of the sources that changed.
        frames: rows that are materialized during the step.
        needed: the columns to read by table; all columns of a table that is not listed.
    """

    lake: LakeBase
    tables: Mapping[TableId, Table]
    windows: Mapping[TableId, Window]
    captures: Mapping[TableId, Capture]
    frames: Frames
    needed: Mapping[TableId, Collection[str]] = field(default_factory=dict[TableId, Collection[str]])
    _views: dict[tuple[TableId, At], str] = field(default_factory=dict[tuple[TableId, At], str])
    _feeds: dict[TableId, Frame | None] = field(default_factory=dict[TableId, Frame | None])

    def of(self, scan: Scan, at: At) -> str:
        """Return a view over an occurrence of a table."""
        return self.view(scan.table, at)

    def view(self, table: TableId, at: At) -> str:
        """Return a view over a table as of the start or the end of its window, with the current columns."""
        snapshot = self.windows[table].start if at == "start" else self.windows[table].head.snapshot
        if self.windows[table].is_absorbed:
            at = "end"
        if (table, at) not in self._views:
            rows = self.frames.spark.read.option("versionAsOf", str(snapshot)).table(self.lake.sql_name(table))
            rows, columns = self._as_now(table, rows, self._schema_of(table, snapshot))
            self._views[table, at] = self.frames.view(rows.selectExpr(*columns))
        return self._views[table, at]

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
        return not rewritten and self._changed <= ONE_PIECE

    @cached_property
    def _changed(self) -> int:
        return sum(changed_rows(self.tables[t], c)[0] for t, c in self.captures.items() if not c.is_empty)

    def type_of(self, table: TableId, column: str) -> str:
        """Return Spark's type of a table's column, as a simple string."""
        return next(spark_type(f.field_type).lower() for f in self.tables[table].schema().fields if f.name == column)

    def feed(self, table: TableId) -> Frame | None:
        """Return the changed rows of a table with `SIGN`; None if no row changed."""
        if table not in self._feeds:
            self._feeds[table] = self._feed(table)
        return self._feeds[table]

    def _feed(self, table: TableId) -> Frame | None:
        rows = self.changes(table)
        if rows is None:
            return None
        frame = self.frames.measure(rows, self._kinds(table), self._within(table))
        return frame if frame.rows else None

    def changes(self, table: TableId) -> DataFrame | None:
        """Return the changed rows of a table with `SIGN`, computed only if they are many; None if no row changed."""
        capture = self.captures.get(table)
        if capture is None or capture.is_empty:
            return None
        name = new_name()
        changes, columns = self._as_now(table, capture.signed(self.frames.spark), capture.schema)
        selection = ", ".join([*columns, f"CAST({CAPTURED_SIGN} AS INT) AS {SIGN}"])
        kinds = self._kinds(table)
        both = {f.side for f in capture.files} == {"after", "before"}
        if not both or any(t in k for k in kinds.values() for t in _UNGROUPED):
            return self.frames.sql(f"SELECT {selection} FROM {name}", {name: changes})
        # Rows that differ only in columns that the query does not read have not changed for it.
        if self.has_few_changes():
            # One task reads small files, so nothing is shuffled.
            selection = f"/*+ {'COALESCE' if is_small(capture) else 'REPARTITION'}(1) */ {selection}"
        else:
            rows = self.frames.sql(f"SELECT {selection} FROM {name}", {name: changes})
            changes, selection = self.frames.in_one_piece(rows), "*"
        names = [quote(c) for c in kinds]
        counted = ", ".join([*names, f"CAST(sum({SIGN}) AS INT) AS __n"])
        by = f" GROUP BY {', '.join(names)}" if names else ""
        return self.frames.sql(
            f"SELECT {', '.join([*names, f'CAST(signum(__n) AS INT) AS {SIGN}'])} "
            f"FROM (SELECT {counted} FROM (SELECT {selection} FROM {name}){by}) "
            "LATERAL VIEW explode(array_repeat(0, abs(__n))) copies AS __copy",
            {name: changes},
        )

    def _kinds(self, table: TableId) -> dict[str, str]:
        """Return Spark's types, as simple strings, of the columns that are read from a table."""
        columns = (
            f for f in self.tables[table].schema().fields if table not in self.needed or f.name in self.needed[table]
        )
        return {f.name: spark_type(f.field_type).lower() for f in columns}

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

    def _schema_of(self, table: TableId, snapshot: int | None) -> Schema:
        current = self.tables[table]
        snapshot_entry = current.snapshot_by_id(snapshot) if snapshot is not None else None
        schemas = current.schemas()
        return (
            schemas.get(snapshot_entry.schema_id, current.schema())
            if snapshot_entry and snapshot_entry.schema_id is not None
            else current.schema()
        )

    def _as_now(self, table: TableId, rows: DataFrame, schema: Schema) -> tuple[DataFrame, list[str]]:
        """Return rows of an older schema, and the expressions that select the current columns from them. Columns are
        matched by field id; a column that the older schema lacks is null or its default.

        The expressions are SQL: each call of a PySpark function costs several messages to the JVM.
        """
        older_fields = {f.field_id: f for f in schema.fields}
        columns: list[str] = []
        for f in self.tables[table].schema().fields:
            if table in self.needed and f.name not in self.needed[table]:
                continue
            kind, older = spark_type(f.field_type), older_fields.get(f.field_id)
            value = quote(older.name) if older else "NULL"
            if older is None and f.initial_default is not None:
                value = f"__default{f.field_id}"
                rows = rows.withColumn(value, F.lit(f.initial_default))
            value = value if older and older.field_type == f.field_type else f"CAST({value} AS {kind})"
            columns.append(f"{guarded(value, kind.lower())} AS {quote(f.name)}")
        return rows, columns


def needed_columns(tree: Tree) -> dict[TableId, set[str]]:
    """Return the columns of each table that a compiled query reads."""
    columns: dict[TableId, set[str]] = {}
    for scan in scans(tree.root):
        columns.setdefault(scan.table, set()).update(scan.fields.values())
    return columns
