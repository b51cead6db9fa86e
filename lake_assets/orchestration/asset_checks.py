"""Audits as asset checks: audits of a batch, reported by its step, and comparisons on a schedule."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from lake_assets.errors import LakeError
from lake_assets.lake import LakeConfig
from lake_assets.orchestration.asset_names import asset_key, valid_name
from lake_assets.orchestration.runs.resources import PYSPARK
from lake_assets.orchestration.runs.step_context import fail, opened
from lake_assets.pipeline import (
    AcceptedValues,
    Assertion,
    Audit,
    EqualsQuery,
    Finding,
    ModelSpec,
    NotNull,
    Pipeline,
    Relationship,
    RowCountChange,
    Severity,
    Unique,
)
from lake_assets.pipeline.table_graph import Spec
from lake_assets.pipeline.verification import Verification, verify

_SEVERITIES: dict[Severity, dg.AssetCheckSeverity] = {
    "error": dg.AssetCheckSeverity.ERROR,
    "warn": dg.AssetCheckSeverity.WARN,
}


def check_specs(spec: Spec) -> list[dg.AssetCheckSpec]:
    """Return one check per audit."""
    return [
        dg.AssetCheckSpec(
            audit.name,
            asset=asset_key(spec.table),
            description=describe(audit),
            blocking=audit.is_blocking,
            metadata={"severity": audit.severity},
        )
        for audit in spec.audits
    ]


def describe(audit: Audit) -> str:
    """Describe the condition in a sentence."""
    match audit:
        case Unique():
            return f"No two rows share {', '.join(audit.of) or 'the key'}."
        case NotNull():
            return f"Every row has a value in {audit.column}."
        case AcceptedValues():
            return f"{audit.column} is one of {', '.join(audit.values)}, or null."
        case Relationship():
            return f"Every non-null {audit.column} exists in {audit.table}.{audit.other}."
        case RowCountChange():
            return f"A batch changes the number of rows by no more than {audit.limit}."
        case Assertion():
            return f"This query returns no row:\n\n```sql\n{audit.sql.strip()}\n```"
        case _:
            return audit.name


def check_results(spec: Spec, findings: Iterable[Finding]) -> list[dg.AssetCheckResult]:
    """Convert the findings about a table to check results."""
    return [
        dg.AssetCheckResult(
            asset_key=asset_key(spec.table),
            check_name=found.audit,
            passed=found.passed,
            severity=_SEVERITIES["error" if found.blocking else "warn"],
            metadata=_metadata(found),
            description=None if found.passed else str(found),
        )
        for found in findings
    ]


def evaluation(spec: Spec, found: Finding) -> dg.AssetCheckEvaluation:
    """Convert a finding about a table that is not an asset of the current step."""
    return dg.AssetCheckEvaluation(
        asset_key(spec.table),
        found.audit,
        found.passed,
        metadata=_metadata(found),
        severity=_SEVERITIES["error" if found.blocking else "warn"],
        description=None if found.passed else str(found),
        blocking=found.blocking,
    )


def _metadata(found: Finding) -> dict[str, Any]:
    said: dict[str, Any] = {"failing_rows": found.failing, "checked": found.checked}
    if found.error:
        said["error"] = found.error
    if found.rows:
        said["rows"] = _table(found.rows)
    return said


def _table(rows: Sequence[Mapping[str, object]]) -> dg.TableMetadataValue:
    records = [dg.TableRecord({c: None if v is None else str(v) for c, v in row.items()}) for row in rows]
    return dg.MetadataValue.table(records, schema=dg.TableSchema([dg.TableColumn(c) for c in rows[0]]))


# --- comparisons ------------------------------------------------------------------------------------------------


def comparisons(specs: Sequence[Spec]) -> list[tuple[ModelSpec, EqualsQuery]]:
    """Return the declared comparisons of models with their queries."""
    return [(s, c) for s in specs if isinstance(s, ModelSpec) for c in s.comparisons]


def comparison_check(spec: ModelSpec, declared: EqualsQuery, config: LakeConfig) -> dg.AssetChecksDefinition:
    """Build the check that a model's table equals its query: a separate op, since it costs as much as the query."""
    share = f"{declared.sample:.4%} of the keys" if declared.sample < 1 else "all rows"

    @dg.asset_check(
        asset=asset_key(spec.table),
        name=declared.name,
        description=f"The table equals its query over the snapshots it has absorbed ({share}).",
        required_resource_keys={PYSPARK},
        metadata={"severity": declared.severity, "schedule": declared.schedule},
    )
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        with opened(context, config) as lake:
            try:
                found = verify(lake, spec, sample=declared.sample)
            except LakeError as error:
                fail(context, error)
            return _compared(found, declared)

    return check


def _compared(found: Verification, declared: EqualsQuery) -> dg.AssetCheckResult:
    said: dict[str, Any] = {
        "rows_expected": found.expected,
        "rows_found": found.found,
        "differing_rows": found.different,
        "sample": found.sample,
        "snapshot": str(found.snapshot),
    }
    if found.differences:
        rows = [{"_expected": d.expected, "_found": d.found, **d.row} for d in found.differences]
        said["rows"] = _table(rows)
    if found.not_compared:
        said["not_compared"] = dict(found.not_compared)
    if found.doubt:
        said["doubt"] = found.doubt
    # Differing rows that need not be wrong only warn.
    severity = dg.AssetCheckSeverity.WARN if found.doubt else _SEVERITIES[declared.severity]
    return dg.AssetCheckResult(passed=found.equal, severity=severity, metadata=said)


def comparison_definitions(
    pipeline: Pipeline, specs: Sequence[Spec], config: LakeConfig, executor: dg.ExecutorDefinition
) -> dg.Definitions:
    """Build the comparisons of a pipeline, a job over all of them, and one schedule per declared time."""
    declared = comparisons(specs)
    if not declared:
        return dg.Definitions()
    name = f"{valid_name(pipeline.name)}_verify"
    keys = [dg.AssetCheckKey(asset_key(s.table), c.name) for s, c in declared]
    times = sorted({c.schedule for _, c in declared})
    return dg.Definitions(
        asset_checks=[comparison_check(s, c, config) for s, c in declared],
        jobs=[
            dg.define_asset_job(
                name,
                selection=dg.AssetSelection.checks(*keys),
                description=f"Compare the models of pipeline {pipeline.name} with their queries.",
                executor_def=executor,
            )
        ],
        schedules=[
            dg.ScheduleDefinition(
                f"{name}_schedule" if len(times) == 1 else f"{name}_schedule_{n}",
                cron_schedule=time,
                target=dg.AssetSelection.checks(
                    *(k for k, (_, c) in zip(keys, declared, strict=True) if c.schedule == time)
                ),
                description=f"Compares models of pipeline {pipeline.name} with their queries.",
            )
            for n, time in enumerate(times, 1)
        ],
    )
