"""The plain ways to write: append, MERGE, overwrite. Each is one commit, published if the table is as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.lake import quote
from lake_assets.tables.merge_pruning import Pruning
from lake_assets.tables.spark_frames import new_name, over
from lake_assets.tables.spark_tuning import planned_once
from lake_assets.tables.writing.commit_counts import count_properties
from lake_assets.tables.writing.publication import Branch, Commit, committing

# The name of a MERGE's source in its SQL.
_SOURCE = new_name()


@dataclass(frozen=True)
class BranchWriter:
    """Writes to one table in one step: each method is one commit of a branch, which is published at its end.

    Attributes:
        commit: what is committed; without its `base`, only `all_rows` can write.
        types: Spark's types by column of the table, in its order.
        quiet: whether `nothing` commits nothing.
        few: whether the table is small, and few rows are written.
    """

    commit: Commit
    types: Mapping[str, str] = field(default_factory=dict)
    quiet: bool = False
    few: bool = False

    def nothing(self) -> None:
        """Move only the watermarks."""
        if not self.quiet:
            with self.commit.branch(audited=False) as branch:
                self.append_to(branch, self.commit.lake.spark().table(self.commit.name).limit(0))

    def append(self, rows: DataFrame, before_publishing: Callable[[], Mapping[str, str] | None] | None = None) -> None:
        """Add rows with the table's columns.

        `before_publishing` is called after they are written; it returns table properties to set when they are
        published.
        """
        with self.commit.branch() as branch:
            self.append_to(branch, rows)
            if before_publishing:
                branch.settings |= before_publishing() or {}

    def append_to(self, branch: Branch, rows: DataFrame) -> None:
        """Add rows to a branch of the table."""
        rows.writeTo(branch.name).append()

    def overwrite(self, rows: DataFrame, where: str = "true") -> None:
        """Replace all rows, or the rows that meet a condition."""
        with self.commit.branch() as branch:
            self.overwrite_on(branch, rows, where)

    def overwrite_on(
        self, branch: Branch, rows: DataFrame, where: str, changed: tuple[int, int, int] | None = None
    ) -> None:
        """Replace the rows of a branch that meet a condition.

        `changed`: how many rows are inserted, updated and deleted, of those that are written.
        """
        counted = count_properties(*changed) if changed else {}
        with committing(self.commit.lake.spark(), self.commit.table, counted):
            rows.select(*map(quote, self.types)).writeTo(branch.name).overwrite(F.expr(where))

    def merge(
        self,
        rows: DataFrame,
        on: str,
        clauses: Sequence[str],
        pruning: Pruning | None = None,
        check: Callable[[Branch], None] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """MERGE rows, `s`, into the table, `t`.

        Args:
            rows: the rows.
            on: the condition.
            clauses: the clauses that follow it.
            pruning: conditions that only rows of the table meet that the MERGE may change.
            check: called with the branch before it is published.
            properties: further properties of the commit.
        """
        condition = f"{on} AND {pruning.condition}" if pruning and pruning.condition else on
        lake = self.commit.lake
        with self.commit.branch(properties) as branch:
            with planned_once(lake, when=self.few, as_one=True):
                sql = f"MERGE INTO {branch.name} t USING {_SOURCE} s ON {condition} {' '.join(clauses)}"
                over(lake.spark(), sql, {_SOURCE: rows}, pruning.values if pruning else {})
            if check:
                check(branch)


def insert(columns: Sequence[str]) -> str:
    """Return the INSERT of a MERGE's clause: the columns of the source."""
    return f"INSERT ({', '.join(map(quote, columns))}) VALUES ({', '.join('s.' + quote(c) for c in columns)})"
