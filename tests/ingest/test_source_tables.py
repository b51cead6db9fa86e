"""Raw tables that another system's table fills: whatever becomes of that table, no landed record is lost or repeated."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import HistoryError
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw.source_tables import GAP_PROPERTY
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import find_property, read_marks
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.table_steps import step_of
from lake_assets.tables.outcome import Outcome
from tests.support.upkeep import empty_in_place, expire

RAW, SOURCE = TableId.parse("raw.events"), "kafka.events"
SCHEMA = pa.schema([("v", pa.string()), ("o", pa.int64())])
SPEC = RawSpec(RAW, None, "debezium", "p", source=TableId.parse(SOURCE), column="v", order=("o",))
APPEND = replace(SPEC, on_gap="append", on_replaced="append")


def record(n: int) -> str:
    source = {"schema": "public", "table": "t", "lsn": n}
    return json.dumps({"before": None, "after": {"id": n}, "source": source, "op": "c", "ts_ms": n})


class Topic:
    """A table of another system, and the raw table that is filled from it."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        lake.ensure_namespace(("kafka",))
        self.create()

    def create(self) -> None:
        self.lake.catalog.create_table(SOURCE, SCHEMA, properties={"format-version": "2"})

    def append(self, *numbers: int) -> None:
        rows = {"v": [record(n) for n in numbers], "o": list(numbers)}
        self.lake.table(SOURCE).append(pa.table(rows, SCHEMA))

    def trim(self, below: int) -> None:
        """Remove old records, as whole files."""
        self.lake.table(SOURCE).delete(f"o < {below}")

    def empty_in_place(self) -> None:
        empty_in_place(self.lake, SOURCE)

    def recreate(self) -> None:
        self.lake.catalog.drop_table(SOURCE)
        self.create()

    def land(self, spec: RawSpec = SPEC) -> Outcome:
        return step_of(spec).absorb(self.lake, SnapshotPins())

    def is_due(self, spec: RawSpec = SPEC) -> bool:
        step, raw = step_of(spec), self.lake.find(RAW)
        return any(step.is_due(w) for w in step.windows(self.lake, raw, {SPEC.sources[0]: self.lake.table(SOURCE)}))

    @property
    def landed(self) -> Counter[int]:
        held = self.lake.table(RAW).scan(selected_fields=("record",)).to_arrow()["record"].to_pylist()
        known = {record(n): n for n in range(20)}
        return Counter(known[text] for text in held)

    @property
    def mark(self) -> int | None:
        return read_marks(self.lake.table(RAW))[SOURCE].snapshot


@pytest.fixture
def topic(plain_lake: Lake) -> Topic:
    topic = Topic(plain_lake)
    topic.append(1, 2)
    topic.append(3)
    topic.land()
    return topic


def once(*numbers: int) -> Counter[int]:
    return Counter(dict.fromkeys(numbers, 1))


# --- emptied sources ----------------------------------------------------------------------------------------------


def test_records_that_follow_a_replacement_by_an_empty_table_are_landed(topic: Topic) -> None:
    topic.empty_in_place()
    assert topic.is_due()
    outcome = topic.land()
    assert (outcome.status, outcome.inserted, outcome.error) == ("absorbed", 0, None)
    assert (topic.mark, topic.is_due(), topic.land().status) == (None, False, "nothing")
    topic.append(4)
    assert topic.land().inserted == 1
    assert topic.landed == once(1, 2, 3, 4)


def test_a_source_that_has_always_been_empty_is_nothing_to_do(plain_lake: Lake) -> None:
    topic = Topic(plain_lake)
    assert topic.land().status == "nothing"
    assert not topic.is_due()
    topic.append(1)
    topic.land()
    assert topic.landed == once(1)


def test_records_that_were_not_landed_before_a_replacement_are_not_forgotten_silently(topic: Topic) -> None:
    topic.append(4)
    topic.empty_in_place()
    with pytest.raises(HistoryError, match="replaced by an empty table, after records that were not landed"):
        topic.land()
    outcome = topic.land(APPEND)
    assert "are missing" in outcome.why
    topic.append(5)
    topic.land()
    assert topic.landed == once(1, 2, 3, 5)


