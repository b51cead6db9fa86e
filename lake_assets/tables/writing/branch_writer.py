"""The plain ways to write: append, MERGE, overwrite. Each is one commit, published if the table is as it was."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import Refused
from lake_assets.lake import quote
from lake_assets.tables.merge_pruning import Pruning
from lake_assets.tables.spark_frames import new_name, over
from lake_assets.tables.spark_tuning import planned_once
from lake_assets.tables.writing._compat import commit_files
from lake_assets.tables.writing.commit_counts import count_properties, merge_properties
from lake_assets.tables.writing.merge_clauses import Clause, Match
from lake_assets.tables.writing.merge_pairs import HeldRows, frame_of
from lake_assets.tables.writing.position_merge import PositionMerge, find
from lake_assets.tables.writing.publication import Branch, Commit, committing
from lake_assets.tables.writing.races import is_unknown

log = logging.getLogger(__name__)
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
        rows: DataFrame | HeldRows,
        on: Match | str,
        clauses: Sequence[Clause | str],
        prune: Callable[[], Pruning | None] = lambda: None,
        check: Callable[[Branch], None] | None = None,
        properties: Mapping[str, str] | None = None,
        at_most: int | None = None,
    ) -> str:
        """MERGE rows, `s`, into the table, `t`: by position, if few rows with a key change, or by Spark.

        Args:
            rows: the rows.
            on: the condition; SQL if it is more than a key.
            clauses: what happens to matched and other rows; SQL for what `Clause` does not express.
            prune: returns conditions that only rows of the table meet that the MERGE may change; called if Spark looks
                for them.
            check: called with the branch before it is published.
            properties: further properties of the commit.
            at_most: the maximum number of rows, if known.

        Returns:
            How the rows were found, for the outcome.
        """
        lake = self.commit.lake
        if isinstance(on, Match) and not any(isinstance(c, str) for c in clauses):
            plain = [c for c in clauses if isinstance(c, Clause)]
            with planned_once(lake, when=self.few, as_one=True):
                merge = find(lake.spark(), self.commit.existing, self.types, rows, on, plain, at_most)
            if not isinstance(merge, Refused):
                self._by_position(merge, check, properties)
                return f"{merge.searched:,} key{'' if merge.searched == 1 else 's'}, found by position"
            log.debug("%s: MERGE by Spark: %s", self.commit.table, merge.reason)
        pruning = prune()
        condition = on.sql if isinstance(on, Match) else on
        if pruning and pruning.condition:
            condition = f"{condition} AND {pruning.condition}"
        texts = [c if isinstance(c, str) else c.sql for c in clauses]
        with self.commit.branch(properties) as branch:
            with planned_once(lake, when=self.few, as_one=True):
                sql = f"MERGE INTO {branch.name} t USING {_SOURCE} s ON {condition} {' '.join(texts)}"
                over(lake.spark(), sql, {_SOURCE: frame_of(rows, lake.spark())}, pruning.values if pruning else {})
            if check:
                check(branch)
        return pruning.why if pruning else ""

    def _by_position(
        self,
        merge: PositionMerge,
        check: Callable[[Branch], None] | None,
        properties: Mapping[str, str] | None,
    ) -> None:
        """Commit the changes of a MERGE whose rows were found."""
        counted = {**merge_properties(*merge.counts), **(properties or {})}
        with self.commit.branch(counted) as branch:
            files = merge.written()
            try:
                commit_files(self.commit.lake.spark(), self.commit.name, branch.ref, files, branch.properties)
            except Exception as e:
                # The table may have them otherwise: from then on, its snapshots own them.
                if not is_unknown(e):
                    files.delete_all()
                raise
            if check:
                check(branch)
