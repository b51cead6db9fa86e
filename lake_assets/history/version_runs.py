"""The runs that made the versions of a row, from the journal: snapshots do not tell them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from lake_assets.history.history_document import RowHistory, RowVersion
from lake_assets.history.timeline import Timeline
from lake_assets.journal import step_journal
from lake_assets.journal.step_records import StepRecord
from lake_assets.lake import LakeBase, thresholds
from lake_assets.lake.counts import plural

_FIELDS = ("id", "pipeline", "table", "status", "started_at", "seconds", "cpu_seconds", "snapshot", "run", "host")


def with_runs(lake: LakeBase, found: RowHistory, line: Timeline) -> RowHistory:
    """Return a history with the run and the machine of each version that a step made, as far as that is recorded.

    The journal is read once, from a while before the oldest version on. It may be missing or broken: nothing else of
    a history depends on it.
    """
    of_steps = {m.id for m in line.moments if m.is_of_step}
    made = [v for v in found.versions if v.snapshot in of_steps]
    if not made:
        return found
    # A step began before its commit.
    since = min(v.committed_at for v in made) - timedelta(seconds=thresholds.OUTSIDE_STEP_SECONDS)
    try:
        records = step_journal.read(lake, since, table=found.table, backfills=True, fields=_FIELDS)
    except Exception as e:  # of the catalog, of the store, of PyIceberg
        reason = lake.config.hidden(f"{type(e).__name__}: {e}")
        return replace(
            found, notes=(*found.notes, f"the runs are not shown: {step_journal.TABLE} cannot be read: {reason}")
        )
    by_snapshot = {r.snapshot: r for r in records if r.snapshot is not None}
    versions = tuple(_with_run(v, by_snapshot) if v.snapshot in of_steps else v for v in found.versions)
    unknown = sum(v.snapshot not in by_snapshot for v in made)
    notes = found.notes
    if unknown:
        note = f"{step_journal.TABLE}, which keeps {thresholds.JOURNAL_DAYS} days, has no record of their steps"
        notes = (*notes, f"the runs of {plural(unknown, 'version')} are not known: {note}")
    return replace(found, versions=versions, notes=notes)


def _with_run(version: RowVersion, records: Mapping[int, StepRecord]) -> RowVersion:
    record = records.get(version.snapshot)
    return replace(version, run=record.run, host=record.host) if record else version
