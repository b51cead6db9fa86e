"""The steps of raw and staging tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pyiceberg.table import Table

from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records.rejects import rejected_of
from lake_assets.ingest.staging.raw_windows import pending_of
from lake_assets.ingest.staging.staging import absorb_events
from lake_assets.ingest.staging.staging import replay as replay_events
from lake_assets.lake import LakeBase, TableId
from lake_assets.tables.batch_limits import cut_unless_rebuilt
from lake_assets.tables.outcome import Outcome
from lake_assets.tables.pending_windows import Window
from lake_assets.tables.table_step import EmptySources, TableStep

if TYPE_CHECKING:
    from lake_assets.models.steps.snapshot_pins import SnapshotPins


@dataclass(frozen=True)
class StagingStep(TableStep[StagingSpec]):
    """Parsing: the typed change events of one source table."""

    has_rejects: ClassVar[bool] = True
    empty_sources: ClassVar[EmptySources] = "ignored"

    @property
    def written_tables(self) -> tuple[TableId, ...]:
        """The staging table, and the rejects of its raw table."""
        return self.spec.table, rejected_of(self.spec.raw)

    def windows(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table]) -> list[Window]:
        """Return the window of the raw table, from the first commit with records for this table."""
        return [pending_of(self.spec, table, raw)[0] for raw in sources.values()]

    def batch(
        self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: SnapshotPins
    ) -> list[Window]:
        """Return the batch, or the whole window if every record is read again."""
        windows = [(pending_of(self.spec, table, raw), raw) for raw in sources.values()]
        return [cut_unless_rebuilt(window, why, raw, self.spec.batch) for (window, why), raw in windows]

    def absorb(self, lake: LakeBase, pins: SnapshotPins, *, rebuild: bool = False) -> Outcome:
        """Append the events of new records."""
        return absorb_events(lake, self.spec, rebuild=rebuild)

    def replay(self, lake: LakeBase) -> Outcome:
        """Read rejected records again."""
        return replay_events(lake, self.spec)
