"""Rows of a table as plain values, for comparisons with what a source holds."""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F

from lake_assets import Lake
from lake_assets.lake import quote
from tests.support.parsing import moment, plain


def rows(lake: Lake, table: str) -> list[dict[str, Any]]:
    """Return rows without nulls, and timestamps with their zone."""
    frame = lake.spark().table(lake.sql_name(table))
    kinds = {f.name: f.dataType.simpleString() for f in frame.schema.fields}
    frame = frame.select(
        *(F.unix_micros(quote(c)).alias(c) if k == "timestamp" else F.col(quote(c)) for c, k in kinds.items())
    )
    actual: list[dict[str, Any]] = []
    for row in frame.collect():
        values = {
            c: moment(v) if kinds[c] == "timestamp" else bytes(v) if isinstance(v, bytearray) else v
            for c, v in row.asDict().items()
            if v is not None
        }
        actual.append({c: plain(v) for c, v in values.items()})
    return actual
