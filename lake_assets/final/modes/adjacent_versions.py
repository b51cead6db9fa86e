"""Stored versions of rows (SCD2), of which neighbours may have become the same."""

from __future__ import annotations

from collections.abc import Sequence

from lake_assets.lake import quote


def joined(
    rows: str, key: Sequence[str], columns: Sequence[str], tracked: Sequence[str], begins: str, ends: str
) -> str:
    """SQL of versions, those that continue the one before them without a difference being one with it.

    Two columns that became one may have held the same value one after the other.

    Args:
        rows: SQL of the versions.
        key: columns that identify a row of the source.
        columns: all columns, in the order that is wanted.
        tracked: those whose change opens a new version; of the others the last value counts.
        begins: the column with the time from which a version is valid.
        ends: the column with the time until which it is.
    """
    keys, window = ", ".join(map(quote, key)), f"PARTITION BY {', '.join(map(quote, key))} ORDER BY {quote(begins)}"
    rest = [c for c in columns if c not in (*key, begins)]
    same = [(ends, begins), *((c, c) for c in tracked)]
    continues = " AND ".join(f"lag({quote(old)}) OVER w <=> {quote(new)}" for old, new in same)
    starts = f"SELECT *, CASE WHEN {continues} THEN 0 ELSE 1 END AS __s FROM ({rows}) WINDOW w AS ({window})"
    numbered = f"SELECT *, sum(__s) OVER ({window}) AS __v FROM ({starts})"
    last = f"max_by(struct({', '.join(map(quote, rest))}), {quote(begins)}) AS __row"
    grouped = f"SELECT {keys}, min({quote(begins)}) AS {quote(begins)}, {last} FROM ({numbered}) GROUP BY {keys}, __v"
    listed = (quote(c) if c in (*key, begins) else f"__row.{quote(c)} AS {quote(c)}" for c in columns)
    return f"SELECT {', '.join(listed)} FROM ({grouped})"
