"""Random commits by PyIceberg and Spark to one table, and the contents of each snapshot.

PyIceberg appends, overwrites and deletes by filters, upserts, adds files that it did not write, and changes the schema,
the partition spec and the format version (1 and 2). Spark does the rest.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import (
    BooleanExpression,
    EqualTo,
    In,
    IsNaN,
    IsNull,
    LessThan,
    NotEqualTo,
    NotNaN,
    Or,
    StartsWith,
)
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import FloatType, IcebergType, IntegerType, StringType

from lake_assets import Lake

Row = Mapping[str, Any]
OWN = ("id", "g", "v", "x")
TEXTS = ("a", "b", "cc", "", "zé", None)
DOUBLES = (0.0, -0.0, 1.5, math.nan, -math.inf, None)
ADDED: tuple[IcebergType, ...] = (IntegerType(), StringType(), FloatType())
FILTERS: tuple[BooleanExpression, ...] = (
    EqualTo("g", 1),
    NotEqualTo("g", 1),
    IsNull("x"),
    IsNaN("x"),
    NotNaN("x"),
    LessThan("x", 1.0),
    EqualTo("x", 0.0),
    LessThan("id", 4),
    In("id", [1, 5, 9]),
    StartsWith("v", "c"),
    Or(EqualTo("v", "a"), IsNull("g")),
)


class MixedHistory:
    """One table.

    Attributes:
        contents: the rows of each snapshot by field id, as they were read when it was the current one; so they do not
            depend on captures.
        done: what was done, for people who look at a failure.
        refused: how many commits the writers themselves refused.
    """

    def __init__(self, lake: Lake, table: str, seed: int) -> None:
        self.lake, self.table, self.name = lake, table, lake.sql_name(table)
        self.random = random.Random(seed)
        self.contents: dict[int | None, list[dict[int, Any]]] = {None: []}
        self.done: list[str] = []
        self.refused = 0
        self._make()

    def steps(self, count: int) -> None:
        """Commit `count` random changes."""
        writers = (
            *(self._append, self._append, self._overwrite, self._delete, self._delete, self._upsert, self._transaction),
            *(self._add_files, self._evolve, self._repartition, self._roll_back, self._publish),
            *(self._merge, self._merge, self._update, self._update, self._remove, self._overwrite_by_spark),
            *(self._compact, self._compact, self._upgrade, self._cherry_pick),
        )
        for _ in range(count):
            self._commit(self.random.choice(writers))

    def _make(self) -> None:
        pick = self.random.choice
        version, mode = pick(["1", "2", "2", "3"]), pick(["copy-on-write", "merge-on-read"])
        properties = {f"write.{w}.mode": mode for w in ("merge", "update", "delete")} | {
            "format-version": version,
            "write.delete.granularity": pick(["file", "partition"]),
            "write.metadata.metrics.default": pick(["truncate(16)", "counts", "none"]),
            "commit.manifest-merge.enabled": pick(["true", "false"]),
            "commit.manifest.min-count-to-merge": "2",
        }
        by = pick(["", "", "g", "x", "v"])
        listed = ", ".join(f"'{k}'='{v}'" for k, v in properties.items())
        part = f"PARTITIONED BY ({by})" if by else ""
        self._sql(
            f"CREATE TABLE {{t}} (id INT, g INT, v STRING, x DOUBLE) USING iceberg {part} TBLPROPERTIES ({listed})"
        )
        rows = ", ".join(f"({i}, {i % 3}, '{'abc'[i % 3]}', {('0.0D', 'NULL', '-0.0D')[i % 3]})" for i in range(8))
        self._sql(f"INSERT INTO {{t}} VALUES {rows}")
        self._look()

    def _commit(self, change: Callable[[], None]) -> None:
        """Execute a change and record the table's contents; skip it if the writer rejects it."""
        self.done.append(change.__name__)
        try:
            change()
        except Exception as e:
            # Each writer has its own gaps (PyIceberg and format v3, say): they are not what is tested here.
            self.done.append(f"  refused: {type(e).__name__} {str(e)[:120]}")
            self.refused += 1
        self._look()

    def _look(self) -> None:
        table = self._loaded()
        snapshot = table.current_snapshot()
        if snapshot and snapshot.snapshot_id not in self.contents:
            ids = [f.field_id for f in table.schema().fields]
            rows = self.lake.spark().table(self.name).collect()
            self.contents[snapshot.snapshot_id] = [dict(zip(ids, row, strict=True)) for row in rows]

    def _loaded(self) -> Table:
        return self.lake.catalog.load_table(self.table)

    def _sql(self, text: str) -> None:
        self.done.append(f"  {text}")
        self.lake.spark().sql(text.replace("{t}", self.name).replace("{n}", self.table))

    def _extra(self) -> list[str]:
        return [f.name for f in self._loaded().schema().fields if f.name not in OWN]

    # --- PyIceberg ------------------------------------------------------------------------------------------------

    def _rows(self) -> list[Row]:
        pick = self.random.choice
        rows: list[Row] = [
            {"id": self.random.randrange(14), "g": pick([0, 1, 2, None]), "v": pick(TEXTS), "x": pick(DOUBLES)}
            for _ in range(self.random.randrange(1, 5))
        ]
        self.done.append(f"  {rows}")
        return rows

    def _arrow(self, rows: Sequence[Row]) -> pa.Table:
        schema = self._loaded().schema().as_arrow()
        extra: dict[str, Any] = {f.name: "1" if pa.types.is_large_string(f.type) else 1 for f in schema}
        return pa.Table.from_pylist([{**extra, **row} for row in rows], schema)

    def _filter(self) -> BooleanExpression:
        condition = self.random.choice(FILTERS)
        self.done.append(f"  {condition}")
        return condition

    def _append(self) -> None:
        rows = self._rows()
        self._loaded().append(self._arrow([*rows, *rows[:1]]))

    def _overwrite(self) -> None:
        self._loaded().overwrite(self._arrow(self._rows()), overwrite_filter=self._filter())

    def _delete(self) -> None:
        self._loaded().delete(self._filter())

    def _upsert(self) -> None:
        rows = {row["id"]: row for row in self._rows()}
        self._loaded().upsert(self._arrow(list(rows.values())), join_cols=["id"])

    def _transaction(self) -> None:
        """Several snapshots in one commit."""
        some, others, which = self._arrow(self._rows()), self._arrow(self._rows()), self._filter()
        with self._loaded().transaction() as change:
            change.delete(which)
            change.append(some)
            change.append(others)

    def _add_files(self) -> None:
        """Add a file without field ids, whose columns are found by the table's name mapping."""
        table, row = self._loaded(), self._rows()[0]
        path = Path(urlparse(table.location()).path) / f"added-{self.random.getrandbits(60)}.parquet"
        rows = self._arrow([row, {**row, "id": 99}])
        plain = pa.schema([pa.field(f.name, f.type) for f in rows.schema])
        pq.write_table(rows.cast(plain).select([*OWN, *self._extra()[:1]]), path)
        table.add_files([f"file://{path}"])

    def _evolve(self) -> None:
        what, extra = self.random.choice(["add", "add", "drop", "rename", "move"]), self._extra()
        with self._loaded().update_schema() as change:
            if what == "add" or not extra:
                change.add_column(f"c{self.random.randrange(3)}", self.random.choice(ADDED))
            elif what == "drop":
                change.delete_column(extra[0])
            elif what == "rename":
                change.rename_column(extra[0], f"r{len(self.done)}")
            else:
                change.move_first(extra[0])
        self._look()
        self._update()

    def _repartition(self) -> None:
        table, column = self._loaded(), self.random.choice(["g", "x", "v"])
        with table.update_spec() as change:
            if column in [f.name for f in table.spec().fields]:
                change.remove_field(column)
            else:
                change.add_field(column, IdentityTransform(), column)

    def _roll_back(self) -> None:
        table = self._loaded()
        snapshot = self.random.choice(table.metadata.snapshots).snapshot_id
        change = table.manage_snapshots()
        change.rollback_to_snapshot(snapshot).commit()

    def _publish(self) -> None:
        """Publish a branch written by PyIceberg to main."""
        table, branch = self._loaded(), f"b{len(self.done)}"
        snapshot = table.current_snapshot()
        assert snapshot is not None
        table.manage_snapshots().create_branch(snapshot.snapshot_id, branch).commit()
        self._loaded().append(self._arrow(self._rows()), branch=branch)
        self._loaded().delete(self._filter(), branch=branch)
        self._sql(f"CALL lake.system.fast_forward('{{n}}', 'main', '{branch}')")

    # --- Spark ----------------------------------------------------------------------------------------------------

    def _merge(self) -> None:
        n = self.random.randrange(9)
        self._sql(
            f"MERGE INTO {{t}} t USING (SELECT explode(array({n}, {n + 5}, {n + 20})) AS id) s ON t.id = s.id "
            "WHEN MATCHED AND t.g = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET v = 'm' "
            "WHEN NOT MATCHED THEN INSERT (id, g, v, x) VALUES (s.id, s.id % 3, 'n', NULL)"
        )

    def _update(self) -> None:
        change = self.random.choice(["v = concat(v, '1')", "v = v", "g = (g + 1) % 3", "id = id + 1", "x = -x"])
        self._sql(f"UPDATE {{t}} SET {change} WHERE id % 4 = {self.random.randrange(4)}")

    def _remove(self) -> None:
        self._sql(f"DELETE FROM {{t}} WHERE {self.random.choice(['id % 5 = 1', 'g = 1', 'isnan(x)', 'x = 0'])}")

    def _overwrite_by_spark(self) -> None:
        n = self.random.randrange(5)
        rows = f"SELECT id, g, CASE id % 5 WHEN {n} THEN 'o' ELSE v END, x FROM {{t}} WHERE id % 6 <> {n}"
        self._sql(f"INSERT OVERWRITE {{t}} (id, g, v, x) {rows}")

    def _compact(self) -> None:
        call = self.random.choice(["rewrite_data_files", "rewrite_manifests", "rewrite_position_delete_files"])
        options = "" if call == "rewrite_manifests" else ", options => map('rewrite-all', 'true')"
        self._sql(f"CALL lake.system.{call}(table => '{{n}}'{options})")

    def _upgrade(self) -> None:
        self._sql(
            f"ALTER TABLE {{t}} SET TBLPROPERTIES ('format-version'='{min(3, self._loaded().format_version + 1)}')"
        )

    def _cherry_pick(self) -> None:
        """Publish a staged commit after a commit of another writer."""
        conf = self.lake.spark().conf
        self._sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.wap.enabled'='true')")
        conf.set("spark.wap.id", f"w{len(self.done)}")
        try:
            self._sql("INSERT INTO {t} (id, g, v) VALUES (50, 1, 'staged'), (51, 2, 'staged')")
        finally:
            conf.unset("spark.wap.id")
            self._sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('write.wap.enabled')")
        staged = self._loaded().metadata.snapshots[-1].snapshot_id
        self._commit(self._append)
        self._sql(f"CALL lake.system.cherrypick_snapshot('{{n}}', {staged})")
