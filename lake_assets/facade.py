"""`Lake`, the main object for users: the lake and captures of its tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from lake_assets.capture import Capture, capture
from lake_assets.capture.consumers import Consumers
from lake_assets.capture.rows.changes_view import ChangesView, Kind
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

    def changes_view(
        self,
        name: str,
        table: str | TableId,
        start: int | str | datetime | None = None,
        end: int | str | datetime | None = None,
        *,
        kind: Kind = "feed",
        keys: Sequence[str] | None = None,
        granularity: Literal["net", "snapshot"] = "net",
        shared: bool = False,
    ) -> ChangesView:
        """Create a temporary view of the changes of `table` in the window `(start, end]`, for any SQL of the session.

        Works over Spark Connect too. The view reads the same rows until it is closed; use it in a `with` block.

        Args:
            name: name of the view; an existing temporary view of this name is replaced.
            table: `namespace.name`.
            start: snapshot id, tag or branch, or a point in time; None: everything up to `end`.
            end: like `start`; None: the table's current snapshot.
            kind: `feed` (all changes with `_change_type`), `rows` (inserted and updated rows as of `end`) or `keys`
                (the distinct values of `keys` over all changed rows, as before and after the change).
            keys: for `feed`, see `Capture.feed`; for `keys`, the columns, by default the table's identifier fields.
            granularity: `net` changes of the window, or the changes of every `snapshot`.
            shared: make a global view: every session of the same Spark (or Spark Connect server) reads it as
                `global_temp.NAME`, even if the session does not know the lake's catalog.

        Raises:
            InvalidNameError, ConfigError, ColumnNotFoundError: wrong arguments.
            TableNotFoundError, SnapshotNotFoundError, SnapshotExpiredError, WindowError: the window does not exist.
        """
        capture = self.capture(table, start, end, granularity=granularity)
        try:
            return ChangesView(self.spark(), name, capture, kind, keys, shared=shared)
        except BaseException:
            capture.close()
            raise

    @property
    def consumers(self) -> Consumers:
        """The consumers of the lake's tables and the snapshots they still need."""
        return Consumers(self)
