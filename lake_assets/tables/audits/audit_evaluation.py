"""Evaluate audits: count the rows that violate each, and fetch some of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import PipelineError
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.float_columns import guarded_rows
from lake_assets.lake.names import literal
from lake_assets.lake.rows_in_memory import no_rows
from lake_assets.tables.audits.audit_kinds import (
    PLACEHOLDER,
    AcceptedValues,
    Assertion,
    Audit,
    ColumnAudit,
    Relationship,
    RowCountChange,
    Unique,
)
from lake_assets.tables.merge_pruning import prune
from lake_assets.tables.spark_frames import checkpoint, over, temp_view

# What is wrong with a uniqueness audit that has no columns.
NO_KEY = "the table has no key: name the columns (`unique: [...]`)"
# Number of failing rows to report, and length of each reported value.
ROWS_SHOWN, VALUE_SHOWN = 5, 200


@dataclass(frozen=True)
class Finding:
    """The result of one audit.

    Attributes:
        audit: its name.
        blocking: whether a batch that fails it is not published.
        failing: number of rows that violate it.
        checked: the checked rows, as text for people.
        rows: some violating rows, each value as text.
        error: why it could not be evaluated; then it counts as failed.
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
        rows = "; ".join(_row_text(row) for row in self.rows)
        return f"{self.audit}: {self.failing:,} row{'' if self.failing == 1 else 's'} ({self.checked}): {rows}"


def _row_text(row: Mapping[str, str | None]) -> str:
    return ", ".join(f"{c}={'NULL' if v is None else v}" for c, v in row.items())


@dataclass(frozen=True)
class AuditedRows:
    """The rows to audit.

    Attributes:
        rows: all rows of the table with the batch.
        before: all rows before the batch; None: the table is new.
        name: the SQL name under which parts of the table can be read; empty: the rows are not written yet.
        new_rows: the rows that the batch wrote; None: unknown, so all rows are checked.
    """

    rows: DataFrame
    before: DataFrame | None = None
    name: str = ""
    new_rows: DataFrame | None = None


def check_audits(
    lake: LakeBase, table: TableId, audits: Sequence[Audit], key: Sequence[str], types: Mapping[str, str]
) -> None:
    """Refuse audits that do not match a table with this key and these columns, by Spark SQL type.

    Raises:
        PipelineError: a column is missing, a value does not have its column's type, or Spark does not accept the SQL.
    """
    for audit in audits:
        at = f"{table}: audit {audit.name}"
        if missing := [c for c in audit.columns if c not in types]:
            raise PipelineError(f"{at} names {', '.join(missing)}, and the table has {', '.join(types)}")
        match audit:
            case Unique() if not unique_columns(audit, key):
                raise PipelineError(f"{at}: {NO_KEY}")
            case AcceptedValues():
                _check_values(lake, at, audit, types[audit.column])
            case Assertion():
                _check_sql(lake, at, audit, types)
            case _:
                pass


def _check_values(lake: LakeBase, at: str, audit: AcceptedValues, kind: str) -> None:
    if kind == "string":
        return
    tests = ", ".join(f"try_cast({literal(v)} AS {kind}) IS NULL" for v in audit.values)
    try:
        row = lake.spark().sql(f"SELECT {tests}").collect()[0]
    except PySparkException as e:
        raise PipelineError(f"{at}: values cannot be listed for {audit.column}, which is {kind}: {_first(e)}") from e
    if wrong := [v for v, is_none in zip(audit.values, row, strict=True) if is_none]:
        raise PipelineError(f"{at} accepts {', '.join(wrong)}, but {audit.column} is {kind}")


def _check_sql(lake: LakeBase, at: str, audit: Assertion, types: Mapping[str, str]) -> None:
    schema = ", ".join(f"{quote(c)} {kind}" for c, kind in types.items())
    with temp_view(no_rows(lake.spark(), schema)) as view:
        try:
            lake.spark().sql(audit.sql.replace(PLACEHOLDER, view)).schema  # noqa: B018 (analysed here)
        except PySparkException as e:
            raise PipelineError(f"{at}: Spark does not accept its SQL: {_first(e)}") from e


