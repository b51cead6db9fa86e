"""What differs between two dumps: rows that were inserted, updated and deleted, exactly, as multisets.

Rows with a key are compared by it. Rows without one, or with a null in it, are their own key, and copies are counted.
Dumps of few rows are compared in this process, others by Spark: only keys and digests of rows are shuffled, and the
texts of the rows that differ are looked up afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pyiceberg.table import Table
from pyspark.sql import DataFrame

from lake_assets.lake import LakeBase, thresholds
from lake_assets.lake.names import literal
from lake_assets.sources import kept_dumps
from lake_assets.tables.spark_frames import computed, new_name, over


@dataclass(frozen=True)
class Change:
    """A row before and after; None: it did not exist. `copies`: how many equal rows without a key came or went."""

    before: str | None
    after: str | None
    copies: int = 1


@dataclass(frozen=True)
class Difference:
    """What differs between a dump and the one before it.

    Attributes:
        before, after: their numbers of rows.
        inserted, updated, deleted: numbers of rows; a row without a key is never updated.
        lost: by how many rows without a key the dump is shorter, beyond rows that were inserted.
        duplicates: keys that several rows of the new dump have, some of them, each with its number of rows.
        duplicated: the number of such keys.
        changes: the changes, equal rows together.
    """

    before: int
    after: int
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    replaced: int = 0
    duplicates: tuple[tuple[str, int], ...] = ()
    duplicated: int = 0
    changes: Iterator[Change] = field(default_factory=lambda: iter(()))

    @property
    def lost(self) -> int:
        """The rows that are gone: of rows without a key, a changed one counts as deleted and inserted, so only by how
        many they are fewer."""
        return self.deleted - self.replaced

    @property
    def changed(self) -> int:
        """The former rows that are gone or have other values."""
        return self.updated + self.deleted


def compare(lake: LakeBase, kept: Table, last: str | None, new: str) -> Difference:
    """Compare two parts of the kept dumps.

    Args:
        kept: the table of kept dumps.
        last: the part of the last absorbed dump; None: no dump was absorbed.
        new: the part of the new dump.
    """
    sizes = [kept_dumps.size_of(kept, p) if p else (0, 0) for p in (last, new)]
    rows, size = (sum(s) for s in zip(*sizes, strict=True))
    if rows <= thresholds.DUMP_LOCAL_ROWS and size <= thresholds.DUMP_LOCAL_BYTES:
        return _compared_here(kept, last, new)
    if not sizes[0][0]:
        return _first(lake, kept, last, new, sizes[1][0])
    return _compared(lake, kept, last, new)


# --- in this process ------------------------------------------------------------------------------------------------


def _compared_here(kept: Table, last: str | None, new: str) -> Difference:
    (before, old_keyed, old_rows, _), (after, new_keyed, new_rows, copies) = (_held(kept, p) for p in (last, new))
    inserted = [k for k in new_keyed if k not in old_keyed]
    deleted = [k for k in old_keyed if k not in new_keyed]
    updated = [k for k, row in new_keyed.items() if k in old_keyed and old_keyed[k] != row]
    come, go = new_rows - old_rows, old_rows - new_rows

    def changes() -> Iterator[Change]:
        yield from (Change(old_keyed[k], None) for k in deleted)
        yield from (Change(row, None, n) for row, n in go.items())
        yield from (Change(old_keyed[k], new_keyed[k]) for k in updated)
        yield from (Change(None, new_keyed[k]) for k in inserted)
        yield from (Change(None, row, n) for row, n in come.items())

    return Difference(
        before, after, len(inserted) + come.total(), len(updated), len(deleted) + go.total(),
        min(come.total(), go.total()), tuple(copies.most_common(_SHOWN)), len(copies), changes(),
    )  # fmt: skip


_SHOWN = 3


def _held(kept: Table, part: str | None) -> tuple[int, dict[str, str], Counter[str], Counter[str]]:
    """Return the number of rows of a part, rows by key, copies of rows without one, and the keys of several rows."""
    keyed: dict[str, str] = {}
    others, copies, count = Counter[str](), Counter[str](), 0
    for batch in kept_dumps.batches_of(kept, part) if part else ():
        count += batch.num_rows
        for key, row in zip(batch.column("key").to_pylist(), batch.column("row").to_pylist(), strict=True):
            if key is None:
                others[row] += 1
            elif key in keyed:
                copies[key] += 1
            else:
                keyed[key] = row
    return count, keyed, others, Counter({k: n + 1 for k, n in copies.items()})


# --- by Spark -------------------------------------------------------------------------------------------------------

# A row without a key is identified by its digest; a key is JSON, so the two differ in their first letter.
_IDENTITY, _DIGEST = "coalesce(key, md5(row))", "md5(row)"


def _first(lake: LakeBase, kept: Table, last: str | None, new: str, rows: int) -> Difference:
    """Return all rows of a dump without one before it as inserted, read in this process."""
    named = new_name()
    sql = f"SELECT key, count(*) AS n FROM {named} WHERE key IS NOT NULL GROUP BY key HAVING count(*) > 1"
    frames = {named: kept_dumps.frame_of(lake, kept, [new])}
    duplicates = over(lake.spark(), f"{sql} ORDER BY n DESC", frames).limit(_SHOWN).collect()
    changes = (
        Change(None, row) for batch in kept_dumps.batches_of(kept, new) for row in batch.column("row").to_pylist()
    )
    more = over(lake.spark(), sql, frames).count() if len(duplicates) == _SHOWN else len(duplicates)
    return Difference(
        0, rows, rows, duplicates=tuple((d[0], d[1]) for d in duplicates), duplicated=more, changes=changes
    )


def _compared(lake: LakeBase, kept: Table, last: str | None, new: str) -> Difference:
    spark, named = lake.spark(), new_name()
    rows = kept_dumps.frame_of(lake, kept, [p for p in (last, new) if p]).selectExpr(
        f"{_IDENTITY} AS id",
        "key IS NOT NULL AS keyed",
        f"part = {literal(new)} AS is_new",
        f"{_DIGEST} AS digest",
        "row",
    )
    sides = ", ".join(
        f"count_if({side}) AS n_{name}, max(IF({side}, digest, NULL)) AS {name}"
        for name, side in (("old", "NOT is_new"), ("new", "is_new"))
    )
    all_rows = f"SELECT id, keyed, is_new, digest FROM {named}"
    counted = over(
        spark,
        f"SELECT id, first(keyed) AS keyed, {sides} FROM ({all_rows}) GROUP BY id "
        f"HAVING n_new <> n_old OR (first(keyed) AND (n_new > 1 OR NOT old <=> new))",
        {named: rows},
    )
    changed, numbers = computed(
        counted,
        "count_if(keyed AND n_new > 0 AND n_old = 0)",
        "count_if(keyed AND n_new > 0 AND n_old > 0)",
        "count_if(keyed AND n_new = 0)",
        "coalesce(sum(IF(keyed, 0, greatest(n_new - n_old, 0))), 0)",
        "coalesce(sum(IF(keyed, 0, greatest(n_old - n_new, 0))), 0)",
        "count_if(keyed AND n_new > 1)",
    )
    inserted, updated, deleted, come, go, duplicated = map(int, numbers)
    duplicates = changed.where("keyed AND n_new > 1").orderBy("n_new", ascending=False) if duplicated else None
    shown = tuple((d["id"], d["n_new"]) for d in duplicates.limit(_SHOWN).collect()) if duplicates is not None else ()
    before, after = (kept_dumps.size_of(kept, p)[0] if p else 0 for p in (last, new))
    return Difference(
        before, after, inserted + come, updated, deleted + go, min(come, go), shown, duplicated,
        _changes(lake, changed, rows),
    )  # fmt: skip


def _changes(lake: LakeBase, changed: DataFrame, rows: DataFrame) -> Iterator[Change]:
    """Yield the changes, with the rows' texts."""
    by_id, texts = new_name(), new_name()
    sql = (
        f"SELECT c.keyed, c.n_new - c.n_old AS copies, max(IF(t.is_new, t.row, NULL)) AS after, "
        f"max(IF(t.is_new, NULL, t.row)) AS before FROM {texts} t JOIN {by_id} c ON t.id = c.id "
        "GROUP BY c.id, c.keyed, c.n_new, c.n_old"
    )
    found = over(lake.spark(), sql, {by_id: changed.select("id", "keyed", "n_new", "n_old"), texts: rows})
    for row in found.toLocalIterator(prefetchPartitions=True):
        if row["keyed"]:
            yield Change(row["before"], row["after"])
        elif row["copies"] > 0:
            yield Change(None, row["after"], row["copies"])
        else:
            yield Change(row["before"], None, -row["copies"])
