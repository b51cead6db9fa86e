"""From topics to final tables: Avro gives the same tables, types included, as the JSON of the same events."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.service.live_service import live_specs
from tests.support.apicurio import Registry
from tests.support.connect_converters import encoded
from tests.support.kafka import Broker
from tests.support.kafka_streams import service_of, until
from tests.support.pipeline_files import write_pipeline
from tests.support.pipeline_runs import run
from tests.support.recorded_events import avro_names, recorded

pytestmark = pytest.mark.servers

TABLES = ("odd.public.all_types", "odd.public.by_index", "odd.public.toast_full")


@pytest.mark.long
def test_events_in_avro_and_in_json_become_the_same_tables(
    kafka: Broker, topic: str, schemas: Registry, lake: Lake, tmp_path: Path
) -> None:
    records = [r for r in recorded("odd/debezium.jsonl.gz") if r[0] in TABLES and avro_names(*r[1:])]
    # The converter for JSON, by which the values get into the one for Avro, reads these as 0.
    records = [r for r in records if not any(f'"{n}"' in json.dumps(r) for n in ("NaN", "Infinity", "-Infinity"))]
    assert {r[0] for r in records} == set(TABLES)
    in_avro = encoded("avro", schemas.url, records)
    for name in TABLES:
        for kind in ("avro", "json"):
            kafka.create(f"{topic}.{kind}.{name}")
    for (name, key, value), (_, raw_key, raw_value) in zip(records, in_avro, strict=True):
        kafka.send(f"{topic}.json.{name}", (key, value))
        kafka.send(f"{topic}.avro.{name}", (raw_key, raw_value))

    pipeline = Pipeline.load(write_pipeline(tmp_path / "p.yaml", _declared(kafka, topic, schemas)))
    for spec in live_specs(lake, pipeline):
        _land(lake, spec, len(records))
    run(lake, pipeline)

    for name in TABLES:
        table = name.rpartition(".")[2]
        of_avro, of_json = (lake.table(f"final.{kind}.{table}") for kind in ("avro", "json"))
        assert [(f.name, str(f.field_type)) for f in of_avro.schema().fields] == [
            (f.name, str(f.field_type)) for f in of_json.schema().fields
        ]
        assert _rows(of_avro)
        assert _rows(of_avro) == _rows(of_json)
        assert not _rejected(lake, "avro")


def _declared(kafka: Broker, topic: str, schemas: Registry) -> dict[str, Any]:
    def stream(kind: str, **more: Any) -> dict[str, Any]:
        source = {"servers": kafka.servers, "topics": f"{topic}.{kind}.*", "max_wait": 0.1, **more}
        return {"name": f"events_{kind}", "namespace": kind, "source": {"kafka": source}, "tables": ["public.*"]}

    return {"name": "shop", "streams": [stream("json"), stream("avro", registry={"url": schemas.url})]}


def _land(lake: Lake, spec: RawSpec, records: int) -> None:
    stop = threading.Event()
    service = service_of(lake, spec, stop)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        until(lambda: service.state.records >= records or service.state.error, f"{records} records")
        assert not service.state.error
    finally:
        stop.set()
        thread.join()


def _rows(table: Any) -> list[str]:
    return sorted(map(repr, table.scan().to_arrow().to_pylist()))


def _rejected(lake: Lake, kind: str) -> list[Any]:
    rows = lake.table(f"raw.events_{kind}").scan(selected_fields=("problem",)).to_arrow()["problem"].to_pylist()
    return [p for p in rows if p]
