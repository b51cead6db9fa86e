"""Change the rows of a table: those of some keys, copies, or only what differs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.errors import KeyMissingError, Refused
from lake_assets.lake import quote, thresholds
from lake_assets.lake.counts import plural
from lake_assets.lake.foreign_errors import is_unreadable
from lake_assets.lake.metadata.row_counts import number, rows_in, summary_of
from lake_assets.tables.merge_pruning import Pruning, prune
from lake_assets.tables.spark_frames import computed, new_name, over
from lake_assets.tables.spark_tuning import size_of
from lake_assets.tables.writing.branch_writer import BranchWriter
from lake_assets.tables.writing.commit_counts import count_properties, counts
from lake_assets.tables.writing.merge_clauses import (
    FLOATING,
    Clause,
    Delete,
    Match,
    Update,
    insert,
    same,
    source_values,
)
from lake_assets.tables.writing.publication import Branch
from lake_assets.tables.writing.row_differences import (
    COPIES,
    FOUND,
    SIGN,
    duplicate_key,
    form,
    incomparable,
    net,
    signed,
)  # fmt: skip
from lake_assets.tables.writing.table_ddl import replace_table
from lake_assets.tables.writing.table_state import DEFINITION

log = logging.getLogger(__name__)
_GOES = "__goes"


class LostRows(Exception):
    """Rows that should be in the table are missing; the message says how many."""


@dataclass(frozen=True)
class TableWriter(BranchWriter):
    """Changes the rows of one table in one step."""

    def replace(
        self,
        rows: DataFrame,
        key: Sequence[str],
        *,
        at_most: int | None = None,
        changed: tuple[int, int, int] | None = None,
    ) -> None:
        """Update, insert or delete the rows of some keys.

        Args:
            rows: one row per key, in memory; `FOUND` is true for a new row, and null if the key's row is deleted.
            key: the columns that identify a row.
            at_most: the maximum number of rows, if known.
            changed: how many rows are inserted, updated and deleted, if known.

        Raises:
            LostRows: the table would grow by another number of rows, or several of its rows share a key. Nothing is
                published.
        """
        if not key:
            self.overwrite(rows.where(FOUND))
            return
        rest = [c for c in self.types if c not in key or self._has_zeros(c)]
        types = {c: self.types[c] for c in rest}
        # Rows with values that cannot be compared (maps) are written whether they differ or not.
        update = Update(values=source_values(rest), compared={} if incomparable(types) else types)
        clauses = [
            Delete(f"s.{quote(FOUND)} IS NULL"),
            *([update] if rest else []),
            insert(list(self.types), when=f"s.{quote(FOUND)}"),
        ]

        inserted, updated, deleted = changed or (0, 0, 0)

        def check(branch: Branch) -> None:
            actual, written = self._growth(branch)
            if actual != inserted - deleted:
                raise LostRows(
                    "rows to delete are missing in the table, or rows to insert exist already: it would grow by "
                    f"{plural(actual, 'row')} instead of {inserted - deleted:,}"
                )
            if written is not None and written > inserted + updated:
                raise LostRows(f"the table holds several rows of one {', '.join(key)}")

        def pruned() -> Pruning:
            return self._pruned(rows, key, at_most)

        if changed is None:
            self.merge(rows, Match(key), clauses, pruned, at_most=at_most)
        else:
            self.merge(rows, Match(key), clauses, pruned, check, count_properties(*changed), at_most)

    def adjust(self, rows: DataFrame, key: Sequence[str], clauses: Sequence[Clause], count: int) -> Refused | None:
        """Update, insert or delete the rows of some keys, by their stored values.

        Args:
            rows: one row per key, in memory: `s` in the clauses.
            key: the columns that identify a row.
            clauses: the clauses of a MERGE into the table `t`, which write something for each row.
            count: the number of rows.

        Returns:
            A refusal, with nothing written, if the table holds several rows of a key.
        """

        def check(branch: Branch) -> None:
            if sum(counts(self._written(branch))) != count:
                raise LostRows(f"the table holds several rows of one {', '.join(key)}")

        try:
            self.merge(rows, Match(key), clauses, lambda: self._pruned(rows, key, count), check, at_most=count)
        except LostRows as e:
            return Refused(str(e))
        return None

    def change(self, delta: str, key: Sequence[str], frames: Mapping[str, DataFrame] | None = None) -> Refused | None:
        """Delete and insert rows of a table with a key.

        Args:
            delta: SQL of rows with `SIGN`.
            key: the columns that identify a row.
            frames: the frames that the SQL names.

        Returns:
            A refusal, with nothing written, if rows to delete are missing in the table or there twice, or rows to
                insert exist already.

        Raises:
            KeyMissingError: two rows share a key.
        """
        values = [
            f"max_by({quote(c)}, {COPIES}) AS {quote(c)}" for c in self.types if c not in key or self._has_zeros(c)
        ]
        selected = [quote(k) for k in key if not self._has_zeros(k)]
        coming = f"max({COPIES})"
        rows, (count, most, most_gone, updated, inserted) = computed(
            over(
                self.commit.lake.spark(),
                f"SELECT {', '.join([*selected, *values])}, IF({coming} > 0, true, NULL) AS {FOUND}, "
                f"sum(IF({COPIES} > 0, {COPIES}, 0)) AS __coming, sum(IF({COPIES} < 0, -{COPIES}, 0)) AS __going "
                f"FROM ({net(delta, self.types)}) GROUP BY {', '.join(map(quote, key))}",
                frames or {},
            ),
            "count(*)",
            "max(__coming)",
            "max(__going)",
            "count_if(__coming > 0 AND __going > 0)",
            "count_if(__coming > 0 AND __going = 0)",
        )
        if not count:
            self.nothing()
            return None
        if most > 1:
            duplicate = rows.where("__coming > 1").select(*map(quote, key)).first()
            raise self._no_key(key, most, duplicate or ())
        if most_gone > 1:
            return Refused(f"the table holds several rows of one {', '.join(key)}")
        try:
            changed = (inserted, updated, count - inserted - updated)
            self.replace(rows.drop("__coming", "__going"), key, at_most=count, changed=changed)
        except LostRows as e:
            return Refused(str(e))
        return None

    def count_copies(self, delta: str, frames: Mapping[str, DataFrame] | None = None) -> Refused | None:
        """Delete and insert rows of a table without a key, by the number of copies of each row.

        Args:
            delta: SQL of rows with `SIGN`.
            frames: the frames that the SQL names.

        Returns:
            A refusal, with nothing written, if the table holds fewer copies of a row than the change deletes.
        """
        spark, columns = self.commit.lake.spark(), list(self.types)
        changed, (count, gone, copies_in, copies_out) = computed(
            over(spark, net(delta, self.types), frames or {}), "count(*)", f"count_if({COPIES} < 0)", *_MOVED
        )
        if not count:
            self.nothing()
            return None
        if not gone:
            self.append(_repeated(changed, columns, COPIES))
            return None
        deleted, named = changed.where(f"{COPIES} < 0"), new_name()
        pruning = self._pruned(deleted.select(*map(quote, columns)), columns)
        on = " AND ".join(self._all_same() + ([pruning.condition] if pruning.condition else []))
        # A MERGE cannot delete one of several equal rows: all are deleted, and the remaining copies written again.
        firsts = ", ".join(f"first(s.{quote(c)}) AS {quote(c)}" for c in columns)
        by = ", ".join(form(f"s.{quote(c)}", k) for c, k in self.types.items())
        remaining, (matched, short) = computed(
            over(
                spark,
                f"SELECT {firsts}, CAST(count(*) + first(s.{COPIES}) AS INT) AS __left FROM {self.commit.name} t "
                f"JOIN {named} s ON {on} GROUP BY {by}",
                {named: deleted},
                pruning.values,
            ),
            "count(*)",
            "count_if(__left < 0)",
        )
        if missing := gone - matched + short:
            return Refused(f"{missing:,} of {gone:,} rows to delete are missing in the table")
        stay = _repeated(remaining, columns, "__left").unionAll(
            _repeated(changed.where(f"{COPIES} > 0"), columns, COPIES)
        )
        self._merge_copies(deleted, stay, pruning, (copies_in, 0, copies_out))
        return None

    def differences(self, rows: DataFrame, key: Sequence[str] = ()) -> str:
        """Replace all rows by `rows`, writing those that differ, so that the change feed has only real changes.

        Args:
            rows: all new rows, with the table's columns; they can be compared (see `incomparable`).
            key: columns that identify a row; empty: no key, and copies are counted.

        Returns:
            What another writer did to the table, so that its rows could not be found by their keys; empty: nothing.

        Raises:
            KeyMissingError: two of the new rows share a key.
        """
        named, lost = new_name(), ""
        delta = signed(named, self.commit.name, self.types)
        # Zeros with different signs are one key to a MERGE, but different values.
        if key and not any(self.types[k] in FLOATING for k in key):
            if not (refused := self.change(delta, key, {named: rows})):
                return ""
            lost = refused.reason
            log.warning("%s: %s: its rows are compared as a whole", self.commit.table, lost)
            # `change` has seen the rows that differ, and not those that share their keys.
            self.check_key(rows, key)
        both = f"CAST(count_if({SIGN} > 0) AS INT) AS __new, CAST(count_if({SIGN} < 0) AS INT) AS __stored"
        changed, (count, gone, copies_in, copies_out) = computed(
            over(self.commit.lake.spark(), net(delta, self.types, both), {named: rows}),
            "count(*)",
            "count_if(__stored > __new)",
            *_MOVED,
        )
        columns = list(self.types)
        if not count:
            self.nothing()
        elif not gone:
            self.append(_repeated(changed, columns, COPIES))
        else:
            # As many copies are written again as there are now.
            stay = _repeated(changed, columns, "__new")
            self._merge_copies(changed.where("__stored > 0"), stay, None, (copies_in, 0, copies_out))
        return lost

    def check_key(self, rows: DataFrame, key: Sequence[str]) -> None:
        """Raise KeyMissingError if two of the table's new rows share a key."""
        if duplicate := duplicate_key(rows, key):
            *values, copies = duplicate
            raise self._no_key(key, copies, values)

    def all_rows(
        self,
        rows: DataFrame,
        key: Sequence[str],
        definition: Mapping[str, str],
        settings: Mapping[str, str],
        *,
        sort_by: Sequence[str] = (),
        partitioned_by: str = "",
        is_same: bool | None = None,
    ) -> bool:
        """Replace all rows; those that differ are written if the table has the same columns and can be read.

        Args:
            rows: all rows.
            key: columns that identify a row; empty: no key.
            definition: properties of the table if it is replaced, those by which the rows were computed among them.
            settings: table properties to set in any case.
            sort_by: the columns by which each task sorts its rows, if the table is replaced.
            partitioned_by: SQL of its partition fields, if the table is replaced.
            is_same: whether the table was built by the same definition; None: if its properties say so.

        Returns:
            Whether the table was replaced, with its history.
        """
        kinds = {f.name: f.dataType.simpleString() for f in rows.schema.fields}
        commit, base = replace(self.commit, settings=settings), self.commit.base
        if is_same is None and base is not None:
            is_same = all(base.properties.get(p) == definition.get(p) for p in DEFINITION)
        if (
            is_same
            and base is not None
            and base.metadata.current_snapshot_id is not None
            and list(kinds.items()) == list(self.types.items())
            and not incomparable(kinds)
        ):
            try:
                replace(self, commit=commit).differences(rows, key)
            except Exception as e:
                if not is_unreadable(e, base.location()):
                    raise
                log.warning("%s: all rows are written again: files of the stored rows cannot be read", commit.table)
            else:
                return False
        replace_table(commit, rows, definition, sort_by=sort_by, partitioned_by=partitioned_by)
        return True

    # --- -------------------------------------------------------------------------------------------------------

    def _no_key(self, key: Sequence[str], copies: int, values: Iterable[object]) -> KeyMissingError:
        shared = tuple(values)
        return KeyMissingError(
            f"{self.commit.table}: {', '.join(key)} is declared as its key, and the query gives "
            f"{plural(copies, 'row')} for {shared}: declare a key that identifies each row, or none"
        ).quoting(shared)

    def _has_zeros(self, column: str) -> bool:
        """Whether a column may hold zeros of both signs, which are equal as keys."""
        return self.types[column] in FLOATING

    def _pruned(self, rows: DataFrame, key: Sequence[str], at_most: int | None = None) -> Pruning:
        base = self.commit.existing
        if size_of(base)[1] <= thresholds.SMALL_TARGET_ROWS:
            return Pruning("", {}, "the table is small")
        return prune(rows, key, base, at_most=at_most)

    def _growth(self, branch: Branch) -> tuple[int, int | None]:
        """Return how many more rows a branch of the table has, and how many were written; from summaries if they tell.

        The summary of a commit that rewrites files also counts rows that were there or deleted before.
        """
        snapshot, table = self._written(branch), self.commit.lake.table(self.commit.table)
        if snapshot is None:
            return 0, 0
        summary = summary_of(snapshot)
        if number(summary, "deleted-data-files"):
            return self._count(table, snapshot) - self._count(table, table.current_snapshot()), None
        added = number(summary, "added-records")
        hidden, restored = number(summary, "added-position-deletes"), number(summary, "removed-position-deletes")
        return added - hidden + restored, added

    def _written(self, branch: Branch) -> Snapshot | None:
        """Return the snapshot that was written to a branch of the table; None if nothing was."""
        snapshot = self.commit.lake.table(self.commit.table).snapshot_by_name(branch.ref)
        current = self.commit.existing.metadata.current_snapshot_id
        return None if snapshot is None or snapshot.snapshot_id == current else snapshot

    def _count(self, table: Table, snapshot: Snapshot | None) -> int:
        """Return the rows in a snapshot of the table; they are read if its summary does not tell their number."""
        count = rows_in(table, snapshot)
        if snapshot is None or count is not None:
            return count or 0
        return self.commit.lake.rows_at(self.commit.table, snapshot.snapshot_id).count()

    def _all_same(self) -> list[str]:
        return [same(f"t.{quote(c)}", f"s.{quote(c)}", kind) for c, kind in self.types.items()]

    def _merge_copies(
        self, deleted: DataFrame, stay: DataFrame, pruning: Pruning | None, changed: tuple[int, int, int]
    ) -> None:
        """Delete all copies of some rows, and insert those that stay or come."""
        listed = [quote(c) for c in self.types]
        source = deleted.selectExpr(*listed, f"true AS {_GOES}").unionAll(stay.selectExpr(*listed, f"false AS {_GOES}"))
        clauses = [Delete(), insert(list(self.types), when=f"NOT s.{quote(_GOES)}")]
        on = " AND ".join([f"s.{_GOES}", *self._all_same()])
        self.merge(source, on, clauses, lambda: pruning, properties=count_properties(*changed))


# SQL of the copies that come and go, of rows with `COPIES`.
_MOVED = (f"coalesce(sum(greatest({COPIES}, 0)), 0)", f"coalesce(sum(greatest(-{COPIES}, 0)), 0)")


def _repeated(rows: DataFrame, columns: Sequence[str], copies: str) -> DataFrame:
    """Return each row as often as a column says, without that column."""
    times = rows.withColumn("__copy", F.explode(F.array_repeat(F.lit(0), F.col(copies))))
    return times.select(*map(quote, columns))
