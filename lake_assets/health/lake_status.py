"""The status of all tables of a lake that pipelines have filled."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from lake_assets.erase.erase_record import unfinished
from lake_assets.errors import CorruptMetadataError, LakeError, TableNotFoundError
from lake_assets.health.late_tables import late_tables, targets_of
from lake_assets.health.step_findings import with_steps
from lake_assets.health.steps_at_work import with_steps_at_work
from lake_assets.health.table_status import TableStatus, reasons_text, table_status
from lake_assets.health.upkeep_status import UpkeepStatus, upkeep_statuses
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.counts import plural
from lake_assets.lake.disk_space import DiskSpace, disks
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.pending import after_redeclaration
from lake_assets.pipeline.table_graph import Spec
from lake_assets.service import service_state
from lake_assets.service.live_service import live_among
from lake_assets.tables.standing_failures import Failure, standing

# What is said of a live source without a service's state.
NEVER_READ = "no service has read it yet: `lake-assets serve` does, or the source sensor in Dagster"


@dataclass(frozen=True)
class LakeStatus:
    """The status of a lake.

    Attributes:
        tables: its tables, upstream first; those that failed before they existed come last.
        upkeep: the upkeep of tables, also of those that no pipeline has filled.
        unread: errors of pipelines that cannot be read, so that it is not known whether declarations have changed.
        disks: disks of this machine with little room.
        erasure: what is to be done about an erasure that is not completed; empty: there is none.
    """

    tables: Sequence[TableStatus]
    upkeep: Mapping[str, UpkeepStatus]
    unread: Sequence[str]
    disks: Sequence[DiskSpace] = ()
    erasure: str = ""


def little_room(lake: LakeBase) -> list[DiskSpace]:
    """Return the disks of this machine that the lake writes to, and that have little room."""
    return [d for d in disks(lake.config) if d.is_little]


def lake_status(lake: LakeBase, pipelines: Sequence[Pipeline]) -> LakeStatus:
    """Return the status of a lake, whose declarations are in some pipelines. Reads metadata only."""
    lake = lake.glance()
    specs, unread = declared(lake, pipelines)
    changed = _redeclared(lake, specs)
    kept = upkeep_statuses(lake, pipelines)
    tables = [table_status(lake, t) for t in own_tables(lake)]
    tables = [
        replace(t, redeclared=changed.get((t.pipeline, t.table), ""), upkeep=found and found.due, claims=claims)
        for t in tables
        for found in (kept.get(t.table),)
        for claims in (found.claims if found else (),)
    ]
    tables = with_targets(lake, _with_notes(lake, tables, specs), pipelines)
    tables = without_explained_claims(with_steps(lake, tables, {str(s.table): s for s in specs}))
    return LakeStatus(tables, kept, list(unread.values()), little_room(lake), unfinished(lake))


def without_explained_claims(tables: Sequence[TableStatus]) -> list[TableStatus]:
    """Return the status without the tables that others wait for because they fail or are late: they say so."""
    told = {t.table for t in tables if t.failure or t.lost or t.killed or t.stalled or t.overlong}
    return [replace(t, claims=tuple(c for c in t.claims if c.is_warning or c.consumer not in told)) for t in tables]


def quick_status(lake: LakeBase, specs: Sequence[Spec] = ()) -> list[TableStatus]:
    """Return the status of the tables without changes of their declarations, and without their upkeep.

    Args:
        specs: the tables whose declarations are known.
    """
    lake = lake.glance()
    tables = [table_status(lake, t) for t in own_tables(lake)]
    return with_steps(lake, _with_notes(lake, tables, specs), {str(s.table): s for s in specs})


def _with_notes(lake: LakeBase, tables: Sequence[TableStatus], specs: Sequence[Spec]) -> list[TableStatus]:
    """Return the tables with what processes have noted of them, and with what they say of each other."""
    noted = with_services(lake, with_steps_at_work(lake, with_failures(lake, tables), specs), specs)
    return with_unrouted(with_upstream(noted))


def declared(lake: LakeBase, pipelines: Sequence[Pipeline]) -> tuple[list[Spec], dict[str, str]]:
    """Return the declarations of all tables, and the errors of pipelines that cannot be read, by their names."""
    found: list[Spec] = []
    unread: dict[str, str] = {}
    for pipeline in pipelines:
        try:
            found += pipeline.specs(lake, alone=False)
        except LakeError as e:
            unread[pipeline.name] = str(e)
    return found, unread


def _redeclared(lake: LakeBase, specs: Sequence[Spec]) -> dict[tuple[str, str], str]:
    """Return what changed declarations do to tables, by pipeline and table."""
    found: dict[tuple[str, str], str] = {}
    for spec in specs:
        try:
            text = after_redeclaration(lake, spec)
        except LakeError as e:  # the table's own failure, which its next run reports
            text = str(e)
        if text:
            found[spec.pipeline, str(spec.table)] = text
    return found


def with_failures(lake: LakeBase, tables: Sequence[TableStatus]) -> list[TableStatus]:
    """Return the tables with their standing failures; tables that failed before they existed come last."""
    failures = standing(lake)
    known = {t.table for t in tables}
    missing = [TableStatus(f.table, f.pipeline, None, {}, {}, 0.0, None) for t, f in failures.items() if t not in known]
    return [
        replace(t, failure=_failure_text(failure), retry=retry_command(failure)) if failure else t
        for t in (*tables, *missing)
        for failure in (failures.get(t.table),)
    ]


def with_unrouted(tables: Sequence[TableStatus]) -> list[TableStatus]:
    """Return the tables; the raw tables say which other ones their records may be missing in of which nobody can tell
    what they are about."""
    return [replace(t, not_exact=[*t.not_exact, _unrouted_text(t, tables)]) if t.unrouted else t for t in tables]


def _unrouted_text(raw: TableStatus, tables: Sequence[TableStatus]) -> str:
    fed = {raw.table: None}
    for table in tables:  # upstream first
        if not fed.keys().isdisjoint(table.watermark):
            fed[table.table] = None
    names = [t for t in fed if t != raw.table]
    shown = ", ".join(names[: thresholds.REPORT_NAMES])
    more = len(names) - thresholds.REPORT_NAMES
    more_tables = f" and {plural(more, 'more table')}" if more > 0 else ""
    where = f" of {shown}{more_tables}" if names else ""
    count = sum(r.records for r in raw.unrouted)
    records = (
        "1 rejected record does not say which table it is"
        if count == 1
        else f"{count:,} rejected records do not say which table they are"
    )
    why = reasons_text(raw.unrouted)
    return f"{records} about ({why}): rows{where} may be missing or stale (`lake-assets rejected`)"


def with_services(lake: LakeBase, tables: Sequence[TableStatus], specs: Sequence[Spec] = ()) -> list[TableStatus]:
    """Return the tables with the state of the services that read live sources; a source of which nothing has landed
    has no table yet.

    Args:
        specs: the tables whose declarations are known: of a live one, it is told that no service has ever read it.
    """
    live = {str(s.table): s.pipeline for s in live_among(specs)}
    known = {t.table: t.pipeline for t in tables}
    others = {str(s.table) for s in specs} - live.keys()
    pipelines = {s.pipeline for s in specs}
    # A source that is declared no longer leaves the state of its last service.
    states = {
        raw: state
        for raw, state in service_state.of_all(lake).items()
        if raw in live or state.is_alive or not (raw in others or known.get(raw) in pipelines)
    }
    missing = [
        TableStatus(name, live.get(name, ""), None, {}, {}, 0.0, None)
        for name in dict.fromkeys((*states, *live))
        if name not in known
    ]

    def with_service(table: TableStatus) -> TableStatus:
        if state := states.get(table.table):
            return replace(table, source=state.text, source_fails=not state.is_well)
        if table.table in live:
            return replace(table, source=NEVER_READ, source_fails=True)
        return table

    return [with_service(t) for t in (*tables, *missing)]


def with_targets(lake: LakeBase, tables: Sequence[TableStatus], pipelines: Sequence[Pipeline]) -> list[TableStatus]:
    """Return the tables with their target lags, and what is wrong with these."""
    targets, late = targets_of(lake, pipelines), late_tables(lake, pipelines)
    return [
        replace(t, target_lag=targets.get(t.table), late=late[t.table].text if t.table in late else "") for t in tables
    ]


def with_upstream(tables: Sequence[TableStatus]) -> list[TableStatus]:
    """Return the tables, each with its upstream tables that are behind."""
    by_name = {t.table: t for t in tables}

    def upstream(table: TableStatus, seen: set[str]) -> Iterator[TableStatus]:
        # Of a lookup whose changes trigger nothing, it is not said how far the table is behind.
        for source in table.behind or table.watermark:
            if source in by_name and source not in seen:
                seen.add(source)
                yield from upstream(by_name[source], seen)
                yield by_name[source]

    return [replace(t, upstream=tuple(u.table for u in upstream(t, {t.table}) if u.is_behind)) for t in tables]


def own_tables(lake: LakeBase) -> list[TableId]:
    """Return the tables that pipelines have filled, upstream first; of the layers also those that cannot be read."""
    order = {"raw": 0, "staging": 1, "final": 2, "agg": 3}
    tables = sorted(lake.all_tables(), key=lambda t: (order.get(t.namespace[0], 9), t))
    return [t for t in tables if _is_own(lake, t, unread=t.namespace[0] in order)]


def _is_own(lake: LakeBase, table: TableId, *, unread: bool) -> bool:
    try:
        return PIPELINE_PROPERTY in lake.table(table).properties
    except TableNotFoundError:  # dropped since the catalog listed it, as working copies of backfills are
        return False
    except CorruptMetadataError:  # nobody can tell, but whoever relies on it has to know
        return unread


def _failure_text(failure: Failure) -> str:
    """Return when and why the last step of a table failed, and the command that tries again."""
    command = retry_command(failure)
    then = f"\nThen `{command}` tries again" if command else ""
    return f"failed at {datetime.fromtimestamp(failure.at, UTC):%Y-%m-%d %H:%M:%S} UTC: {failure.error}{then}"


def retry_command(failure: Failure) -> str | None:
    """Return the command that tries again; None if the pipeline's file is unknown, or the error has another remedy.

    It runs the whole pipeline: a correction may be upstream.
    """
    if not failure.file or "`lake-assets rebuild " in failure.error:
        return None
    return f"lake-assets run {shlex.quote(failure.file)}"
