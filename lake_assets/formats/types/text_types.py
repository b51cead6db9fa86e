"""Spark SQL types of values that arrive as text: how they are read, and the common type of two."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lake_assets.errors import UnsupportedEventError
from lake_assets.lake.names import literal, nearest


@dataclass(frozen=True)
class Reading:
    """A Spark SQL type, and how a value's text is converted to it.

    Attributes:
        type: Spark SQL type.
        steps: SQL expressions over `{t}`, each applied to the result of the one before. Separate, because Spark would
            evaluate an expression once per occurrence in another one.
        loses_digits: SQL over `{t}` of a boolean: the value lacks digits of its text, so that another text may give the
            same value. A key does not take such values. None if that never happens.
        is_base64: whether the text is a number's bytes in base64, which may look like a number.
        saturates: whether the source writes a value beyond the type's range as its greatest or smallest value.
    """

    type: str
    steps: tuple[str, ...] = ()
    loses_digits: str | None = None
    is_base64: bool = False
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
    near = nearest(text, (*_CASTS, "string", "binary", "decimal"))
    raise UnsupportedEventError(
        f"{kind!r} is not a type that can be declared{near}: use {', '.join(sorted(_CASTS))}, decimal(p,s), string, "
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
        return items(ITEM_TEXTS, read_text(match[1], depth + 1), depth)
    if match := _DECIMAL.fullmatch(kind):
        return Reading(kind, _decimal_steps(int(match[1]), int(match[2])))
    if kind == "date":
        return Reading(kind, (DATE, DAY_IN_RANGE))
    if kind == "timestamp_ntz":
        # A time zone would be dropped silently.
        local = f"CASE WHEN {{t}} RLIKE {literal(_IS_LOCAL)} THEN try_cast({_with_seconds('{t}')} AS TIMESTAMP_NTZ) END"
        return Reading(kind, (local, NTZ_IN_RANGE), BEYOND_MICROS)
    if kind == "timestamp":
        return Reading(kind, (MOMENT, MOMENT_IN_RANGE), BEYOND_MICROS)
    if kind in WHOLE:
        return Reading(kind, (whole_number(kind),))
    if kind in FLOATING:
        return Reading(kind, (floating_number(kind),), _is_rounded(kind))
    return Reading(kind, (f"try_cast({{t}} AS {kind})",))


def let(value: str, name: str, body: str) -> str:
    """Return SQL of `body`, in which `name` stands for `value`: Spark parses and evaluates `value` once."""
    return f"get(transform(array({value}), {name} -> {body}), 0)"


_RARE, _RARE_END = "/*rare*/", "/*end of rare*/"


def rare(sql: str) -> str:
    """Mark a part of an expression that only values in a rare notation need; see `usual`."""
    return f"{_RARE}{sql}{_RARE_END}"


def usual(sql: str) -> str:
    """Return SQL without its rare parts: NULL for a value in a rare notation, otherwise the same value.

    The rare notations of a batch's columns are most of its plan, which takes Spark longer than to read a small batch.
    """
    kept: list[str] = []
    depth = 0
    for part in re.split(f"({re.escape(_RARE)}|{re.escape(_RARE_END)})", sql):
        if part == _RARE:
            depth += 1
        elif part == _RARE_END:
            depth -= 1
            kept += [] if depth else ["NULL"]
        elif not depth:
            kept.append(part)
    return "".join(kept)


# Spark's parser of JSON would read numbers with a point or an exponent as doubles, so they are quoted.
_HAS_SUCH_NUMBERS = """{t} RLIKE '^[^"{}]*[0-9][.eE][^"{}]*$'"""
_QUOTED = """regexp_replace({t}, '-?[0-9][0-9.eE+-]*+', '"$0"')"""
ITEM_TEXTS = f"from_json(CASE WHEN {_HAS_SUCH_NUMBERS} THEN {_QUOTED} ELSE {{t}} END, 'ARRAY<STRING>')"
"""SQL over `{t}`, a JSON array, of its items as text."""


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


# Spark's timestamps have microseconds: finer digits are dropped.
BEYOND_MICROS = "{t} RLIKE '[.][0-9]{6}[0-9]*[1-9]'"
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


_OTHER_MOMENT = (
    f"try_cast(concat({_with_seconds('{t}')}, CASE WHEN {{t}} RLIKE {literal(_IS_DAY)} THEN ' 00:00:00Z' "
    f"WHEN {{t}} RLIKE {literal(_IS_LOCAL)} THEN 'Z' ELSE '' END) AS TIMESTAMP)"
)
# A text without a time zone is in UTC, whatever the session's time zone is.
MOMENT = (
    f"CASE WHEN {{t}} RLIKE {literal(_IS_COMPLETE)} THEN try_cast({{t}} AS TIMESTAMP) "
    f"WHEN {{t}} RLIKE {literal(_IS_COMPLETE_LOCAL)} THEN try_cast(concat({{t}}, 'Z') AS TIMESTAMP) "
    f"WHEN {{t}} RLIKE {literal(IS_MOMENT)} THEN {rare(_OTHER_MOMENT)} END"
)


# --- numbers ----------------------------------------------------------------------------------------------------

# A cast of Spark rounds: 9007199254740993 to a double, 1.005 to a decimal(3,2), 1e400 to infinity. It also rejects
# whole numbers in other notations, such as 1.0 and 2.342361e+06, for whole types.
WHOLE = ("tinyint", "smallint", "int", "bigint")
FLOATING = ("float", "double")

_NUMBER = r"^[+-]?([0-9]*)(?:[.]([0-9]*))?(?:[eE]([+-]?[0-9]{1,9}))?$"
# Digits of a number: all of them, and how many are before the point, which an exponent moves. Beyond this many places
# a number is zero, or fits no type.
_PLACES = 1_000
_PARTS = (
    "named_struct('digits', concat({i}, {f}), 'point', length({i}) + {e}, 'unit', {e} - length({f}))"
    .replace("{i}", f"regexp_extract({{t}}, {literal(_NUMBER)}, 1)")
    .replace("{f}", f"regexp_extract({{t}}, {literal(_NUMBER)}, 2)")
    .replace("{e}", f"coalesce(try_cast(regexp_extract({{t}}, {literal(_NUMBER)}, 3) AS INT), 0)")
)  # fmt: skip
_IS_ZERO = "NOT n_.digits RLIKE '[1-9]'"
_IS_WHOLE = "NOT substr(n_.digits, greatest(n_.point, 0) + 1) RLIKE '[1-9]'"
_UNITS = "CASE WHEN n_.point > 0 THEN rpad(left(n_.digits, n_.point), n_.point, '0') ELSE '0' END"
_FRACTION = (
    "CASE WHEN n_.point < 0 THEN concat(repeat('0', -n_.point), n_.digits) ELSE substr(n_.digits, n_.point + 1) END"
)
_SIGN = "CASE WHEN {t} LIKE '-%' THEN '-' ELSE '' END"


def whole_number(kind: str, *, of_double: bool = False) -> str:
    """Return SQL over `{t}` of a whole number of type `kind`; NULL if it has a fraction, or is too large.

    Args:
        of_double: whether a parser may have read numbers with a point or an exponent as doubles, so that more than 15
            digits are not the record's own.
    """
    is_known = f"{{t}} RLIKE {literal(_NUMBER)}" + (" AND NOT {t} RLIKE '(?:[0-9][.]?){16}'" if of_double else "")
    is_whole = f"n_.point < {_PLACES} AND {_IS_WHOLE}"
    units = f"CASE WHEN {_IS_ZERO} THEN '0' WHEN {is_whole} THEN concat({_SIGN}, {_UNITS}) END"
    # Nearly all numbers are in plain digits, which Spark reads.
    other = f"CASE WHEN {is_known} THEN try_cast({let(_PARTS, 'n_', units)} AS {kind}) END"
    return f"coalesce(try_cast({{t}} AS {kind}), {rare(other)})"


def _decimal_steps(precision: int, scale: int) -> tuple[str, ...]:
    """Return the steps from text to a decimal; NULL if it has more digits."""
    plain = (
        f"CASE WHEN {_IS_ZERO} THEN '0' WHEN abs(n_.point) < {_PLACES} "
        f"THEN concat({_SIGN}, {_UNITS}, '.', {_FRACTION}) END"
    )
    has_exponent = f"(contains({{t}}, 'e') OR contains({{t}}, 'E')) AND {{t}} RLIKE {literal(_NUMBER)}"
    longer = literal(rf"\.[0-9]{{{scale}}}[0-9]*[1-9]")
    return (
        f"CASE WHEN {has_exponent} THEN {rare(let(_PARTS, 'n_', plain))} ELSE {{t}} END",
        f"CASE WHEN NOT {{t}} RLIKE {longer} THEN try_cast({{t}} AS DECIMAL({precision},{scale})) END",
    )


def floating_number(kind: str) -> str:
    """Return SQL over `{t}` of a `float` or `double`: the nearest one of a number with a fraction.

    NULL for a whole number that the type does not have, and for a number beyond its range. A whole number with an
    exponent, such as 1.2345678901234568E20, has the digits that it shows.
    """
    cast = f"try_cast({{t}} AS {kind})"
    named = "named_struct('n', {parts}, 'v', CAST({cast} AS DOUBLE))".replace("{parts}", _PARTS).replace("{cast}", cast)
    # A double's shortest text is nearer to it than one unit of its last digit. (Java before 19 does not round it.)
    unit = "CAST(rpad('1', greatest(n_.unit, 0) + 1, '0') AS DECIMAL(38,0))"
    distance = f"abs(try_subtract(try_cast({_UNITS} AS DECIMAL(38,0)), {_exactly('abs(f_.v)')}))"
    fits = (
        f"CASE WHEN abs(f_.v) = DOUBLE('Infinity') THEN false WHEN f_.v = 0 THEN {_IS_ZERO} "
        f"WHEN NOT ({_IS_WHOLE}) THEN true WHEN n_.point > 38 THEN {{t}} RLIKE '[eE]' ELSE {distance} < {unit} END"
    ).replace("n_.", "f_.n.")
    checked = let(named, "f_", f"CASE WHEN {fits} THEN {cast} END")
    # Nearly all of them are safe as well: few digits, below the first whole number that the type lacks, or the value's
    # own text (as Java writes it).
    exact, digits = ("9007199254740992D", 15) if kind == "double" else ("16777216D", 6)
    size, is_long = f"abs(CAST({cast} AS DOUBLE))", literal(f"(?:[0-9][.]?){{{digits + 1}}}")
    is_safe = (
        f"{size} > 0 AND ({size} < {exact} OR ({size} < DOUBLE('Infinity') AND NOT {{t}} RLIKE {is_long})) "
        f"OR CAST({cast} AS STRING) = {{t}}"
    )
    is_unsafe = f"{{t}} RLIKE {literal(_UNSAFE[kind])} AND NOT ({is_safe})"
    return f"CASE WHEN {is_unsafe} THEN {rare(checked)} ELSE {cast} END"


def _unsafe(digits: int, exponent: int, length: int) -> str:
    """Return the pattern of numbers that may be whole and have so many digits, or be beyond the range."""
    whole_ones = rf"[0-9]{{{digits},}}(?:[.]0*|(?:[.][0-9]*)?[eE].+)?|[0-9.]{{{digits},}}[eE][+]?[0-9]+"
    return rf"^[+-]?(?:{whole_ones}|[0-9.]+[eE][+-]?[0-9]{{{exponent},}}|[0-9.]{{{length},}}(?:[eE].+)?)$"


_UNSAFE = {"double": _unsafe(16, 3, 300), "float": _unsafe(8, 2, 37)}


def _exactly(v: str) -> str:
    """Return SQL of a whole, positive double below 10^38 as a decimal(38,0): a cast would round to 17 digits."""
    high, low = "18446744073709551616", "4294967296"
    parts = f"named_struct('high', floor({v} / {high}D), 'rest', {v} - floor({v} / {high}D) * {high}D)"
    digits = (
        f"try_add(try_multiply(CAST(d_.high AS DECIMAL(20,0)), CAST('{high}' AS DECIMAL(20,0))), "
        f"CAST(floor(d_.rest / {low}D) AS DECIMAL(20,0)) * CAST('{low}' AS DECIMAL(18,0)) "
        f"+ CAST(d_.rest - floor(d_.rest / {low}D) * {low}D AS DECIMAL(20,0)))"
    )
    return let(parts, "d_", digits)


def _is_rounded(kind: str) -> str:
    """Return SQL over `{t}` of a boolean: other texts with a fraction may give the same `float` or `double`."""

    def digits(t: str) -> str:
        return f"regexp_replace(regexp_replace({t}, '[eE].*$|[-+.]', ''), '^0+|0+$', '')"

    most = 15 if kind == "double" else 6
    stored = digits(f"CAST(try_cast({{t}} AS {kind}) AS STRING)")
    is_whole = literal("^[+-]?[0-9]+[.]?0*$")
    return f"(length({digits('{t}')}) > {most} AND NOT {{t}} RLIKE {is_whole} AND {digits('{t}')} <> {stored})"


# --- two types --------------------------------------------------------------------------------------------------

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
