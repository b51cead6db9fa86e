"""Evaluate audits on the branch to which a batch is written, before main is fast-forwarded to it.

An audit of single rows, or of rows that share values, need not check rows that have passed it before: a commit stores
which audits the table passed (`AUDITED_PROPERTY`), and until another writer changes rows, only the rows of the batch
are checked. All other audits check the whole table. Why on a branch: docs/decisions/0018-audits.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.capture import capture
from lake_assets.errors import AuditFailedError, PipelineError, UnsupportedCaptureError
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.float_columns import guarded_rows
from lake_assets.lake.metadata.watermark import ancestors
from lake_assets.lake.names import literal
from lake_assets.tables.audit_specs import (
    PLACEHOLDER,
    AcceptedValues,
    Assertion,
    Audit,
    NotNull,
    Relationship,
    RowCountChange,
    Unique,
)
from lake_assets.tables.merge_pruning import prune
from lake_assets.tables.spark_frames import held, temp_view
from lake_assets.tables.spark_tuning import tuned_for

# Branch of a failed batch, kept until the next attempt or its expiry.
FAILED_BRANCH, FAILED_RETAINED_DAYS = "failed_audit", 7
AUDITED_PROPERTY = "lake-assets.audited"
# Number of failing rows to show, and length of a value.
ROWS_SHOWN, VALUE_SHOWN = 5, 200


@dataclass(frozen=True)
class Finding:
    """Result of one audit.

    Attributes:
        audit: its name.
        blocking: whether a failure prevents publishing.
        failing: number of rows that violate it.
        checked: description of the checked rows.
        rows: some rows that violate it, each value as text.
        error: why it could not be evaluated, which counts as failed.
    """

    audit: str
    blocking: bool
    failing: int
    checked: str
    rows: tuple[Mapping[str, str | None], ...] = ()
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether the audit passed."""
        return not self.failing and not self.error

    def __str__(self) -> str:
        if self.passed:
            return f"{self.audit}: passed ({self.checked})"
        if self.error:
            return f"{self.audit}: cannot be evaluated: {self.error}"
        shown = "; ".join(_said(row) for row in self.rows)
        return f"{self.audit}: {self.failing:,} rows ({self.checked}): {shown}"


def _said(row: Mapping[str, str | None]) -> str:
    return ", ".join(f"{c}={'NULL' if v is None else v}" for c, v in row.items())


@dataclass(frozen=True)
class _State:
    """The table state to audit.

    Attributes:
        rows: the whole new table.
        before: the old table; None if there was none.
        name: its name in SQL, if it is written and parts of it can be read; else empty.
        written: the rows of the batch; None: all rows must be checked.
        held: audits that the table passed before the batch, as fingerprints.
    """

    rows: DataFrame
    before: DataFrame | None = None
    name: str = ""
    written: DataFrame | None = None
    held: frozenset[str] = frozenset()


