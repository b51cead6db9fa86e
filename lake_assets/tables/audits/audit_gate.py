"""Publish behind audits: they are evaluated on the branch that a batch is written to, before main follows it.

An audit of single rows, or of rows that share values, need not check rows that have passed it before: a commit stores
which audits the table passed (`AUDITED_PROPERTY`), and until another writer changes rows, only the rows of the batch
are checked. All other audits check the whole table. Why on a branch: docs/decisions/0018-audits.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence

from pyiceberg.table import Table
from pyspark.sql import DataFrame

from lake_assets.capture import capture
from lake_assets.errors import AuditFailedError, PipelineError, UnsupportedCaptureError
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.row_counts import keeps_rows
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.tables.audits.audit_evaluation import AuditedRows, Evaluation, Finding, check_audits, unique_columns
from lake_assets.tables.audits.audit_kinds import Audit, ColumnAudit, Unique
from lake_assets.tables.spark_frames import checkpoint
from lake_assets.tables.spark_tuning import tuned_for

# Branch of a failed batch, kept until the next attempt or its expiry.
FAILED_BRANCH, FAILED_RETAINED_DAYS = "failed_audit", 7
AUDITED_PROPERTY = "lake-assets.audited"


class Gate:
    """The audits of one table in one step.

    Attributes:
        findings: their results, once evaluated.
    """

    def __init__(self, lake: LakeBase, table: TableId, audits: Sequence[Audit], key: Sequence[str] = ()) -> None:
        self._lake, self._table, self._audits, self._key = lake, table, tuple(audits), tuple(key)
        self.findings: tuple[Finding, ...] = ()

    @property
    def is_blocking(self) -> bool:
        """Whether an audit must pass before publishing."""
        return any(a.is_blocking for a in self._audits)

    @property
    def blocking(self) -> Gate | None:
        """Itself if it is blocking, else None."""
        return self if self.is_blocking else None

    def check(self, types: Mapping[str, str]) -> None:
        """Refuse audits that do not match the table's columns, by Spark SQL type; see `check_audits`."""
        check_audits(self._lake, self._table, self._audits, self._key, types)

    def fitting(self, types: Mapping[str, str]) -> Gate:
        """Return the same without the audits that do not match these columns, by Spark SQL type."""
        return Gate(self._lake, self._table, [a for a in self._audits if self._fits(a, types)], self._key)

    def _fits(self, audit: Audit, types: Mapping[str, str]) -> bool:
        try:
            check_audits(self._lake, self._table, [audit], self._key, types)
        except PipelineError:
            return False
        return True

    def properties(self, table: Table) -> dict[str, str]:
        """Return the properties of a commit that is published only if the blocking audits pass."""
        names = sorted(self._fingerprint(a, table) for a in self._audits if a.is_blocking and _by_rows(a))
        return {AUDITED_PROPERTY: json.dumps(names)} if names else {}

    def audit_branch(self, branch: str, base: Table) -> None:
        """Evaluate the audits on a branch that was created when the table was `base`.

        Raises:
            AuditFailedError: a blocking audit fails. The branch is kept as `FAILED_BRANCH`.
        """
        spark, name = self._lake.spark(), self._lake.sql_name(self._table)
        at, snapshot = f"{name}.`branch_{branch}`", base.metadata.current_snapshot_id
        passed = passed_audits(base)
        by_rows = {self._fingerprint(a, base) for a in self._audits if _by_rows(a)} & passed
        with contextlib.ExitStack() as scope:
            scope.enter_context(tuned_for(self._lake, (self._table, *(t for a in self._audits for t in a.reads))))
            new_rows = self._new_rows(snapshot, branch, scope) if by_rows and snapshot is not None else None
            before = self._lake.rows_at(self._table, snapshot) if snapshot is not None else None
            self._evaluate(AuditedRows(spark.table(at), before, at, new_rows), base, passed)
        if self._failed():
            failed = self._lake.table(self._table).metadata.refs[branch].snapshot_id
            spark.sql(
                f"ALTER TABLE {name} CREATE OR REPLACE BRANCH `{FAILED_BRANCH}` AS OF VERSION {failed} "
                f"RETAIN {FAILED_RETAINED_DAYS} DAYS"
            )
            raise self._error(
                f"The failed batch is in the branch {FAILED_BRANCH} until the next attempt: "
                f"SELECT * FROM {self._table}.branch_{FAILED_BRANCH}. "
            )

    def audit_rows(self, rows: DataFrame) -> DataFrame:
        """Evaluate the audits on rows that will replace the table; return the same rows, computed once.

        Raises:
            AuditFailedError: a blocking audit fails.
        """
        if not self._audits:
            return rows
        rows, base = checkpoint(rows), self._lake.find(self._table)
        before = None
        if base is not None and base.metadata.current_snapshot_id is not None:
            before = self._lake.spark().table(self._lake.sql_name(self._table))
        self._evaluate(AuditedRows(rows, before), base)
        if self._failed():
            raise self._error("")
        return rows

    def audit_published(self, snapshot: int | None, before: int | None = None) -> tuple[Finding, ...]:
        """Evaluate the audits on a published snapshot, unless that was done before publishing.

        `before` is the snapshot before the batch; None: there was none, or it does not matter.
        """
        if self.findings or not self._audits or snapshot is None:
            return self.findings
        with tuned_for(self._lake, (self._table, *(t for a in self._audits for t in a.reads))):
            rows = self._lake.rows_at(self._table, snapshot)
            rows_before = self._lake.rows_at(self._table, before) if before is not None else None
            self._evaluate(AuditedRows(rows, rows_before), self._lake.table(self._table))
        return self.findings

    def _new_rows(self, start: int, branch: str, scope: contextlib.ExitStack) -> DataFrame | None:
        try:
            captured = scope.enter_context(capture(self._lake, self._table, start, branch))
            return captured.upserts(self._lake.spark())
        except UnsupportedCaptureError:
            return None  # all rows are checked

    def _failed(self) -> bool:
        return any(f.blocking and not f.passed for f in self.findings)

    def _error(self, more: str) -> AuditFailedError:
        failed = [f for f in self.findings if f.blocking and not f.passed]
        listed = "\n".join(f"- {f}" for f in failed)
        return AuditFailedError(
            f"{self._table}: {len(failed)} of {len(self.findings)} audits do not pass, and the batch is not "
            f"published:\n{listed}\n{more}Correct the rows in the source: newer changes of them count. Or correct the "
            "declaration: with `severity: warn`, an audit publishes what it finds. The next run then absorbs the batch",
            findings=self.findings,
        )

    def _evaluate(self, state: AuditedRows, table: Table | None, passed: frozenset[str] = frozenset()) -> None:
        """Evaluate all audits; `passed`: fingerprints of the audits that the table passed before the batch."""
        unchanged = [a for a in self._audits if table is not None and self._fingerprint(a, table) in passed]
        self.findings = Evaluation(self._lake, self._table, self._key, state).findings(self._audits, unchanged)

    def _fingerprint(self, audit: Audit, table: Table) -> str:
        """Return a hash of the audit's meaning: it changes if a column was dropped and added again."""
        names = unique_columns(audit, self._key) if isinstance(audit, Unique) else audit.columns
        by_name = {f.name: f.field_id for f in table.schema().fields}
        text = f"{type(audit).__name__} {audit} {[by_name.get(n) for n in names]}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _by_rows(audit: Audit) -> bool:
    """Whether only newly written rows can violate an audit that the table has passed."""
    return isinstance(audit, ColumnAudit | Unique)


def passed_audits(table: Table) -> frozenset[str]:
    """Return the fingerprints of the audits that all rows of a table's main branch have passed."""
    for snapshot in ancestors(table):
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        if AUDITED_PROPERTY in summary:
            return frozenset(json.loads(summary[AUDITED_PROPERTY]))
        if not keeps_rows(snapshot):
            break
    return frozenset()


def forget_failed(lake: LakeBase, table: TableId, loaded: Table | None) -> None:
    """Drop the branch with the failed batch of the last attempt."""
    if loaded is not None and FAILED_BRANCH in loaded.metadata.refs:
        lake.spark().sql(f"ALTER TABLE {lake.sql_name(table)} DROP BRANCH IF EXISTS `{FAILED_BRANCH}`")
