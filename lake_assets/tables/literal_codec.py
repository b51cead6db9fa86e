"""Encode values that pass from Spark through Python into SQL literals, without changing them.

Python's datetimes end in the year 9999, and without a time zone they are in local time; Spark binds decimals with the
precision of their own digits. So each type has its own encoding and decoding.
"""

from __future__ import annotations

from dataclasses import dataclass

from lake_assets.lake.names import literal


@dataclass(frozen=True)
class LiteralCodec:
    """The SQL that encodes and decodes values of a type.

    Attributes:
        encode: SQL of the encoded value, over the column `{c}`.
        decode: SQL of the original value, over the literal `{v}` of the encoded value; `{type}` is its full type.
    """

    encode: str
    decode: str

    def sql(self, value: object, kind: str) -> str:
        """Return SQL of the original value of an encoded one, whose type in Spark is `kind`."""
        text = literal(value) if isinstance(value, str) else str(value).lower()
        return self.decode.format(v=text, type=kind)


_BY_TYPE = {
    "string": LiteralCodec("{c}", "{v}"),
    "int": LiteralCodec("{c}", "{v}"),
    "bigint": LiteralCodec("{c}", "{v}"),
    "boolean": LiteralCodec("{c}", "{v}"),
    "date": LiteralCodec("CAST({c} AS STRING)", "CAST({v} AS DATE)"),
    "timestamp": LiteralCodec("unix_micros({c})", "timestamp_micros({v})"),
    "timestamp_ntz": LiteralCodec("CAST({c} AS STRING)", "CAST({v} AS TIMESTAMP_NTZ)"),
    "decimal": LiteralCodec("CAST({c} AS STRING)", "CAST({v} AS {type})"),
    "binary": LiteralCodec("hex({c})", "unhex({v})"),
}
ORDERED = frozenset(_BY_TYPE) - {"boolean", "binary"}
"""Types with useful bounds."""


def codec_of(kind: str) -> LiteralCodec | None:
    """Return the codec of a Spark SQL type; None: its values cannot become literals."""
    return _BY_TYPE.get(base(kind))


def base(kind: str) -> str:
    """Return a type without its parameters."""
    return kind.split("(")[0]
