"""The records of one landing as Arrow batches: with positions, source tables, and what they say about each other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table

from lake_assets.formats import SourceTable
from lake_assets.formats.event_model import Keyed, SnapshotRow
from lake_assets.formats.files.limited_files import Record
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw.record_sources import Batch, LiveBatch
from lake_assets.ingest.raw.source_snapshots import TableSnapshots
from lake_assets.ingest.raw_tables import (
    ARRIVED_PROPERTY,
    ARROW,
    POSITION_PROPERTY,
    ROUTES_PROPERTY,
    SKIPPED_PROPERTY,
    routes_of,
    skipped,
)
from lake_assets.ingest.records import rejects
from lake_assets.ingest.records.routing import Databases, Routed
from lake_assets.ingest.records.stream_routing import StreamRouter
from lake_assets.ingest.records.stream_transactions import OpenTransactions
from lake_assets.ingest.records.tombstones import Tombstones, topic_of
from lake_assets.lake import thresholds
from lake_assets.sources.live_source import Rows

# Source table, file, line, text, problem, schema key, payload and transaction; the other columns are counted.
Row = tuple[str | None, str, int, str, str | None, str | None, str | None, str | None]


class RecordReading:
    """Routes the records of a batch, assigns their positions from `position` on and builds Arrow batches."""

    def __init__(self, spec: RawSpec, raw: Table, position: int) -> None:
        self.spec, self.raw = spec, raw
        self.routes = {str(table) for table in routes_of(raw)}
        # Signals of a table that is declared, or has rows already.
        self.kept = {*self.routes, *map(str, spec.signal_tables)}
        self.transactions, self.snapshots = OpenTransactions(raw), TableSnapshots(raw)
        self.tombstones, self.databases = Tombstones(raw, spec.about), Databases(raw, spec.databases)
        self._routers: dict[SourceTable | None, StreamRouter] = {}
        self._file: str | None = None
        self._router = self._router_of(None)
        self.first = self.position = position
        self.rejected = 0
        self.arrived = Counter[str]()
        self.skipped = Counter[str]()
        self.first_reason = ""
        self.arrived_at = datetime.now(UTC)

    def batches(self, batch: Batch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the raw table.

        Raises:
            RejectedLimitError: more records than declared cannot be routed.
        """
        rows: list[Row] = []
        counts = Counter[str]()
        size = 0
        for file, record in batch.read():
            if isinstance(record, Rows):
                if rows:
                    yield self._batch(rows, counts)
                    rows, size = [], 0
                yield from self._alike(file, record, counts)
                continue
            routed = self._route(file, record)
            if routed.source_table and isinstance(batch, LiveBatch) and record.number in batch.voiding:
                self.snapshots.void(routed.source_table, self.position)
            if routed.problem:
                self.rejected += 1
                self.first_reason = self.first_reason or f"{file}, line {record.number}: {routed.problem}"
            if routed.control:
                self.skipped[routed.control] += 1
            boundary = routed.boundary
            transaction = self.transactions.follow(batch.source_name, boundary, self.position) if boundary else None
            number, text, _ = record
            rows.append(
                (routed.source_table, file, number, text, routed.problem, routed.key, routed.payload, transaction)
            )
            self.position += 1
            size += len(text)
            if len(rows) >= thresholds.ROWS_A_BATCH or size >= thresholds.BYTES_A_BATCH:
                yield self._batch(rows, counts)
                rows, size = [], 0
        rejects.check_limit(
            str(self.spec.table), self.spec.max_rejected, self.rejected, self.position - self.first, self.first_reason
        )
        if rows:
            yield self._batch(rows, counts)
        batch.end(counts, self.arrived_at)

    def properties(self) -> dict[str, str]:
        """Return the snapshot properties of the commit: its counts, and what the next landing starts from."""
        all_skipped = Counter(skipped(self.raw)) + self.skipped
        return {
            POSITION_PROPERTY: str(self.position),
            ROUTES_PROPERTY: json.dumps(sorted(self.routes)),
            ARRIVED_PROPERTY: json.dumps(self.arrived, sort_keys=True),
            **rejects.landed(self.raw, self.rejected),
            **({SKIPPED_PROPERTY: json.dumps(all_skipped, sort_keys=True)} if all_skipped else {}),
            **self.transactions.properties(),
            **self.snapshots.properties(),
            **self.tombstones.properties(),
            **self.databases.properties(),
        }

    def _alike(self, file: str, rows: Rows, counts: Counter[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of records that differ in the row's own values alone: the first one is routed for all."""
        count = len(rows.records)
        if not count:
            last = SnapshotRow(rows.place, is_last=True)
            self.snapshots.follow(rows.table, last, self.position, is_known=rows.table in self.routes)
            return
        routed = self._route(file, Record(counts[file] + 1, rows.records[0].as_py()))
        if routed.problem:
            self.rejected += count
            self.first_reason = self.first_reason or f"{rows.table}: {routed.problem}"
        values: dict[str, Any] = {
            "position": np.arange(self.position, self.position + count),
            "source_line": np.arange(counts[file] + 1, counts[file] + 1 + count),
            "record": rows.records,
            "payload": rows.payloads if not routed.problem else None,
        }
        alike = {
            "source_table": routed.source_table, "source_file": file, "arrived_at": self.arrived_at,
            "problem": routed.problem, "schema_key": routed.key,
        }  # fmt: skip
        arrays = [
            pa.array(values[f.name], f.type)
            if values.get(f.name) is not None
            else pa.repeat(pa.scalar(alike.get(f.name), f.type), count)
            for f in ARROW
        ]
        self.position += count
        counts[file] += count
        if routed.source_table:
            self.arrived[routed.source_table] += count
        yield pa.RecordBatch.from_arrays(arrays, schema=ARROW)

    def _route(self, file: str, record: Record) -> Routed:
        if record.problem:
            return Routed(problem=record.problem)
        if file != self._file:
            self._file, self._router = file, self._router_of(file)
        routed = self._router.route(record.text)
        if routed.keyed is not None:
            routed = self._followed(routed, routed.keyed)
        if routed.snapshot and routed.source_table:
            is_known = routed.source_table in self.routes
            self.snapshots.follow(routed.source_table, routed.snapshot, self.position, is_known=is_known)
        if not routed.is_known:
            self.routes.update(str(r) for r in routed.tables)
        return routed

    def _router_of(self, file: str | None) -> StreamRouter:
        """Return the router of a file: records that name no table may be about that of its folder."""
        spec = self.spec
        about = spec.about if file is None else spec.about_of(file)
        if about not in self._routers:
            problem_of = self.databases.problem
            self._routers[about] = StreamRouter(spec.reader, about, spec.limits.depth, self.kept, problem_of)
        return self._routers[about]

    def _followed(self, routed: Routed, keyed: Keyed) -> Routed:
        """Return a record with the table of which it deletes a row, if it is a tombstone that does."""
        if not keyed.topic and self._router.about != self.spec.about:
            # The folder of a table stands for its topic.
            keyed = keyed._replace(topic=topic_of(self._router.about))
        table = self.tombstones.follow(keyed, () if routed.is_known else routed.tables)
        if not routed.is_tombstone:
            return routed
        if isinstance(table, SourceTable):
            return routed._replace(tables=(table,), source_table=str(table), is_known=False)
        return Routed(problem=table.reason if table else None)

    def _batch(self, rows: list[Row], counts: Counter[str]) -> pa.RecordBatch:
        """Return the last rows that were read, and count them: in `counts` by file."""
        source_tables, files, *others = zip(*rows, strict=True)
        counts.update(files)
        self.arrived.update(table for table in source_tables if table is not None)
        positions = range(self.position - len(rows), self.position)
        values = (positions, source_tables, files, others[0], [self.arrived_at] * len(rows), *others[1:])
        arrays = [pa.array(c, type=f.type) for c, f in zip(values, ARROW, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=ARROW)
        if len(set(source_tables)) == 1:
            return batch
        # Sorted by source table, so that a reader of one table skips row groups and pages of the others.
        order = sorted(range(len(rows)), key=[table or "" for table in source_tables].__getitem__)
        return batch.take(pa.array(order))
