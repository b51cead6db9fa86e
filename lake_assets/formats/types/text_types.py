"""Spark SQL types of values that arrive as text: how they are read, and the common type of two."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lake_assets.errors import UnsupportedEventError
from lake_assets.lake.names import literal


@dataclass(frozen=True)
class Reading:
    """A Spark SQL type, and how a value's text is converted to it.

    Attributes:
        type: Spark SQL type.
        steps: SQL expressions over `{t}`, each applied to the result of the one before. Separate, because Spark would
            evaluate an expression once per occurrence in another one.
        saturates: whether the source writes a value beyond the type's range as its greatest or smallest value.
    """

    type: str
    steps: tuple[str, ...] = ()
    saturates: bool = False

    def inline(self, t: str) -> str:
        """Return all steps as one expression over `t`."""
        for step in self.steps:
            t = step.replace("{t}", t)
        return t


_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_CASTS = {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date", "timestamp", "timestamp_ntz"}
_ALIASES = {"integer": "int", "long": "bigint", "short": "smallint", "real": "float", "byte": "tinyint"}
# A day, optionally with a time, optionally with a zone. Spark accepts more: a time alone, as one of the current day.
_DAY, _TIME = "[0-9]{4,6}-[0-9]{1,2}-[0-9]{1,2}", "[T ][0-9]{1,2}:[0-9]{1,2}(?::[0-9]{1,2}(?:[.][0-9]{0,100})?)?"
_ZONE = "(?:[Zz]|UTC|GMT|[+-][0-9]{1,2}(?::?[0-9]{2}){0,2})"
IS_MOMENT = f"^{_DAY}(?:{_TIME}(?: ?{_ZONE})?)?$"
# The usual notation, which Spark reads without changes.
_COMPLETE = "[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.][0-9]{1,6})?"
_IS_COMPLETE, _IS_COMPLETE_LOCAL = f"^{_COMPLETE}(?:Z|[+-][0-9]{{2}}(?::[0-9]{{2}})?)$", f"^{_COMPLETE}$"
_IS_LOCAL, _IS_DAY = f"^{_DAY}(?:{_TIME})?$", f"^{_DAY}$"


def normal(kind: str) -> str:
    """Return a declared type in Spark's notation: `DECIMAL(12, 2)` -> `decimal(12,2)`.

    Raises:
        UnsupportedEventError: text cannot be read as this type.
    """
    text = re.sub(r"\s*([<>(),])\s*", r"\1", kind.strip().lower())
    text = _ALIASES.get(text, text)
    if match := re.fullmatch(r"array<(.+)>", text):
        return f"array<{normal(match[1])}>"
    if text in ("string", "binary") or text in _CASTS:
        return text
    match = _DECIMAL.fullmatch(text)
    if match and 0 <= int(match[2]) <= int(match[1]) <= 38 and int(match[1]):
        return f"decimal({int(match[1])},{int(match[2])})"
    raise UnsupportedEventError(
        f"{kind!r} is not a type that can be declared: use {', '.join(sorted(_CASTS))}, decimal(p,s), string, "
        "binary or array<...> of these"
    )


def read_text(kind: str, depth: int = 0) -> Reading:
    """Return how a declared type, or a type of a file, is read from text; NULL if the text does not fit.

    Binary values are base64, arrays are JSON. A number with more digits than its type does not fit.
    """
    kind = normal(kind)
    if kind == "string":
        return Reading(kind)
    if kind == "binary":
        return Reading(kind, ("try_to_binary({t}, 'base64')",))
    if match := re.fullmatch(r"array<(.+)>", kind):
        return items("from_json({t}, 'ARRAY<STRING>')", read_text(match[1], depth + 1), depth)
    if match := _DECIMAL.fullmatch(kind):
        # A cast would round, so lost digits are detected: `exact` detects them also in 1e-5, `longer` beyond the last
        # digit of a decimal.
        exact = f"try_cast({{t}} AS DECIMAL(38,{38 - int(match[1]) + int(match[2])}))"
        longer = literal(rf"\.[0-9]{{{match[2]}}}[0-9]*[1-9]")
        cast = f"try_cast({{t}} AS {kind})"
        return Reading(kind, (f"CASE WHEN {cast} = {exact} AND NOT {{t}} RLIKE {longer} THEN {cast} END",))
    if kind == "date":
        return Reading(kind, (DATE, DAY_IN_RANGE))
    if kind == "timestamp_ntz":
        # A time zone would be dropped silently.
        local = f"CASE WHEN {{t}} RLIKE {literal(_IS_LOCAL)} THEN try_cast({_with_seconds('{t}')} AS TIMESTAMP_NTZ) END"
        return Reading(kind, (local, NTZ_IN_RANGE))
    if kind == "timestamp":
        return Reading(kind, (MOMENT, MOMENT_IN_RANGE))
    return Reading(kind, (f"try_cast({{t}} AS {kind})",))


def let(value: str, name: str, body: str) -> str:
    """Return SQL of `body`, in which `name` stands for `value`: Spark parses and evaluates `value` once."""
    return f"get(transform(array({value}), {name} -> {body}), 0)"


def items(texts: str, inner: Reading, depth: int) -> Reading:
    """Return the reading of an array whose items are read by `inner`; if one item does not fit, the array does not.

    Args:
        texts: SQL over `{t}` that returns the items as text.
        inner: how one item is read.
        depth: nesting depth in arrays (names the lambda's variable).
    """
    kind, item = f"array<{inner.type}>", f"x{depth}"
    if not inner.steps:
        return Reading(kind, (texts,))
    both = f"transform({texts}, {item} -> named_struct('t', {item}, 'v', {inner.inline(item)}))"
    misfit = f"exists({{t}}, {item} -> {item}.t IS NOT NULL AND {item}.v IS NULL)"
    return Reading(kind, (both, f"CASE WHEN NOT {misfit} THEN transform({{t}}, {item} -> {item}.v) END"))


# A cast would ignore anything after the date, such as BC.
DATE = f"CASE WHEN {{t}} RLIKE {literal('^[0-9]{4,}-[0-9]{1,2}-[0-9]{1,2}$')} THEN try_cast({{t}} AS DATE) END"

# Neither Spark nor Iceberg has infinite dates and timestamps: the limits of SQL's literals stand for them.
FIRST_DAY, LAST_DAY = "DATE'0001-01-01'", "DATE'9999-12-31'"
FIRST, LAST = "TIMESTAMP%s'0001-01-01 00:00:00%s'", "TIMESTAMP%s'9999-12-31 23:59:59.999999%s'"


# Beyond these limits engines and languages differ: Python has no such dates, and their texts do not sort.
DAY_IN_RANGE = f"CASE WHEN {{t}} BETWEEN {FIRST_DAY} AND {LAST_DAY} THEN {{t}} END"
NTZ_IN_RANGE = f"CASE WHEN {{t}} BETWEEN {FIRST % ('_NTZ', '')} AND {LAST % ('_NTZ', '')} THEN {{t}} END"
MOMENT_IN_RANGE = f"CASE WHEN {{t}} BETWEEN {FIRST % ('', 'Z')} AND {LAST % ('', 'Z')} THEN {{t}} END"


def finite(lows: Sequence[str], highs: Sequence[str], first: str, last: str, otherwise: str) -> str:
    """Return SQL of a step: `first` if the text is one of `lows`, `last` if it is one of `highs`, else `otherwise`."""
    low, high = (", ".join(map(literal, texts)) for texts in (lows, highs))
    return f"CASE WHEN {{t}} IN ({low}) THEN {first} WHEN {{t}} IN ({high}) THEN {last} ELSE {otherwise} END"


def _with_seconds(t: str) -> str:
    """Return SQL of a timestamp's text as Spark reads it: with seconds, and at most six fractional digits."""
    minutes = f"regexp_replace({t}, '([T ][0-9]{{1,2}}:[0-9]{{1,2}})(?![0-9:])', '$1:00')"
    return f"replace(regexp_replace({minutes}, '([.][0-9]{{6}})[0-9]+', '$1'), 'z', 'Z')"


# A text without a time zone is in UTC, whatever the session's time zone is.
MOMENT = (
    f"CASE WHEN {{t}} RLIKE {literal(_IS_COMPLETE)} THEN try_cast({{t}} AS TIMESTAMP) "
    f"WHEN {{t}} RLIKE {literal(_IS_COMPLETE_LOCAL)} THEN try_cast(concat({{t}}, 'Z') AS TIMESTAMP) "
    f"WHEN {{t}} RLIKE {literal(IS_MOMENT)} THEN try_cast(concat({_with_seconds('{t}')}, "
    f"CASE WHEN {{t}} RLIKE {literal(_IS_DAY)} THEN ' 00:00:00Z' WHEN {{t}} RLIKE {literal(_IS_LOCAL)} THEN 'Z' "
    "ELSE '' END) AS TIMESTAMP) END"
)


_WIDER = {("int", "bigint"): "bigint", ("float", "double"): "double"}


def widest(a: str, b: str) -> str | None:
    """Return the narrowest type that can hold every value of both types; None if no type can."""
    if a == b:
        return a
    if wider := _WIDER.get((a, b)) or _WIDER.get((b, a)):
        return wider
    one, two = _DECIMAL.fullmatch(a), _DECIMAL.fullmatch(b)
    if one and two:
        (p1, s1), (p2, s2) = (int(one[1]), int(one[2])), (int(two[1]), int(two[2]))
        scale = max(s1, s2)
        precision = max(p1 - s1, p2 - s2) + scale
        return f"decimal({precision},{scale})" if precision <= 38 else None
    return None