# --- lost history -------------------------------------------------------------------------------------------------


def trimmed_and_expired(topic: Topic) -> None:
    topic.append(4)
    topic.append(5, 5)
    topic.trim(3)
    expire(topic.lake, SOURCE)


def recreated_with_old_records(topic: Topic) -> None:
    topic.recreate()
    topic.append(2, 3, 4)
    topic.append(5, 5)


def replaced_in_place_with_old_records(topic: Topic) -> None:
    topic.empty_in_place()
    topic.append(3, 4, 5, 5)


LOST = [trimmed_and_expired, recreated_with_old_records, replaced_in_place_with_old_records]


@pytest.mark.parametrize("lose", LOST)
def test_following_the_error_of_a_lost_history_appends_what_raw_lacks(
    topic: Topic, lose: Callable[[Topic], None]
) -> None:
    lose(topic)
    before = topic.lake.table(RAW).metadata_location
    with pytest.raises(HistoryError) as caught:
        topic.land()
    assert "drop" not in str(caught.value).replace("dropped and created again", "").lower()
    assert topic.lake.table(RAW).metadata_location == before
    option = "on_replaced" if "`on_replaced: append`" in str(caught.value) else "on_gap"
    assert f"With `{option}: append` in the stream's `source`" in str(caught.value)
    declared = {"table": SOURCE, "value": "v", "order": "o", option: "append"}
    stream = {"name": "events", "source": declared, "tables": []}
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "p", "streams": [stream]}))
    (outcome,) = pipeline.run(topic.lake)
    assert (outcome.status, outcome.inserted) == ("absorbed", 3), outcome
    assert "3 records of kafka.events that raw.events lacked were appended" in outcome.why
    assert topic.landed == once(1, 2, 3, 4) + Counter({5: 2})
    assert find_property(topic.lake.table(RAW), GAP_PROPERTY)
    positions = topic.lake.table(RAW).scan(selected_fields=("position",)).to_arrow()["position"].to_pylist()
    assert sorted(positions) == list(range(6))
    # The setting is no longer needed.
    topic.append(6)
    assert [topic.land().inserted, topic.land().status] == [1, "nothing"]


def test_a_source_that_was_rolled_back_repeats_no_record(topic: Topic) -> None:
    topic.append(4)
    topic.land()
    first = topic.lake.table(SOURCE).history()[1].snapshot_id
    topic.lake.table(SOURCE).manage_snapshots().rollback_to_snapshot(first).commit()
    topic.append(5)
    with pytest.raises(HistoryError, match=r"another history now .*rolled back.*`on_gap: append`"):
        topic.land()
    assert topic.land(APPEND).inserted == 1
    assert topic.landed == once(1, 2, 3, 4, 5)


def test_a_raw_table_whose_own_watermark_expired_repeats_no_record(topic: Topic) -> None:
    topic.append(4)
    raw = topic.lake.table(RAW)
    raw.append(raw.schema().as_arrow().empty_table())
    expire(topic.lake, RAW)
    with pytest.raises(HistoryError, match=r"`on_gap: append`"):
        topic.land()
    assert topic.land(APPEND).inserted == 1
    assert topic.landed == once(1, 2, 3, 4)


def test_a_source_that_was_created_again_and_is_empty_keeps_what_was_landed(topic: Topic) -> None:
    topic.recreate()
    with pytest.raises(HistoryError, match=r"`on_replaced: append`"):
        topic.land()
    assert topic.is_due(APPEND)
    assert topic.land(APPEND).status == "absorbed"
    topic.append(4)
    assert topic.land().inserted == 1
    assert topic.landed == once(1, 2, 3, 4)


def test_a_source_that_is_gone_is_not_called_one_that_does_not_exist_yet(topic: Topic) -> None:
    other = replace(SPEC, table=TableId.parse("raw.other"))
    topic.lake.catalog.drop_table(SOURCE)
    assert topic.land().why == "kafka.events no longer exists: it was dropped or renamed"
    assert topic.land(other).why == "kafka.events does not exist yet"