class Gate:
    """The audits of one table in one step.

    Attributes:
        findings: their results, once evaluated.
    """

    def __init__(self, lake: LakeBase, table: TableId, audits: Sequence[Audit], key: Sequence[str] = ()) -> None:
        """
        Args:
            lake: the lake.
            table: the audited table.
            audits: the declared audits.
            key: columns that identify the table's rows; empty if none do.
        """
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
        """Refuse audits that do not match the table, before anything is written.

        Args:
            types: the table's columns with Spark's types.

        Raises:
            PipelineError: a column that is not there, a value that is none of its type, SQL that Spark does not
                accept.
        """
        for audit in self._audits:
            at = f"{self._table}: audit {audit.name}"
            if missing := [c for c in audit.columns if c not in types]:
                raise PipelineError(f"{at} names {', '.join(missing)}, and the table has {', '.join(types)}")
            match audit:
                case Unique() if not self._unique(audit):
                    raise PipelineError(f"{at}: the table has no key: name the columns (`unique: [...]`)")
                case AcceptedValues():
                    self._check_values(at, audit, types[audit.column])
                case Assertion():
                    self._check_sql(at, audit, types)
                case _:
                    pass

    def _check_values(self, at: str, audit: AcceptedValues, kind: str) -> None:
        if kind == "string":
            return
        looks = ", ".join(f"try_cast({literal(v)} AS {kind}) IS NULL" for v in audit.values)
        try:
            row = self._lake.spark().sql(f"SELECT {looks}").collect()[0]
        except PySparkException as e:
            raise PipelineError(
                f"{at}: values cannot be listed for {audit.column}, which is {kind}: {_first(e)}"
            ) from e
        if wrong := [v for v, is_none in zip(audit.values, row, strict=True) if is_none]:
            raise PipelineError(f"{at} accepts {', '.join(wrong)}, and {audit.column} is {kind}")

    def _check_sql(self, at: str, audit: Assertion, types: Mapping[str, str]) -> None:
        schema = ", ".join(f"{quote(c)} {kind}" for c, kind in types.items())
        with temp_view(self._lake.spark().createDataFrame([], schema)) as view:
            try:
                self._lake.spark().sql(audit.sql.replace(PLACEHOLDER, view)).schema  # noqa: B018 (analysed here)
            except PySparkException as e:
                raise PipelineError(f"{at}: Spark does not accept its SQL: {_first(e)}") from e

    # --- what is audited ----------------------------------------------------------------------------------------

    def properties(self, table: Table) -> dict[str, str]:
        """Properties of a commit that is published only if the blocking audits pass."""
        names = sorted(self._fingerprint(a, table) for a in self._audits if a.is_blocking and _by_rows(a))
        return {AUDITED_PROPERTY: json.dumps(names)} if names else {}

    def audit_branch(self, branch: str, base: Table) -> None:
        """Evaluate the audits on a branch.

        Args:
            branch: its name.
            base: the table when the branch was created.

        Raises:
            AuditFailedError: a blocking one does not pass. The branch is kept as `FAILED_BRANCH`.
        """
        spark, name = self._lake.spark(), self._lake.sql_name(self._table)
        at, snapshot = f"{name}.`branch_{branch}`", base.metadata.current_snapshot_id
        known = held_audits(base)
        wanted = {self._fingerprint(a, base) for a in self._audits if _by_rows(a)} & known
        with contextlib.ExitStack() as scope:
            scope.enter_context(tuned_for(self._lake, (self._table, *(t for a in self._audits for t in a.reads))))
            written = self._written(snapshot, branch, scope) if wanted and snapshot is not None else None
            before = spark.read.option("versionAsOf", str(snapshot)).table(name) if snapshot is not None else None
            self._evaluate(_State(spark.table(at), before, at, written, known), base)
        if self._failed():
            kept = self._lake.table(self._table).metadata.refs[branch].snapshot_id
            spark.sql(
                f"ALTER TABLE {name} CREATE OR REPLACE BRANCH `{FAILED_BRANCH}` AS OF VERSION {kept} "
                f"RETAIN {FAILED_RETAINED_DAYS} DAYS"
            )
            raise self._error(
                f"What was to be published is the branch {FAILED_BRANCH} until the next attempt: "
                f"SELECT * FROM {self._table}.branch_{FAILED_BRANCH}. "
            )

    def audit_rows(self, rows: DataFrame) -> DataFrame:
        """Evaluate the audits on rows that will replace the table.

        Returns:
            The same rows, computed once.

        Raises:
            AuditFailedError: a blocking one does not pass.
        """
        if not self._audits:
            return rows
        rows, base = held(rows), self._lake.find(self._table)
        before = None
        if base is not None and base.metadata.current_snapshot_id is not None:
            before = self._lake.spark().table(self._lake.sql_name(self._table))
        self._evaluate(_State(rows, before), base)
        if self._failed():
            raise self._error("")
        return rows

    def audit_published(self, snapshot: int | None, before: int | None = None) -> tuple[Finding, ...]:
        """Evaluate the audits on a published snapshot, unless that was done before publishing.

        Args:
            snapshot: the snapshot of the table.
            before: the snapshot before the batch; None if there was none, or it does not matter.
        """
        if self.findings or not self._audits or snapshot is None:
            return self.findings
        name, read = self._lake.sql_name(self._table), self._lake.spark().read

        def at(version: int) -> DataFrame:
            return read.option("versionAsOf", str(version)).table(name)

        with tuned_for(self._lake, (self._table, *(t for a in self._audits for t in a.reads))):
            self._evaluate(
                _State(at(snapshot), at(before) if before is not None else None), self._lake.table(self._table)
            )
        return self.findings

    def _written(self, start: int, branch: str, scope: contextlib.ExitStack) -> DataFrame | None:
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
            f"{self._table}: {len(failed)} of {len(self.findings)} audits do not pass, and nothing of the batch is "
            f"published:\n{listed}\n{more}Correct the source or the declaration: the batch is absorbed then",
            findings=self.findings,
        )

    # --- evaluating ---------------------------------------------------------------------------------------------

    def _evaluate(self, state: _State, table: Table | None) -> None:
        # Otherwise, whether a row with NaN violates an audit would depend on the other rows of its file.
        written = guarded_rows(state.written) if state.written is not None else None
        state = replace(state, rows=guarded_rows(state.rows), written=written)
        found: dict[str, Finding] = {}
        narrow = [a for a in self._audits if table is not None and self._fingerprint(a, table) in state.held]
        for audits, rows, which in (
            ([a for a in self._audits if a not in narrow], state.rows, "all rows"),
            (narrow, state.written if state.written is not None else state.rows, "rows that the batch wrote"),
        ):
            checked = which if rows is not state.rows else "all rows"
            plain = [a for a in audits if isinstance(a, NotNull | AcceptedValues)]
            found |= _of_single_rows(plain, rows, checked)
            for audit in audits:
                if audit not in plain:
                    found[audit.name] = _guarded(audit, checked, lambda a=audit, r=rows: self._one(a, state, r))
        self.findings = tuple(found[a.name] for a in self._audits)

    def _one(self, audit: Audit, state: _State, rows: DataFrame) -> tuple[int, Sequence[Mapping[str, str | None]]]:
        """Return how many rows violate an audit, and some of them."""
        match audit:
            case Unique():
                return self._twice(audit, state, rows)
            case RowCountChange():
                return _changed(audit, state)
            case Relationship():
                with temp_view(state.rows) as view:
                    return _violations(self._lake, self._lost(audit, view))
            case Assertion():
                with temp_view(state.rows) as view:
                    return _violations(self._lake, audit.sql.replace(PLACEHOLDER, view))
            case _:
                raise AssertionError(f"no such audit: {audit}")

    def _unique(self, audit: Unique) -> tuple[str, ...]:
        return audit.of or self._key

    def _twice(self, audit: Unique, state: _State, rows: DataFrame) -> tuple[int, Sequence[Mapping[str, str | None]]]:
        columns = self._unique(audit)
        listed = [F.col(quote(c)) for c in columns]
        there = " AND ".join(f"{quote(c)} IS NOT NULL" for c in columns)
        looked = state.rows.where(there).select(*listed)
        if rows is not state.rows:
            keys = held(rows.where(there).select(*listed).distinct())
            pruning = prune(keys, columns, self._lake.table(self._table))
            sql = f"SELECT * FROM {state.name} t" + (f" WHERE {pruning.condition}" if pruning.condition else "")
            spark = self._lake.spark()
            near = spark.sql(sql, args=pruning.values) if pruning.values else spark.sql(sql)
            looked = near.select(*listed).join(keys, list(columns), "left_semi")
        twice = looked.groupBy(*listed).agg(F.count("*").alias("rows")).where("rows > 1")
        return _counted(twice, F.sum("rows"))

    def _lost(self, audit: Relationship, view: str) -> str:
        other = view if audit.table == self._table else self._lake.sql_name(audit.table)
        column = f"t.{quote(audit.column)}"
        return (
            f"SELECT * FROM {view} t WHERE {column} IS NOT NULL AND NOT EXISTS "
            f"(SELECT 1 FROM {other} o WHERE o.{quote(audit.other)} = {column})"
        )

    def _fingerprint(self, audit: Audit, table: Table) -> str:
        """The same as long as the audit means the same: a column that was dropped and added again is another one."""
        names = self._unique(audit) if isinstance(audit, Unique) else audit.columns
        by_name = {f.name: f.field_id for f in table.schema().fields}
        said = f"{type(audit).__name__} {audit} {[by_name.get(n) for n in names]}"
        return hashlib.sha256(said.encode()).hexdigest()[:16]


