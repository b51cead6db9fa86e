"""Debezium's records: the table that each is about, its plan of columns and key, and records that are malformed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lake_assets.errors import InvalidNameError, MalformedRecordError, PipelineError, UnsupportedEventError
from lake_assets.formats import EventPlan, SourceTable, event_format
from lake_assets.formats.event_model import Hints, Seen
from tests.support.debezium import BIGINT, TEXT, Event, Table, decimal

DEBEZIUM = event_format("debezium")
USERS = Table({"id": BIGINT, "name": TEXT, "balance": decimal(12, 2)}, name="public.users")


def sent(op: Any = "c", table: Table = USERS) -> dict[str, Any]:
    return Event(table, op, (1, 2), dict.fromkeys(table.columns, None) | {"id": 1}).records()[0]


def schema_of(record: dict[str, Any]) -> str:
    """Return a record's schema as text."""
    texts = [json.dumps(record["value"]["schema"])]
    if record["key"]:
        texts.append(json.dumps(record["key"]["schema"]))
    return "\n".join(texts)


def plan_of(record: dict[str, Any], rename: dict[str, str] | None = None) -> EventPlan:
    return DEBEZIUM.plans([Seen(schema_of(record))], Hints(rename=rename or {}))[0].plan


@pytest.mark.parametrize("op", ["c", "r", "u", "d", "t"])
def test_an_event_is_about_the_table_in_its_source_block(op: str) -> None:
    assert DEBEZIUM.routes(sent(op)) == (SourceTable("public", "users"),)


def test_the_topic_does_not_decide_because_topic_names_are_sanitised() -> None:
    names = [Table({"id": BIGINT}, name=f"public.{name}") for name in ("a-b", "a b")]
    records = [{**sent(table=t), "destination": "made_up.public.a_b"} for t in names]
    assert [str(t) for r in records for t in DEBEZIUM.routes(r)] == ["public.a-b", "public.a b"]


def test_a_source_without_schemas_is_routed_by_its_database() -> None:
    record = sent()
    del record["value"]["payload"]["source"]["schema"]
    assert DEBEZIUM.routes(record) == (SourceTable("made_up", "users"),)


def test_a_tombstone_is_about_no_row() -> None:
    event, tombstone = Event(USERS, "d", (1, 2), {"id": 1}).records()
    assert DEBEZIUM.routes(event) == (SourceTable("public", "users"),)
    assert DEBEZIUM.routes(tombstone) == ()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([], "expected an object"),
        ("text", "expected an object"),
        ({"key": None}, r"payload\.source\.table is missing"),
        ({"value": 1}, "not an object"),
        ({"value": {"payload": None}}, r"payload\.source\.table is missing"),
        ({"value": {"payload": {"source": {"table": 1}}}}, r"payload\.source\.table is missing"),
        ({"value": {"payload": {"source": {"table": "t"}}}}, r"payload\.source\.table is missing"),
        ({"value": {"op": "c", "source": {"table": "t"}}}, r"source\.schema is None"),
        (
            {"value": {"op": "c", "source": {"connector": "mongodb", "db": "d", "collection": "c"}}},
            "c of MongoDB, which",
        ),
        ({"value": {"schema": "s", "payload": {"id": 1}}}, "is not a schema"),
        ({"value": {"id": 1, "name": "Ann"}}, r"add\.fields=op,table"),
        ({"value": {"id": 1, "__op": "c"}}, "does not name its table"),
    ],
)
def test_records_without_envelope_or_flattened_row_are_malformed(record: Any, message: str) -> None:
    with pytest.raises(MalformedRecordError, match=message):
        DEBEZIUM.routes(record)


def test_a_plan_names_columns_types_and_key() -> None:
    plan = plan_of(sent())
    assert [(c.name, c.type) for c in plan.columns] == [
        ("id", "bigint"),
        ("name", "string"),
        ("balance", "decimal(12,2)"),
    ]
    assert plan.key == ("id",)


def test_a_renamed_column_is_renamed_in_the_key_too() -> None:
    plan = plan_of(sent(), {"id": "user_id", "absent": "whatever"})
    assert [c.name for c in plan.columns] == ["user_id", "name", "balance"]
    assert plan.key == ("user_id",)


def test_events_of_a_table_without_a_key_have_none() -> None:
    assert plan_of(sent(table=Table({"id": BIGINT}, key=()))).key == ()


def test_only_what_may_be_toasted_can_be_left_out() -> None:
    columns = {c.name: c.unavailable for c in plan_of(sent()).columns}
    assert columns["id"] is None
    assert columns["balance"] is None
    assert "__debezium_unavailable_value" in (columns["name"] or "")


@pytest.mark.parametrize(
    ("columns", "rename"),
    [(("id", "a", "b"), {"a": "b"}), (("id", "a", "A"), {}), (("id", "a"), {"a": "ID"})],
    ids=["renamed onto another", "differ by case only", "renamed onto the key by case"],
)
def test_columns_that_would_share_a_name_are_rejected(columns: tuple[str, ...], rename: dict[str, str]) -> None:
    table = Table(dict.fromkeys(columns, BIGINT))
    with pytest.raises(UnsupportedEventError, match="share one name"):
        plan_of(sent(table=table), rename)


def test_a_key_missing_in_the_row_is_rejected() -> None:
    record = sent()
    record["key"]["schema"]["fields"][0]["field"] = "other"
    with pytest.raises(UnsupportedEventError, match="other"):
        plan_of(record)


def test_an_unknown_format_is_named_with_the_known_ones() -> None:
    with pytest.raises(PipelineError, match=r"'avro'; known: .*debezium"):
        event_format("avro")


@pytest.mark.parametrize("text", ["public.users", "public.Order Items", "public.`a.b`", "`my.schema`.t"])
def test_a_source_table_written_out_is_read_back(text: str) -> None:
    assert str(SourceTable.parse(text)) == text


@pytest.mark.parametrize("text", ["users", "db.public.users", ""])
def test_a_source_table_is_a_schema_and_a_name(text: str) -> None:
    with pytest.raises(InvalidNameError):
        SourceTable.parse(text)
