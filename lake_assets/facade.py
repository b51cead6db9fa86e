"""`Lake`, the object that users hold: the lake itself and what can be asked of its tables."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from lake_assets.capture import Capture, capture
from lake_assets.capture.consumers import Consumers
from lake_assets.lake import LakeBase, TableId


class Lake(LakeBase):
    """A lake's catalog, Spark session and captures; see `LakeBase` for how it is opened."""

    def capture(
        self,
        table: str | TableId,
        start: int | str | datetime | None = None,
        end: int | str | datetime | None = None,
        *,
        granularity: Literal["net", "snapshot"] = "net",
        table_uuid: str | None = None,
    ) -> Capture:
        """What changed in `table` in the window `(start, end]`; reads metadata only.

        Args:
            table: `namespace.name`.
            start: snapshot id, tag or branch, or a point in time; None: everything up to `end`.
            end: the same; None: the table's current snapshot.
            granularity: `net` effect of the window, or every `snapshot`'s own changes.
            table_uuid: the uuid of the table that `start` belongs to, where the caller knows it.

        Raises:
            TableNotFoundError, SnapshotNotFoundError, SnapshotExpiredError, TableReplacedError, WindowError: the
                window cannot be had.
            MissingDataFileError, CorruptMetadataError: its metadata is gone or broken.
        """
        return capture(self, table, start, end, granularity=granularity, table_uuid=table_uuid)

    @property
    def consumers(self) -> Consumers:
        """Who still needs which snapshots of the lake's tables."""
        return Consumers(self)
