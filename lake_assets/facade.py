"""`Lake`, the main object for users: the lake and captures of its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Literal

from lake_assets.capture import Capture, capture
from lake_assets.capture.changes_view import ChangesView, Kind
from lake_assets.capture.consumers import Consumers
from lake_assets.jobs.captured_step import CapturedStep, captured_step
from lake_assets.jobs.step_settings import ByColumn, StepSettings, columns_by_name, names_of
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

        Once rows are read, tags keep the two snapshots from expiring until the capture is closed.

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
        return capture(self, table, start, end, granularity=granularity, table_uuid=table_uuid, keeps=True)

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

    def step(
        self,
        table: str | TableId,
        sources: Sequence[str | TableId],
        *,
        ranges: Sequence[str] | Mapping[str, ByColumn] = (),
        keys: Sequence[str] | Mapping[str, ByColumn] = (),
        lookups: Sequence[str | TableId] = (),
        lifetime: timedelta | None = None,
        writes: Literal["table", "elsewhere"] = "table",
        on_unknown: Literal["stop", "rerun"] = "stop",
        on_gap: Literal["stop", "rebuild"] = "stop",
        on_replaced: Literal["stop", "rebuild"] = "stop",
        rebuild: bool = False,
    ) -> AbstractContextManager[CapturedStep]:
        """Run any job over what changed in `sources` since its last step; use it in a `with` statement.

        At the end of the block the watermark of `table` moves to the end of the windows, unless the job's own commit
        has moved it (`CapturedStep.properties`). An error in the block leaves it where it is.

        Args:
            table: the table that the job writes, whose snapshots hold the watermark.
            sources: the tables whose changes the job absorbs.
            ranges: columns whose changed range the job needs; or by name the column, or the column by source.
            keys: the same for key values; SQL expressions.
            lookups: tables that the job reads as they are.
            lifetime: how long the ICDC tables of `CapturedStep.icdc` last; None: until the end of the block.
            writes: `elsewhere`: the job writes no table of the lake, or not only `table`. `table` is made if it is
                missing, and only holds the watermark.
            on_unknown: what the next step does if a job was interrupted and may have written its rows without the
                watermark: `stop` with an error, or `rerun` the job over the same windows.
            on_gap, on_replaced: what to do if the history of a source is lost: `stop` with an error, or give the job
                everything (`rebuild`).
            rebuild: whether to give the job everything now; an interrupted step before it needs no decision.

        Raises:
            StepRunningError: a step over the same table is running.
            StepUnknownError: see `on_unknown`.
            HistoryError: see `on_gap` and `on_replaced`.
            ConcurrentWriteError: another writer moved the watermark.
            JobError: the job made no table.
        """
        target = TableId.parse(table)
        by_range, by_key = columns_by_name(target, "ranges", ranges), columns_by_name(target, "keys", keys)
        settings = StepSettings(
            target, names_of(sources), by_range, by_key, names_of(lookups), lifetime, writes, on_unknown, on_gap,
            on_replaced,
        )  # fmt: skip
        return captured_step(self, settings, rebuild=rebuild)

    @property
    def consumers(self) -> Consumers:
        """The consumers of the lake's tables and the snapshots they still need."""
        return Consumers(self)
