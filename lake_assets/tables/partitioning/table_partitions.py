"""The partitions of a table: by time or by value, from one declaration.

This covers Iceberg's partition spec, the partition keys in Dagster, and the rows of each key. A value has exactly one
key, whatever the time zone: docs/decisions/0019-partitions.md.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import cached_property
from typing import Any, Literal, Self

from lake_assets.errors import PipelineError
from lake_assets.lake import TableId, quote
from lake_assets.lake.column_spelling import spelled
from lake_assets.lake.names import literal
from lake_assets.tables.partitioning.partition_fields import PartitionField
from lake_assets.tables.partitioning.partition_keys import (
    NULL,
    OTHER,
    WHOLE,
    as_value,
    key_of_text,
    text_of,
    text_of_key,
)
from lake_assets.tables.partitioning.time_zones import is_fixed, zone_of

Every = Literal["hour", "day", "month"]

_FORMATS: dict[Every, str] = {"hour": "%Y-%m-%d-%H:%M", "day": "%Y-%m-%d", "month": "%Y-%m-%d"}
_TRANSFORMS: dict[Every, str] = {"hour": "hours", "day": "days", "month": "months"}
_TIMES = ("date", "timestamp", "timestamp_ntz")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (wall clock)
_HOUR = timedelta(hours=1)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
# The end of the key of the second of two hours with the same name.
_OFFSET = re.compile(r"(?<=:\d\d)[+-]\d{4}$")


@dataclass(frozen=True)
class Partitions:
    """How a table is partitioned.

    Attributes:
        by: the column.
        every: the length of a partition by time; None: one partition per value.
        timezone: IANA name of the zone in which hours, days and months begin.
        start: the beginning of the first partition in local time of the zone; set for partitions by time.
        values: the values with one partition each, other values are in `OTHER`; None: one partition per existing value.
        end: the end of the last partition in local time of the zone, exclusive; None: the current one is the last.
    """

    by: str
    every: Every | None = None
    timezone: str = "UTC"
    start: datetime | None = None
    values: tuple[str, ...] | None = None
    end: datetime | None = None

    @property
    def field(self) -> PartitionField:
        """The field of Iceberg's partition spec."""
        return PartitionField(self.by, _TRANSFORMS[self.every] if self.every else "")

    @property
    def is_dynamic(self) -> bool:
        """Whether the partitions follow from the existing values."""
        return self.every is None and self.values is None

    @cached_property
    def zone(self) -> tzinfo:
        """The time zone."""
        return zone_of(self.timezone)

    @property
    def text(self) -> str:
        """The declaration in one line, the same for two declarations with the same keys and rows."""
        if self.every:
            until = f" to {_formatted(self.end, self.every)}" if self.end else ""
            return f"{self.by} every {self.every} in {self.timezone} from {self.first}{until}"
        return f"{self.by} in ({', '.join(sorted(self.values))})" if self.values is not None else self.by

    @property
    def first(self) -> str:
        """The key of the first partition; empty without a start."""
        return self.start.strftime(_FORMATS[self.every]) if self.every and self.start else ""

    def spelled_as(self, columns: Iterable[str]) -> Self:
        """Return the declaration with its column spelled as a table with these columns spells it."""
        return replace(self, by=spelled(self.by, columns))

    # --- checks -------------------------------------------------------------------------------------------------------

    def check(self, table: TableId, types: Mapping[str, str]) -> None:
        """Refuse a declaration that does not match the table's columns, by Spark SQL type.

        Raises:
            PipelineError: the column is missing, or its type does not support these partitions.
        """
        at, by = f"{table}: `partitions`", self.by
        if by not in types:
            raise PipelineError(f"{at} names {by}, and the table has {', '.join(types)}")
        kind = types[by]
        if self.every and kind not in _TIMES:
            raise PipelineError(
                f"{at}: `every: {self.every}` is for dates and timestamps, and {by} is {kind}: name a column of such a "
                f"type, give {by} one (`types: {{{by}: timestamp}}` in a stream's table, a CAST in a model), or leave "
                "`every` out to have one partition per value"
            )
        if self.every == "hour" and kind == "date":
            raise PipelineError(f"{at}: `every: hour`, and {by} is a date: declare `every: day` or `every: month`")
        if self.every == "hour" and kind == "timestamp_ntz" and not is_fixed(self.zone):
            raise PipelineError(
                f"{at}: `every: hour`, and {by} is a timestamp without a time zone: when the clock of "
                f"{self.timezone} is set back, one hour occurs twice and its rows are ambiguous. Declare "
                "`timezone: UTC`, or `every: day`"
            )
        if not self.every:
            if kind in ("timestamp", "timestamp_ntz"):
                raise PipelineError(
                    f"{at}: {by} is {kind}, with a different value in nearly every row: declare `every`"
                )
            if kind not in ("string", "boolean", "date", *WHOLE):
                raise PipelineError(
                    f"{at}: {by} is {kind}: texts, whole numbers, dates and booleans have partitions by value"
                )
        for value in self.values or ():
            if as_value(value, kind) is None:
                raise PipelineError(f"{at}: `values` has {value!r}, and {by} is {kind}")

    def is_aligned(self, kind: str) -> bool:
        """Whether no Iceberg partition of a column of this Spark SQL type has rows of two keys.

        Iceberg's hours, days and months are in UTC.
        """
        if self.every is None or kind != "timestamp":
            return True
        offset = self.zone.utcoffset(datetime(2000, 1, 1, tzinfo=UTC).astimezone(self.zone))
        return is_fixed(self.zone) and not offset

    # --- keys -------------------------------------------------------------------------------------------------------

    def key_of(self, value: Any) -> str | None:
        """Return the key of a value's partition; None: no partition (a time that is null).

        A datetime without a zone is in local time of the declared zone.
        """
        if self.every is not None:
            return None if value is None else self._time_key(value)
        if value is None:
            return OTHER if self.values is not None else NULL
        text = text_of(value)
        return OTHER if self.values is not None and text not in self.values else key_of_text(text)

    def _time_key(self, value: date | datetime) -> str:
        assert self.every is not None
        if not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day)  # noqa: DTZ001 (a day in any zone)
        local = value if value.tzinfo is None else value.astimezone(UTC).replace(fold=0).astimezone(self.zone)
        if self.every == "hour":
            at = local.replace(minute=0, second=0, microsecond=0)
            # Dagster distinguishes the second of two hours with the same name by its offset.
            offset = at.strftime("%z") if at.tzinfo is not None and at.fold else ""
            return _formatted(at, "hour") + offset
        return _formatted(local.replace(day=1) if self.every == "month" else local, self.every)

    def is_before(self, key: str) -> bool:
        """Whether the key of a time is before the first partition."""
        return bool(self.every) and key < self.first

    def is_after(self, key: str) -> bool:
        """Whether the key of a time is after the last partition, whatever the time is now."""
        return self.every is not None and self.end is not None and key >= _formatted(self.end, self.every)

    def keys_between(self, low: str, high: str) -> list[str]:
        """Return the keys of all partitions by time from `low` to `high`, each a key or a date or time, inclusive.

        A date as `high` includes all hours of the day, and an hour that occurs twice includes both, unless its key has
        an offset.

        Raises:
            PipelineError: partitions are not by time, a text is neither, or the range is empty or begins before the
                first partition.
        """
        if self.every is None:
            raise PipelineError(
                f"partitions by {self.by} have no order: name the partitions, or a range of another column"
            )
        at, last = (read_start(_without_offset(text), self.every) for text in (low, high))
        if self.every == "hour" and _DATE.fullmatch(high):
            last = last.replace(hour=23)
        if at > last:
            raise PipelineError(f"{low} is after {high}: swap them")
        if self.start is not None and at < self.start:
            raise PipelineError(f"{low} is before the first partition, {self.first}")
        if self.end is not None and last >= self.end:
            raise PipelineError(f"{high} is after the last partition, which ends at {_formatted(self.end, self.every)}")
        keys = list[str]()
        if self.every == "hour":
            # Local hours may be missing, or occur twice: count the hours that pass.
            hour, end = self._instant(at, low), self._instant(last.replace(fold=1), high)
            while hour <= end:
                keys.append(self._time_key(hour))
                hour += _HOUR
            return keys
        while at <= last:
            keys.append(_formatted(at, self.every))
            at = _next(at, self.every)
        return keys

    def _instant(self, at: datetime, text: str) -> datetime:
        """Return a local time in UTC, with the offset that `text` ends with if it is the key of an hour with one."""
        offset = _OFFSET.search(text)
        zone = datetime.strptime(offset[0], "%z").tzinfo if offset else self.zone
        return at.replace(tzinfo=zone).astimezone(UTC)

    def condition(self, keys: Collection[str], kind: str) -> str:
        """Return SQL of a condition: a row, whose column has this Spark SQL type, belongs to one of the partitions.

        Raises:
            PipelineError: a key does not match this declaration.
        """
        column = quote(self.by)
        if not keys:
            return "false"
        if self.every is None:
            return self._value_condition(keys, kind, column)
        parts = [
            f"({column} >= {_literal(low, kind)} AND {column} < {_literal(high, kind)})"
            for low, high in _merged(sorted(self._window(key, kind) for key in keys))
        ]
        return f"({' OR '.join(parts)})"

    def _value_condition(self, keys: Collection[str], kind: str, column: str) -> str:
        parts: list[str] = []
        texts = [text_of_key(k) for k in keys if k not in (OTHER, NULL)]
        if wrong := [t for t in texts if as_value(t, kind) is None]:
            raise PipelineError(f"`partitions` by {self.by}: {wrong[0]!r} is not a value of type {kind}")

        def listed(values: Sequence[str]) -> str:
            return ", ".join(_value_literal(v, kind) for v in values)

        if texts:
            parts.append(f"{column} IN ({listed(sorted(texts))})")
        if NULL in keys or OTHER in keys:
            parts.append(f"{column} IS NULL")
        if OTHER in keys:
            parts.append(f"{column} NOT IN ({listed(self.values or ())})" if self.values else "true")
        # A comparison with null is neither true nor false.
        return f"coalesce({' OR '.join(parts)}, false)"

    def _window(self, key: str, kind: str) -> tuple[datetime, datetime]:
        """Return start and end of a partition: in UTC if the column has a time zone, else in local time."""
        assert self.every is not None
        try:
            first = datetime.strptime(key, _FORMATS[self.every] + ("%z" if _OFFSET.search(key) else ""))  # noqa: DTZ007
        except ValueError as e:
            raise PipelineError(f"{key!r} is not a key of `partitions` by {self.by} (every {self.every}): {e}") from e
        if kind != "timestamp":
            return first, _next(first, self.every)
        if first.tzinfo is None:
            first = first.replace(tzinfo=self.zone)
        if self.every == "hour":
            start = first.astimezone(UTC)
            return start, start + _HOUR
        end = _next(first.replace(tzinfo=None), self.every).replace(tzinfo=self.zone)
        return first.astimezone(UTC), end.astimezone(UTC)

    # --- changed rows -----------------------------------------------------------------------------------------------

    def place(self, kind: str) -> str:
        """Return SQL of the value to group rows by, to find their keys: almost all groups have one key.

        A group has two keys at boundaries of partitions that are not on a quarter of an hour.
        """
        number = self.number(kind)
        # All current offsets of time zones are multiples of a quarter of an hour.
        return f"floor({number} / 900000000)" if self.every and kind != "date" else number

    def number(self, kind: str) -> str:
        """Return SQL of a value in a form that Python can read; see `value_of`."""
        column = quote(self.by)
        if self.every is None:
            return f"CAST({column} AS STRING)"
        if kind == "date":
            return f"unix_date({column})"
        if kind == "timestamp":
            return f"unix_micros({column})"
        return f"timestampdiff(MICROSECOND, TIMESTAMP_NTZ'1970-01-01 00:00:00', {column})"

    def value_of(self, number: Any, kind: str) -> Any:
        """Return the original value of a `number`."""
        if number is None or self.every is None:
            return number
        at = _EPOCH + (timedelta(days=number) if kind == "date" else timedelta(microseconds=number))
        return at.replace(tzinfo=UTC) if kind == "timestamp" else at


