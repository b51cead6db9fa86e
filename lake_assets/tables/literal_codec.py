"""Encode values that pass from Spark through Python into SQL literals, without changing them.

Python's datetimes end in the year 9999 and, without a zone, are meant in the local one; Spark's driver binds decimals
by their own digits. So each type says how it leaves Spark and how it comes back.
"""

from __future__ import annotations

from dataclasses import dataclass

from lake_assets.lake.names import literal


@dataclass(frozen=True)
class Carried:
    """How the values of a type are encoded.

    Attributes:
        leaves: SQL over `{c}` of what leaves Spark.
        comes: SQL over `{v}`, which stands for that, of the value; `{type}` is its full type.
    """

    leaves: str
    comes: str

    def sql(self, value: object, kind: str) -> str:
        """SQL of the value that left as this one.

        Args:
            value: what left.
            kind: the value's type in Spark.
        """
        text = literal(value) if isinstance(value, str) else str(value).lower()
        return self.comes.format(v=text, type=kind)


_BY_TYPE = {
    "string": Carried("{c}", "{v}"),
    "int": Carried("{c}", "{v}"),
    "bigint": Carried("{c}", "{v}"),
    "boolean": Carried("{c}", "{v}"),
    "date": Carried("CAST({c} AS STRING)", "CAST({v} AS DATE)"),
    "timestamp": Carried("unix_micros({c})", "timestamp_micros({v})"),
    "timestamp_ntz": Carried("CAST({c} AS STRING)", "CAST({v} AS TIMESTAMP_NTZ)"),
    "decimal": Carried("CAST({c} AS STRING)", "CAST({v} AS {type})"),
    "binary": Carried("hex({c})", "unhex({v})"),
}
ORDERED = frozenset(_BY_TYPE) - {"boolean", "binary"}
"""Types of which there are bounds worth asking for."""


def carried(kind: str) -> Carried | None:
    """How values of a type (as Spark writes it) are carried; None: it is not one of those that are."""
    return _BY_TYPE.get(base(kind))


def base(kind: str) -> str:
    """A type without its parameters."""
    return kind.split("(")[0]
