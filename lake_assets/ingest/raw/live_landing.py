"""Landing of a live source's batches: each exactly once, by one service at a time."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from pyiceberg.expressions import EqualTo

from lake_assets.errors import SourceError
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw.landing import Landed, begun, commit_batch
from lake_assets.ingest.raw.record_sources import LiveBatch, LoadBatch
from lake_assets.ingest.raw_tables import OFFSETS_PROPERTY, SCHEMA_HISTORY, offsets, routes, stored
from lake_assets.lake import LakeBase
from lake_assets.sources.live_source import RowLoad


class LiveLanding:
    """The landing of one source into one raw table.

    The commits of a service are numbered. So it is known whether a commit whose answer was lost has been made, and
    whether another service has landed meanwhile.
    """

    def __init__(self, lake: LakeBase, spec: RawSpec, name: str) -> None:
        self.lake, self.spec, self.name = lake, spec, name
        self.service = uuid.uuid4().hex[:12]
        self._expected: Any = None
        self._count = 0

    def start(self) -> Any:
        """Return the offset to go on from, and from now on expect no other service."""
        self._expected = offsets(self.lake, self.spec.table).get(self.name)
        return self._expected["at"] if self._expected else None

    def history(self) -> Sequence[bytes]:
        """Return the landed lines about the source's schema, in their order."""
        if not self.lake.exists(self.spec.table):
            return ()
        rows = self.lake.table(self.spec.table).scan(
            EqualTo("source_file", SCHEMA_HISTORY),  # pyright: ignore[reportCallIssue]
            selected_fields=("position", "record"),
        )
        return [r["record"].encode() for r in sorted(rows.to_arrow().to_pylist(), key=lambda r: r["position"])]

    def one_of_each(self) -> dict[str, bytes]:
        """Return a landed record of each source table, by its name."""
        found: dict[str, bytes] = {}
        for name in map(str, routes(self.lake, self.spec.table)):
            scan = self.lake.table(self.spec.table).scan(
                EqualTo("source_table", name),  # pyright: ignore[reportCallIssue]
                selected_fields=("record",),
                limit=1,
            )
            for record in scan.to_arrow()["record"].to_pylist():
                found[name] = record.encode()
        return found

    def land(self, records: Sequence[bytes] | RowLoad, offset: Any, history: Sequence[bytes] = ()) -> Landed | None:
        """Commit records with the offset after them; None: they are committed already.

        Raises:
            ConcurrentWriteError: another writer has changed the raw table; nothing of the batch is in it.
            SourceError: another service lands the same source.
            RejectedLimitError: more records than declared cannot be routed.
        """
        lake, spec = self.lake, self.spec
        begun(lake, spec)
        raw = lake.table(spec.table)
        there = stored(raw, OFFSETS_PROPERTY)
        entry = {"at": offset, "service": self.service, "batch": self._count + 1}
        landed = None
        if there.get(self.name) != entry:
            if there.get(self.name) != self._expected:
                raise SourceError(
                    f"{spec.table}: another service has landed records of {self.name} meanwhile. One reads a source at "
                    "a time: end one of them"
                )
            after = {**there, self.name: entry}
            if isinstance(records, Sequence):
                batch = LiveBatch(records, history, self.name, after, spec.limits)
            else:
                batch = LoadBatch(records, self.name, after, spec.limits)
            landed = commit_batch(lake, spec, raw, batch)
        self._expected, self._count = entry, self._count + 1
        return landed