def read_start(text: str, every: Every) -> datetime:
    """Parse a declared start, and truncate it to its hour, day or month.

    Raises:
        PipelineError: the text is not a date or time.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError as e:
        raise PipelineError(f"{text!r} is not a date: write 2024-01-31, or 2024-01-31T08:00 for hours") from e
    if at.tzinfo is not None:
        raise PipelineError(f"{text!r}: write the start in local time of `timezone`, without an offset")
    at = at.replace(minute=0, second=0, microsecond=0)
    at = at if every == "hour" else at.replace(hour=0)
    return at.replace(day=1) if every == "month" else at


def _without_offset(key: str) -> str:
    """Return the key of an hour as a local time: `2024-01-31-08:00` or the like."""
    return re.sub(r"^(\d{4}-\d{2}-\d{2})-(\d{2}:\d{2}).*$", r"\1T\2", key)


def _value_literal(text: str, kind: str) -> str:
    if kind == "string":
        return literal(text)
    return f"CAST({literal(text)} AS {kind})"


def _literal(at: datetime, kind: str) -> str:
    if kind == "date":
        return f"DATE'{at.date().isoformat()}'"
    if kind == "timestamp":
        return f"timestamp_micros({(at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)}L)"
    return f"TIMESTAMP_NTZ'{at.isoformat(' ')}'"


def _merged(windows: Sequence[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    out: list[tuple[datetime, datetime]] = []
    for low, high in windows:
        if out and low <= out[-1][1]:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return out


def _next(first: datetime, every: Every) -> datetime:
    if every == "month":
        return first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return first + (_HOUR if every == "hour" else timedelta(days=1))


def _formatted(at: datetime, every: Every) -> str:
    # The C library writes a year before 1000 with fewer than four digits.
    return f"{at.year:04}" + at.strftime(_FORMATS[every].removeprefix("%Y"))
