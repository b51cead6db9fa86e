"""Records that Iceberg's sink for Kafka Connect appends to a table are landed from there, each once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw.landing import land
from lake_assets.lake import TableId
from tests.support.connect_sink import sink
from tests.support.kafka import Broker
from tests.support.kafka_streams import until
from tests.support.pipeline_files import write_pipeline

pytestmark = pytest.mark.servers

SINK, RAW = TableId.parse("kafka.orders"), TableId.parse("raw.events")


@pytest.mark.long
def test_a_table_of_the_sink_is_landed_through_kills_of_its_worker(
    kafka: Broker, topic: str, plain_lake: Lake, tmp_path: Path
) -> None:
    kafka.create(topic, 2)
    kafka.create(f"control-{topic}")
    plain_lake.ensure_namespace(SINK.namespace)
    source = {"table": str(SINK), "value": "value", "order": ["partition", "offset"]}
    declared = {"name": "shop", "streams": [{"name": "events", "source": source, "tables": ["public.*"]}]}
    pipeline = Pipeline.load(write_pipeline(tmp_path / "p.yaml", declared))
    (spec,) = [s for s in pipeline.specs(plain_lake, alone=False) if isinstance(s, RawSpec)]

    sent = 0
    for _ in range(2):
        with sink(plain_lake, kafka, topic, str(SINK), tmp_path):  # killed at the end
            for p in range(2):
                kafka.send(topic, *[_event(sent + i) for i in range(10)], partition=p)
                sent += 10
            until(lambda sent=sent: _rows(plain_lake, SINK) >= sent, "the sink", 400)
        land(plain_lake, spec)
    landed = plain_lake.table(RAW).scan().to_arrow().to_pylist()
    assert len(landed) == sent
    assert len({r["record"] for r in landed}) == sent
    assert {r["problem"] for r in landed} == {None}


def _rows(lake: Lake, table: TableId) -> int:
    return lake.table(table).scan().to_arrow().num_rows if lake.exists(table) else 0


def _event(number: int) -> dict[str, Any]:
    return {"after": {"id": number}, "source": {"schema": "public", "table": "orders", "lsn": number}, "op": "c"}
