"""`Lake`, the main object for users: the lake and captures of its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Literal

from lake_assets.capture import Capture, capture
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
            rebuild: whether to give the job everything now.

        Raises:
            StepRunningError: a step over the same table is running.
            StepUnknownError: see `on_unknown`.
            HistoryError: see `on_gap` and `on_replaced`.
            ConcurrentWriteError: another writer moved the watermark.
            JobError: the job made no table.
        """
        settings = StepSettings(
            TableId.parse(table), names_of(sources), columns_by_name(ranges), columns_by_name(keys), names_of(lookups),
            lifetime, writes, on_unknown, on_gap, on_replaced,
        )  # fmt: skip
        return captured_step(self, settings, rebuild=rebuild)

    @property
    def consumers(self) -> Consumers:
        """The consumers of the lake's tables and the snapshots they still need."""
        return Consumers(self)
