"""Look after the tables of a pipeline: find what is due, in the order of its use, and do it within a budget."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice, takewhile

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from lake_assets.errors import ConcurrentWriteError, LakeError, Refused, TableNotFoundError
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.foreign_errors import first_line, spark_error_text
from lake_assets.lake.metadata import clock_skew
from lake_assets.lake.metadata.metadata_commits import MovedError
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.pipeline import Pipeline
from lake_assets.tables import table_lock
from lake_assets.tables.upkeep_policy import UpkeepPolicy
from lake_assets.upkeep import upkeep_records
from lake_assets.upkeep.attended import Attended
from lake_assets.upkeep.claims import Claim, claims_of, has_claims, noted
from lake_assets.upkeep.retention import may_be_overdue, overdue
from lake_assets.upkeep.services import carry_out
from lake_assets.upkeep.table_health import TableHealth, health_of, may_delete_files, may_need_upkeep
from lake_assets.upkeep.upkeep_actions import Action, chosen, due_actions, due_claims
from lake_assets.upkeep.upkeep_records import Done, Look, TableRecord
from lake_assets.upkeep.upkept_tables import policies, readable

log = logging.getLogger(__name__)
# The hour of which a budget counts the actions.
_HOUR = 3600.0


@dataclass(frozen=True)
class TableUpkeep:
    """How a table is kept, and what is due for it.

    Attributes:
        table: the table.
        policy: its policy.
        health: its health.
        due: the actions that are due.
        paused: due actions that wait since the last ones like them gained nothing.
        claims: its consumers for which changes wait, or that do not exist any more.
        record: what was done before.
        uuid, snapshot: the table's, when it was looked at.
    """

    table: TableId
    policy: UpkeepPolicy
    health: TableHealth
    due: Sequence[Action]
    paused: Sequence[Action]
    record: TableRecord = field(repr=False)
    claims: Sequence[Claim] = ()
    uuid: str = ""
    snapshot: int | None = None


def look(lake: LakeBase, table: TableId, policy: UpkeepPolicy, now: float | None = None) -> TableUpkeep:
    """Return how a table is, and what is due for it; from metadata alone.

    Raises:
        TableNotFoundError: there is no such table.
        MissingDataFileError, CorruptMetadataError: its metadata is missing or broken.
    """
    now = time.time() if now is None else now
    record = upkeep_records.read(lake, table, now)
    loaded = lake.table(table)
    if policy.only_claims_of:
        health, due = TableHealth(str(table), loaded.metadata.format_version), list[Action]()
    else:
        health = health_of(table, loaded, policy, now)
        searched = record.last("orphans")
        due = due_actions(health, policy, now - (searched.at if searched else record.seen))
        due += overdue(loaded, policy, now)
    claims = claims_of(lake, table, loaded, policy, record, now)
    due += due_claims(str(table), claims, policy)
    paused = [a for a in due if record.is_paused(a.kind, now)]
    return TableUpkeep(
        table,
        policy,
        health,
        [a for a in due if a not in paused],
        paused,
        record,
        claims,
        str(loaded.metadata.table_uuid),
        loaded.metadata.current_snapshot_id,
    )


def claims_at(lake: LakeBase, table: TableId, policy: UpkeepPolicy, *, costs: bool = True) -> Sequence[Claim]:
    """Return the consumers of a table; none if it cannot be read. `costs` is that of `claims_of`."""
    loaded, now = readable(lake, table), time.time()
    if loaded is None or not has_claims(loaded):
        return []
    return claims_of(lake, table, loaded, policy, upkeep_records.read(lake, table, now), now, costs=costs)


def looked(lake: LakeBase, table: TableId, policy: UpkeepPolicy) -> TableUpkeep | Attended | None:
    """Return how a table is; the error that prevents a look at it; None if it was dropped meanwhile."""
    began = time.monotonic()
    try:
        return look(lake, table, policy)
    except TableNotFoundError:
        return None
    except Exception as e:  # broken metadata raise many, and other tables must not wait for that
        error = Done("look", "", time.time(), time.monotonic() - began, error=_text(lake, e))
        return Attended(Action(str(table), "look", "its files have to be counted first", 0, 0), error)


def needs_a_look(
    lake: LakeBase, wanted: Mapping[TableId, UpkeepPolicy], now: float | None = None, *, heeds_quiet: bool = True
) -> list[TableId]:
    """Return the tables that are worth looking at, from their loaded metadata alone: cheap enough for every tick.

    Args:
        heeds_quiet: whether tables with quiet hours now are left out.
    """
    now = time.time() if now is None else now
    worth: list[TableId] = []
    for table, policy in wanted.items():
        if not policy.is_on or (heeds_quiet and policy.is_quiet(datetime.fromtimestamp(now, UTC))):
            continue
        loaded = readable(lake, table)
        if loaded is not None and _is_worth_a_look(loaded, policy, upkeep_records.read(lake, table, now), now):
            worth.append(table)
    return worth


def _is_worth_a_look(table: Table, policy: UpkeepPolicy, record: TableRecord, now: float) -> bool:
    """Whether something may be due for a table: it was at the last look, or enough has happened since."""
    last, searched = record.look, record.last("orphans")
    if last is not None and last.is_due:
        return True
    if has_claims(table) and (last is None or now - last.at >= thresholds.CLAIM_LOOK_SECONDS):
        return True
    if policy.only_claims_of:
        return False
    since_orphans = now - (searched.at if searched else record.seen)
    is_late = since_orphans >= thresholds.ORPHAN_SEARCH_SECONDS and may_delete_files(table)
    if is_late and not record.is_paused("orphans", now):
        return True
    if not may_need_upkeep(table, policy, now) and not may_be_overdue(table, policy, now):
        return False
    if last is None or now - last.at >= thresholds.UPKEEP_LOOK_SECONDS:
        return True
    enough = max(1, policy.commits // 5)
    since = takewhile(lambda s: s.snapshot_id != last.snapshot, ancestors(table))
    return len(list(islice(since, enough))) >= enough


def _note(lake: LakeBase, table: TableUpkeep) -> None:
    now = time.time()
    upkeep_records.looked(lake, table.table, Look(now, table.snapshot, bool(table.due)))
    noted(lake, table.table, table.claims, now)


def attend(
    lake: LakeBase,
    wanted: Mapping[TableId, UpkeepPolicy],
    *,
    beside: Collection[TableId] = (),
    seconds: float | None = None,
    is_forced: bool = False,
    on_done: Callable[[Attended], None] | None = None,
) -> list[Attended]:
    """Do what is due for tables, the most useful actions first, each in pieces of seconds.

    Between two pieces, steps that wait for the table get their turn. A table that a step holds is left for later.

    Args:
        wanted: the policies by table.
        beside: other tables whose upkeep counts towards the same budget.
        seconds: no action begins after so many seconds; None: all that is due is done.
        is_forced: whether quiet hours, pauses and the budget are ignored, as for a command that a person gives.

    Returns:
        What became of each action, in the order in which they were tried; and of tables that cannot be looked at.
    """
    began, attended, tables = time.monotonic(), list[Attended](), dict[TableId, TableUpkeep]()

    def report(result: Attended) -> None:
        attended.append(result)
        if on_done:
            on_done(result)

    def look_at(table: TableId) -> None:
        tables.pop(table, None)
        match looked(lake, table, wanted[table]):
            case TableUpkeep() as found:
                tables[table] = found
            case Attended() as error:
                report(error)
            case None:
                pass

    for name, policy in wanted.items():
        if policy.is_on:
            look_at(name)
    # Each kind of action is tried on a table until it gains nothing more, or has to wait.
    over = set[tuple[str, str]]()
    while waiting := _waiting(tables.values(), over, is_forced=is_forced):
        action = waiting[0]
        table = tables[TableId.parse(action.table)]
        late = seconds is not None and time.monotonic() - began >= seconds
        why_not = "" if is_forced else why_not_now(table.policy, _recent(lake, {*wanted, *beside}))
        why_not = "there was no time left" if late else why_not
        result = Attended(action, None, why_not) if why_not else _tried(lake, action, table)
        report(result)
        if result.done is None or result.done.files <= 0:
            over.add((action.table, action.kind))
        if result.done is not None:
            look_at(table.table)
    for table in tables.values():
        _note(lake, table)
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
        return attend(lake, {t: wanted[t] for t in worth}, beside=wanted.keys())
    except Exception as e:  # of any kind: the run has succeeded
        log.warning("upkeep of pipeline %s is left for later: %s", pipeline.name, _text(lake, e))
        return []


def _recent(lake: LakeBase, tables: Iterable[TableId]) -> list[Done]:
    """Return what was done for tables in the last hour."""
    now = time.time()
    return [d for t in tables for d in upkeep_records.read(lake, t, now).done if now - _HOUR <= d.at]


def why_not_now(policy: UpkeepPolicy, recent: Collection[Done], now: float | None = None) -> str:
    """Return why upkeep of a table waits: quiet hours, or a budget that is used up; empty: it need not.

    Args:
        recent: what was done, in the last hour, for all tables that share the budget.
    """
    now = time.time() if now is None else now
    if policy.is_quiet(datetime.fromtimestamp(now, UTC)):
        return "these are quiet hours"
    share, most = policy.budget.share, policy.budget.bytes_an_hour
    if share is not None and share < 1 and sum(d.seconds for d in recent) > share * _HOUR:
        return f"the budget of {policy.budget} is used up for this hour"
    if most is not None and sum(d.bytes for d in recent) > most:
        return f"the budget of {policy.budget} is used up for this hour"
    return ""


def due_tables(lake: LakeBase, wanted: Mapping[TableId, UpkeepPolicy]) -> tuple[list[TableId], list[str]]:
    """Return the tables with something due that need not wait, and why others wait."""
    due: list[TableId] = []
    reasons: list[str] = []
    recent = _recent(lake, wanted)
    for table in needs_a_look(lake, wanted):
        if text := why_not_now(wanted[table], recent):
            reasons.append(text)
            continue
        match looked(lake, table, wanted[table]):
            case TableUpkeep() as found:
                _note(lake, found)
                due += [table] if found.due else []
            case Attended(done=Done() as error):
                reasons.append(f"{table}: {error.error}")
            case _:
                pass
    return due, list(dict.fromkeys(reasons))


def _tried(lake: LakeBase, action: Action, table: TableUpkeep) -> Attended:
    """Carry out an action if no step holds the table, and record it."""
    began, now = time.monotonic(), time.time()
    why_not = ""
    with table_lock.alone(lake, table.table) as is_held:
        if not is_held:
            return Attended(action, None, "a step is at work on the table")
        try:
            loaded = lake.find(table.table)
            if loaded is None or str(loaded.metadata.table_uuid) != table.uuid:
                return Attended(action, None, "the table was dropped, or created again")
            if not table.policy.only_claims_of:
                clock_skew.reset_future_times(loaded)
            done = carry_out(lake, table.table, action, table.health, table.policy)
            if isinstance(done, Refused):
                why_not = done.reason
                done = Done(action.kind, action.reason, now, time.monotonic() - began)
        except (ConcurrentWriteError, MovedError, CommitFailedException) as e:
            # It has gained nothing, and has cost time: the next try waits, or each would lose to a busy writer.
            done, why_not = Done(action.kind, action.reason, now, time.monotonic() - began), f"a writer was faster: {e}"
        except Exception as e:  # errors of Iceberg and Spark are of many kinds, and other tables must not wait for them
            text = _text(lake, e)
            log.warning("%s: %s failed: %s", table.table, action.kind, text)
            done = Done(action.kind, action.reason, now, time.monotonic() - began, error=text)
    upkeep_records.add(lake, table.table, [done], time.time())
    return Attended(action, None, why_not) if why_not else Attended(action, done)


def _text(lake: LakeBase, error: Exception) -> str:
    """Return what an error says, without the values of rows that Spark quotes."""
    if isinstance(error, LakeError):
        return lake.config.hidden(str(error))
    lines = [line.strip(" :") for line in spark_error_text(error).splitlines()]
    said = [line for line in lines if line and not line.startswith("An error occurred while calling")]
    return lake.config.hidden(said[0] if said else f"{type(error).__name__}: {first_line(error)}")
