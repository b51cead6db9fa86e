"""Writing a model's table: each function makes one commit that carries the watermarks."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import KeyMissingError
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.metadata.watermark import Watermarks
from lake_assets.models.steps.kept_frames import SIGN, Frames
from lake_assets.models.steps.retract import FOUND
from lake_assets.tables.audits.audit_gate import Gate
from lake_assets.tables.commits import append_if_unmoved, committing, on_branch
from lake_assets.tables.merge_pruning import Pruning, prune
from lake_assets.tables.row_differences import form, same
from lake_assets.tables.spark_frames import new_name, over
from lake_assets.tables.spark_tuning import SMALL_ROWS, planned_once, size_of

# What a MERGE takes from, in its SQL.
_SOURCE = new_name()


class LostRows(Exception):
    """The table does not hold what it has to; says how much. Never leaves this module."""


@dataclass(frozen=True)
class Writer:
    """Writes one model's table in one step.

    Attributes:
        types: Spark's types by column of the table, in its order.
        marks: the watermarks that the commit carries.
        base: those that the table has before.
        said: other properties of the commit.
        gate: the audits of the table.
        quiet: whether nothing is committed where nothing differs.
        few: whether the table is small, and so is what comes into it.
    """

    lake: LakeBase
    table: TableId
    types: Mapping[str, str]
    marks: Watermarks
    base: Watermarks
    said: Mapping[str, str]
    frames: Frames
    gate: Gate
    quiet: bool = False
    few: bool = False

    @property
    def name(self) -> str:
        """The table in SQL."""
        return self.lake.sql_name(self.table)

    def nothing(self) -> None:
        """Move the watermarks alone."""
        if self.quiet:
            return
        self._append(self.frames.spark.table(self.name).limit(0), None)

    def append(self, rows: DataFrame) -> None:
        """Add rows."""
        self._append(rows, self.gate)

    def overwrite(self, rows: DataFrame, where: str = "true", *, exclusive: bool = False) -> None:
        """Replace all rows, or those of a condition."""
        with self._to(exclusive) as name, committing(self.frames.spark, self.table, self.marks, self.said):
            rows.select(*map(quote, self.types)).writeTo(name).overwrite(F.expr(where))

    def replace(
        self,
        rows: DataFrame,
        key: Sequence[str],
        *,
        exclusive: bool,
        at_most: int | None = None,
        growth: int | None = None,
    ) -> None:
        """Write the rows of some keys.

        Args:
            rows: one a key; without `FOUND` the key's row goes. Held in memory.
            key: tells rows apart.
            exclusive: whether the new rows are made of the old ones, so that another run's commit in between must not
                be lost.
            at_most: how many rows there can be, where that is known.
            growth: by how many rows the table has to grow, where that is known. Only with `exclusive`.

        Raises:
            LostRows: it would grow by another number. Nothing is published.
        """
        if not key:
            found = rows.where(FOUND)
            with self._to(exclusive) as name, committing(self.frames.spark, self.table, self.marks, self.said):
                found.select(*map(quote, self.types)).writeTo(name).overwrite(F.lit(True))
            return
        rest = [c for c in self.types if c not in key]
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
        with self._to(exclusive) as name:
            self._merge(f"MERGE INTO {name} t USING {_SOURCE} s ON {on} {' '.join(clauses)}", pruning.values, rows)
            if growth is not None and (found := self._growth(name)) not in (None, growth):
                raise LostRows(f"{abs(growth - found):,} keys are not in the table as often as they were computed")

    def change(self, delta: str, key: Sequence[str]) -> str:
        """Take out and put in rows of a result with a key.

        Args:
            delta: SQL of rows with `SIGN`.
            key: no two rows of the result share its values.

        Returns:
            Why nothing was written: the table does not hold rows that are to be removed, or holds those that are to be
            added. Empty: it was.

        Raises:
            KeyMissingError: two rows do.
        """
        changed = self.frames.kept(net(delta, self.types))
        listed = ", ".join(map(quote, key))
        rest = [c for c in self.types if c not in key]
        new = [f"max_by({quote(c)}, __copies) AS {quote(c)}" for c in rest]
        coming = "max(__copies)"
        rows = self.frames.sql(
            f"SELECT {', '.join([listed, *new])}, IF({coming} > 0, true, NULL) AS {FOUND}, "
            f"sum(IF(__copies > 0, __copies, 0)) AS __coming, max(IF(__copies < 0, 1, 0)) AS __going "
            f"FROM {self.frames.view(changed)} GROUP BY {listed}"
        )
        rows = self.frames.kept(rows)
        looks = [("n", "count(*)"), ("most", "max(__coming)"), ("growth", "sum(__coming - __going)")]
        looked = rows.agg(*(F.expr(e).alias(n) for n, e in looks)).collect()[0]
        if not looked["n"]:
            self.nothing()
            return ""
        if looked["most"] > 1:
            twice = rows.where("__coming > 1").select(*map(quote, key)).first()
            raise KeyMissingError(
                f"{self.table}: {', '.join(key)} is its key, and the query gives {looked['most']} rows for {twice}: "
                "declare a `key` that tells rows apart, or leave it out"
            )
        try:
            self.replace(rows.drop("__coming", "__going"), key, exclusive=True, growth=looked["growth"])
        except LostRows as e:
            return str(e)
        return ""

    def count_copies(self, delta: str) -> str:
        """Take out and put in rows of a result in which rows may be alike: as many as the change says.

        Returns:
            Why nothing was written: the table holds fewer copies of a row than are to be removed. Empty: it was.
        """
        changed = self.frames.kept(net(delta, self.types))
        look = changed.agg(
            F.count("*").alias("n"), F.count_if(F.col("__copies") < 0).alias("gone")
        ).collect()[0]  # fmt: skip
        if not look["n"]:
            self.nothing()
            return ""
        columns = list(self.types)
        listed = ", ".join(map(quote, columns))
        view = self.frames.view(changed)
        if not look["gone"]:
            self._append(self.frames.sql(f"SELECT {listed} FROM {view} LATERAL VIEW {_times('__copies')}"), self.gate)
            return ""
        going = self.frames.kept(f"SELECT * FROM {view} WHERE __copies < 0")
        pruning = self._pruned(going.select(*map(quote, columns)), columns)
        on = " AND ".join(
            [*(same(c, self.types[c]) for c in columns), *([pruning.condition] if pruning.condition else [])]
        )
        going_view = self.frames.view(going)
        # Of rows that are alike one cannot go alone: all go, and those that stay are written again.
        firsts = ", ".join(f"first(s.{quote(c)}) AS {quote(c)}" for c in columns)
        by = ", ".join(form(f"s.{quote(c)}", k) for c, k in self.types.items())
        there, (found, short) = self.frames.looked_at(
            self.frames.spark.sql(
                f"SELECT {firsts}, CAST(count(*) + first(s.__copies) AS INT) AS __left FROM {self.name} t "
                f"JOIN {going_view} s ON {on} GROUP BY {by}",
                args=pruning.values or None,
            ),
            "count(*)",
            "count_if(__left < 0)",
        )
        if missing := look["gone"] - found + short:
            return f"{missing:,} of {look['gone']:,} rows to remove are not in the table as often as they were computed"
        left = self.frames.view(there)
        source = self.frames.sql(
            f"SELECT {listed}, true AS __goes FROM {going_view} UNION ALL "
            f"SELECT {listed}, false FROM {left} LATERAL VIEW {_times('__left')} UNION ALL "
            f"SELECT {listed}, false FROM {view} LATERAL VIEW {_times('__copies')} WHERE __copies > 0"
        )
        clauses = f"WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND NOT s.__goes THEN {self._insert()}"
        with self._to(True) as name:
            self._merge(f"MERGE INTO {name} t USING {_SOURCE} s ON s.__goes AND {on} {clauses}", pruning.values, source)
        return ""

    # --- -------------------------------------------------------------------------------------------------------

    def _pruned(self, rows: DataFrame, key: Sequence[str], at_most: int | None = None) -> Pruning:
        current = self.lake.table(self.table)
        if size_of(current)[1] <= SMALL_ROWS:
            return Pruning("", {}, "the table is small")
        return prune(rows, key, current, at_most=at_most)

    def _growth(self, branch: str) -> int | None:
        """By how many rows a branch of the table is larger, as the summary of its commit says; None: it does not say.

        Where files are rewritten, Iceberg counts rows that were deleted before.
        """
        table = self.lake.table(self.table)
        found = table.snapshot_by_name(branch.rpartition("`branch_")[2].removesuffix("`"))
        if found is None or found.snapshot_id == table.metadata.current_snapshot_id:
            return 0 if found else None
        summary = found.summary.additional_properties if found.summary else {}
        if int(summary.get("deleted-data-files") or 0):
            return None
        added, hidden, shown = (
            int(summary.get(name) or 0)
            for name in ("added-records", "added-position-deletes", "removed-position-deletes")
        )
        return added - hidden + shown

    def _insert(self) -> str:
        listed = ", ".join(map(quote, self.types))
        return f"INSERT ({listed}) VALUES ({', '.join('s.' + quote(c) for c in self.types)})"

    def _merge(self, sql: str, values: Mapping[str, object], source: DataFrame) -> None:
        spark = self.frames.spark
        once = planned_once(self.lake, when=self.few, as_one=True)
        with once, committing(spark, self.table, self.marks, self.said):
            over(spark, sql, {_SOURCE: source}, values)

    def _append(self, rows: DataFrame, gate: Gate | None) -> None:
        with committing(self.frames.spark, self.table, None, self.said):
            append_if_unmoved(self.lake, self.table, rows, self.marks, self.base, gate=gate and gate.blocking)

    @contextmanager
    def _to(self, exclusive: bool) -> Generator[str]:
        """The name to write under; exclusive: nothing of it is seen where another run has moved the table."""
        if not exclusive and not self.gate.is_blocking:
            yield self.name
            return
        with on_branch(self.lake, self.table, self.marks, self.base, self.gate.blocking) as branch:
            yield branch


def net(delta: str, types: Mapping[str, str]) -> str:
    """SQL: the distinct rows of a change with how many more or fewer there are.

    Args:
        delta: SQL of rows with `SIGN`.
        types: Spark's types by column of the table, in its order.
    """
    by = ", ".join(form(quote(c), k) for c, k in types.items())
    firsts = ", ".join(f"first({quote(c)}) AS {quote(c)}" for c in types)
    return (
        f"SELECT {firsts}, CAST(sum({SIGN}) AS INT) AS __copies "
        f"FROM ({cast(delta, types)}) GROUP BY {by} HAVING sum({SIGN}) <> 0"
    )


def cast(delta: str, types: Mapping[str, str]) -> str:
    """SQL: the rows of a change in the table's types."""
    casts = ", ".join(f"CAST({quote(c)} AS {k}) AS {quote(c)}" for c, k in types.items())
    return f"SELECT {casts}, {SIGN} FROM ({delta})"


def _times(copies: str) -> str:
    return f"explode(array_repeat(0, {copies})) copies AS __copy"
