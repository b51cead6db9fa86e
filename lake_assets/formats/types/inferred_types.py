"""Types of values in JSON that comes without a schema: those that all values of a batch have.

Spark's `schema_of_variant_agg` unites the types of all records in one pass; here its text becomes readings. Whole
numbers are bigint (decimal(38,0) beyond 64 bits), numbers with a fraction are double, as in every JSON library; what is
to be exact has to be declared, or sent as text. A column of nulls alone has no type: it is left out until it has a
value.

Source: Spark's SchemaOfVariantAgg and VariantExpressionEvalUtils.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lake_assets.errors import UnsupportedEventError
from lake_assets.formats.event_model import Hints
from lake_assets.formats.types.text_types import Reading, read_text, widest
from lake_assets.lake.names import literal

_TOKEN = re.compile(r"`(?:[^`]|``)*`|[A-Za-z_]\w*|\d+|[<>(),:]|\s+|.")


@dataclass(frozen=True)
class Inferred:
    """A type of JSON values: kind (BIGINT, STRING, OBJECT, ...), a number's digits, an object's fields, items."""

    kind: str
    precision: int = 0
    scale: int = 0
    fields: Mapping[str, Inferred] = field(default_factory=dict[str, "Inferred"])
    items: Inferred | None = None


VOID = Inferred("VOID")


def parse_schema(text: str | None) -> Inferred:
    """The text of `schema_of_variant_agg`, for example OBJECT<a: DECIMAL(3,1), `b.c`: ARRAY<STRING>>."""
    if not text:
        return VOID
    tokens = [t for t in _TOKEN.findall(text) if not t.isspace()]
    found, rest = _type(tokens, 0)
    if rest != len(tokens):
        raise UnsupportedEventError(f"cannot read the inferred schema {text!r}")
    return found


def _type(tokens: list[str], i: int) -> tuple[Inferred, int]:
    kind = tokens[i].strip().upper()
    opened = tokens[i + 1] if i + 1 < len(tokens) else ""
    if kind == "DECIMAL" and opened == "(":
        return Inferred(kind, int(tokens[i + 2]), int(tokens[i + 4])), i + 6
    if kind == "ARRAY" and opened == "<":
        items, i = _type(tokens, i + 2)
        return Inferred(kind, items=items), i + 1
    if kind != "OBJECT" or opened != "<":
        return Inferred(kind), i + 1
    fields: dict[str, Inferred] = {}
    i += 2
    while tokens[i] != ">":
        name = tokens[i]
        fields[name[1:-1].replace("``", "`") if name.startswith("`") else name], i = _type(tokens, i + 2)
        i += tokens[i] == ","
    return Inferred(kind, fields=fields), i + 1


def united(a: Inferred, b: Inferred) -> Inferred:
    """The fields of both objects: of two types of one field, text where they are not the same."""
    if VOID in (a, b) or not (a.fields and b.fields):
        return b if a.kind == "VOID" or not a.fields else a
    both = {n: either(a.fields.get(n, VOID), b.fields.get(n, VOID)) for n in {**a.fields, **b.fields}}
    return Inferred("OBJECT", fields=both)


def either(a: Inferred, b: Inferred) -> Inferred:
    """The type that values of both types have: text where they are not alike."""
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
    """The Spark SQL type of such values; None where all of them are null."""
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
            # 1.0 is a whole number for Spark's variant, but one of a column that has fractions.
            return "decimal(38,0)" if not inferred.scale and inferred.precision > 18 else "double"
        case "ARRAY" if inferred.items:
            inner = type_of(inferred.items) or "string"
            return f"array<{inner}>" if "<" not in inner else "string"
        case _:
            return "string"


def read_inferred(name: str, inferred: Inferred, hints: Hints) -> Reading | None:
    """How the values of a column are read; None where all that are known are null.

    A declared type wins. A type that the table already has wins where it holds all values (a column of doubles stays
    one in a batch of whole numbers), or where no type holds them all: values that do not fit are rejected then.
    """
    if name in hints.types:
        return read_text(hints.types[name])
    kind, known = type_of(inferred), hints.known.get(name)
    if kind is None:
        # Nulls alone are values too: they are not what a record leaves out.
        return read_text(known) if known else None
    # Values of no common type are for their own records to answer for: nothing says that the column's type has changed.
    if known and (_holds(known, kind) or widest(known, kind) is None):
        return read_text(known)
    return read_text(kind)


def exact(record: str, columns: Mapping[str, Inferred], readings: Mapping[str, Reading | None]) -> str:
    """SQL of a JSON record whose numbers are texts where they are to be kept digit by digit: for columns of text and of
    decimals. Otherwise numbers of more than 38 digits, or with an exponent, go through a double.

    Args:
        record: SQL of the record.
        columns: types of the row's values, by name in the record.
        readings: how they are read.
    """
    names = [c for c, i in columns.items() if _loses_digits(i, readings.get(c)) and not _is_nested(c, columns)]
    if not names:
        return record
    # As each name may be written; in a string, its quotes would be escaped.
    spelled = dict.fromkeys(json.dumps(n, ensure_ascii=ascii_) for n in names for ascii_ in (True, False))
    number = rf"({'|'.join(map(re.escape, spelled))})(\s*+:\s*+)(-?[0-9][0-9.eE+-]*+)"
    return f"regexp_replace({record}, {literal(number)}, '$1$2\"$3\"')"


def _loses_digits(inferred: Inferred, reading: Reading | None) -> bool:
    if reading is None or not (reading.type == "string" or reading.type.startswith("decimal")):
        return False
    # A decimal loses nothing but zeros at its end, which a text has.
    return inferred.kind in ("DOUBLE", "VARIANT") or (inferred.kind == "DECIMAL" and reading.type == "string")


def _is_nested(name: str, columns: Mapping[str, Inferred]) -> bool:
    """Whether an object within a column has a field of this name, which is to stay as it is.

    Of columns that mix objects with other values that is not known: they are taken for mixed numbers and texts.
    """
    return any(_has(name, i) for i in columns.values())


def _has(name: str, inferred: Inferred) -> bool:
    inner = [*inferred.fields.values(), *([inferred.items] if inferred.items else [])]
    return name in inferred.fields or any(_has(name, i) for i in inner)


def _holds(known: str, kind: str) -> bool:
    if known == "string" or widest(known, kind) == known:
        return True
    numbers = ("bigint", "double", "decimal(38,0)")
    if known in ("double", "float") or known.startswith("decimal"):
        return kind in numbers
    if known == "int" and kind == "bigint":
        return True  # declared once; what does not fit is rejected
    return kind == "string" and known in ("date", "timestamp", "timestamp_ntz", "binary")
