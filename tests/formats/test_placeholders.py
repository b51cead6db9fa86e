"""Placeholders of unchanged values, in the form of every type: the value is unknown, or that of the old row."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.formats import SourceTable, event_format
from lake_assets.formats.event_model import Hints
from lake_assets.pipeline import PipelineConfig
from tests.support.parsing import Parsed, parse

DEFAULT = "__debezium_unavailable_value"
TABLE = SourceTable("public", "t")
DECIMAL = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
VARIABLE = {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}
# The UUID is the one that the connector's own tests name.
UUID_OF_DEFAULT = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"


def base64_of(code: bytes) -> str:
    return base64.b64encode(code).decode()


def columns(text: str) -> dict[str, tuple[dict[str, Any], Any, Any]]:
    """By name: schema, a real value, and the placeholder."""
    code = text.encode()

    def items(of: dict[str, Any]) -> dict[str, Any]:
        return {"type": "array", "items": {**of, "optional": True}}

    string = {"type": "string"}
    found: dict[str, tuple[dict[str, Any], Any, Any]] = {
        "text": (string, "a", text),
        "json": ({"type": "string", "name": "io.debezium.data.Json"}, '{"a":1}', text),
        "hex": (string, "cafe", code.hex()),
        "b64": (string, "yv4=", base64_of(code)),
        "bytes": ({"type": "bytes"}, "yv4=", base64_of(code)),
        "map": ({"type": "map", "keys": string, "values": string}, {"a": "1"}, {text: text}),
        "hstore": ({"type": "string", "name": "io.debezium.data.Json"}, '{"a": "1"}', json.dumps({text: text}, separators=(",", ":"))),
        "texts": (items(string), ["a", None], [text]),
        "hexes": (items(string), ["cafe"], [code.hex()]),
        "all_bytes": (items({"type": "bytes"}), ["yv4="], [base64_of(code)]),
        "ints": (items({"type": "int32"}), [1], [*code]),
        "longs": (items({"type": "int64"}), [1], [*code]),
        "doubles": (items({"type": "double"}), [1.5, 2.5], [*map(float, code)]),
        "decimals": (items(DECIMAL), [base64_of(b"\x01")], [base64_of((b * 100).to_bytes(2, "big")) for b in code]),
        "variable": (items(VARIABLE), [{"scale": 1, "value": "AQ=="}], [{"scale": 0, "value": base64_of(bytes([b]))} for b in code]),
    }  # fmt: skip
    if text == DEFAULT:
        found["uuids"] = (
            items({**string, "name": "io.debezium.data.Uuid"}),
            ["11111111-1111-1111-1111-111111111111"],
            [UUID_OF_DEFAULT],
        )
    return found


def event(op: str, fields: list[dict[str, Any]] | None, before: Any, after: Any) -> str:
    source = {"schema": "public", "table": "t", "lsn": 100, "sequence": '["90","100"]'}
    payload = {"op": op, "before": before, "after": after, "source": source}
    if fields is None:
        return json.dumps({"key": {"id": after["id"]}, "value": payload})
    images = [{"type": "struct", "fields": fields, "field": image} for image in ("before", "after")]
    order = [{"type": "string", "field": f} for f in source]
    schema = [*images, {"type": "struct", "fields": order, "field": "source"}, {"type": "string", "field": "op"}]
    key = {"schema": {"type": "struct", "fields": fields[:1]}, "payload": {"id": after["id"]}}
    return json.dumps({"key": key, "value": {"schema": {"type": "struct", "fields": schema}, "payload": payload}})


@pytest.mark.spark
@pytest.mark.parametrize(
    ("setting", "has_schema"),
    [
        (None, True), ("~kept~", False),
        *(pytest.param(*other, marks=pytest.mark.long) for other in ((None, False), ("~kept~", True))),
    ],
)  # fmt: skip
def test_placeholders_of_every_type_are_unknown_values_or_those_of_old_rows(
    spark_lake: Lake, setting: str | None, has_schema: bool
) -> None:
    of = columns(setting or DEFAULT)
    if not has_schema:
        # Without a schema, bytes that are numbers are texts and cannot be told from numbers of another scale.
        del of["decimals"]
    fields = [
        {"type": "int32", "field": "id"},
        *({**schema, "field": name, "optional": True} for name, (schema, _, _) in of.items()),
    ]
    real = {"id": 1} | {name: value for name, (_, value, _) in of.items()}
    kept = {"id": 1} | {name: mark for name, (_, _, mark) in of.items()}
    schema = fields if has_schema else None
    lines = [
        event("c", schema, None, real),
        event("u", schema, None, kept),
        event("u", schema, {"id": 1} | dict.fromkeys(of), kept),
        event("u", schema, real, kept),
        event("u", schema, kept, kept),
        event("u", schema, kept, real),
        event("c", schema, None, kept),
    ]
    hints = Hints(table=TABLE, placeholder=setting)
    inserted, kept_1, kept_2, of_old, unknown, changed, moved = parse(
        spark_lake.spark(), event_format("debezium"), lines, hints
    )
    expected = set(of)
    assert not any(e.bad for e in (inserted, kept_1, of_old))

    def known(e: Parsed) -> dict[str, Any]:
        return {name: value for name, value in e.row.items() if name in expected}

    assert not inserted.unavailable & expected
    for e in (kept_1, kept_2, unknown, moved):
        assert e.unavailable >= expected
    assert not of_old.unavailable & expected
    assert known(of_old) == known(changed) == known(inserted)
    assert len(known(inserted)) == len(expected)


def test_the_setting_is_for_debezium_alone() -> None:
    stream = {"name": "s", "format": "wal2json-v2", "unavailable_value": "x"}
    with pytest.raises(
        ValueError, match="`unavailable_value` is for `format: debezium`, and the format is wal2json-v2"
    ):
        PipelineConfig.model_validate({"name": "p", "streams": [stream]})
