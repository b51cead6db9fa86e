"""Wrapped Debezium records: `{"destination" or "topic", "key", "value", ...}` around the value of a record of Kafka."""

from __future__ import annotations

from collections.abc import Collection

from lake_assets.lake.names import literal

FIELDS = {"destination", "topic", "key", "value", "partition", "offset", "timestamp", "headers"}
# The names of the fields of a record, the variant `v`.
NAMES = "map_keys(try_variant_get(v, '$', 'MAP<STRING, VARIANT>'))"
# SQL of the condition of `is_wrapped`.
IS_WRAPPED = (
    f"coalesce(array_contains({NAMES}, 'value') AND "
    f"size(array_except({NAMES}, array({', '.join(map(literal, sorted(FIELDS)))}))) = 0, false)"
)


def is_wrapped(names: Collection[str]) -> bool:
    """Whether an object with these fields is a wrapped record."""
    return "value" in names and set(names) <= FIELDS
