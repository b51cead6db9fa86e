"""What stands out in the costs of steps, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from lake_assets.journal.step_costs import CostLine
from lake_assets.lake import LakeConfig, thresholds
from lake_assets.report.amounts import core_time
from lake_assets.report.full_steps import Advisor, again

# The most frequent reasons are enough for a sentence.
_REASONS = 2


def not_counted(config: LakeConfig) -> str:
    """Return what core time does not have, as this lake is configured; empty: nothing is missing."""
    if not config.spark.remote:
        return ""
    return (
        "steps over Spark Connect: core time is that of the processes that ran them. What the server used is not "
        "counted, nor is it in shares, estimates and costs"
    )


def cost_sentences(tables: Sequence[CostLine], advisor: Advisor) -> list[str]:
    """Return what stands out, the dearest table first.

    Args:
        tables: one line a table, of any pipelines.
    """
    by_pipeline: dict[str, float] = {}
    for line in tables:
        for pipeline in line.pipelines[:1]:
            by_pipeline[pipeline] = by_pipeline.get(pipeline, 0.0) + line.cpu_seconds
    found: list[str] = []
    for line in tables:
        pipeline = line.pipelines[0] if line.pipelines else ""
        total = by_pipeline.get(pipeline, 0.0)
        share = line.cpu_seconds / total if total else 0.0
        siblings = sum(pipeline in other.pipelines for other in tables)
        is_large = share >= thresholds.COSTS_SHARE and siblings > 1
        parts = [_used(line, pipeline, share)] if is_large else []
        parts += _about(line, advisor, is_large=is_large)
        if parts:
            text = "; ".join(parts)
            found.append(text if is_large else f"{line.name}: {text}")
    return found


def _used(line: CostLine, pipeline: str, share: float) -> str:
    return f"{line.name} used {share:.0%} of the core time of pipeline {pipeline} ({core_time(line.cpu_seconds)})"


def _about(line: CostLine, advisor: Advisor, *, is_large: bool) -> list[str]:
    parts: list[str] = []
    reasons = again(line)
    repeated = sum(reasons.values())
    is_often = line.steps >= thresholds.COSTS_STEPS and repeated * 2 > line.steps
    if repeated and (is_large or is_often):
        parts.append(f"{repeated} of {line.steps} steps computed everything: {'; '.join(list(reasons)[:_REASONS])}")
        parts.append(advisor.on_full_steps(line))
    parts.append(advisor.on_dear_changes(line))
    if line.failed and (is_large or line.failed * 2 > line.steps):
        parts.append(f"{line.failed} of {line.steps} steps failed: `lake-assets status` says why")
    return [*filter(None, parts)]
