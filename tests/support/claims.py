"""A table and its consumers under a clock of their own, with the upkeep that watches over their claims."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from lake_assets import Lake
from lake_assets.capture.source_tags import PREFIX
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, to_properties
from lake_assets.tables.pending_windows import head_of
from lake_assets.tables.snapshot_retention import keep_sources
from lake_assets.tables.upkeep_policy import DAY, UpkeepPolicy
from lake_assets.upkeep.attend import attend, look, needs_a_look
from lake_assets.upkeep.attended import Attended
from lake_assets.upkeep.claims import Claim

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
# Files are never combined here, which needs Spark.
POLICY = UpkeepPolicy(dead_after=30 * DAY, target_file_size=1)
SOURCE = TableId.parse("staging.t")


class Claims:
    """The world of a source and its consumers; time passes only as it is told to.

    Args:
        owner: the pipeline that has filled the source; empty: another program.
    """

    def __init__(self, lake: Lake, monkeypatch: pytest.MonkeyPatch, policy: UpkeepPolicy = POLICY, owner: str = "p"):
        self.lake, self.policy = lake, policy
        self.now = time.time()
        monkeypatch.setattr(time, "time", lambda: self.now)
        # No file is deleted and no snapshot expires here, which needs Spark.
        self.create(SOURCE, {"gc.enabled": "false"}, owner)
        self.change()

    def create(self, name: TableId, properties: Mapping[str, str] = {}, owner: str = "p") -> None:
        self.lake.ensure_namespace(name.namespace)
        owned = {PIPELINE_PROPERTY: owner} if owner else {}
        self.lake.catalog.create_table(name.parts, ROWS.schema, properties={**owned, **properties})

    def change(self, **properties: str) -> None:
        """Commit rows to the source."""
        self.lake.table(SOURCE).append(ROWS, snapshot_properties=properties)

    def absorb(self, target: str, *, tags: bool = True) -> None:
        """Let a table absorb the source, as its step does; without the tag, as a step that is killed does."""
        name = TableId.parse(target)
        if not self.lake.exists(name):
            self.create(name)
        mark = to_properties({str(SOURCE): head_of(self.lake.table(SOURCE))})
        self.lake.table(name).append(ROWS, snapshot_properties=mark)
        if tags:
            keep_sources(self.lake, name, [SOURCE])

    def drop(self, target: str) -> None:
        self.lake.catalog.drop_table(TableId.parse(target).parts)

    def expire(self) -> None:
        """Expire all snapshots but those that branches and tags name."""
        source = self.lake.table(SOURCE)
        kept = {ref.snapshot_id for ref in source.metadata.refs.values()}
        old = [s.snapshot_id for s in source.metadata.snapshots if s.snapshot_id not in kept]
        if old:
            with self.lake.table(SOURCE).transaction() as change:
                change.set_properties({"gc.enabled": "true"})
            self.lake.table(SOURCE).maintenance.expire_snapshots().by_ids(old).commit()
            with self.lake.table(SOURCE).transaction() as change:
                change.set_properties({"gc.enabled": "false"})

    def passes(self, days: float, *, every: float = 1) -> list[Attended]:
        """Let days pass, with upkeep every day or so; return what it did."""
        done: list[Attended] = []
        for _ in range(round(days / every)):
            self.now += every * DAY
            done += self.upkeep()
        return done

    def upkeep(self) -> list[Attended]:
        wanted = needs_a_look(self.lake, {SOURCE: self.policy})
        done = attend(self.lake, dict.fromkeys(wanted, self.policy))
        assert [a for a in done if a.done is None or a.done.error] == []
        return done

    @property
    def claims(self) -> dict[str, Claim]:
        """The consumers that are behind, by name."""
        return {c.consumer: c for c in look(self.lake, SOURCE, self.policy).claims}

    @property
    def warned(self) -> set[str]:
        return {name for name, c in self.claims.items() if c.is_warning}

    @property
    def tags(self) -> set[str]:
        return {r.removeprefix(PREFIX) for r in self.lake.table(SOURCE).metadata.refs if r.startswith(PREFIX)}


def with_policy(world: Claims, **changes: Any) -> None:
    """Declare other settings of upkeep."""
    world.policy = replace(world.policy, **changes)
