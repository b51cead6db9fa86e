"""The keys of Dagster's metadata, and the tags of runs, as tables."""

from __future__ import annotations

from collections.abc import Mapping

from reference_text import code, page, table

from lake_assets.orchestration import metadata_keys as keys

_INTRO = """
What materializations, checks and runs of a pipeline tell in Dagster, by key. Dagster plots those that are numbers.
[Metrics](../signals.md) have similar figures for Prometheus.
"""
_GROUPS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "Steps": (
        "Of each materialization. In those of partitions, figures of the whole step begin with `whole_step/`.",
        keys.STEP,
    ),
    "Details of steps": ("After `detail/`. Jobs add what they return.", keys.DETAIL),
    "Tables": ("Of each materialization, and of the asset's definition.", keys.TABLE),
    "Partitions": ("Of each partition that a step touched; see [partitions](../partitions.md).", keys.PARTITION),
    "Audits": ("Of asset checks; see [audits](../audits.md).", keys.AUDIT),
    "Upkeep": ("Of the check `upkeep`; see [upkeep](../upkeep.md).", keys.UPKEEP),
    "Backfills": ("Of the observations of a backfill; see [backfills](../backfills.md).", keys.BACKFILL),
    "Live sources": ("Of the check of a live source; see [live sources](../live-sources.md).", keys.SOURCE),
    "Tags of runs": ("Dagster filters runs by them.", keys.RUN_TAGS),
}


def metadata_page() -> str:
    """Return the page about all keys."""
    sections = (
        f"## {title}\n\n{text}\n\n{table(['key', 'meaning'], [[code(k), v] for k, v in group.items()])}"
        for title, (text, group) in _GROUPS.items()
    )
    return page("Metadata in Dagster", _INTRO, sections)
