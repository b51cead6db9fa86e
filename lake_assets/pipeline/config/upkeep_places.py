"""The upkeep settings that apply to a table, from its own to the pipeline's, and what is wrong with them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from lake_assets.errors import PipelineError
from lake_assets.pipeline.config.pipeline_config import PipelineConfig
from lake_assets.pipeline.config.setting_lines import Place
from lake_assets.pipeline.config.upkeep_settings import UpkeepSettings, combined_policy, too_early
from lake_assets.tables.upkeep_policy import UpkeepPolicy


def policy_at(config: PipelineConfig, place: Place) -> UpkeepPolicy:
    """Return the policy of the table that is declared at a place."""
    return combined_policy([settings for settings, _ in settings_at(config, place)])


def upkeep_mistakes(config: PipelineConfig, places: Iterable[Place], at: Callable[..., str]) -> Iterator[PipelineError]:
    """Yield what is wrong with settings of a table and of what encloses it, which are right alone.

    Args:
        at: the file and line of a place.
    """
    told = set[Place]()
    for place in places:
        settings = settings_at(config, place)
        policy = combined_policy([s for s, _ in settings])
        if policy.dead_after is None or not (why := too_early(policy.dead_after, policy.keep)):
            continue
        # The innermost of the two is the one that does not fit.
        names = ("keep", "dead_after")
        where = next((p for s, p in settings if any(getattr(s, n) is not None for n in names)), ())
        if where not in told:
            told.add(where)
            yield PipelineError(f"{at(*where, 'upkeep')}{why}")


def settings_at(config: PipelineConfig, place: Place) -> list[tuple[UpkeepSettings, Place]]:
    """Return the upkeep settings along the place of a table, innermost first, each with its own place."""
    of_pipeline: list[tuple[UpkeepSettings, Place]] = [(config.upkeep, ())]
    match place:
        case ("streams", int(i), "tables", int(n)):
            of_stream: list[tuple[UpkeepSettings, Place]] = [(config.streams[i].upkeep, place[:2])]
            return [(config.streams[i].tables[n].upkeep, place), *of_stream, *of_pipeline]
        case ("streams", int(i)):
            return [(config.streams[i].upkeep, place), *of_pipeline]
        case ("models", int(i)):
            return [(config.models[i].upkeep, place), *of_pipeline]
        case ("jobs", int(i)):
            return [(config.jobs[i].upkeep, place), *of_pipeline]
        case _:
            return of_pipeline