def _by_rows(audit: Audit) -> bool:
    """Whether only newly written rows can violate an audit that the table has passed."""
    return isinstance(audit, NotNull | AcceptedValues | Unique)


def held_audits(table: Table) -> frozenset[str]:
    """Return the fingerprints of the audits that the rows of a table's main branch are known to pass."""
    for snapshot in ancestors(table):
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        if AUDITED_PROPERTY in said:
            return frozenset(json.loads(said[AUDITED_PROPERTY]))
        if not _keeps_rows(snapshot):
            break
    return frozenset()


def _keeps_rows(snapshot: Snapshot) -> bool:
    """Whether a commit changed no row: upkeep, or a watermark alone."""
    summary = snapshot.summary
    if summary is None:
        return False
    said = summary.additional_properties
    touched = ("added-data-files", "deleted-data-files", "added-delete-files", "removed-delete-files")
    return summary.operation == Operation.REPLACE or not any(int(said.get(t) or 0) for t in touched)


def forget_failed(lake: LakeBase, table: TableId, loaded: Table | None) -> None:
    """Drop the failed batch of the last attempt."""
    if loaded is not None and FAILED_BRANCH in loaded.metadata.refs:
        lake.spark().sql(f"ALTER TABLE {lake.sql_name(table)} DROP BRANCH IF EXISTS `{FAILED_BRANCH}`")


