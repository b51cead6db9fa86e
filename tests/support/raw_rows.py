"""Lines as rows of a raw table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from lake_assets import Lake
from lake_assets.formats import event_format
from lake_assets.formats.format_base import decode, schema_key
from tests.support.item_stream import ITEMS


def raw_rows(lake: Lake, name: str, lines: Sequence[str], source_table: str = ITEMS) -> DataFrame:
    """Lines as rows of a raw table."""
    reader = event_format(name)
    schemas = [reader.schema_of(decode(line)) for line in lines]
    payloads = [reader.without_schema(t, s) if s else None for t, s in zip(lines, schemas, strict=True)]
    now = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    columns = {
        "position": pa.array(range(len(lines)), pa.int64()),
        "source_table": pa.array([source_table] * len(lines), pa.string()),
        "arrived_at": pa.array([now] * len(lines), pa.timestamp("us", "UTC")),
        "record": pa.array(lines, pa.string()),
        "schema_key": pa.array([schema_key(s) for s in schemas], pa.string()),
        "payload": pa.array(payloads, pa.string()),
    }
    return lake.spark().createDataFrame(pa.table(columns))
