"""The plain ways to write: append, MERGE, overwrite. Each is one commit, published if the table is as it was."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.metadata.watermark import Watermarks
from lake_assets.tables.merge_pruning import Pruning
from lake_assets.tables.spark_frames import new_name, over
from lake_assets.tables.spark_tuning import planned_once
from lake_assets.tables.writing.commit_counts import count_properties
from lake_assets.tables.writing.publication import Branch, committing, on_branch

if TYPE_CHECKING:
    from lake_assets.tables.audits.audit_gate import Gate

# The name of a MERGE's source in its SQL.
_SOURCE = new_name()


@dataclass(frozen=True)
class BranchWriter:
    """Writes to one table in one step: each method is one commit of a branch, which is published at its end.

    Attributes:
        before: the table as it was loaded when the step decided what to write; None: there was none, and only
            `all_rows` can write. Nothing is published if another writer has changed the table since.
        types: Spark's types by column of the table, in its order.
        marks: the watermarks of the commit; None: unchanged.
        gate: the audits of the table; None: it has none.
        properties: further properties of the commit.
        settings: table properties that are set with the commit.
        quiet: whether `nothing` commits nothing.
        few: whether the table is small, and few rows are written.
    """

    lake: LakeBase
    table: TableId
    before: Table | None
    types: Mapping[str, str]
    marks: Watermarks | None
    gate: Gate | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    quiet: bool = False
    few: bool = False

    @property
    def name(self) -> str:
        """The table in SQL."""
        return self.lake.sql_name(self.table)

    @contextmanager
    def branch(self, properties: Mapping[str, str] | None = None, *, audited: bool = True) -> Generator[Branch]:
        """Yield a branch to write to; it is published at the end of the context.

        Raises:
            ConcurrentWriteError: another writer has changed the table. Nothing is published.
            AuditFailedError: a blocking audit fails. Nothing is published.
        """
        assert self.before is not None
        gate = self.gate.blocking if self.gate and audited else None
        all_properties = {**self.properties, **(properties or {})}
        with on_branch(self.lake, self.table, self.before, self.marks, gate=gate, properties=all_properties) as branch:
            branch.settings |= self.settings
            yield branch

    def nothing(self) -> None:
        """Move only the watermarks."""
        if not self.quiet:
            with self.branch(audited=False) as branch:
                self.append_to(branch, self.lake.spark().table(self.name).limit(0))

    def append(self, rows: DataFrame, before_publishing: Callable[[], Mapping[str, str] | None] | None = None) -> None:
        """Add rows with the table's columns.

        `before_publishing` is called after they are written; it returns table properties to set when they are
        published.
        """
        with self.branch() as branch:
            self.append_to(branch, rows)
            if before_publishing:
                branch.settings |= before_publishing() or {}

    def append_to(self, branch: Branch, rows: DataFrame) -> None:
        """Add rows to a branch of the table."""
        rows.writeTo(branch.name).append()

    def overwrite(self, rows: DataFrame, where: str = "true") -> None:
        """Replace all rows, or the rows that meet a condition."""
        with self.branch() as branch:
            self.overwrite_on(branch, rows, where)

    def overwrite_on(
        self, branch: Branch, rows: DataFrame, where: str, changed: tuple[int, int, int] | None = None
    ) -> None:
        """Replace the rows of a branch that meet a condition.

        `changed`: how many rows are inserted, updated and deleted, of those that are written.
        """
        with committing(self.lake.spark(), self.table, None, count_properties(*changed) if changed else None):
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
        with self.branch(properties) as branch:
            with planned_once(self.lake, when=self.few, as_one=True):
                sql = f"MERGE INTO {branch.name} t USING {_SOURCE} s ON {condition} {' '.join(clauses)}"
                over(self.lake.spark(), sql, {_SOURCE: rows}, pruning.values if pruning else {})
            if check:
                check(branch)


def insert(columns: Sequence[str]) -> str:
    """Return the INSERT of a MERGE's clause: the columns of the source."""
    return f"INSERT ({', '.join(map(quote, columns))}) VALUES ({', '.join('s.' + quote(c) for c in columns)})"
