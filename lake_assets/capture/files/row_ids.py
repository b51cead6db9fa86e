"""Row ids and row versions of data files (format v3), as far as metadata shows them.

A writer that keeps row lineage stores ids and versions of rows that it carries over between files in two reserved
columns. Rows without a stored id get a new one, greater than all ids that the table has assigned before. The counts and
bounds of the reserved columns show which files may contain carried-over rows; without them, a file may.

Source: https://iceberg.apache.org/spec/#row-lineage
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyiceberg.schema import Schema
from pyiceberg.table import Table

from lake_assets.capture.files.manifests import Entry
from lake_assets.capture.files.planned_files import Plan
from lake_assets.capture.windows import Window

# Reserved field ids of `_row_id` and `_last_updated_sequence_number`.
_ROW_ID, _VERSION = 2147483540, 2147483539


@dataclass(frozen=True)
class RowIds:
    """Ids and versions of the rows in the captured files of a forward window.

    Attributes:
        since: the sequence number of the window's start: rows with a higher version were inserted or updated.
        first_new: the first row id that was not assigned yet at the start: rows with this id or a higher one are new,
            or were rewritten by an engine that does not keep row ids.
        appends: the snapshots of the window that only added files.
        upkeep: the snapshots of the window that only rewrote files.
        schema: the table's schema.
        counts_reserved: whether files with counts for all other columns have counts for the reserved columns too.
    """

    since: int
    first_new: int
    appends: frozenset[int]
    upkeep: frozenset[int]
    schema: Schema
    counts_reserved: bool

    def may_carry(self, e: Entry) -> bool:
        """Whether a file may contain rows of the start in the same version."""
        if e.sequence_number <= self.since:
            return True
        if e.snapshot_id in self.appends:
            return False
        nulls = e.statistic("null_value_counts")
        if _VERSION in nulls:
            return nulls[_VERSION] < e.records
        # If all other columns have counts, a reserved column without counts does not exist.
        value_counts = e.statistic("value_counts")
        are_all_counted = all(f.field_type.is_primitive and f.field_id in value_counts for f in self.schema.fields)
        return not (are_all_counted and self.counts_reserved) or _VERSION in value_counts

    def may_hold_new_ids(self, e: Entry) -> bool:
        """Whether a file may contain rows with ids that were assigned after the start."""
        high = _bound(e, "upper_bounds")
        all_stored = e.statistic("null_value_counts").get(_ROW_ID) == 0
        return not (all_stored and high is not None and high < self.first_new)

    def newer(self, planned: Plan) -> Plan:
        """Return only the files of the end that may contain inserted, updated or renumbered rows."""
        old_paths = {e.path for e in planned.before.data}
        data = tuple(
            e
            for e in planned.after.data
            if e.sequence_number > self.since or (e.path not in old_paths and self.may_hold_new_ids(e))
        )
        if not data:
            return Plan()
        oldest = min(e.sequence_number for e in data)
        # A delete is never older than a file to which it applies.
        deletes = tuple(e for e in planned.after.deletes if e.sequence_number >= oldest)
        return Plan(after=replace(planned.after, data=data, deletes=deletes))

    def has_new_ids(self, planned: Plan) -> bool:
        """Whether rows were removed while rows with new ids were added, some of which may be the same rows."""
        return bool(planned.before.data) and any(map(self.may_hold_new_ids, _added(planned)))

    def is_rewritten(self, planned: Plan) -> bool:
        """Whether a commit replaced rows without keeping any of their ids, so that most may be unchanged.

        INSERT OVERWRITE, upserts by equality deletes, and engines without row lineage do that. A MERGE or UPDATE that
        keeps ids stores some in the files that it writes.
        """
        if not planned.before.data:
            return False
        commits: dict[int | None, list[Entry]] = {}
        for e in _added(planned):
            commits.setdefault(e.snapshot_id, []).append(e)
        return any(
            snapshot not in self.appends and any(map(self.may_hold_new_ids, es)) and not any(map(self._keeps_ids, es))
            for snapshot, es in commits.items()
        )

    def may_restore(self, planned: Plan) -> bool:
        """Whether files may restore rows that the start did not have, with their old ids and versions.

        An engine that restores a table by a new commit adds older files again. They keep their old sequence numbers,
        or contain rows from before the start that none of the removed files contains.
        """
        if not planned.before.data:
            return False
        old_files = {(e.path, e.sequence_number) for e in planned.before.data}
        paths = {path for path, _ in old_files}
        added = [e for e in planned.after.data if (e.path, e.sequence_number) not in old_files]
        if any(
            e.path in paths or (e.sequence_number <= self.since and e.snapshot_id not in self.upkeep) for e in added
        ):
            return True
        old_rows = [self._old_rows(e) for e in added if e.snapshot_id not in self.upkeep]
        reported = [n for n in old_rows if n is not None]
        if len(reported) < len(old_rows) or sum(reported) >= sum(e.records for e in planned.before.data):
            return True
        spans = [_span(e) for e in planned.before.data]
        low, after = min(first for first, _ in spans), max(end for _, end in spans)
        bounds = [(_bound(e, "lower_bounds"), _bound(e, "upper_bounds")) for e in added]
        return any(
            (first is not None and first < min(low, self.first_new))
            or (last is not None and after <= last < self.first_new)
            for first, last in bounds
        )

    def _old_rows(self, e: Entry) -> int | None:
        """Return the least number of rows from before the start in a file; None if its metrics do not tell."""
        if not self.may_carry(e):
            return 0
        nulls, newest = e.statistic("null_value_counts").get(_VERSION), _bound(e, "upper_bounds", _VERSION)
        if nulls is None or newest is None:
            return None
        return e.records - nulls if newest <= self.since else 0

    def _keeps_ids(self, e: Entry) -> bool:
        nulls, low = e.statistic("null_value_counts").get(_ROW_ID), _bound(e, "lower_bounds")
        return nulls is not None and nulls < e.records and low is not None and low < self.first_new


def are_stored_by_appends(planned: Plan, window: Window) -> bool:
    """Whether an append stored row ids: files of another table were added, with that table's ids."""
    appends = _appends(window)
    return any(
        e.statistic("null_value_counts").get(column, e.records) < e.records
        for e in planned.after.data
        if e.snapshot_id in appends
        for column in (_ROW_ID, _VERSION)
    )


