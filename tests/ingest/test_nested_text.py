"""Records with JSON text inside JSON are read as if it were not text."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.formats import SourceTable, event_format
from lake_assets.ingest.records import routing
from lake_assets.ingest.records.routing import route
from lake_assets.pipeline import PipelineConfig
from tests.support.nested_text import ALONE, ENVELOPE, FLAT, FORMS, LONG, SOURCE, q, wrapped

USERS = SourceTable("public", "users")


@pytest.mark.parametrize("form", [*FORMS, *ALONE])
def test_text_is_put_in_place_with_every_digit(form: str) -> None:
    text = {**FORMS, **ALONE}[form]
    routed = route(event_format("debezium"), text, None)
    assert (routed.problem, routed.tables) == (None, (USERS,))
    assert routed.payload is not None
    assert LONG in routed.payload
    assert "\\\\" not in routed.payload
    # Nothing is left to put in place, and nothing else has changed.
    assert route(event_format("debezium"), routed.payload, None).payload in (None, routed.payload)
    values = json.loads(routed.payload)
    value = values.get("value", values)
    value = value.get("payload", value)
    assert (value.get("after") or value)["s"] == 'a "b" ä {'


@pytest.mark.parametrize(
    "text",
    [
        wrapped('"1"', ENVELOPE),
        wrapped('"{"', ENVELOPE),
        wrapped('"[1]"', ENVELOPE),
        wrapped('"\\"x"', ENVELOPE),
        '{"schema": "{}", "payload": "{}", "__op": "c", "__table": "users", "__source_schema": "public"}',
        '{"key": "{}", "value": "{}", "__op": "c", "__table": "users", "__source_schema": "public"}',
        f'{{"before": null, "after": {{"id": 1, "j": "{{}}"}}, "source": {SOURCE}, "op": "c"}}',
    ],
)
def test_other_text_stays_text(text: str) -> None:
    routed = route(event_format("debezium"), text, None)
    assert (routed.problem, routed.tables, routed.payload) == (None, (USERS,), None)


@pytest.mark.parametrize("value", ['"x"', '"{"', '"[]"', '"1"', '""', '"\\""'])
def test_text_that_is_no_object_is_rejected(value: str) -> None:
    assert "neither an envelope nor a row" in (
        route(event_format("debezium"), wrapped("null", value), None).problem or ""
    )


def test_nesting_counts_within_text() -> None:
    deep = ENVELOPE.replace(LONG, "[" * 60 + "]" * 60)
    problem = route(event_format("debezium"), wrapped("null", q(deep)), None, 50).problem
    assert problem == "nested deeper than 50 levels"


def test_a_tombstone_and_a_heartbeat_may_be_text() -> None:
    for value, kind in (("null", None), ('{"ts_ms": 1}', "heartbeats")):
        routed = route(event_format("debezium"), wrapped(q('{"id": 1}'), q(value)), None)
        assert (routed.problem, routed.tables, routed.control) == (None, (), kind)


def test_records_of_every_format_may_be_text_as_a_whole() -> None:
    change = '{"FLAG": "I", "ID": 1}'
    routed = route(event_format("change-set"), q(change), USERS)
    assert (routed.problem, routed.payload) == (None, change)


# --- through Spark ------------------------------------------------------------------------------------------------


def unique(text: str, n: int) -> str:
    """Another row, of the same form."""
    number = text
    for level in range(5):
        slashes = "\\" * (2**level - 1)
        number = number.replace(f'id{slashes}": 1', f'id{slashes}": {n}')
    return number


def deliver(lake: Lake, stream: str, *lines: str) -> None:
    (folder := lake.config.home / "landing" / stream).mkdir(parents=True, exist_ok=True)
    (folder / "a.jsonl").write_text("".join(f"{line}\n" for line in lines))


def final_rows(lake: Lake, table: str) -> list[tuple[int, str, str]]:
    rows = lake.spark().table(lake.sql_name(table)).collect()
    return sorted((int(r["id"]), str(r["n"]), r["s"]) for r in rows)


@pytest.mark.long
def test_such_records_arrive_beside_others_from_files_and_tables(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [t for form, t in FORMS.items() if "flattened" not in form]
    records = [unique(t, n) for n, t in enumerate([*texts, wrapped('{"id": 1}', ENVELOPE)])]
    deliver(lake, "files", *records, q('{"ts_ms": 1}'))
    texts = [t for form, t in FORMS.items() if "flattened" in form]
    flat = [unique(t, n) for n, t in enumerate([*texts, wrapped('{"id": 1}', FLAT)])]
    deliver(lake, "flat", *flat)
    rows = pa.table({
        "key": [b'{"id": 0}', b'"{\\"id\\": 1}"', b"Struct{id=2}", None],
        "value": [q(unique(ENVELOPE, 0)), unique(ENVELOPE, 1), q(unique(ENVELOPE, 2)), q(unique(ENVELOPE, 3))],
    })  # fmt: skip
    lake.ensure_namespace(("kafka",))
    lake.catalog.create_table(("kafka", "users"), rows.schema).append(rows)
    declared = {"table": "public.users", "types": {"n": "string"}}
    v2 = {"action": "I", "schema": "public", "table": "v2", "pk": [{"name": "id", "type": "integer"}], "columns": [
        {"name": "id", "type": "integer", "value": 1}, {"name": "n", "type": "integer", "value": 2},
        {"name": "s", "type": "text", "value": "x"}]}  # fmt: skip
    deliver(lake, "v2", *(q(json.dumps(r)) for r in ({"action": "B", "lsn": "0/10"}, {**v2, "lsn": "0/1"})))
    streams = [
        {"name": "files", "tables": [declared]},
        {"name": "flat", "tables": [{**declared, "name": "flat"}]},
        {"name": "topics", "source": {"table": "kafka.users", "key": "key"}, "tables": [
            {**declared, "name": "topics", "key": "id"}]},
        {"name": "v2", "format": "wal2json-v2", "tables": ["public.v2"]},
    ]  # fmt: skip
    pipeline = Pipeline(PipelineConfig.model_validate({"name": "p", "streams": streams}))
    with monkeypatch.context() as earlier:
        # An earlier release rejects records that are text, and a replay reads them.
        earlier.setattr(routing, "without_nested_text", lambda _reader, _text, record, _depth: (record, None))
        outcomes = {o.table: o for o in pipeline.run(lake)}
    assert outcomes["raw.files"].rejected > 5
    assert not [o.error for o in pipeline.replay(lake) if o.error]
    assert not [(o.table, o.error, o.details) for o in pipeline.run(lake) if o.error or o.rejected]
    expected = 'a "b" ä {'
    assert final_rows(lake, "final.users") == [(n, LONG, expected) for n in range(len(records))]
    assert final_rows(lake, "final.flat") == [(n, LONG, expected) for n in range(len(flat))]
    assert final_rows(lake, "final.topics") == [(n, LONG, expected) for n in range(4)]
    assert final_rows(lake, "final.v2") == [(1, "2", "x")]
    assert not lake.table("raw.files_rejected").scan().to_arrow().num_rows
