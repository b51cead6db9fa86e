"""The versions of a row: what differs between one moment of a table and the next, and which columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lake_assets.history.file_rows import Row, comparable
from lake_assets.history.snapshot_rows import SnapshotRows, Visible
from lake_assets.history.timeline import Moment, Timeline

# `found`: the row as it was at the oldest kept snapshot, which need not have brought it.
What = Literal["found", "inserted", "updated", "deleted"]


@dataclass(frozen=True)
class RowChange:
    """One row before and after a commit.

    Attributes:
        before, after: its values by field id; None: there was none.
    """

    what: What
    before: Row | None
    after: Row | None

    @property
    def row(self) -> Row:
        """The row after the change, or the deleted one."""
        row = self.after if self.after is not None else self.before
        assert row is not None
        return row


@dataclass(frozen=True)
class Version:
    """What a commit did to the row.

    Attributes:
        index: the number of the moment.
        moment: the commit.
        changes: the changed rows: one, unless several rows have the key.
    """

    index: int
    moment: Moment
    changes: tuple[RowChange, ...]


def versions(timeline: Timeline, rows: SnapshotRows, identity: Sequence[int]) -> Iterator[Version]:
    """Yield the versions of the wanted rows of a table, oldest first.

    Args:
        identity: ids of the columns that tell which row is another version of which; empty: none do, and rows are
            only inserted and deleted.
    """
    before: Visible = {}
    columns: frozenset[int] = frozenset()
    for index, moment in enumerate(timeline.moments):
        after, has = rows.at(moment.id), rows.columns_at(moment.id)
        first = index == 0 and not timeline.is_whole
        changes = [RowChange("found", None, _of(r, has)) for r in after.values()] if first else [
            *row_changes(before, after, identity, columns, has)
        ]  # fmt: skip
        if changes:
            yield Version(index, moment, tuple(changes))
        before, columns = after, has


def row_changes(
    before: Visible, after: Visible, identity: Sequence[int], had: Collection[int], has: Collection[int]
) -> Iterator[RowChange]:
    """Yield what differs between the rows of two moments.

    Args:
        had, has: ids of the columns that the table had before, and has after. Columns that were dropped are not
            compared, columns that were added are null before.
    """
    old, new = _without_common(before, after, had, has)
    former: dict[tuple[Any, ...], list[Row]] = {}
    for row in old:
        former.setdefault(tuple(comparable(row.get(i)) for i in identity), []).append(row)
    for row in new:
        same = former.get(tuple(comparable(row.get(i)) for i in identity), []) if identity else []
        yield RowChange("updated", same.pop(0), row) if same else RowChange("inserted", None, row)
    for row in (r for rows in former.values() for r in rows):
        yield RowChange("deleted", row, None)


def _without_common(
    before: Visible, after: Visible, had: Collection[int], has: Collection[int]
) -> tuple[list[Row], list[Row]]:
    """Return the rows of either side that the other side has not, each as often as it has more of it."""
    old = [_of(row, had) for place, row in before.items() if place not in after]
    new = [_of(row, has) for place, row in after.items() if place not in before]

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(comparable(row.get(i)) for i in sorted(has))

    common = Counter(map(key, old)) & Counter(map(key, new))
    return _rest(old, common, key), _rest(new, common, key)


def _of(row: Row, columns: Collection[int]) -> Row:
    return {i: value for i, value in row.items() if i in columns}


def _rest(rows: Iterable[Row], common: Counter[tuple[Any, ...]], key: Callable[[Row], Any]) -> list[Row]:
    left = Counter(common)
    rest: list[Row] = []
    for row in rows:
        of = key(row)
        if left[of]:
            left[of] -= 1
        else:
            rest.append(row)
    return rest


def changed_columns(change: RowChange) -> list[int]:
    """Return the ids of the columns in which a row differs before and after; all of them if there was none, or is none
    any more."""
    if change.before is None or change.after is None:
        return list(change.row)
    return [i for i in change.row if comparable(change.before.get(i)) != comparable(change.after.get(i))]