def row_ids(source: Table, window: Window, planned: Plan) -> RowIds | None:
    """Return the row ids of a window's files; None if the start's sequence number does not identify changed rows.

    That is so if the window does not lead forward from a snapshot of format v3, or if old rows may have been restored.
    """
    if window.since is None or window.start is None or window.start.next_row_id is None:
        return None
    ids = RowIds(
        since=window.since,
        first_new=window.start.next_row_id,
        appends=_appends(window),
        upkeep=frozenset(p.snapshot_id for p in window.steps if p.operation == "replace"),
        schema=source.schema(),
        counts_reserved=source.properties.get("write.metadata.metrics.default", "").lower() != "none",
    )
    return None if ids.may_restore(planned) else ids


def _appends(window: Window) -> frozenset[int]:
    return frozenset(p.snapshot_id for p in window.steps if p.operation == "append")


def _span(e: Entry) -> tuple[int, int]:
    """Return the least row id that a file may contain, and the first id after the greatest."""
    first = e.first_row_id or 0
    low, high = _bound(e, "lower_bounds"), _bound(e, "upper_bounds")
    return min(first, first if low is None else low), max(first + e.records, 0 if high is None else high + 1)


def _added(planned: Plan) -> list[Entry]:
    old_paths = {e.path for e in planned.before.data}
    return [e for e in planned.after.data if e.path not in old_paths]


def _bound(e: Entry, which: str, column: int = _ROW_ID) -> int | None:
    raw = e.statistic(which).get(column)
    return None if raw is None else int.from_bytes(raw, "little", signed=True)
