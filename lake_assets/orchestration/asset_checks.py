"""Asset checks: the audits of each batch, reported by its step, and scheduled comparisons of models with queries."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from lake_assets.errors import LakeError
from lake_assets.lake import LakeConfig, TableId
from lake_assets.orchestration.asset_names import asset_key, valid_name
from lake_assets.orchestration.runs.resources import PYSPARK
from lake_assets.orchestration.runs.step_failures import fail, open_lake
from lake_assets.orchestration.shown_values import shown
from lake_assets.pipeline import ModelSpec, Pipeline
from lake_assets.pipeline.table_graph import Spec
from lake_assets.pipeline.verification import Verification, verify
from lake_assets.tables.audits.audit_evaluation import Finding
from lake_assets.tables.audits.audit_kinds import EqualsQuery, Severity

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
            description=audit.description,
            blocking=audit.is_blocking,
            metadata={"severity": audit.severity},
        )
        for audit in spec.audits
    ]


def check_results(spec: Spec, findings: Iterable[Finding]) -> list[dg.AssetCheckResult]:
    """Convert the findings about a table to check results."""
    return [
        dg.AssetCheckResult(asset_key=asset_key(spec.table), check_name=finding.audit, **_verdict(spec, finding))
        for finding in findings
    ]


def evaluation(spec: Spec, finding: Finding) -> dg.AssetCheckEvaluation:
    """Convert a finding about a table that is not an asset of the current step."""
    verdict = _verdict(spec, finding)
    return dg.AssetCheckEvaluation(asset_key(spec.table), finding.audit, blocking=finding.blocking, **verdict)


def _verdict(spec: Spec, finding: Finding) -> dict[str, Any]:
    metadata: dict[str, Any] = {"failing_rows": finding.failing, "checked": finding.checked}
    if finding.error:
        metadata["error"] = finding.error
    if finding.rows:
        metadata["rows"] = _table(spec.table, finding.rows)
    return {
        "passed": finding.passed,
        "metadata": metadata,
        "severity": _SEVERITIES["error" if finding.blocking else "warn"],
        "description": None if finding.passed else str(finding),
    }


def _table(table: TableId, rows: Sequence[Mapping[str, object]]) -> dg.TableMetadataValue:
    records = [dg.TableRecord({c: shown(table, c, v) for c, v in row.items()}) for row in rows]
    return dg.MetadataValue.table(records, schema=dg.TableSchema([dg.TableColumn(c) for c in rows[0]]))


# --- comparisons ------------------------------------------------------------------------------------------------


def comparisons(specs: Sequence[Spec]) -> list[tuple[ModelSpec, EqualsQuery]]:
    """Return every declared comparison with its model."""
    return [(s, c) for s in specs if isinstance(s, ModelSpec) for c in s.comparisons]


def comparison_check(spec: ModelSpec, comparison: EqualsQuery, config: LakeConfig) -> dg.AssetChecksDefinition:
    """Build the check that a model's table equals its query: a separate op, since it costs as much as the query."""
    share = f"{comparison.sample:.4%} of the keys" if comparison.sample < 1 else "all rows"

    @dg.asset_check(
        asset=asset_key(spec.table),
        name=comparison.name,
        description=f"The table equals its query over the snapshots it has absorbed ({share}).",
        required_resource_keys={PYSPARK},
        metadata={"severity": comparison.severity, "schedule": comparison.schedule},
    )
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        with open_lake(context, config) as lake:
            try:
                verification = verify(lake, spec, sample=comparison.sample)
            except LakeError as error:
                fail(context, error)
            return _comparison_result(spec.table, verification, comparison)

    return check


def _comparison_result(table: TableId, verification: Verification, comparison: EqualsQuery) -> dg.AssetCheckResult:
    metadata: dict[str, Any] = {
        "rows_expected": verification.expected,
        "rows_found": verification.found,
        "differing_rows": verification.different,
        "sample": verification.sample,
        "snapshot": str(verification.snapshot),
    }
    if verification.differences:
        rows = [{"_expected": d.expected, "_found": d.found, **d.row} for d in verification.differences]
        metadata["rows"] = _table(table, rows)
    if verification.not_compared:
        metadata["not_compared"] = dict(verification.not_compared)
    if verification.doubt:
        metadata["doubt"] = verification.doubt
    # If the query may give other rows each time, a difference is not proof of an error.
    severity = dg.AssetCheckSeverity.WARN if verification.doubt else _SEVERITIES[comparison.severity]
    return dg.AssetCheckResult(passed=verification.equal, severity=severity, metadata=metadata)


def comparison_definitions(
    pipeline: Pipeline, specs: Sequence[Spec], config: LakeConfig, executor: dg.ExecutorDefinition
) -> dg.Definitions:
    """Build a pipeline's comparisons: checks, one job that runs them all, and one schedule per cron expression."""
    declared = comparisons(specs)
    if not declared:
        return dg.Definitions()
    name = f"{valid_name(pipeline.name)}_verify"
    check_keys = [dg.AssetCheckKey(asset_key(s.table), c.name) for s, c in declared]
    schedules = sorted({c.schedule for _, c in declared})
    return dg.Definitions(
        asset_checks=[comparison_check(s, c, config) for s, c in declared],
        jobs=[
            dg.define_asset_job(
                name,
                selection=dg.AssetSelection.checks(*check_keys),
                description=f"Compare the models of pipeline {pipeline.name} with their queries.",
                executor_def=executor,
            )
        ],
        schedules=[
            dg.ScheduleDefinition(
                f"{name}_schedule" if len(schedules) == 1 else f"{name}_schedule_{n}",
                cron_schedule=schedule,
                target=dg.AssetSelection.checks(
                    *(k for k, (_, c) in zip(check_keys, declared, strict=True) if c.schedule == schedule)
                ),
                description=f"Compares models of pipeline {pipeline.name} with their queries.",
            )
            for n, schedule in enumerate(schedules, 1)
        ],
    )
