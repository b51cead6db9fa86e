"""Stored row versions (SCD2) whose neighbours may have become equal."""

from __future__ import annotations

from collections.abc import Sequence

from lake_assets.lake import quote


def merge_equal_versions(
    rows: str, key: Sequence[str], columns: Sequence[str], tracked: Sequence[str], begins: str, ends: str
) -> str:
    """Return SQL that merges each version into the previous one if they are adjacent and do not differ.

    After two columns are combined into one, consecutive versions may have the same value.

    Args:
        rows: SQL of the versions.
        key: columns that identify a row of the source.
        columns: all columns of the result, in order.
        tracked: columns whose change opens a new version; the others have the last value of merged versions.
        begins: the column with the start of a version's validity.
        ends: the column with the end of a version's validity.
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
