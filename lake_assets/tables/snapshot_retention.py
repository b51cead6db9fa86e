"""Protect the snapshots that a pipeline needs from any run of `expire_snapshots`.

Two kinds of snapshots are protected: in each source, the snapshot that a target has absorbed (by a consumer's tag); in
each target, the snapshot with the watermark (by the retention of its main branch, which takes precedence over the
arguments of `expire_snapshots`).
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable

from pyiceberg.exceptions import CommitFailedException

from lake_assets.capture import source_tags
from lake_assets.capture.consumers import RETAIN_DAYS
from lake_assets.errors import ConcurrentWriteError
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.metadata import refs
from lake_assets.tables.pending_windows import known_marks
from lake_assets.tables.writing.races import as_race

log = logging.getLogger(__name__)


def consumer_name(target: TableId) -> str:
    """Return the consumer name of a target in its sources."""
    name = str(target)
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        return name
    return "table-" + hashlib.sha256(name.encode()).hexdigest()[:16]


def keep_sources(lake: LakeBase, target: TableId, sources: Iterable[TableId]) -> None:
    """Move the target's tag in each source to the snapshot it has absorbed.

    Each move is a commit of the source's metadata. It follows every commit of the target nevertheless: a target that is
    paused for a week cannot move its tag, and needs exactly the snapshot that it absorbed last.
    """
    loaded = lake.find(target)
    if loaded is None:
        return
    marks, name = known_marks(loaded), consumer_name(target)
    for source in sources:
        mark = marks.get(str(source))
        if mark is None or mark.snapshot is None:
            continue
        if (table := lake.find(source)) is not None:
            source_tags.keep(lake, table, {source_tags.PREFIX + name: mark.snapshot}, RETAIN_DAYS)


def release(lake: LakeBase, table: TableId) -> None:
    """Let main keep its usual number of snapshots again, once the last tag of a backfill has expired.

    For tables that others write as well; `keep_own` does this for the others.
    """
    loaded = lake.find(table)
    if loaded is None or not refs.is_held_needlessly(loaded):
        return
    try:
        refs.release(loaded)
    except (refs.MovedError, CommitFailedException) as e:
        log.info("%s: its snapshots are all kept for now, since another run replaces it: %s", table, e)


def keep_own(lake: LakeBase, table: TableId) -> None:
    """Let the table's main branch keep its newest snapshots, including the one with the watermark.

    Only for tables that no one but the pipeline writes: the statement of Spark names the current snapshot of main.
    """
    loaded = lake.table(table)
    main = loaded.metadata.refs.get("main")
    if main is None or (main.min_snapshots_to_keep is not None and not refs.is_held_needlessly(loaded)):
        return
    try:
        if refs.can_commit(lake.catalog):
            refs.keep_snapshots(loaded, thresholds.SNAPSHOTS_KEPT)
            return
        with as_race(table):
            lake.spark().sql(
                f"ALTER TABLE {lake.sql_name(table)} REPLACE BRANCH main AS OF VERSION {main.snapshot_id} "
                f"WITH SNAPSHOT RETENTION {thresholds.SNAPSHOTS_KEPT} SNAPSHOTS"
            )
    except (refs.MovedError, CommitFailedException, ConcurrentWriteError) as e:
        # The step has committed, and another run replaces the table: that run, or the next one, does this.
        log.info("%s: its snapshots are not kept for now: %s", table, e)
