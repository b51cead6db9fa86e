"""Write a model's table: each method makes one commit that carries the watermarks."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import KeyMissingError
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.metadata.row_counts import rows_in
from lake_assets.lake.metadata.watermark import Watermarks
from lake_assets.models.model_spec import FINGERPRINT_PROPERTY
from lake_assets.models.steps.kept_frames import FOUND, SIGN, Frames
from lake_assets.tables.audits.audit_gate import Gate
from lake_assets.tables.commits import committing, counts, on_branch
from lake_assets.tables.merge_pruning import Pruning, prune
from lake_assets.tables.row_differences import FLOATING, distinct, form, same
from lake_assets.tables.spark_frames import new_name, over
from lake_assets.tables.spark_tuning import SMALL_ROWS, planned_once, size_of

# The name of a MERGE's source in its SQL.
_SOURCE = new_name()


class LostRows(Exception):
    """Rows that should be in the table are missing; the message says how many. Caught within this module."""


@dataclass(frozen=True)
class Writer:
    """Writes one model's table in one step.

    Attributes:
        types: Spark's types by column of the table, in its order.
        marks: the watermarks of the commit.
        base: the watermarks before it.
        commit_properties: further properties of the commit.
        frames: rows that are materialized during the step.
        gate: the audits of the table.
        definition: fingerprint of the definition by which the rows are computed. Nothing is published if the table was
            rebuilt by another one. Empty: not compared.
        quiet: whether `nothing` commits nothing.
        few: whether the table is small, and few rows are written.
    """

    lake: LakeBase
    table: TableId
    types: Mapping[str, str]
    marks: Watermarks
    base: Watermarks
    commit_properties: Mapping[str, str]
    frames: Frames
    gate: Gate
    definition: str = ""
    quiet: bool = False
    few: bool = False

    @property
    def name(self) -> str:
        """The table in SQL."""
        return self.lake.sql_name(self.table)

    def nothing(self) -> None:
        """Move only the watermarks."""
        if self.quiet:
            return
        self._append(self.frames.spark.table(self.name).limit(0), None)

    def append(self, rows: DataFrame) -> None:
        """Add rows."""
        self._append(rows, self.gate)

    def overwrite(self, rows: DataFrame, where: str = "true") -> None:
        """Replace all rows, or the rows that meet a condition."""
        with self._to(self.gate) as name, committing(self.frames.spark, self.table, self.marks, self.commit_properties):
            rows.select(*map(quote, self.types)).writeTo(name).overwrite(F.expr(where))

    def replace(
        self,
        rows: DataFrame,
        key: Sequence[str],
        *,
        at_most: int | None = None,
        growth: int | None = None,
        new: int | None = None,
    ) -> None:
        """Update, insert or delete the rows of some keys.

        Args:
            rows: one row per key, in memory; `FOUND` is true for a new row, and null if the key's row is deleted.
            key: the columns that identify a row.
            at_most: the maximum number of rows, if known.
            growth: the number of rows by which the table must grow, if known.
            new: the number of rows with `FOUND`, if known. Only with `growth`.

        Raises:
            LostRows: the table would grow by another number, or several of its rows share a key. Nothing is published.
        """
        if not key:
            self.overwrite(rows.where(FOUND))
            return
        rest = [c for c in self.types if c not in key or self._has_zeros(c)]
        pruning = self._pruned(rows, key, at_most)
        on = " AND ".join(
            [*(f"t.{quote(k)} <=> s.{quote(k)}" for k in key), *([pruning.condition] if pruning.condition else [])]
        )
        differs = " OR ".join(f"NOT ({same(c, self.types[c])})" for c in rest)
        sets = ", ".join(f"t.{quote(c)} = s.{quote(c)}" for c in rest)
        clauses = [
            f"WHEN MATCHED AND s.{FOUND} IS NULL THEN DELETE",
            *([f"WHEN MATCHED AND ({differs}) THEN UPDATE SET {sets}"] if rest else []),
            f"WHEN NOT MATCHED AND s.{FOUND} THEN {self._insert()}",
        ]
        with self._to(self.gate) as name:
            self._merge(f"MERGE INTO {name} t USING {_SOURCE} s ON {on} {' '.join(clauses)}", pruning.values, rows)
            if growth is None:
                return
            actual, written = self._growth(name)
            if actual != growth:
                raise LostRows(
                    "rows to delete are missing in the table, or rows to insert exist already: it would grow by "
                    f"{actual:,} rows instead of {growth:,}"
                )
            if written is not None and new is not None and written > new:
                raise LostRows(f"the table holds several rows of one {', '.join(key)}")

    def adjust(self, rows: DataFrame, key: Sequence[str], clauses: Sequence[str], count: int) -> str:
        """Update, insert or delete the rows of some keys, by their stored values.

        Args:
            rows: one row per key, in memory: `s` in the clauses.
            key: the columns that identify a row.
            clauses: the clauses of a MERGE into the table `t`, which write something for each row.
            count: the number of rows.

        Returns:
            Why nothing was written: the table holds several rows of a key. Empty if the rows were written.
        """
        pruning = self._pruned(rows, key, count)
        on = [*(f"t.{quote(k)} <=> s.{quote(k)}" for k in key), *([pruning.condition] if pruning.condition else [])]
        using = f"USING {_SOURCE} s ON {' AND '.join(on)} {' '.join(clauses)}"
        try:
            with self._to(self.gate) as name:
                self._merge(f"MERGE INTO {name} t {using}", pruning.values, rows)
                if sum(counts(self._written(name))) != count:
                    raise LostRows(f"the table holds several rows of one {', '.join(key)}")
        except LostRows as e:
            return str(e)
        return ""

    def change(self, delta: str, key: Sequence[str]) -> str:
        """Delete and insert rows of a result with a key.

        Args:
            delta: SQL of rows with `SIGN`.
            key: the columns that identify a row of the result.

        Returns:
            Why nothing was written: rows to delete are missing in the table or there twice, or rows to insert exist
                already. Empty if the change was written.

        Raises:
            KeyMissingError: two rows share a key.
        """
        key_columns = ", ".join(map(quote, key))
        values = [
            f"max_by({quote(c)}, __copies) AS {quote(c)}" for c in self.types if c not in key or self._has_zeros(c)
        ]
        selected = [quote(k) for k in key if not self._has_zeros(k)]
        coming = "max(__copies)"
        rows, (count, most, most_gone, growth, new) = self.frames.materialize_with_aggregates(
            f"SELECT {', '.join([*selected, *values])}, IF({coming} > 0, true, NULL) AS {FOUND}, "
            f"sum(IF(__copies > 0, __copies, 0)) AS __coming, sum(IF(__copies < 0, -__copies, 0)) AS __going "
            f"FROM ({net(delta, self.types)}) GROUP BY {key_columns}",
            "count(*)",
            "max(__coming)",
            "max(__going)",
            "sum(__coming - __going)",
            "sum(__coming)",
        )
        if not count:
            self.nothing()
            return ""
        if most > 1:
            duplicate = rows.where("__coming > 1").select(*map(quote, key)).first()
            raise KeyMissingError(
                f"{self.table}: {', '.join(key)} is its key, and the query gives {most} rows for "
                f"{tuple(duplicate or ())}: declare a `key` that identifies each row, or none"
            )
        if most_gone > 1:
            return f"the table holds several rows of one {', '.join(key)}"
        try:
            self.replace(rows.drop("__coming", "__going"), key, at_most=count, growth=growth, new=new)
        except LostRows as e:
            return str(e)
        return ""

    def count_copies(self, delta: str) -> str:
        """Delete and insert rows of a result without a key, by the number of copies of each row.

        Returns:
            Why nothing was written: the table holds fewer copies of a row than the change deletes. Empty if the change
                was written.
        """
        changed, (count, gone) = self.frames.materialize_with_aggregates(
            net(delta, self.types), "count(*)", "count_if(__copies < 0)"
        )
        if not count:
            self.nothing()
            return ""
        columns = list(self.types)
        listed = ", ".join(map(quote, columns))
        view = self.frames.view(changed)
        if not gone:
            self._append(self.frames.sql(f"SELECT {listed} FROM {view} LATERAL VIEW {_times('__copies')}"), self.gate)
            return ""
        deleted = self.frames.materialize(f"SELECT * FROM {view} WHERE __copies < 0")
        pruning = self._pruned(deleted.select(*map(quote, columns)), columns)
        on = " AND ".join(
            [*(same(c, self.types[c]) for c in columns), *([pruning.condition] if pruning.condition else [])]
        )
        deleted_view = self.frames.view(deleted)
        # A MERGE cannot delete one of several equal rows: all are deleted, and the remaining copies written again.
        firsts = ", ".join(f"first(s.{quote(c)}) AS {quote(c)}" for c in columns)
        by = ", ".join(form(f"s.{quote(c)}", k) for c, k in self.types.items())
        remaining, (matched, short) = self.frames.materialize_with_aggregates(
            over(
                self.frames.spark,
                f"SELECT {firsts}, CAST(count(*) + first(s.__copies) AS INT) AS __left FROM {self.name} t "
                f"JOIN {deleted_view} s ON {on} GROUP BY {by}",
                {},
                pruning.values,
            ),
            "count(*)",
            "count_if(__left < 0)",
        )
        if missing := gone - matched + short:
            return f"{missing:,} of {gone:,} rows to delete are missing in the table"
        remaining_view = self.frames.view(remaining)
        source = self.frames.sql(
            f"SELECT {listed}, true AS __goes FROM {deleted_view} UNION ALL "
            f"SELECT {listed}, false FROM {remaining_view} LATERAL VIEW {_times('__left')} UNION ALL "
            f"SELECT {listed}, false FROM {view} LATERAL VIEW {_times('__copies')} WHERE __copies > 0"
        )
        self._merge_copies(on, pruning.values, source)
        return ""

    def differences(self, rows: str) -> None:
        """Replace all rows of a table without a key, by writing those that differ.

        Args:
            rows: SQL of all new rows.
        """
        columns = list(self.types)
        listed = ", ".join(map(quote, columns))
        both = f"SELECT {listed}, 1 AS {SIGN} FROM ({rows}) UNION ALL SELECT {listed}, -1 FROM {self.name}"
        copies = f"CAST(count_if({SIGN} > 0) AS INT) AS __new, CAST(count_if({SIGN} < 0) AS INT) AS __stored"
        changed, (count, gone) = self.frames.materialize_with_aggregates(
            net(both, self.types, copies), "count(*)", "count_if(__stored > __new)"
        )
        if not count:
            self.nothing()
            return
        view = self.frames.view(changed)
        if not gone:
            self._append(self.frames.sql(f"SELECT {listed} FROM {view} LATERAL VIEW {_times('__copies')}"), self.gate)
            return
        # A MERGE cannot delete one of several equal rows: all are deleted, and as many written again as there are now.
        source = self.frames.sql(
            f"SELECT {listed}, true AS __goes FROM {view} WHERE __stored > 0 UNION ALL "
            f"SELECT {listed}, false FROM {view} LATERAL VIEW {_times('__new')}"
        )
        self._merge_copies(" AND ".join(same(c, self.types[c]) for c in columns), {}, source)

    # --- -------------------------------------------------------------------------------------------------------

    def _has_zeros(self, column: str) -> bool:
        """Whether a column may hold zeros of both signs, which are equal as keys."""
        return self.types[column] in FLOATING

    def _pruned(self, rows: DataFrame, key: Sequence[str], at_most: int | None = None) -> Pruning:
        current = self.lake.table(self.table)
        if size_of(current)[1] <= SMALL_ROWS:
            return Pruning("", {}, "the table is small")
        return prune(rows, key, current, at_most=at_most)

    def _growth(self, branch: str) -> tuple[int, int | None]:
        """Return how many more rows a branch of the table has, and how many were written; from summaries if they tell.

        The summary of a commit that rewrites files also counts rows that were there or deleted before.
        """
        snapshot, table = self._written(branch), self.lake.table(self.table)
        if snapshot is None:
            return 0, 0
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        if int(summary.get("deleted-data-files") or 0):
            return self._count(table, snapshot) - self._count(table, table.current_snapshot()), None
        added, hidden, restored = (
            int(summary.get(name) or 0)
            for name in ("added-records", "added-position-deletes", "removed-position-deletes")
        )
        return added - hidden + restored, added

    def _written(self, branch: str) -> Snapshot | None:
        """Return the snapshot that was written to a branch of the table; None if nothing was."""
        table = self.lake.table(self.table)
        snapshot = table.snapshot_by_name(branch.rpartition("`branch_")[2].removesuffix("`"))
        current = table.metadata.current_snapshot_id
        return None if snapshot is None or snapshot.snapshot_id == current else snapshot

    def _count(self, table: Table, snapshot: Snapshot | None) -> int:
        """Return the rows in a snapshot of the table; they are read if its summary does not tell their number."""
        count = rows_in(table, snapshot)
        if snapshot is None or count is not None:
            return count or 0
        return self.frames.spark.read.option("versionAsOf", str(snapshot.snapshot_id)).table(self.name).count()

    def _merge_copies(self, on: str, values: Mapping[str, object], source: DataFrame) -> None:
        """Delete the stored rows that equal a row of `source` with `__goes`, and insert the others."""
        clauses = f"WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND NOT s.__goes THEN {self._insert()}"
        with self._to(self.gate) as name:
            self._merge(f"MERGE INTO {name} t USING {_SOURCE} s ON s.__goes AND {on} {clauses}", values, source)

    def _insert(self) -> str:
        listed = ", ".join(map(quote, self.types))
        return f"INSERT ({listed}) VALUES ({', '.join('s.' + quote(c) for c in self.types)})"

    def _merge(self, sql: str, values: Mapping[str, object], source: DataFrame) -> None:
        spark = self.frames.spark
        once = planned_once(self.lake, when=self.few, as_one=True)
        with once, committing(spark, self.table, self.marks, self.commit_properties):
            over(spark, sql, {_SOURCE: source}, values)

    def _append(self, rows: DataFrame, gate: Gate | None) -> None:
        with committing(self.frames.spark, self.table, None, self.commit_properties), self._to(gate) as name:
            rows.writeTo(name).append()

    @contextmanager
    def _to(self, gate: Gate | None) -> Generator[str]:
        """Yield the name to write to. Nothing is published if another run has moved or rebuilt the table."""
        blocking = gate.blocking if gate else None
        expected = {FINGERPRINT_PROPERTY: self.definition} if self.definition else {}
        with on_branch(self.lake, self.table, self.marks, self.base, blocking, expected) as branch:
            yield branch


def net(delta: str, types: Mapping[str, str], more: str = "") -> str:
    """Return SQL for the distinct rows of a change, with the number of copies to insert or, if negative, to delete.

    Args:
        delta: SQL of rows with `SIGN`.
        types: Spark's types by column of the table, in its order.
        more: further aggregates.
    """
    selected, by = distinct(types)
    return (
        f"SELECT {selected}, CAST(sum({SIGN}) AS INT) AS __copies{', ' if more else ''}{more} "
        f"FROM ({cast(delta, types)}) GROUP BY {by} HAVING sum({SIGN}) <> 0"
    )


def cast(delta: str, types: Mapping[str, str]) -> str:
    """Return SQL for the rows of a change, cast to the table's types."""
    casts = ", ".join(f"CAST({quote(c)} AS {k}) AS {quote(c)}" for c, k in types.items())
    return f"SELECT {casts}, {SIGN} FROM ({delta})"


def _times(copies: str) -> str:
    return f"explode(array_repeat(0, {copies})) copies AS __copy"
