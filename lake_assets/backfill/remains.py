"""What kills, rollbacks, expired snapshots and replaced sources left behind in a lake, and what becomes of it.

Finding it reads metadata only. The catalog's own pointers are the business of `lake.metadata.catalog_repair`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pyiceberg.table import Table

from lake_assets.backfill.backfill_record import BackfillRecord, Records
from lake_assets.backfill.publishing import cleaned, settled
from lake_assets.backfill.side_lake import SideLake, can_build_aside
from lake_assets.capture import icdc
from lake_assets.errors import LakeError
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.lake.metadata.snapshot_log import between
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.table_graph import Spec
from lake_assets.pipeline.table_steps import step_of
from lake_assets.tables import leftovers, standing_failures
from lake_assets.tables.pending_windows import Window

Kind = Literal["backfill", "killed run", "source"]


@dataclass(frozen=True)
class Remains:
    """Something that is not as a run would leave it.

    Attributes:
        what: a table, or the id of a backfill.
        kind: where it comes from.
        why: what was found.
        remedy: what `mend` does; if there is nothing to call, who does what.
        needs_user: whether nothing and nobody puts it right until the user decides.
        mend: puts it right. Can be repeated.
    """

    what: str
    kind: Kind
    why: str
    remedy: str
    needs_user: bool = False
    mend: Callable[[], object] | None = field(default=None, compare=False, repr=False)


def remains(lake: Lake, pipelines: Sequence[Pipeline]) -> list[Remains]:
    """Return what is left behind in a lake; the tables of the pipelines are compared with their sources."""
    return [*_of_backfills(lake), *_of_killed_runs(lake), *_of_sources(lake, pipelines)]


# --- backfills --------------------------------------------------------------------------------------------------------


def _of_backfills(lake: Lake) -> Iterator[Remains]:
    if not can_build_aside(lake):
        return
    for record in Records(lake).all():
        if record.is_running:
            continue
        match record.state:
            case "publishing":
                why = "its process was killed while it published"
                yield _backfill(
                    record, why, "finds out whether it was, and finishes", lambda r=record: settled(lake, r)
                )
            case "discarding":
                why = "its process was killed while it was discarded"
                yield _backfill(record, why, "completes that", lambda r=record: _discard(lake, r))
            case "building" | "failed":
                why = f"stopped: {record.error}" if record.error else "its process was killed while it was built"
                advice = f"`lake-assets resume {record.id}` continues it, `lake-assets discard {record.id}` drops it"
                yield Remains(record.id, "backfill", f"{record.request}: {why}", advice, needs_user=True)
            case "ready" if record.publish == "auto":
                advice = f"`lake-assets publish {record.id}` publishes it, `lake-assets discard {record.id}` drops it"
                why = f"{record.request}: its process ended before it was published"
                yield Remains(record.id, "backfill", why, advice, needs_user=True)
            case "published" | "undone" if not record.is_clean:
                why = f"{record.state}, but its working copies may still be there"
                yield _backfill(record, why, "removes them", lambda r=record: settled(lake, r))
            case _:
                pass


def _backfill(record: BackfillRecord, why: str, remedy: str, mend: Callable[[], object]) -> Remains:
    return Remains(record.id, "backfill", f"{record.request}: {why}", remedy, mend=mend)


def _discard(lake: Lake, record: BackfillRecord) -> None:
    cleaned(lake, SideLake(lake, record), Records(lake), record)


# --- killed runs ------------------------------------------------------------------------------------------------------


def _of_killed_runs(lake: Lake) -> Iterator[Remains]:
    for left in icdc.leftovers(lake):
        why = f"a capture of {left.source} by a run that was killed"
        yield Remains(str(left.table), "killed run", why, "drops it", mend=lambda: icdc.sweep(lake))
    for name in lake.all_tables():
        table = _readable(lake, name)
        if branches := leftovers.abandoned_branches(table) if table else []:
            why = f"{len(branches)} branch{'es' if len(branches) > 1 else ''} of a run that was killed"
            remedy = "drops what nobody has published"
            yield Remains(str(name), "killed run", why, remedy, mend=lambda t=name: _drop(lake, t))
    for note in leftovers.abandoned(lake):
        tables = ", ".join(map(str, note.tables))
        if note.age >= leftovers.FILES_AFTER:
            remedy, mend = "deletes files that no snapshot names", lambda: leftovers.sweep(lake)
        else:
            hours = (leftovers.FILES_AFTER - note.age).total_seconds() / 3600
            remedy, mend = f"a run in {hours:.0f} hours or later deletes files that no snapshot names", None
        yield Remains(tables, "killed run", "a run was killed while it wrote", remedy, mend=mend)


def _drop(lake: Lake, name: TableId) -> None:
    leftovers.drop_branches(lake, name, lake.table(name))


# --- sources ----------------------------------------------------------------------------------------------------------


def _of_sources(lake: Lake, pipelines: Sequence[Pipeline]) -> Iterator[Remains]:
    for pipeline in pipelines:
        try:
            specs = pipeline.specs(lake, alone=False)
        except LakeError as error:
            yield Remains(pipeline.name, "source", str(error), "correct it, and repeat this", needs_user=True)
            continue
        for spec in specs:
            table = _readable(lake, spec.table)
            if table is not None and table.metadata.current_snapshot_id is not None:
                yield from _of_table(lake, spec, table)


def _of_table(lake: Lake, spec: Spec, table: Table) -> Iterator[Remains]:
    name = str(spec.table)
    sources = {s: t for s in spec.sources if (t := _readable(lake, s)) is not None}
    try:
        windows = step_of(spec).windows(lake, table, sources)
    except LakeError as error:
        yield Remains(name, "source", str(error), "the table stops until you decide", needs_user=True)
        return
    for window in windows:
        if window.lost:
            yield Remains(name, "source", window.lost.why, "the next run rebuilds it from what its sources hold")
        elif window.start is not None and window.head.snapshot is None:
            why = f"{window.source} was replaced by an empty table"
            yield Remains(name, "source", why, "the next run absorbs that its rows are gone")
        elif window.start is not None:
            log = between(sources[window.source].metadata, window.start, window.head.snapshot)
            if not log.is_forward:
                is_failed = standing_failures.has_failed(lake, spec.table)
                yield _off_history(name, window, is_replaced=log.ancestor is None, is_failed=is_failed)


def _off_history(name: str, window: Window, *, is_replaced: bool, is_failed: bool) -> Remains:
    """Return what becomes of a table that has absorbed a snapshot that is no ancestor of its source's head."""
    if is_replaced:
        why = f"{window.source} was computed again as a whole since {name} absorbed it"
        remedy = "the next run absorbs the rows that differ"
    else:
        why = f"{window.source} was rolled back beyond what {name} has absorbed"
        remedy = "the next run takes back what was rolled back"
    if is_failed:
        remedy = f"the last step of {name} failed: `lake-assets status` has its error, which says what to do"
    return Remains(name, "source", why, remedy, needs_user=is_failed)


def _readable(lake: Lake, name: TableId) -> Table | None:
    """Return a table; None if there is none, or the catalog has to be repaired before it can be read."""
    try:
        return lake.find(name)
    except LakeError:
        return None
