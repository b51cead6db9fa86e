"""Many tables of one stream: each takes part only in what a landing brought for it, told by the landings' commits."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.formats import SourceTable
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw.landing import land
from lake_assets.ingest.raw_tables import arrived, nothing_until, routes_of
from lake_assets.lake import TableId
from tests.support.debezium import BIGINT, Event, to_lines, write_lines
from tests.support.debezium import Table as SourceRows
from tests.support.streams import Feed

RAW = TableId.parse("raw.events")
NAMES = ("public.a", "public.b", "public.c")
A, B, C = (SourceRows({"id": BIGINT}, name=n) for n in NAMES)


def came(raw: Any, start: int | None, end: int, source: str) -> int:
    """How many records of a source table a window brought: by reading both of its snapshots."""

    def at(snapshot: int | None) -> int:
        if snapshot is None:
            return 0
        return raw.scan(row_filter=f"source_table = '{source}'", snapshot_id=snapshot).to_arrow().num_rows

    return at(end) - at(start)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))])
def test_what_is_left_out_held_nothing_and_what_comes_next_does(plain_lake: Lake, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    folder = tmp_path / "landing"
    folder.mkdir()
    spec = RawSpec(RAW, folder, "debezium", "p")
    for n in range(8):
        about = dice.sample((A, B, C), dice.randint(0, 2))
        write_lines(folder / f"{n}.jsonl", to_lines(Event(t, "c", (n, 1), {"id": n}) for t in about) or [b"null\n"])
        land(plain_lake, spec)
    raw = plain_lake.table(RAW)
    ids = [None, *(s.snapshot_id for s in sorted(raw.metadata.snapshots, key=lambda s: s.sequence_number or 0))]
    skipped = 0
    for name in NAMES:
        for first in range(len(ids)):
            for last in range(max(1, first), len(ids)):
                start, end = ids[first], ids[last]
                assert end is not None
                reached = nothing_until(raw, start, end, SourceTable.parse(name))
                at = ids.index(reached)
                assert first <= at <= last
                skipped += at - first
                if reached is not None:
                    assert came(raw, start, reached, name) == 0
                following = ids[at + 1] if at < last else None
                assert following is None or came(raw, reached, following, name) > 0
                assert arrived(raw, start, end, SourceTable.parse(name)) == came(raw, start, end, name)
    assert skipped


@pytest.mark.parametrize(
    "name", ["public.b", 'public.q"b', 'public."b"', "public.b\\", "public.ü", "pub.lic.b", "public.*"]
)
def test_no_name_hides_what_came_for_it(plain_lake: Lake, tmp_path: Path, name: str) -> None:
    spec = RawSpec(RAW, tmp_path, "debezium", "p")
    table = SourceRows({"id": BIGINT}, name=name)
    for n, about in enumerate((A, table, A)):
        write_lines(tmp_path / f"{n}.jsonl", to_lines([Event(about, "c", (n, 1), {"id": n})]))
        land(plain_lake, spec)
    raw = plain_lake.table(RAW)
    first, _, third = (s.snapshot_id for s in raw.metadata.snapshots)
    (source,) = [r for r in routes_of(raw) if str(r) != A.name]
    assert nothing_until(raw, None, third, source) == first
    assert nothing_until(raw, None, third, SourceTable("public", "nobody")) == third


def test_a_record_about_several_tables_is_for_all_of_them(plain_lake: Lake, tmp_path: Path) -> None:
    spec = RawSpec(RAW, tmp_path, "wal2json-v1", "p")
    change = {"kind": "insert", "schema": "public", "columnnames": ["id"], "columntypes": ["int8"], "columnvalues": [1]}
    for n, tables in enumerate((["a"], ["a", "b"])):
        record = {"change": [{**change, "table": t} for t in tables]}
        write_lines(tmp_path / f"{n}.jsonl", [json.dumps(record).encode() + b"\n"])
        land(plain_lake, spec)
    raw = plain_lake.table(RAW)
    first, second = (s.snapshot_id for s in raw.metadata.snapshots)
    for name, reached in (("public.a", None), ("public.b", first), ("public.c", first)):
        assert nothing_until(raw, None, second, SourceTable.parse(name)) == reached
        # Any of them may be about it.
        assert arrived(raw, None, second, SourceTable.parse(name)) == (2 if name == "public.a" else 1)


def test_a_window_that_does_not_lead_on_is_looked_at(plain_lake: Lake, tmp_path: Path) -> None:
    spec = RawSpec(RAW, tmp_path, "debezium", "p")
    for n in range(3):
        write_lines(tmp_path / f"{n}.jsonl", to_lines([Event(A, "c", (n, 1), {"id": n})]))
        land(plain_lake, spec)
    raw = plain_lake.table(RAW)
    first, second, third = (s.snapshot_id for s in raw.metadata.snapshots)
    source = SourceTable.parse("public.b")
    assert nothing_until(raw, first, third, source) == third
    assert nothing_until(raw, third, second, source) == third  # rolled back
    assert arrived(raw, third, second, source) is None
    assert arrived(raw, third, third, source) == 0
    raw.maintenance.expire_snapshots().by_id(second).commit()
    assert nothing_until(plain_lake.table(RAW), first, third, source) == first
    assert arrived(plain_lake.table(RAW), first, third, source) is None
    assert nothing_until(plain_lake.table(RAW), None, third, source) is None


@pytest.mark.long  # as a landing without events of a table leaves it alone
def test_a_table_that_got_nothing_is_not_touched(lake: Lake) -> None:
    feed = Feed(lake)
    feed.deliver([Event(t, "c", (1, 1), {"id": 1}) for t in (A, B)])
    before = feed.heads()
    outcomes = feed.deliver([Event(A, "c", (2, 1), {"id": 2})])
    assert {t for t, o in outcomes.items() if o.status == "absorbed"} == {"raw.events", "staging.a", "final.a"}
    after = feed.heads()
    assert {t for t in before if before[t] != after[t]} >= {"staging.a", "final.a"}
    assert (after["staging.b"], after["final.b"]) == (before["staging.b"], before["final.b"])
    assert not feed.pipeline.pending(lake)
    # What it left out does not come back, and what comes for it is all there.
    feed.deliver([Event(A, "d", (3, 1), {"id": 1})])
    outcome = feed.deliver([Event(B, "c", (4, 1), {"id": 7})])["staging.b"]
    assert (outcome.status, outcome.inserted) == ("absorbed", 1)
    assert [c.files for c in outcome.windows] == [1]
    assert sorted(r["id"] for r in feed.rows("final.b").collect()) == [1, 7]
    assert sorted(r["id"] for r in feed.rows("final.a").collect()) == [2]


@pytest.mark.long  # as a table that got nothing
def test_a_table_whose_first_event_comes_late_is_made_of_it(lake: Lake) -> None:
    feed = Feed(lake, "public.a", "public.c")
    assert feed.deliver([Event(A, "c", (1, 1), {"id": 1})])["staging.c"].status == "waiting"
    feed.deliver([Event(A, "c", (2, 1), {"id": 2})])
    assert not feed.pipeline.pending(lake)
    feed.deliver([Event(C, "c", (3, 1), {"id": 3})])
    assert [r["id"] for r in feed.rows("final.c").collect()] == [3]


@pytest.mark.long
def test_compaction_and_landings_without_counts_are_no_loss(lake: Lake) -> None:
    feed = Feed(lake)
    feed.deliver([Event(t, "c", (1, 1), {"id": 1}) for t in (A, B)])
    feed.land([Event(A, "c", (2, 1), {"id": 2})])
    feed.run()
    lake.spark().sql(
        "CALL lake.system.rewrite_data_files(table => 'raw.events', options => map('rewrite-all', 'true'))"
    )
    assert not [p for p in feed.pipeline.pending(lake) if p.table == "staging.b"]
    feed.deliver([Event(B, "c", (3, 1), {"id": 3})])
    assert sorted(r["id"] for r in feed.rows("final.b").collect()) == [1, 3]
    # Somebody else's commit says nothing of what it brings.
    lake.spark().sql("DELETE FROM raw.events WHERE false")
    lake.spark().sql("INSERT INTO raw.events SELECT * FROM raw.events LIMIT 0")
    assert {p.table for p in feed.pipeline.pending(lake)} == {"staging.a", "staging.b"}
    feed.run()
    assert not feed.pipeline.pending(lake)
