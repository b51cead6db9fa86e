"""`Lake`, the main object for users: the lake and captures of its tables."""

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
        """Capture the changes of `table` in the window `(start, end]`; reads metadata only.

        Args:
            table: `namespace.name`.
            start: snapshot id, tag or branch, or a point in time; None: everything up to `end`.
            end: like `start`; None: the table's current snapshot.
            granularity: `net` changes of the window, or the changes of every `snapshot`.
            table_uuid: the uuid of the table that `start` belongs to, if known.

        Raises:
            TableNotFoundError, SnapshotNotFoundError, SnapshotExpiredError, TableReplacedError, WindowError: the
                window does not exist.
            MissingDataFileError, CorruptMetadataError: its metadata is missing or broken.
        """
        return capture(self, table, start, end, granularity=granularity, table_uuid=table_uuid)

    @property
    def consumers(self) -> Consumers:
        """The consumers of the lake's tables and the snapshots they still need."""
        return Consumers(self)
