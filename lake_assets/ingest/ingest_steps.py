"""The steps of raw and staging tables."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pyiceberg.table import Table

from lake_assets.errors import LOST_FILE_ADVICE
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.ingest.raw.file_ledger import ledger_of
from lake_assets.ingest.raw.landing import land, new_files
from lake_assets.ingest.raw.landing_folder import nothing_arrived
from lake_assets.ingest.raw.source_tables import pending_of_table
from lake_assets.ingest.records.rejects import rejected_of
from lake_assets.ingest.records.routing import replay as replay_records
from lake_assets.ingest.staging.raw_windows import pending_of
from lake_assets.ingest.staging.staging import absorb_events
from lake_assets.ingest.staging.staging import replay as replay_events
from lake_assets.lake import LakeBase, TableId
from lake_assets.tables.batch_limits import cut
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.pending_windows import Window, missing_sources
from lake_assets.tables.table_step import EmptySources, Pins, TableStep


@dataclass(frozen=True)
class RawStep(TableStep[RawSpec, Pins]):
    """Landing: records of new files, or of a source table, as they arrived."""

    is_only_writer: ClassVar[bool] = False
    has_rejects: ClassVar[bool] = True
    brings_tables: ClassVar[bool] = True
    empty_sources: ClassVar[EmptySources] = "emptied"

    @property
    def kinds(self) -> tuple[str, ...]:
        """None: landing appends through PyIceberg."""
        return ()

    @property
    def written_tables(self) -> tuple[TableId, ...]:
        """The raw table, the ledger of its files, and its rejects."""
        return self.spec.table, ledger_of(self.spec.table), rejected_of(self.spec.table)

    def new_files(self, lake: LakeBase) -> list[Path]:
        """Return the files that are missing from the raw table and have waited long enough for more."""
        return new_files(lake, self.spec)

    def windows(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table]) -> list[Window]:
        """Return the window of the source table, if it has one."""
        return [pending_of_table(self.spec, table, name, loaded) for name, loaded in sources.items()]

    def batch(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: Pins) -> list[Window]:
        """Return all new files, which one step lands in several commits, or a batch of a source table's snapshots."""
        windows = self.windows(lake, table, sources)
        return [cut(w, sources[w.source], self.spec.batch) for w in windows]

    def absorb(self, lake: LakeBase, pins: Pins, *, rebuild: bool = False) -> Outcome:
        """Land new files, or new records of the source table."""
        began, spec, name = time.monotonic(), self.spec, str(self.spec.table)
        if spec.source and not lake.exists(spec.source):
            return Outcome(name, "waiting", why=missing_sources(lake.find(spec.table), [spec.source]))
        landed = land(lake, spec)
        if not landed.files and not landed.why:
            if spec.landing and (landed.snapshot is None or not spec.landing.exists()):
                status, why = nothing_arrived(spec.landing, lake.config.home)
                return Outcome(name, status, why=why)
            return Outcome(name, "nothing")
        return Outcome(
            name,
            "absorbed",
            (Absorbed(str(spec.source or spec.landing), None, None, landed.files, landed.bytes),),
            inserted=landed.records,
            strategy="land",
            why=landed.why or ("new snapshots of the source" if spec.source else "new files of the landing folder"),
            seconds=time.monotonic() - began,
            snapshot=landed.snapshot,
            details=landed.details,
        )

    @property
    def why_not_rebuilt(self) -> str:
        """The reason: a raw table may be the only copy of its records."""
        return (
            f"{self.spec.table} is a raw table: it holds records as they arrived, and may be their only copy, so it is "
            "not rebuilt. To read its records again, `lake-assets rebuild` its staging tables"
        )

    def replay(self, lake: LakeBase) -> Outcome:
        """Route records again that could not be routed."""
        name = str(self.spec.table)
        if not (routed := replay_records(lake, self.spec)):
            return Outcome(name, "nothing")
        return Outcome(name, "absorbed", updated=routed, strategy="replay", why=f"{routed} records can be routed now")

    def lost_file_advice(self, table: TableId) -> str:
        """Return the advice; a ledger is derived from the commits of its raw table."""
        if table != ledger_of(self.spec.table):
            return LOST_FILE_ADVICE
        return f"Restore the file from a backup; or drop {table}: the next run creates it again from {self.spec.table}"


@dataclass(frozen=True)
class StagingStep(TableStep[StagingSpec, Pins]):
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

    def batch(self, lake: LakeBase, table: Table | None, sources: Mapping[TableId, Table], pins: Pins) -> list[Window]:
        """Return the batch, or the whole window if every record is read again."""
        windows = [(*pending_of(self.spec, table, raw), raw) for raw in sources.values()]
        return [window if why else cut(window, raw, self.spec.batch) for window, why, raw in windows]

    def absorb(self, lake: LakeBase, pins: Pins, *, rebuild: bool = False) -> Outcome:
        """Append the events of new records."""
        return absorb_events(lake, self.spec, rebuild=rebuild)

    def replay(self, lake: LakeBase) -> Outcome:
        """Read rejected records again."""
        return replay_events(lake, self.spec)
