"""Look after the tables of a pipeline: find what is due, in the order of its use, and do it within a budget."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from lake_assets.errors import ConcurrentWriteError, LakeError, PipelineError
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.lake.names import nearest
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.config.upkeep_settings import UpkeepSettings, combined_policy
from lake_assets.tables import table_lock
from lake_assets.tables.upkeep_policy import UpkeepPolicy
from lake_assets.upkeep import upkeep_records
from lake_assets.upkeep.services import carry_out
from lake_assets.upkeep.table_health import TableHealth, health_of, may_need_upkeep
from lake_assets.upkeep.upkeep_actions import Action, chosen, due_actions
from lake_assets.upkeep.upkeep_records import Done, TableRecord

log = logging.getLogger(__name__)
# The hour of which a budget counts the actions.
_HOUR = 3600.0


@dataclass(frozen=True)
class TableUpkeep:
    """A table in the eyes of upkeep.

    Attributes:
        table: the table.
        policy: its policy.
        health: its health.
        due: the actions that are due.
        paused: due actions that wait since the last ones like them gained nothing.
        record: what was done before.
    """

    table: TableId
    policy: UpkeepPolicy
    health: TableHealth
    due: Sequence[Action]
    paused: Sequence[Action]
    record: TableRecord = field(repr=False)


@dataclass(frozen=True)
class Attended:
    """What became of one action.

    Attributes:
        action: the action.
        done: what it did; None: it was left for later.
        why_not: why it was left.
    """

    action: Action
    done: Done | None
    why_not: str = ""


def policies(pipeline: Pipeline, lake: LakeBase) -> dict[TableId, UpkeepPolicy]:
    """Return the policy of each table of the lake that belongs to a pipeline.

    Tables that no declaration names, such as those of rejected records, have the pipeline's.
    """
    config = pipeline.config
    declared = {
        table: combined_policy(_settings_at(pipeline, place))
        for table, place in pipeline.declared.read(lake, alone=False).places.items()
    }
    of_pipeline = combined_policy([config.upkeep])
    return {table: declared.get(table, of_pipeline) for table in _tables_of(pipeline.name, lake)}


def _settings_at(pipeline: Pipeline, place: Sequence[int | str]) -> list[UpkeepSettings]:
    """Return the upkeep settings along the place of a table, innermost first."""
    config = pipeline.config
    match place:
        case ("streams", int(i), "tables", int(n)):
            return [config.streams[i].tables[n].upkeep, config.streams[i].upkeep, config.upkeep]
        case ("streams", int(i)):
            return [config.streams[i].upkeep, config.upkeep]
        case ("models", int(i)):
            return [config.models[i].upkeep, config.upkeep]
        case ("jobs", int(i)):
            return [config.jobs[i].upkeep, config.upkeep]
        case _:
            return [config.upkeep]


def _tables_of(pipeline: str, lake: LakeBase) -> list[TableId]:
    tables = [t for n in lake.namespaces() if n[0] != "icdc" for t in lake.tables(n)]
    owned = ((t, lake.find(t)) for t in tables)
    return [t for t, loaded in owned if loaded is not None and loaded.properties.get(PIPELINE_PROPERTY) == pipeline]


def look(lake: LakeBase, table: TableId, policy: UpkeepPolicy, now: float | None = None) -> TableUpkeep:
    """Return how a table is, and what is due for it; from metadata alone.

    Raises:
        TableNotFoundError: there is no such table.
        MissingDataFileError, CorruptMetadataError: its metadata is missing or broken.
    """
    now = time.time() if now is None else now
    record = upkeep_records.read(lake, table, now)
    health = health_of(table, lake.table(table), policy, now)
    searched = record.last("orphans")
    due = due_actions(health, policy, now - (searched.at if searched else record.seen))
    paused = [a for a in due if record.is_paused(a.kind, now)]
    return TableUpkeep(table, policy, health, [a for a in due if a not in paused], paused, record)


def needs_a_look(lake: LakeBase, wanted: Mapping[TableId, UpkeepPolicy], now: float | None = None) -> list[TableId]:
    """Return the tables that are worth looking at, from their loaded metadata alone: cheap enough for every tick."""
    now = time.time() if now is None else now
    worth: list[TableId] = []
    for table, policy in wanted.items():
        loaded = lake.find(table) if policy.is_on and not policy.is_quiet(datetime.fromtimestamp(now, UTC)) else None
        if loaded is not None and may_need_upkeep(loaded, policy, now):
            worth.append(table)
    return worth


def attend(
    lake: LakeBase,
    wanted: Mapping[TableId, UpkeepPolicy],
    *,
    seconds: float | None = None,
    is_forced: bool = False,
    on_done: Callable[[Attended], None] | None = None,
) -> list[Attended]:
    """Do what is due for tables, the most useful actions first, each in pieces of seconds.

    Between two pieces, steps that wait for the table get their turn. A table that a step holds is left for later.

    Args:
        wanted: the policies by table.
        seconds: no action begins after so many seconds; None: all that is due is done.
        is_forced: whether quiet hours, pauses and the budget are ignored, as for a command that a person gives.

    Returns:
        What became of each action, in the order in which they were tried.
    """
    began, attended = time.monotonic(), list[Attended]()
    tables = {t: look(lake, t, p) for t, p in wanted.items() if p.is_on and lake.find(t) is not None}
    for table in tables.values():
        if not table.record.done:
            upkeep_records.add(lake, table.table, [], time.time())  # when it was first looked at
    # Each kind of action is tried on a table until it gains nothing more, or has to wait.
    over = set[tuple[str, str]]()
    while waiting := _waiting(tables.values(), over, is_forced=is_forced):
        action = waiting[0]
        table = tables[TableId.parse(action.table)]
        late = seconds is not None and time.monotonic() - began >= seconds
        why_not = "there was no time left" if late else "" if is_forced else why_not_now(list(tables.values()), table)
        result = Attended(action, None, why_not) if why_not else _tried(lake, action, table)
        attended.append(result)
        if on_done:
            on_done(result)
        if result.done is None or not result.done.files:
            over.add((action.table, action.kind))
        if result.done is not None:
            tables[table.table] = look(lake, table.table, table.policy)
    return attended


def _waiting(tables: Iterable[TableUpkeep], over: Collection[tuple[str, str]], *, is_forced: bool) -> list[Action]:
    """Return the actions that are to be tried, the most useful ones first."""
    due = [a for t in tables for a in (*t.due, *(t.paused if is_forced else ()))]
    return chosen([a for a in due if (a.table, a.kind) not in over])


def attend_after_run(lake: LakeBase, pipeline: Pipeline) -> list[Attended]:
    """Do what is due for a pipeline's tables after a run. Never fails: the run has succeeded, and the next one tries
    again."""
    try:
        wanted = policies(pipeline, lake)
        worth = needs_a_look(lake, wanted)
        return attend(lake, {t: wanted[t] for t in worth})
    except LakeError as e:
        log.warning("upkeep of pipeline %s is left for later: %s", pipeline.name, e)
        return []


def why_not_now(tables: Sequence[TableUpkeep], table: TableUpkeep, now: float | None = None) -> str:
    """Return why upkeep of a table waits: quiet hours, or a budget that is used up; empty: it need not."""
    now = time.time() if now is None else now
    policy = table.policy
    if policy.is_quiet(datetime.fromtimestamp(now, UTC)):
        return "these are quiet hours"
    recent = [d for t in tables for d in t.record.done if now - _HOUR <= d.at <= now]
    share, most = policy.budget.share, policy.budget.bytes_an_hour
    if share is not None and share < 1 and sum(d.seconds for d in recent) > share * _HOUR:
        return f"the budget of {policy.budget} is used up for this hour"
    if most is not None and sum(d.bytes for d in recent) > most:
        return f"the budget of {policy.budget} is used up for this hour"
    return ""


def due_tables(lake: LakeBase, wanted: Mapping[TableId, UpkeepPolicy]) -> tuple[list[TableId], list[str]]:
    """Return the tables with something due that need not wait, and why others wait."""
    looked: list[TableUpkeep] = []
    reasons: list[str] = []
    for table in needs_a_look(lake, wanted):
        try:
            looked.append(look(lake, table, wanted[table]))
        except LakeError as e:
            reasons.append(f"{table}: {e}")
    with_due = [t for t in looked if t.due]
    why = {t.table: why_not_now(looked, t) for t in with_due}
    reasons += sorted({text for text in why.values() if text})
    return [t for t, text in why.items() if not text], reasons


def _tried(lake: LakeBase, action: Action, table: TableUpkeep) -> Attended:
    """Carry out an action if no step holds the table, and record it."""
    began, now = time.monotonic(), time.time()
    with table_lock.alone(lake, table.table) as is_held:
        if not is_held:
            return Attended(action, None, "a step is at work on the table")
        try:
            done = carry_out(lake, table.table, action, table.health, table.policy)
        except ConcurrentWriteError as e:
            return Attended(action, None, f"a writer was faster: {e}")
        except LakeError as e:
            log.warning("%s: %s failed: %s", table.table, action.kind, e)
            done = Done(action.kind, action.reason, now, time.monotonic() - began, error=lake.config.hidden(str(e)))
    upkeep_records.add(lake, table.table, [done], time.time())
    return Attended(action, done)


def of_pipelines(
    lake: LakeBase, pipelines: Sequence[Pipeline], select: Collection[str] | None = None
) -> dict[TableId, UpkeepPolicy]:
    """Return the policies of all tables of some pipelines, or of some of their tables.

    Raises:
        PipelineError: a selected table belongs to none of them.
    """
    wanted = {t: policy for p in pipelines for t, policy in policies(p, lake).items()}
    if select is None:
        return wanted
    names = {str(t): t for t in wanted}
    for name in select:
        if name not in names:
            there = lake.find(name)
            owner = there.properties.get(PIPELINE_PROPERTY) if there is not None else None
            raise PipelineError(_no_table(name, owner, list(names), is_there=there is not None))
    return {names[n]: wanted[names[n]] for n in select}


def _no_table(name: str, owner: str | None, names: Sequence[str], *, is_there: bool) -> str:
    if owner:
        return f"{name} belongs to pipeline {owner!r}: name the file of that pipeline with --pipeline"
    if is_there:
        return f"{name} belongs to another program, which looks after it: upkeep changes no tables of others"
    return f"there is no table {name}{nearest(name, names)}: the tables are {', '.join(names) or 'none'}"
