"""Conditions on the target of a MERGE that all changed keys but few other rows meet; other rows are not joined.

`ON t.id = s.id` alone shuffles and sorts the whole target, because Spark cannot filter rows before the join.
- Bounds and literals are pushed into the scan, which skips files and row groups.
- For too many keys, or keys of several columns, each row is tested against a bitmap of the keys' hashes: at most a
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

from lake_assets.lake import quote, thresholds
from lake_assets.lake.counts import plural
from lake_assets.tables.literal_codec import ORDERED, LiteralCodec, base, codec_of

_BITS_A_KEY = 16


@dataclass(frozen=True)
class Pruning:
    """A condition on the target `t` and its bound values; an empty condition prunes nothing.

    Attributes:
        why: a description for the outcome.
    """

    condition: str
    values: dict[str, Any]
    why: str


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
        source: the reduced changes with the target's types, cached (they are read once or twice here and once by the
            MERGE).
        key: key columns.
        target: the loaded table; None: it is small.
        at_most: the greatest possible number of keys, if known: one query then suffices for few keys.
        types: types of the source's columns, if known.
    """
    types = types or {f.name: f.dataType.simpleString() for f in source.schema.fields}
    codecs = {k: codec for k in key if base(types[k]) in ORDERED and (codec := codec_of(types[k]))}
    usable = list(codecs)
    bounds = [
        F.expr(codecs[k].encode.format(c=f"{f}({quote(k)})") if f != "count" else f"count({quote(k)})").alias(
            f"{what}{i}"
        )
        for i, k in enumerate(usable)
        for what, f in _AGGREGATES
    ]
    listed = len(key) == 1 and bool(usable)
    at_once = listed and at_most is not None and at_most <= thresholds.LITERAL_KEYS
    if at_once:
        bounds.append(F.expr(f"collect_list({_encoded(codecs, key[0])})").alias("keys"))
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
            low, high = _literals(ends, codecs[column], types[column], values)
            range_ = f"{name} BETWEEN {low} AND {high}"
        parts.append(range_ if row[f"held{i}"] == row["n"] else f"({name} IS NULL OR {range_})")
    why = f"{plural(row['n'], 'key')}, pruned by their range"
    if listed and row["n"] <= thresholds.LITERAL_KEYS and row["held0"] == row["n"]:
        keys = row["keys"] if at_once else [r[0] for r in source.select(F.expr(_encoded(codecs, key[0]))).collect()]
        literals = _literals({f"k{i}": v for i, v in enumerate(keys)}, codecs[key[0]], types[key[0]], values)
        parts.append(f"t.{quote(key[0])} IN ({', '.join(literals)})")
        return Pruning(" AND ".join(parts), values, f"{row['n']} key{'' if row['n'] == 1 else 's'}, each a literal")
    if (
        rows < thresholds.HASHES_TARGET_ROWS
        or row["n"] > thresholds.HASHES_KEYS
        or row["n"] * thresholds.HASHES_ROWS_A_KEY > rows
        or not all(_is_hashed(types[k]) for k in key)
    ):
        why = why if parts else "the type of the keys has no order: the whole target is joined"
        return Pruning(" AND ".join(parts), values, why)
    parts.append(_hashed(key, row["n"]))
    values["bits"] = _bits(source, key, row["n"])
    why = f"{plural(row['n'], 'key')}, pruned by their range and their hashes"
    return Pruning(" AND ".join(parts), values, why)


def _literals(encoded: Mapping[str, Any], codec: LiteralCodec, kind: str, values: dict[str, Any]) -> list[str]:
    """Return SQL of encoded values, given by parameter name; texts are added to the bound `values`.

    Each bound value takes several messages to the JVM, so only texts are bound: they may contain SQL syntax.
    """
    if base(kind) != "string":
        return [codec.sql(value, kind) for value in encoded.values()]
    values |= encoded
    return [codec.decode.format(v=f":{name}", type=kind) for name in encoded]


def _encoded(codecs: Mapping[str, LiteralCodec], column: str) -> str:
    """Return SQL of a column's encoded value."""
    return codecs[column].encode.format(c=quote(column))


def _rows_of(table: Table | None) -> int:
    snapshot = table.current_snapshot() if table else None
    summary = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
    return int(summary.get("total-records") or 0)


def _is_hashed(kind: str) -> bool:
    """Whether equal values always have equal hashes (floating-point zeros have signs)."""
    return not any(t in kind for t in ("float", "double", "map", "variant", "interval", "collate"))


def _size(n: int) -> int:
    """Return the size of the bitmap for `n` keys, as a power of two."""
    return max(14, (n * _BITS_A_KEY - 1).bit_length())


def _hash(key: Sequence[str], n: int, prefix: str = "") -> str:
    return f"(xxhash64({', '.join(prefix + quote(k) for k in key)}) & {(1 << _size(n)) - 1})"


def _hashed(key: Sequence[str], n: int) -> str:
    """Return SQL of a condition: the bit of the row's key is set."""
    at = _hash(key, n, "t.")
    # Spark converts the text into an array once, while planning.
    word = f"get(CAST(split(:bits, ',') AS ARRAY<BIGINT>), CAST(shiftright({at}, 6) AS INT))"
    return f"(shiftrightunsigned({word}, CAST({at} & 63 AS INT)) & 1) = 1"


def _bits(source: DataFrame, key: Sequence[str], n: int) -> str:
    """Return the bitmap of the keys' hashes, as numbers of 64 bits."""
    at = _hash(key, n)
    word = F.expr(f"CAST(shiftright({at}, 6) AS INT)").alias("word")
    bits = F.expr(f"bit_or(shiftleft(1L, CAST({at} & 63 AS INT)))").alias("bits")
    used = source.groupBy(word).agg(bits).toArrow()
    words = [0] * (1 << (_size(n) - 6))
    for at_word, set_bits in zip(used["word"].to_pylist(), used["bits"].to_pylist(), strict=True):
        words[at_word] = set_bits
    return ",".join(map(str, words))


_AGGREGATES = (("low", "min"), ("high", "max"), ("held", "count"))
