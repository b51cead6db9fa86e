"""A row of values as a record of each format, and such records as staging reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from lake_assets import Lake
from lake_assets.formats import SourceTable, event_format
from lake_assets.formats.format_base import schema_key
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records.parsing import parse
from lake_assets.lake import TableId
from tests.support.item_stream import ITEMS


def values_as_text(value: str) -> str:
    """What a value says: a text itself, anything else as it is written."""
    found = json.loads(value, parse_float=str, parse_int=str)
    return found if isinstance(found, str) else value


def _pairs(values: list[str]) -> dict[str, str]:
    return {"id": "1"} | {f"v{i}": v for i, v in enumerate(values)}


def json_object(row: dict[str, str], **more: str) -> str:
    return "{" + ",".join(f"{json.dumps(n)}:{v}" for n, v in {**more, **row}.items()) + "}"


def change_set_record(op: str, values: list[str]) -> str:
    return json_object(_pairs(values), FLAG=json.dumps(op), CDC_TIMESTAMP="1")


def _csv(op: str, values: list[str]) -> str:
    row = {n: json.dumps(values_as_text(v)) for n, v in _pairs(values).items()}
    return '{"@text":' + json_object(row, FLAG=json.dumps(op), CDC_TIMESTAMP='"1"') + "}"


def _simplified(op: str, values: list[str]) -> str:
    row = _pairs(values)
    names, listed = json.dumps(list(row)), "[" + ",".join(row.values()) + "]"
    kind = {"I": "insert", "U": "update", "D": "delete"}[op]
    new, old = {"columnNames": names, "columnValues": listed}, {"oldKeyNames": names, "oldKeyValues": listed}
    return json_object(
        {}, changeType=json.dumps(kind), timestamp="1", **(new if op != "D" else {}), **(old if op != "I" else {})
    )


def _debezium(op: str, values: list[str]) -> str:
    row, word = json_object(_pairs(values)), {"I": "c", "U": "u", "D": "d"}[op]
    source = '{"schema":"public","table":"items","lsn":5}'
    return json_object({}, op=json.dumps(word), before="null" if op == "I" else row, after="null" if op == "D" else row,
                   source=source)  # fmt: skip


def _wal2json(op: str, values: list[str]) -> str:
    columns = "[" + ",".join(f'{{"name":"{n}","value":{v}}}' for n, v in _pairs(values).items()) + "]"
    return json_object({}, action=json.dumps(op), schema='"public"', table='"items"',
                   **({"columns": columns} if op != "D" else {}), **({"identity": columns} if op != "I" else {}))  # fmt: skip


RECORDS: dict[str, tuple[str, Callable[[str, list[str]], str]]] = {
    "change-set": ("change-set", change_set_record),
    "change-set in CSV": ("change-set", _csv),
    "simplified": ("simplified", _simplified),
    "debezium": ("debezium", _debezium),
    "wal2json-v2": ("wal2json-v2", _wal2json),
}


def read(
    lake: Lake,
    name: str,
    lines: list[str],
    existing: dict[str, str] | None = None,
    key: tuple[str, ...] = ("id",),
    **declared: Any,
) -> list[dict[str, Any]]:
    """The events of some records, all values as text, by staging's own reading."""
    reader = event_format(name)
    spec = StagingSpec(TableId(("staging",), "items"), TableId(("raw",), "r"), SourceTable.parse(ITEMS), name, "p",
                       key=key, **declared)  # fmt: skip
    keys = [schema_key(reader.schema_of(json.loads(x))) for x in lines]
    frame = lake.spark().createDataFrame(pa.table({
        "position": range(len(lines)), "source_table": [ITEMS] * len(lines), "record": lines, "schema_key": keys,
    }))  # fmt: skip
    records = frame.selectExpr("*", "TIMESTAMP'2024-01-01' AS arrived_at", "CAST(NULL AS STRING) AS payload")
    rows = parse(records, spec, existing or {}).rows
    assert rows is not None
    texts = (f"CAST(`{c}` AS STRING) AS `{c}`" if c not in ("_misfits", "_position") else c for c in rows.columns)
    return [r.asDict() for r in rows.selectExpr(*texts).orderBy("_position").collect()]
