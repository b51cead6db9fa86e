"""Conditions on the target of a MERGE that all changed keys and few other rows meet; other rows are not joined.

`ON t.id = s.id` alone shuffles and sorts the whole target, because Spark cannot filter rows before the join.
- Bounds and literals are pushed into the scan, which skips files and row groups.
- For too many keys, or keys of several columns, each row is tested against a bit map of the keys' hashes: at most a
  sixteenth of the other rows reach the join.
Measured in docs/benchmarks.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.lake import quote
from lake_assets.tables.literal_codec import ORDERED, Carried, base, carried

MAX_LITERALS = 1_000
# Below so many rows, or so many a key, joining all of them takes no longer than making the bit map.
MIN_ROWS = 500_000
ROWS_A_KEY, MAX_HASHES = 4, 2_000_000
_BITS_A_KEY = 16


@dataclass(frozen=True)
class Pruning:
    """A condition on the target `t` and its bound values; empty if there is none.

    Attributes:
        is_large: whether the target has so many rows that it matters how much of each is read.
    """

    condition: str
    values: dict[str, Any]
    why: str
    is_large: bool = False


def prune(
    source: DataFrame,
    key: Sequence[str],
    target: Table | None = None,
    *,
    at_most: int | None = None,
    types: Mapping[str, str] | None = None,
) -> Pruning:
    """Return a condition that every target row with one of `source`'s keys meets.

    Args:
        source: the reduced changes (held in memory: it is looked at once or twice here and once by the MERGE), with the
            types that the target has.
        key: key columns.
        target: the table as it is; None: it is small.
        at_most: how many keys there can be, where that is known: then one look is enough for few of them.
        types: of the source's columns, where they are known.
    """
    types = types or {f.name: f.dataType.simpleString() for f in source.schema.fields}
    how = {k: found for k in key if base(types[k]) in ORDERED and (found := carried(types[k]))}
    usable = list(how)
    bounds = [
        F.expr(how[k].leaves.format(c=f"{f}({quote(k)})") if f != "count" else f"count({quote(k)})").alias(f"{what}{i}")
        for i, k in enumerate(usable)
        for what, f in _LOOKS
    ]
    listed = len(key) == 1 and bool(usable)
    at_once = listed and at_most is not None and at_most <= MAX_LITERALS
    if at_once:
        bounds.append(F.expr(f"collect_list({_left(how, key[0])})").alias("keys"))
    row = source.agg(F.count("*").alias("n"), *bounds).collect()[0]
    if not row["n"]:
        return Pruning("1 = 0", {}, "no key changed")
    rows = _rows_of(target)
    values: dict[str, Any] = {}
    parts: list[str] = []
    for i, column in enumerate(usable):
        name, range_ = f"t.{quote(column)}", "1 = 0"
        if row[f"low{i}"] is not None:
            ends = {f"{what}{i}": row[f"{what}{i}"] for what in ("low", "high")}
            low, high = _said(ends, how[column], types[column], values)
            range_ = f"{name} BETWEEN {low} AND {high}"
        parts.append(range_ if row[f"held{i}"] == row["n"] else f"({name} IS NULL OR {range_})")
    why = f"{row['n']} keys, pruned by their range"
    if listed and row["n"] <= MAX_LITERALS and row["held0"] == row["n"]:
        found = row["keys"] if at_once else [r[0] for r in source.select(F.expr(_left(how, key[0]))).collect()]
        literals = _said({f"k{i}": v for i, v in enumerate(found)}, how[key[0]], types[key[0]], values)
        parts.append(f"t.{quote(key[0])} IN ({', '.join(literals)})")
        return Pruning(" AND ".join(parts), values, f"{row['n']} keys, each a literal", rows >= MIN_ROWS)
    if (
        rows < MIN_ROWS
        or row["n"] > MAX_HASHES
        or row["n"] * ROWS_A_KEY > rows
        or not all(_is_hashed(types[k]) for k in key)
    ):
        why = why if parts else "keys of a type without an order: the whole target is joined"
        return Pruning(" AND ".join(parts), values, why, rows >= MIN_ROWS)
    parts.append(_hashed(key, row["n"]))
    values["bits"] = _bits(source, key, row["n"])
    why = f"{row['n']} keys, pruned by their range and told by their hashes"
    return Pruning(" AND ".join(parts), values, why, rows >= MIN_ROWS)


def _said(found: Mapping[str, Any], how: Carried, kind: str, values: dict[str, Any]) -> list[str]:
    """SQL of values that have left Spark.

    Each bound value takes some messages to the JVM, so only texts are: what stands in one may mean something to Spark.

    Args:
        found: by the name that they are bound by.
        how: they are carried.
        kind: their type.
        values: what is bound.
    """
    if base(kind) != "string":
        return [how.sql(value, kind) for value in found.values()]
    values |= found
    return [how.comes.format(v=f":{name}", type=kind) for name in found]


def _left(how: Mapping[str, Carried], column: str) -> str:
    """SQL of a key's value as it leaves Spark."""
    return how[column].leaves.format(c=quote(column))


def _rows_of(table: Table | None) -> int:
    snapshot = table.current_snapshot() if table else None
    said = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
    return int(said.get("total-records") or 0)


def _is_hashed(kind: str) -> bool:
    """Whether equal values always have equal hashes: zero has a sign where numbers float."""
    return not any(t in kind for t in ("float", "double", "map", "variant", "interval", "collate"))


def _size(n: int) -> int:
    """Of the bit map of `n` keys, as a power of two."""
    return max(14, (n * _BITS_A_KEY - 1).bit_length())


def _hash(key: Sequence[str], n: int, prefix: str = "") -> str:
    return f"(xxhash64({', '.join(prefix + quote(k) for k in key)}) & {(1 << _size(n)) - 1})"


def _hashed(key: Sequence[str], n: int) -> str:
    """SQL of a boolean: the bit of a row's key is set."""
    at = _hash(key, n, "t.")
    # Spark makes an array of the text once, when it plans.
    word = f"get(CAST(split(:bits, ',') AS ARRAY<BIGINT>), CAST(shiftright({at}, 6) AS INT))"
    return f"(shiftrightunsigned({word}, CAST({at} & 63 AS INT)) & 1) = 1"


def _bits(source: DataFrame, key: Sequence[str], n: int) -> str:
    """The bit map of the keys' hashes: 64 bits a number."""
    at = _hash(key, n)
    word = F.expr(f"CAST(shiftright({at}, 6) AS INT)").alias("word")
    bits = F.expr(f"bit_or(shiftleft(1L, CAST({at} & 63 AS INT)))").alias("bits")
    found = source.groupBy(word).agg(bits).toArrow()
    words = [0] * (1 << (_size(n) - 6))
    for at_word, set_bits in zip(found["word"].to_pylist(), found["bits"].to_pylist(), strict=True):
        words[at_word] = set_bits
    return ",".join(map(str, words))


_LOOKS = (("low", "min"), ("high", "max"), ("held", "count"))
