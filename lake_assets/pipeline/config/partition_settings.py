"""Settings of a table's partitions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from lake_assets.pipeline.config.setting_types import (
    ColumnName,
    OrText,
    Strict,
    as_value_errors,
    checked,
    combination,
    text_as,
)
from lake_assets.tables.partitioning.table_partitions import Every, Partitions, read_start
from lake_assets.tables.partitioning.time_zones import check_hours, zone_of


def _as_text(value: Any) -> Any:
    # YAML parses unquoted dates.
    if isinstance(value, datetime):
        return value.isoformat()
    return value.isoformat() if isinstance(value, date) else value


def _as_texts(value: Any) -> Any:
    """Convert listed values to text, as partition keys are text."""
    if not isinstance(value, list):
        return value
    return [str(v).lower() if isinstance(v, bool) else str(v) if isinstance(v, int) else _as_text(v) for v in value]


class PartitionSettings(Strict):
    """How a table is partitioned, in Iceberg and in Dagster."""

    by: ColumnName = Field(description="column to partition by", min_length=1)
    every: Every | None = Field(
        default=None, description="by time: the length of a partition; default: each value is a partition"
    )
    timezone: Annotated[str, checked(zone_of)] | None = Field(
        default=None,
        description="with every: IANA name of the time zone of hours, days and months (Europe/Berlin); default: UTC",
    )
    start: Annotated[str | None, BeforeValidator(_as_text)] = Field(
        default=None,
        description="with every: when the first partition begins (2024-01-31, 2024-01-31T08:00), in that time zone",
    )
    end: Annotated[str | None, BeforeValidator(_as_text)] = Field(
        default=None,
        description="with every: when the last partition ends, like start; rows from then on are in no partition; "
        "default: the current hour, day or month is the last partition",
    )
    values: Annotated[list[str] | None, BeforeValidator(_as_texts)] = Field(
        default=None,
        description="values with their own partition; all other values are in the partition __other__; default: "
        "one partition per existing value",
    )

    @field_validator("values")
    @classmethod
    def _values(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and not value:
            raise ValueError("list values, or leave `values` out to have one partition per existing value")
        if value is not None and len(set(value)) < len(value):
            raise ValueError("a value is named twice")
        return value

    @combination
    def _one_kind(self) -> Iterator[str]:
        if self.every is None:
            if any(s is not None for s in (self.timezone, self.start, self.end)):
                yield "`timezone`, `start` and `end` need `every` (hour, day or month)"
            return
        if self.values is not None:
            yield "partitions are by time (`every`) or by listed values (`values`), not by both"
        if self.start is None:
            yield "`every` needs `start`, the beginning of the first partition: start: 2024-01-01"
        with as_value_errors():
            if self.start is not None:
                start = read_start(self.start, self.every)
                if self.end is not None and read_start(self.end, self.every) <= start:
                    yield f"`end` ({self.end}) is not after the first partition, which begins at {start.isoformat()}"
            if self.every == "hour":
                check_hours(self.timezone or "UTC")

    @property
    def declared(self) -> Partitions:
        """The settings as `Partitions`."""
        start = read_start(self.start, self.every) if self.start is not None and self.every else None
        end = read_start(self.end, self.every) if self.end is not None and self.every else None
        values = tuple(self.values) if self.values is not None else None
        return Partitions(self.by, self.every, self.timezone or "UTC", start, values, end)


Partitioning = Annotated[PartitionSettings | None, text_as("by"), OrText()]
"""Partitions, or a column with a partition per value."""