def _guarded(
    audit: Audit, checked: str, evaluate: Callable[[], tuple[int, Sequence[Mapping[str, str | None]]]]
) -> Finding:
    if isinstance(audit, RowCountChange):
        checked = "rows before and after"
    try:
        failing, rows = evaluate()
    except PySparkException as e:
        # A division by zero in its SQL, or a missing table: without a result, it has not passed.
        return Finding(audit.name, audit.is_blocking, 0, checked, error=_first(e))
    return Finding(audit.name, audit.is_blocking, failing, checked, tuple(rows))


def _of_single_rows(audits: Sequence[NotNull | AcceptedValues], rows: DataFrame, checked: str) -> dict[str, Finding]:
    """Evaluate audits of single rows in one query."""
    if not audits:
        return {}
    types = dict(rows.dtypes)
    violated = {a.name: _violated(a, types) for a in audits}
    looks = [F.expr(f"count_if({sql})").alias(f"a{i}") for i, sql in enumerate(violated.values())]
    row = rows.agg(*looks).collect()[0]
    found: dict[str, Finding] = {}
    for i, audit in enumerate(audits):
        shown = _shown(rows.where(violated[audit.name])) if row[f"a{i}"] else ()
        found[audit.name] = Finding(audit.name, audit.is_blocking, row[f"a{i}"], checked, shown)
    return found


def _violated(audit: NotNull | AcceptedValues, types: Mapping[str, str]) -> str:
    """Return SQL of a boolean, never null: whether a row violates the audit."""
    column = quote(audit.column)
    if isinstance(audit, NotNull):
        return f"{column} IS NULL"
    values = ", ".join(f"CAST({literal(v)} AS {types[audit.column]})" for v in audit.values)
    return f"{column} IS NOT NULL AND {column} NOT IN ({values})"


def _changed(audit: RowCountChange, state: _State) -> tuple[int, Sequence[Mapping[str, str | None]]]:
    before = state.before.count() if state.before is not None else 0
    after = state.rows.count()
    # The first rows of a table are not a change.
    if not before or not audit.limit.is_exceeded(abs(after - before), before):
        return 0, ()
    return abs(after - before), ({"before": str(before), "after": str(after), "limit": str(audit.limit)},)


def _violations(lake: LakeBase, sql: str) -> tuple[int, Sequence[Mapping[str, str | None]]]:
    return _counted(lake.spark().sql(sql), F.count("*"))


def _counted(rows: DataFrame, count: Column) -> tuple[int, Sequence[Mapping[str, str | None]]]:
    failing = rows.agg(count.alias("n")).collect()[0]["n"] or 0
    return failing, _shown(rows) if failing else ()


def _shown(rows: DataFrame) -> tuple[Mapping[str, str | None], ...]:
    """Return some rows, each value as text."""
    # A join of two tables may have two columns of one name.
    names = [f"c{i}" for i in range(len(rows.columns))]
    texts = (F.substring(F.col(n).cast("string"), 1, VALUE_SHOWN).alias(n) for n in names)
    found = rows.toDF(*names).limit(ROWS_SHOWN).select(*texts).collect()
    return tuple(dict(zip(rows.columns, row, strict=True)) for row in found)


def _first(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