def unique_columns(audit: Unique, key: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a uniqueness audit: its own, or the table's key."""
    return audit.of or tuple(key)


class Evaluation:
    """Evaluates the audits of one table; an empty key: its rows have none."""

    def __init__(self, lake: LakeBase, table: TableId, key: Sequence[str], state: AuditedRows) -> None:
        # Without guards, other rows of the same file would decide whether a row with NaN counts as a violation.
        new_rows = guarded_rows(state.new_rows) if state.new_rows is not None else None
        self._lake, self._table, self._key = lake, table, tuple(key)
        self._state = replace(state, rows=guarded_rows(state.rows), new_rows=new_rows)

    def findings(self, audits: Sequence[Audit], passed: Sequence[Audit]) -> tuple[Finding, ...]:
        """Return one finding per audit; only new rows can violate those that the table `passed` before the batch."""
        findings: dict[str, Finding] = {}
        state = self._state
        for group, rows, which in (
            ([a for a in audits if a not in passed], state.rows, "all rows"),
            (passed, state.new_rows if state.new_rows is not None else state.rows, "rows that the batch wrote"),
        ):
            checked = which if rows is not state.rows else "all rows"
            plain = [a for a in group if isinstance(a, ColumnAudit)]
            findings |= _of_single_rows(plain, rows, checked)
            for audit in group:
                if audit not in plain:
                    findings[audit.name] = _guarded(audit, checked, lambda a=audit, r=rows: self._one(a, r))
        return tuple(findings[a.name] for a in audits)

    def _one(self, audit: Audit, rows: DataFrame) -> tuple[int, Sequence[Mapping[str, str | None]]]:
        """Return the number of violating rows, and some of them."""
        match audit:
            case Unique():
                return self._duplicates(audit, rows)
            case RowCountChange():
                return _changed(audit, self._state)
            case Relationship():
                with temp_view(self._state.rows) as view:
                    return _violations(self._lake, self._unmatched(audit, view))
            case Assertion():
                with temp_view(self._state.rows) as view:
                    return _violations(self._lake, audit.sql.replace(PLACEHOLDER, view))
            case _:
                raise AssertionError(f"no such audit: {audit}")

    def _duplicates(self, audit: Unique, rows: DataFrame) -> tuple[int, Sequence[Mapping[str, str | None]]]:
        columns = unique_columns(audit, self._key)
        listed = [F.col(quote(c)) for c in columns]
        has_values = " AND ".join(f"{quote(c)} IS NOT NULL" for c in columns)
        candidates = self._state.rows.where(has_values).select(*listed)
        if rows is not self._state.rows:
            keys = checkpoint(rows.where(has_values).select(*listed).distinct())
            pruning = prune(keys, columns, self._lake.table(self._table))
            sql = f"SELECT * FROM {self._state.name} t" + (f" WHERE {pruning.condition}" if pruning.condition else "")
            possible = over(self._lake.spark(), sql, {}, pruning.values)
            candidates = possible.select(*listed).join(keys, list(columns), "left_semi")
        duplicates = candidates.groupBy(*listed).agg(F.count("*").alias("rows")).where("rows > 1")
        return _counted(duplicates, F.sum("rows"))

    def _unmatched(self, audit: Relationship, view: str) -> str:
        other = view if audit.table == self._table else self._lake.sql_name(audit.table)
        column = f"t.{quote(audit.column)}"
        return (
            f"SELECT * FROM {view} t WHERE {column} IS NOT NULL AND NOT EXISTS "
            f"(SELECT 1 FROM {other} o WHERE o.{quote(audit.other)} = {column})"
        )


def _guarded(
    audit: Audit, checked: str, evaluate: Callable[[], tuple[int, Sequence[Mapping[str, str | None]]]]
) -> Finding:
    if isinstance(audit, RowCountChange):
        checked = "rows before and after"
    try:
        failing, rows = evaluate()
    except PySparkException as e:
        # A division by zero in its SQL, a missing table: without a result, the audit has not passed.
        return Finding(audit.name, audit.is_blocking, 0, checked, error=_first(e))
    return Finding(audit.name, audit.is_blocking, failing, checked, tuple(rows))


def _of_single_rows(audits: Sequence[ColumnAudit], rows: DataFrame, checked: str) -> dict[str, Finding]:
    """Evaluate audits of single rows, all of them with one query."""
    if not audits:
        return {}
    types = dict(rows.dtypes)
    violated = {a.name: a.violation(types[a.column]) for a in audits}
    counts = [F.expr(f"count_if({sql})").alias(f"a{i}") for i, sql in enumerate(violated.values())]
    row = rows.agg(*counts).collect()[0]
    findings: dict[str, Finding] = {}
    for i, audit in enumerate(audits):
        some = _some_rows(rows.where(violated[audit.name])) if row[f"a{i}"] else ()
        findings[audit.name] = Finding(audit.name, audit.is_blocking, row[f"a{i}"], checked, some)
    return findings


def _changed(audit: RowCountChange, state: AuditedRows) -> tuple[int, Sequence[Mapping[str, str | None]]]:
    before = state.before.count() if state.before is not None else 0
    after = state.rows.count()
    # The first rows of a table do not count as a change.
    if not before or not audit.limit.is_exceeded(abs(after - before), before):
        return 0, ()
    return abs(after - before), ({"before": str(before), "after": str(after), "limit": str(audit.limit)},)


def _violations(lake: LakeBase, sql: str) -> tuple[int, Sequence[Mapping[str, str | None]]]:
    return _counted(lake.spark().sql(sql), F.count("*"))


def _counted(rows: DataFrame, count: Column) -> tuple[int, Sequence[Mapping[str, str | None]]]:
    failing = rows.agg(count.alias("n")).collect()[0]["n"] or 0
    return failing, _some_rows(rows) if failing else ()


def _some_rows(rows: DataFrame) -> tuple[Mapping[str, str | None], ...]:
    """Return some rows, each value as text."""
    # A join of two tables may have two columns with one name.
    names = [f"c{i}" for i in range(len(rows.columns))]
    texts = (F.substring(F.col(n).cast("string"), 1, VALUE_SHOWN).alias(n) for n in names)
    some = rows.toDF(*names).limit(ROWS_SHOWN).select(*texts).collect()
    return tuple(dict(zip(rows.columns, row, strict=True)) for row in some)


def _first(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
