"""How long the owner of a source keeps the snapshot that a table has absorbed: of tables that other programs write.

Their snapshots expire as their owners see fit. What metadata tell are the retention that is declared for them, the age
of the oldest snapshot where some have expired, and the tags that keep a snapshot from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from lake_assets.capture import source_tags
from lake_assets.lake import thresholds
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.metadata.watermark import Watermark
from lake_assets.upkeep.claims import waiting_since
from lake_assets.upkeep.table_health import is_over, may_delete_files

# Iceberg's properties and its own defaults.
_AGE, _AGE_DEFAULT = "history.expire.max-snapshot-age-ms", 5 * 86_400_000
_NUMBER, _NUMBER_DEFAULT = "history.expire.min-snapshots-to-keep", 1


@dataclass(frozen=True)
class HistoryLeft:
    """How long a table can be sure of the snapshot of a source that it has absorbed.

    Attributes:
        snapshot_age: the seconds since the snapshot was made.
        is_protected: whether a tag or a branch keeps it.
        is_pending: whether changes wait after it.
        seconds: how many seconds are left before it may expire; 0: it may at any time; None: it does not, as far as
            metadata tell.
        why: what this follows from.
        is_known: whether the owner's retention is declared or was observed, and not only assumed.
    """

    snapshot_age: float
    is_protected: bool
    is_pending: bool
    seconds: float | None
    why: str
    is_known: bool = True

    @property
    def matters(self) -> bool:
        """Whether people should know: changes that wait may be lost, or the next ones may be."""
        if self.seconds is None or self.is_protected:
            return False
        return self.is_pending or (self.is_known and self.seconds < thresholds.HISTORY_LEFT_SECONDS)

    def text(self, source: str) -> str:
        """What people are told."""
        left = self.seconds or 0.0
        if left < 60:
            return f"{source} may lose its history at any time"
        for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
            if left >= 2 * size or unit == "minutes":
                return f"{source} keeps its history for {left / size:.0f} {unit} more"
        raise AssertionError("unreachable: minutes are of any size")


def history_left(
    marks: Mapping[str, Watermark], sources: Mapping[str, Table | None], now: float
) -> dict[str, HistoryLeft]:
    """Return how long a table can go on from its watermarks, by source that another program writes; metadata only.

    Sources whose history is lost already are left out.
    """
    found: dict[str, HistoryLeft] = {}
    for name, source in sources.items():
        at = marks[name].snapshot
        if source is None or at is None or not source_tags.is_of_others(source):
            continue
        if str(source.metadata.table_uuid) == marks[name].uuid and source.snapshot_by_id(at) is not None:
            found[name] = _of(source, at, now)
    return found


def _of(source: Table, at: int, now: float) -> HistoryLeft:
    snapshot = source.snapshot_by_id(at)
    assert snapshot is not None
    age, pending = max(0.0, now - snapshot.timestamp_ms / 1000), waiting_since(source, at) is not None
    refs = {n: r for n, r in source.metadata.refs.items() if r.snapshot_id == at and n != "main"}
    if keeping := [n for n, r in refs.items() if not is_over(source, r, now)]:
        return HistoryLeft(age, True, pending, None, f"kept by {', '.join(sorted(keeping))}")
    if not may_delete_files(source):
        return HistoryLeft(age, False, pending, None, "`gc.enabled` of the table is false")
    main = source.metadata.refs.get("main")
    number = (main and main.min_snapshots_to_keep) or _number(source, _NUMBER, _NUMBER_DEFAULT)
    # The current snapshot stays as well, but only until the next commit.
    if number > 1 and at in (s.snapshot_id for s in islice(ancestors(source), number)):
        return HistoryLeft(age, False, pending, None, f"the newest {number} snapshots stay")
    retention, why, is_known = _retention(source, now)
    return HistoryLeft(age, False, pending, max(0.0, retention - age), why, is_known)


def _retention(source: Table, now: float) -> tuple[float, str, bool]:
    """Return the age, in seconds, at which snapshots of a table may expire; what tells so; and whether that is sure."""
    main = source.metadata.refs.get("main")
    declared = (main and main.max_snapshot_age_ms) or _number(source, _AGE, 0)
    age = (declared or _AGE_DEFAULT) / 1000
    why = "the table's declared retention" if declared else "Iceberg's default retention"
    oldest = list(ancestors(source))[-1:]
    if oldest and _has_expired_before(source, oldest[0]):
        # Those that are left have at most this age.
        observed = max(0.0, now - oldest[0].timestamp_ms / 1000)
        if observed < age:
            return observed, "the age of its oldest snapshot, before which others have expired", True
    return age, why, bool(declared)


def _has_expired_before(table: Table, oldest: Snapshot) -> bool:
    """Whether a table had snapshots before the oldest one of main that it still has."""
    if oldest.parent_snapshot_id is not None:
        return True
    # PyIceberg takes the parent from a snapshot whose parent expires. A table that was replaced has older snapshots.
    first = oldest.sequence_number or 0
    return first > 1 and all((s.sequence_number or 0) >= first for s in table.metadata.snapshots)


def _number(table: Table, name: str, default: int) -> int:
    """Return a property that is a number; the default if it is none."""
    text = table.properties.get(name, "")
    return int(text) if text.isdecimal() else default
