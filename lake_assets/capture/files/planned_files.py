"""The files of a capture, on both sides of its window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from lake_assets.capture.files.avro_files import AvroKind
from lake_assets.capture.files.manifests import Entry


@dataclass(frozen=True)
class Side:
    """The captured files as one of the window's two snapshots sees them."""

    data: tuple[Entry, ...] = ()
    deletes: tuple[Entry, ...] = ()
    """Every delete file that applies to one of `data`; it may apply to other files as well."""
    list_kind: AvroKind | None = None


@dataclass(frozen=True)
class Plan:
    """Both sides of a window's captured files."""

    after: Side = Side()
    before: Side = Side()
    shared: frozenset[str] = frozenset()
    """Paths of files on both sides: the same file with different deletes."""

    @property
    def is_empty(self) -> bool:
        """Whether no file was captured."""
        return not self.after.data and not self.before.data

    @property
    def rows(self) -> int:
        """Number of rows in the captured files, before deletes."""
        return sum(e.records for e in (*self.after.data, *self.before.data))

    @property
    def has_lineage(self) -> bool:
        """Whether every captured row has a unique id: files from before an upgrade to v3 have no ids."""
        sides = (self.after, self.before)
        # If a file is listed twice, the row ids stored in it occur twice.
        listed_once = all(len({e.path for e in side.data}) == len(side.data) for side in sides)
        return listed_once and _ids_are_distinct(e for side in sides for e in side.data)

    def split(self) -> tuple[Plan, Plan]:
        """Split the plan into files on both sides with different deletes, and files that were added or removed."""
        paths = [e.path for side in (self.after, self.before) for e in side.data]
        # If a file is listed twice, positions do not identify rows.
        counts = Counter(paths)
        shared = {p for p in self.shared if counts[p] == 2}
        return self._only(lambda e: e.path in shared), self._only(lambda e: e.path not in shared)

    def _only(self, predicate: Callable[[Entry], bool]) -> Plan:
        def part(side: Side) -> Side:
            data = tuple(e for e in side.data if predicate(e))
            return replace(side, data=data) if data else Side()

        return Plan(part(self.after), part(self.before), self.shared)


def _ids_are_distinct(entries: Iterable[Entry]) -> bool:
    """Whether no two files have the same row ids, and no file has different ids on the two sides.

    The specification rules out both, but engines that copy manifest entries without knowing row ids violate it.
    """
    ranges: dict[str, tuple[int, int]] = {}
    for e in entries:
        if e.first_row_id is None or ranges.setdefault(e.path, (e.first_row_id, e.records))[0] != e.first_row_id:
            return False
    assigned = 0
    for first, records in sorted(r for r in ranges.values() if r[1]):
        if first < assigned:
            return False
        assigned = first + records
    return True
