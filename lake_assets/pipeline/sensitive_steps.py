"""Hide sensitive values in what steps return and raise, before the journal, notes, observers or Dagster have it.

It is the only way out of a step: outcomes with ranges of columns and findings of audits, and errors, which may quote
any value that the step has read.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from lake_assets.errors import AuditFailedError
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.redaction import HIDDEN
from lake_assets.lake.sensitive_values import NOTHING, SensitiveColumns, masked_error
from lake_assets.pipeline.sensitive_columns import SensitiveTables
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables.audits.audit_evaluation import Finding
from lake_assets.tables.audits.audit_kinds import PLACEHOLDER, Assertion, Audit, RowCountChange
from lake_assets.tables.outcome import Absorbed, Outcome

log = logging.getLogger(__name__)
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9]*(?:[_.][A-Z0-9]+)+\]")

T = TypeVar("T")


def without_values(lake: LakeBase, spec: Spec, run: Callable[[], Outcome]) -> Outcome:
    """Run a step, and return its outcome without sensitive values.

    Raises:
        LakeError: as the step, without sensitive values; see `masked_error`.
    """
    outcome = without_values_in_errors(lake, spec, run)
    hidden = _Hidden(lake, spec)
    return hidden.outcome(outcome) if hidden.tables else outcome


def without_values_in_errors(lake: LakeBase, spec: Spec, run: Callable[[], T]) -> T:
    """Call a function that reads rows of a table, or of what it is computed from.

    Raises:
        LakeError: as the function, without sensitive values.
    """
    try:
        return run()
    except Exception as e:
        masked = error_without_values(lake, spec, e)
        if masked is e:
            raise
    # Beyond the handler, so that the original error is not its context, which programs print.
    raise masked


def error_without_values(lake: LakeBase, spec: Spec, error: Exception) -> Exception:
    """Return an error of a step without sensitive values; the error itself if it can have none."""
    hidden = _Hidden(lake, spec)
    if not hidden.tables or is_interrupted(error):
        return error
    return masked_error(error, hidden.tables, hidden.error)


def findings_without_values(lake: LakeBase, spec: Spec, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings of audits of a table without sensitive values."""
    hidden = _Hidden(lake, spec)
    return hidden.findings(findings) if hidden.tables else tuple(findings)


def windows_without_values(lake: LakeBase, spec: Spec, windows: Iterable[Absorbed]) -> tuple[Absorbed, ...]:
    """Return what a step of a table absorbs, without ranges of sensitive columns."""
    return tuple(map(_Hidden(lake, spec).window, windows))


class _Hidden:
    """What is hidden of a table.

    Attributes:
        tables: the tables with sensitive columns that a step of it reads or writes; none: nothing is hidden.
    """

    def __init__(self, lake: LakeBase, spec: Spec) -> None:
        self._spec, self._all = spec, SensitiveTables.of_specs(lake, [spec])
        self.tables: list[TableId]
        try:
            self.tables = self._all.read_by(spec)
            self._own = self._all.of(spec.table)
        except Exception as e:  # of the catalog, say: what is declared counts, and hides everything
            log.info("%s: its sensitive columns cannot be told: %s", spec.table, type(e).__name__)
            self.tables = [spec.table] if spec.shown.sensitive.among else []
            self._own = SensitiveColumns.all()

    def outcome(self, outcome: Outcome) -> Outcome:
        windows = tuple(map(self.window, outcome.windows))
        details = {name: _without_message(value) for name, value in outcome.details.items()}
        why = _without_message(outcome.why)
        return replace(outcome, windows=windows, audits=self.findings(outcome.audits), details=details, why=why)

    def window(self, window: Absorbed) -> Absorbed:
        columns = self._all.of(window.source)
        return replace(window, ranges={c: HIDDEN if columns.covers(c) else r for c, r in window.ranges.items()})

    def findings(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        audits = {a.name: a for a in self._spec.audits}
        return tuple(self._finding(f, audits.get(f.audit)) for f in findings)

    def _finding(self, finding: Finding, audit: Audit | None) -> Finding:
        columns = self._columns_of(audit)
        error = finding.error
        if error:
            error = _without_message(error) if _CONDITION.match(error) else HIDDEN
        return replace(finding, rows=tuple(columns.row(r) for r in finding.rows), error=error)

    def _columns_of(self, audit: Audit | None) -> SensitiveColumns:
        """Return which columns of the rows that an audit finds are sensitive."""
        match audit:
            case RowCountChange():
                return NOTHING
            case Assertion():
                sources = {t: c for t in (self._spec.table, *audit.reads) if (c := self._all.of(t))}
                sql = audit.sql.replace(PLACEHOLDER, quote(*self._spec.table.parts))
                return self._all.of_query(audit.name, sql, sources) if sources else NOTHING
            case None:
                return SensitiveColumns.all()
            case _:
                return self._own

    def error(self, error: Exception) -> Exception:
        """Hide the values in the findings of an error, and in its text."""
        if not isinstance(error, AuditFailedError):
            return error
        text, masked = str(error), self.findings(error.findings)
        for before, after in zip(error.findings, masked, strict=True):
            text = text.replace(str(before), str(after))
        return AuditFailedError(text, findings=masked)


def _without_message(said: Any) -> Any:
    """Return a reason, or reasons, without the message of Spark that follows an error condition."""
    if isinstance(said, list | tuple):
        return [*map(_without_message, said)]
    condition = _CONDITION.search(said) if isinstance(said, str) else None
    return f"{said[: condition.end()]} {HIDDEN}" if condition else said


def is_interrupted(error: BaseException) -> bool:
    """Whether an error occurred while an interrupt was handled.

    An interrupted call of Spark leaves its connection unusable, so cleaning up fails as well."""
    at: BaseException | None = error
    seen: list[BaseException] = []
    # A re-raised error can be its own context.
    while at is not None and at not in seen:
        if isinstance(at, KeyboardInterrupt):
            return True
        seen.append(at)
        at = at.__cause__ or at.__context__
    return False
