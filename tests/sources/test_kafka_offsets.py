"""Offsets of topics follow what the brokers have; whatever is passed over is told."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.sources.kafka_offsets import Bounds, Offsets, Topic, TopicOffsets
from lake_assets.sources.kafka_spec import KafkaSpec

SPEC = KafkaSpec("127.0.0.1:1", ("a", "b*"), "g")
bounds = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda b: Bounds(min(b), max(b)))


@given(st.lists(bounds, min_size=1, max_size=4), st.lists(st.integers(0, 20), max_size=4))
def test_reading_goes_on_where_it_ended_or_a_gap_is_told(there: list[Bounds], read: list[int]) -> None:
    offsets = Offsets({"a": TopicOffsets("x", list(read))}, ["a", "b*"], has_records=True)
    gaps = offsets.follow(SPEC, {"a": Topic("x", len(there))}, {("a", p): b for p, b in enumerate(there)})
    now = offsets.topics["a"].next
    assert len(now) == len(there)
    for p, (at, b) in enumerate(zip(now, there, strict=True)):
        assert b.low <= at <= b.high
        if p < len(read) and b.low <= read[p] <= b.high:
            assert at == read[p]
        elif p < len(read):
            assert any(f"partition {p} " in g.text for g in gaps)
        else:
            assert at == b.low
    if all(b.low <= r <= b.high for r, b in zip(read, there, strict=False)) and len(read) <= len(there):
        assert not gaps
    # What follows is known: the same look again changes nothing.
    again = Offsets.of_json(json.loads(json.dumps(offsets.to_json())))
    assert not again.follow(SPEC, {"a": Topic("x", len(there))}, {("a", p): b for p, b in enumerate(there)})
    assert again.to_json() == offsets.to_json()


def test_a_new_topic_of_a_known_pattern_begins_at_its_beginning_whatever_start_says() -> None:
    spec = KafkaSpec("127.0.0.1:1", ("a", "b*"), "g", start="latest")
    there = {("a", 0): Bounds(2, 9), ("b1", 0): Bounds(3, 8), ("b2", 0): Bounds(1, 7)}
    offsets = Offsets()
    offsets.follow(spec, {"a": Topic("", 1), "b1": Topic("", 1)}, there)
    offsets.follow(spec, {"a": Topic("", 1), "b1": Topic("", 1), "b2": Topic("", 1)}, there)
    assert {n: t.next for n, t in offsets.topics.items()} == {"a": [9], "b1": [8], "b2": [1]}


def test_a_topic_that_is_declared_later_begins_where_start_says() -> None:
    spec = KafkaSpec("127.0.0.1:1", ("a",), "g", start="latest")
    there = {("a", 0): Bounds(0, 9), ("c", 0): Bounds(0, 5)}
    offsets = Offsets()
    offsets.follow(spec, {"a": Topic("", 1)}, there)
    more = KafkaSpec("127.0.0.1:1", ("a", "c"), "g", start="latest")
    offsets.follow(more, {"a": Topic("", 1), "c": Topic("", 1)}, there)
    assert offsets.topics["c"].next == [5]


def test_a_topic_that_is_no_longer_declared_keeps_its_place() -> None:
    offsets = Offsets({"a": TopicOffsets("x", [4]), "old": TopicOffsets("y", [7])}, ["a", "old"])
    assert not offsets.follow(SPEC, {"a": Topic("x", 1)}, {("a", 0): Bounds(0, 9)})
    again = KafkaSpec("127.0.0.1:1", ("a", "old"), "g")
    there = {("a", 0): Bounds(0, 9), ("old", 0): Bounds(0, 9)}
    assert not offsets.follow(again, {"a": Topic("x", 1), "old": Topic("y", 1)}, there)
    assert offsets.topics["old"].next == [7]


def test_brokers_that_tell_no_ids() -> None:
    offsets = Offsets({"a": TopicOffsets("x", [4])}, ["a"])
    assert not offsets.follow(SPEC, {"a": Topic("", 1)}, {("a", 0): Bounds(0, 9)})
    assert offsets.topics["a"].id == "x"
    gaps = offsets.follow(SPEC, {"a": Topic("", 1)}, {("a", 0): Bounds(0, 2)})
    assert "ends at offset 2, and was read up to 4" in gaps[0].text
