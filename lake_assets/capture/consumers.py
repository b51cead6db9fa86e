"""Consumers of a table and the snapshots they still need.

A consumer is a tag on its watermark snapshot in the source, so `expire_snapshots` never removes the snapshot from which
the consumer continues. The tag is moved after the consumer has committed: it may lag behind, but is never ahead. Each
move is a metadata commit to the source; if that is too expensive, move the tag less often.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyiceberg.table import Table

from lake_assets.capture import source_tags
from lake_assets.capture.source_tags import PREFIX
from lake_assets.capture.windows import resolve
from lake_assets.errors import ConsumerNotFoundError, InvalidNameError, SnapshotExpiredError, SnapshotNotFoundError
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.refs import MovedError

# A tag without its own age uses the table's `history.expire.max-ref-age-ms`, and may expire itself.
RETAIN_DAYS = 36500

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Consumer:
    """A consumer of a table and how far it is behind.

    Attributes:
        name: name of the consumer.
        table: the consumed table.
        snapshot_id: the absorbed snapshot.
        timestamp: time of that snapshot.
        snapshots_behind: number of snapshots by which the table's main branch is ahead; None if unknown, because some
            in between have expired.
        behind: the time between the two; zero if the table was rolled back since.
    """

    name: str
    table: TableId
    snapshot_id: int
    timestamp: datetime
    snapshots_behind: int | None
    behind: timedelta


class Consumers:
    """Registers, lists and removes the consumers of the lake's tables."""

    def __init__(self, lake: LakeBase) -> None:
        self._lake = lake

    def register(self, table: str | TableId, name: str, snapshot_id: int | None = None) -> Consumer:
        """Register a consumer at a snapshot, or move an existing consumer there.

        Args:
            name: name of the consumer, of letters, digits, `_`, `.` and `-`: usually the name of the target.
            snapshot_id: the absorbed snapshot; None: the current snapshot.

        Raises:
            InvalidNameError: the name is invalid, or that of a branch.
            SnapshotNotFoundError: the table has no such snapshot, or none at all.
            SnapshotExpiredError: the snapshot has expired.
        """
        table_id, tag = TableId.parse(table), _tag(name)
        source = self._lake.table(table_id)
        window = resolve(source, table_id, end=snapshot_id)
        if window.end is None:
            raise SnapshotNotFoundError(f"{table_id} has no snapshot yet that consumer {name!r} could have absorbed")
        ref = source.metadata.refs.get(tag)
        if ref is None or ref.snapshot_id != window.end.snapshot_id:
            try:
                source_tags.set_tags(self._lake, source, {tag: window.end.snapshot_id}, RETAIN_DAYS)
            except MovedError as e:
                raise SnapshotExpiredError(
                    f"{table_id}: snapshot {window.end.snapshot_id} does not exist anymore: {e}"
                ) from e
        return self._consumer(self._lake.table(table_id), table_id, tag, window.end.snapshot_id)

    advance = register

    def list(self, table: str | TableId) -> list[Consumer]:
        """Return the consumers of a table, furthest behind first."""
        table_id = TableId.parse(table)
        source = self._lake.table(table_id)
        consumers = [
            self._consumer(source, table_id, name, ref.snapshot_id)
            for name, ref in source.metadata.refs.items()
            if source_tags.is_consumer(source, name)
        ]
        return sorted(consumers, key=lambda c: (c.timestamp, c.name))

    def remove(self, table: str | TableId, name: str) -> None:
        """Remove a consumer; its snapshot may expire from then on.

        Raises:
            ConsumerNotFoundError: the table has no such consumer.
        """
        table_id, tag = TableId.parse(table), _tag(name)
        source = self._lake.table(table_id)
        if not source_tags.is_tag(source, tag):
            existing = ", ".join(c.name for c in self.list(table_id)) or "none"
            raise ConsumerNotFoundError(f"{table_id} has no consumer {name!r}; it has: {existing}")
        source_tags.drop_tags(self._lake, source, [tag])

    def _consumer(self, source: Table, table: TableId, tag: str, snapshot_id: int) -> Consumer:
        window = resolve(source, table, start=snapshot_id)
        assert window.start is not None
        assert window.end is not None
        return Consumer(
            name=tag.removeprefix(PREFIX),
            table=table,
            snapshot_id=snapshot_id,
            timestamp=window.start.timestamp,
            snapshots_behind=len(window.steps) if window.is_complete else None,
            behind=max(window.end.timestamp - window.start.timestamp, timedelta()),
        )


def _tag(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidNameError(f"{name!r} cannot be a consumer's name: use letters, digits, `_`, `.` and `-`")
    return PREFIX + name
