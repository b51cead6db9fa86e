"""Types of JSON values without a schema, inferred from all values of a batch.

Spark's `schema_of_variant_agg` unites the types of all records in one pass; this module turns its result into readings.
Whole numbers are bigint (decimal(38,0) beyond 64 bits), numbers with a fraction are double, as in every JSON library.
Exact values need a declared type, or have to be sent as text. A column that contains only nulls has no type, and is
left out until it has a value.

Source: Spark's SchemaOfVariantAgg and VariantExpressionEvalUtils.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from lake_assets.errors import UnsupportedEventError
from lake_assets.formats.event_model import Hints
from lake_assets.formats.types.text_types import FLOATING, WHOLE, Reading, read_text, widest
from lake_assets.lake.column_spelling import by_column
from lake_assets.lake.names import literal

_TOKEN = re.compile(r"`(?:[^`]|``)*`|[A-Za-z_]\w*|\d+|[<>(),:]|\s+|.")


@dataclass(frozen=True)
class Inferred:
    """An inferred type: kind (BIGINT, STRING, OBJECT, ...), digits of numbers, fields of objects, items of arrays."""

    kind: str
    precision: int = 0
    scale: int = 0
    fields: Mapping[str, Inferred] = field(default_factory=dict[str, "Inferred"])
    items: Inferred | None = None


VOID = Inferred("VOID")


def parse_schema(text: str | None) -> Inferred:
    """Parse a result of `schema_of_variant_agg`, for example OBJECT<a: DECIMAL(3,1), `b.c`: ARRAY<STRING>>."""
    if not text:
        return VOID
    tokens = [t for t in _TOKEN.findall(text) if not t.isspace()]
    inferred, rest = _type(tokens, 0)
    if rest != len(tokens):
        raise UnsupportedEventError(f"cannot read the inferred schema {text!r}")
    return inferred


def _type(tokens: list[str], i: int) -> tuple[Inferred, int]:
    kind = tokens[i].strip().upper()
    bracket = tokens[i + 1] if i + 1 < len(tokens) else ""
    if kind == "DECIMAL" and bracket == "(":
        return Inferred(kind, int(tokens[i + 2]), int(tokens[i + 4])), i + 6
    if kind == "ARRAY" and bracket == "<":
        items, i = _type(tokens, i + 2)
        return Inferred(kind, items=items), i + 1
    if kind != "OBJECT" or bracket != "<":
        return Inferred(kind), i + 1
    fields: dict[str, Inferred] = {}
    i += 2
    while tokens[i] != ">":
        name = tokens[i]
        fields[name[1:-1].replace("``", "`") if name.startswith("`") else name], i = _type(tokens, i + 2)
        i += tokens[i] == ","
    return Inferred(kind, fields=fields), i + 1


def united(a: Inferred, b: Inferred) -> Inferred:
    """Return the fields of both objects; a field with two different types is text."""
    if VOID in (a, b) or not (a.fields and b.fields):
        return b if a.kind == "VOID" or not a.fields else a
    both = {n: either(a.fields.get(n, VOID), b.fields.get(n, VOID)) for n in {**a.fields, **b.fields}}
    return Inferred("OBJECT", fields=both)


def either(a: Inferred, b: Inferred) -> Inferred:
    """Return the common type of both types; text if they have none."""
    if a == b or b.kind == "VOID":
        return a
    if a.kind == "VOID":
        return b
    numbers = {"BIGINT", "DECIMAL", "DOUBLE"}
    if a.kind in numbers and b.kind in numbers:
        if "DOUBLE" in (a.kind, b.kind):
            return Inferred("DOUBLE")
        scale = max(a.scale, b.scale)
        return Inferred("DECIMAL", max(a.precision or 19, b.precision or 19), scale)
    return Inferred("VARIANT")


def type_of(inferred: Inferred) -> str | None:
    """Return the Spark SQL type of an inferred type; None if all values are null."""
    match inferred.kind:
        case "VOID":
            return None
        case "BIGINT":
            return "bigint"
        case "DOUBLE" | "FLOAT":
            return "double"
        case "BOOLEAN":
            return "boolean"
        case "DECIMAL":
            # Spark's variant treats 1.0 as a whole number, though its column has fractions.
            return "decimal(38,0)" if not inferred.scale and inferred.precision > 18 else "double"
        case "ARRAY" if inferred.items:
            inner = type_of(inferred.items) or "string"
            return f"array<{inner}>" if "<" not in inner else "string"
        case _:
            return "string"


def read_inferred(name: str, inferred: Inferred, hints: Hints) -> Reading | None:
    """Return how the values of a column are read; None if all values so far are null.

    A declared type has precedence, then the existing type if it can hold all values (a double column stays double in a
    batch of whole numbers) or if no common type exists: then values that do not fit are rejected.
    """
    if name in hints.types:
        return read_text(hints.types[name])
    kind, existing = type_of(inferred), hints.existing_columns.get(name)
    if kind is None:
        # Explicit nulls are values, unlike a column that a record leaves out.
        return read_text(existing) if existing else None
    # Without a common type, the new values are errors of their records, not a change of the column's type.
    if existing and (_can_hold(existing, kind) or widest(existing, kind) is None):
        reading = read_text(existing)
        return _spelled_as_json(reading) if kind == "string" else reading
    return read_text(kind)


def read_fields(fields: Mapping[str, Inferred], hints: Hints) -> dict[str, Reading | None]:
    """Return how the values of each field are read; fields of one column in the lake are read alike."""
    readings: dict[str, Reading | None] = {}
    for names in by_column(fields, hints.rename).values():
        common = reduce(either, (fields[n] for n in names))
        readings |= {n: read_inferred(hints.rename.get(n, n), common, hints) for n in names}
    return readings


_NUMBER = literal(r"^-?(?:0|[1-9][0-9]*)(?:[.][0-9]+)?(?:[eE][+-]?[0-9]+)?$")


def _spelled_as_json(reading: Reading) -> Reading:
    """Return the reading of texts in a column of numbers or booleans.

    01220, +5 and yes are texts that were no numbers or booleans from the beginning; as such, they lose what they say.
    """
    if reading.type == "boolean":
        is_spelled_so = "{t} IN ('true', 'false')"
    elif reading.type in FLOATING:
        # JSON has no such numbers, so sources write them as text.
        is_spelled_so = f"({{t}} RLIKE {_NUMBER} OR {{t}} IN ('NaN', 'Infinity', '-Infinity'))"
    elif reading.type in WHOLE or reading.type.startswith("decimal"):
        is_spelled_so = f"{{t}} RLIKE {_NUMBER}"
    else:
        return reading
    first, *others = reading.steps
    return replace(reading, steps=(f"CASE WHEN {is_spelled_so} THEN {first} END", *others))


def exact(record: str, columns: Mapping[str, Inferred], readings: Mapping[str, Reading | None]) -> str:
    """Return SQL of a JSON record in which numbers that would lose digits are quoted, and arrays of such numbers.

    Unquoted numbers of more than 38 digits, or with an exponent, would be read as doubles. Inside of documents they are
    marked, if `hides_digits`: then the values are read with `unmarked`.
    """
    quoted = record
    for are_arrays, value in ((False, r"-?[0-9][0-9.eE+-]*+"), (True, r"\[[^]\[\"{}\t]*+\]")):
        names = [
            c
            for c, i in columns.items()
            if (i.kind == "ARRAY") == are_arrays and _loses_digits(i, readings.get(c)) and not _is_nested(c, columns)
        ]
        if names:
            # Both spellings of a name in JSON. Inside a string, its quotes would be escaped.
            spelled = dict.fromkeys(json.dumps(n, ensure_ascii=ascii_) for n in names for ascii_ in (True, False))
            member = rf"({'|'.join(map(re.escape, spelled))})(\s*+:\s*+)({value})"
            quoted = f"regexp_replace({quoted}, {literal(member)}, '$1$2\"$3\"')"
    if hides_digits(columns, readings):
        quoted = f"regexp_replace({quoted}, {literal('(?s)' + _LONG_NUMBERS)}, '$1\"{_MARK}$2\"')"
    return quoted


# Marks the text of a number inside a document, which is unquoted after parsing. No source has this private character.
_MARK = "\ue6a3"
_DIGITS = r"[0-9][0-9.eE+-]*+"
# Numbers that would be read as doubles, and that a double cannot hold.
_LONG = rf"(?=[0-9]{{39}}|[0-9.]{{40}}|[0-9.]*+[eE])(?=[0-9.eE+-]{{19}}){_DIGITS}"
_LONG_NUMBERS = r'\G((?:[^"0-9-]++|"(?:[^"\\]++|\\.)*+"|' + rf"-?+(?!{_LONG}){_DIGITS})*+)(-?+{_LONG})"


_TEXTS = ("string", "array<string>")


def hides_digits(columns: Mapping[str, Inferred], readings: Mapping[str, Reading | None]) -> bool:
    """Whether objects and nested arrays that stay JSON text may have numbers of which a variant drops digits."""
    return any((r := readings.get(c)) is not None and r.type in _TEXTS and _hides(i) for c, i in columns.items())


def _hides(inferred: Inferred) -> bool:
    inner = [*inferred.fields.values(), *([inferred.items] if inferred.items else [])]
    return inferred.kind == "VARIANT" or any(i.kind == "DOUBLE" or _hides(i) for i in inner)


def unmarked(reading: Reading) -> Reading:
    """Return the reading of a value in whose text `exact` may have marked numbers."""
    marked = literal(f'"{_MARK}([^"]*+)"|^{_MARK}')
    text = f"regexp_replace({{t}}, {marked}, '$1')"
    return replace(reading, steps=(f"CASE WHEN contains({{t}}, '{_MARK}') THEN {text} ELSE {{t}} END", *reading.steps))


def _loses_digits(inferred: Inferred, reading: Reading | None) -> bool:
    if reading is None:
        return False
    if inferred.kind == "ARRAY":
        return inferred.items is not None and _loses_digits(inferred.items, reading)
    if inferred.kind == "DECIMAL":
        # It loses only trailing zeros, which matter for text.
        return reading.type in _TEXTS
    return inferred.kind in ("DOUBLE", "VARIANT")


def _is_nested(name: str, columns: Mapping[str, Inferred]) -> bool:
    """Whether an object within a column has a field of this name, which must not be changed.

    Columns that mix objects with other values are not recognized: they are treated like mixed numbers and texts.
    """
    return any(_has(name, i) for i in columns.values())


def _has(name: str, inferred: Inferred) -> bool:
    inner = [*inferred.fields.values(), *([inferred.items] if inferred.items else [])]
    return name in inferred.fields or any(_has(name, i) for i in inner)


def _can_hold(existing: str, kind: str) -> bool:
    if existing == "string" or widest(existing, kind) == existing:
        return True
    numbers = ("bigint", "double", "decimal(38,0)")
    if existing in ("double", "float") or existing.startswith("decimal"):
        return kind in numbers
    if existing == "int" and kind == "bigint":
        return True  # declared earlier; values that do not fit are rejected
    return kind == "string" and existing in ("date", "timestamp", "timestamp_ntz", "binary")
