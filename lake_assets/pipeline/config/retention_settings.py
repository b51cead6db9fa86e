"""How long records and events stay (`upkeep`), by table, and what contradicts that in the declarations of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta

from lake_assets.errors import PipelineError
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.folded_staging import why_every_event
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.lake import TableId
from lake_assets.pipeline.config.pipeline_config import PipelineConfig, seconds_of
from lake_assets.pipeline.config.setting_lines import Place
from lake_assets.pipeline.config.upkeep_places import settings_at
from lake_assets.pipeline.table_graph import Spec, lookups_of
from lake_assets.tables.upkeep_policy import Retention, UpkeepPolicy

RECORDS, EVENTS = "keep_records", "keep_events"


def retention_of(spec: Spec, specs: Sequence[Spec], policy: UpkeepPolicy) -> Retention | None:
    """Return how long the rows of a table stay, by its policy; None: for ever, or no such thing is declared for it."""
    readers = tuple(s for s in specs if spec.table in (*s.sources, *lookups_of(s)))
    if isinstance(spec, RawSpec) and policy.keep_records is not None:
        return Retention("records", policy.keep_records, readers, _why_all_records(spec, readers))
    if isinstance(spec, StagingSpec) and policy.keep_events is not None:
        return Retention("events", policy.keep_events, readers, _why_all_events(spec, readers))
    return None


def _why_all_records(raw: RawSpec, readers: Sequence[Spec]) -> str:
    """Return why all records of a raw table stay; empty: they need not."""
    if raw.source and raw.on_gap == "append":
        return "with `on_gap: append`, records that are missing in raw are landed again"
    return _other_reader(readers, StagingSpec)


def _why_all_events(staging: StagingSpec, readers: Sequence[Spec]) -> str:
    """Return why all events of a staging table stay; empty: they need not."""
    if other := _other_reader(readers, FinalSpec):
        return other
    finals = [s for s in readers if isinstance(s, FinalSpec)]
    if not finals:
        return f"no final table says which events of {staging.table} are superseded"
    why = next((f"{s.table}: {why}" for s in finals if (why := why_every_event(s))), "")
    if not why and any(s.horizon is None for s in finals):
        return "`horizon: null` expects events of any age"
    return why


def _other_reader(readers: Sequence[Spec], kind: type[Spec]) -> str:
    other = next((s for s in readers if not isinstance(s, kind)), None)
    return f"{other.table} reads them, and deleted ones would look like a change" if other else ""


def retention_mistakes(
    config: PipelineConfig,
    specs: Sequence[Spec],
    places: Mapping[TableId, Place],
    at: Callable[..., str],
) -> Iterator[PipelineError]:
    """Yield what contradicts `keep_records` and `keep_events`: settings that can have no effect where they are, and
    events that would go before they may be late.

    Args:
        places: the place of each table's declaration.
        at: returns file and line of a place.
    """
    told = set[tuple[Place, str]]()
    for spec in specs:
        settings = settings_at(config, places.get(spec.table, ()))
        own, place = settings[0]
        for name in (RECORDS, EVENTS):
            declared = next(((p, v) for s, p in settings if (v := getattr(s, name)) is not None), None)
            if declared is None:
                continue
            why = _contradiction(spec, specs, name, seconds_of(declared[1]))
            is_here = getattr(own, name) is not None and place
            if not why and is_here:
                why = _without_effect(spec, specs, name, seconds_of(declared[1]))
            if why and (declared[0], why) not in told:
                told.add((declared[0], why))
                yield PipelineError(f"{at(*declared[0], 'upkeep', name)}`{name}: {declared[1]}`: {why}")


def _contradiction(spec: Spec, specs: Sequence[Spec], name: str, seconds: float) -> str:
    """Return what is wrong with a setting wherever it is declared; empty: nothing."""
    if seconds <= 0:
        return "nothing would be kept: write 7d or longer"
    if name != EVENTS or not isinstance(spec, FinalSpec) or why_every_event(spec):
        return ""
    if spec.horizon is not None and seconds < spec.horizon:
        horizon = _text(spec.horizon)
        return (
            f"it is shorter than the `horizon` of {spec.table}, {horizon}, within which events may be late: write "
            f"{horizon} or longer, or declare a shorter `horizon`"
        )
    return ""


def _without_effect(spec: Spec, specs: Sequence[Spec], name: str, seconds: float) -> str:
    """Return why a setting of a table itself has no effect; empty: it has."""
    if name == RECORDS and not isinstance(spec, RawSpec):
        return "records are those of a stream: declare it there, or for the pipeline"
    if name == EVENTS and not isinstance(spec, (RawSpec, StagingSpec, FinalSpec)):
        return "events are those of a stream's tables: declare it there, or for the pipeline"
    policy = UpkeepPolicy(keep_records=seconds, keep_events=seconds)
    retention = retention_of(spec, specs, policy)
    return retention.refused if retention and retention.kind == name.removeprefix("keep_") else ""


def _text(seconds: float) -> str:
    return f"{seconds / 86_400:g}d" if seconds % 86_400 == 0 else str(timedelta(seconds=seconds))
