"""Runs of a pipeline in which a failed table is an error of the test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lake_assets import Lake, Pipeline
from lake_assets.tables.outcome import Outcome


def run(lake: Lake, pipeline: Pipeline, select: Sequence[str] | None = None) -> dict[str, Outcome]:
    """Run a pipeline, or some of its tables; the first table that failed raises its error."""
    return succeeded(pipeline.run(lake, select))


def succeeded(outcomes: Iterable[Outcome]) -> dict[str, Outcome]:
    """Return outcomes by table; the first that is a failure is raised."""
    by_table: dict[str, Outcome] = {}
    for outcome in outcomes:
        if outcome.exception:
            raise outcome.exception
        by_table[outcome.table] = outcome
    return by_table
