"""What a window captures: the data files whose visible state at its end is not what it was at its start.

Manifests that both snapshots list are not opened, except where deletes changed and the data files they apply to are
still to be found. Values in, values out; no Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from lake_assets.capture.files.avro_files import AvroKind
from lake_assets.capture.files.delete_files import DeleteIndex
from lake_assets.capture.files.manifests import Entry, Manifest, ManifestReader, check_counts
from lake_assets.capture.windows import Window

# Deletes of more files than this are looked up by reading manifests from end to end.
MANY_PATHS = 10_000


@dataclass(frozen=True)
class Side:
    """The captured files as one of the window's two snapshots sees them."""

    data: tuple[Entry, ...] = ()
    deletes: tuple[Entry, ...] = ()
    """Every delete file that applies to one of `data` (and may apply to others)."""
    list_kind: AvroKind | None = None


@dataclass(frozen=True)
class Plan:
    """Both sides of a window's captured files."""

    after: Side = Side()
    before: Side = Side()
    shared: frozenset[str] = frozenset()
    """Files that are on both sides: the same file, with other deletes."""

    @property
    def is_empty(self) -> bool:
        """Whether no file was captured."""
        return not self.after.data and not self.before.data

    @property
    def rows(self) -> int:
        """Rows in the captured files, before deletes."""
        return sum(e.records for e in (*self.after.data, *self.before.data))

    @property
    def has_lineage(self) -> bool:
        """Whether every captured row has an id of its own: files from before an upgrade to v3 give theirs none."""
        sides = (self.after, self.before)
        # A file that is listed twice would bring the ids that are written in it twice.
        listed_once = all(len({e.path for e in side.data}) == len(side.data) for side in sides)
        return listed_once and _ids_are_distinct(e for side in sides for e in side.data)

    def split(self) -> tuple[Plan, Plan]:
        """The files that are on both sides, with other deletes; and those that came or went."""
        paths = [e.path for side in (self.after, self.before) for e in side.data]
        # Positions do not tell rows apart where a file is listed twice.
        counts = Counter(paths)
        shared = {p for p in self.shared if counts[p] == 2}
        return self._only(lambda e: e.path in shared), self._only(lambda e: e.path not in shared)

    def _only(self, wanted: Callable[[Entry], bool]) -> Plan:
        def part(side: Side) -> Side:
            data = tuple(e for e in side.data if wanted(e))
            return replace(side, data=data) if data else Side()

        return Plan(part(self.after), part(self.before), self.shared)


State = tuple[str, int]


def plan(reader: ManifestReader, start: str | None, end: str, unpartitioned: frozenset[int]) -> Plan:
    """Compare two snapshots.

    Args:
        reader: reads manifests.
        start: the manifest list of the window's start; None: an empty table.
        end: the manifest list of its end.
        unpartitioned: ids of the partition specs without fields.

    Raises:
        MissingDataFileError: a manifest is gone.
        CorruptMetadataError: a manifest cannot be read.
    """
    ends, end_kind = reader.manifest_list(end)
    starts, start_kind = reader.manifest_list(start) if start else ([], None)
    check_counts(starts, ends)
    start_paths, end_paths = {m.path for m in starts}, {m.path for m in ends}
    new = reader.entries(m for m in ends if m.path not in start_paths)
    old = reader.entries(m for m in starts if m.path not in end_paths)

    new_data, old_data = _states(e for e in new if not e.content), _states(e for e in old if not e.content)
    added, removed = _minus(new_data, old_data), _minus(old_data, new_data)
    changed = _changed_deletes(old, new)

    touched: list[tuple[Entry, Entry]] = []
    if changed:
        index = DeleteIndex(changed, unpartitioned)
        kept = [(old_data[s][0], e) for s, es in new_data.items() if s in old_data for e in es[: len(old_data[s])]]
        touched = [pair for pair in kept if index.applying_to(pair[1])]
        common = [m for m in ends if m.path in start_paths and not m.holds_deletes]
        touched += _touched(reader, index, common, {m.path: m for m in starts})

    after_data = reader.completed([*added, *(e for _, e in touched)])
    before_data = reader.completed([*removed, *(e for e, _ in touched)])
    common_deletes = [m for m in ends if m.path in start_paths and m.holds_deletes]
    standing = _standing(reader, common_deletes, [*after_data, *before_data])
    after = _side(after_data, [*(e for e in new if e.content), *standing], unpartitioned, end_kind)
    before = _side(before_data, [*(e for e in old if e.content), *standing], unpartitioned, start_kind)
    return Plan(after, before, frozenset(e.path for _, e in touched))


def net(reader: ManifestReader, window: Window, unpartitioned: frozenset[int]) -> Plan:
    """The plan of a whole window, without the files that only upkeep exchanged.

    Raises:
        MissingDataFileError: a manifest is gone.
        CorruptMetadataError: a manifest cannot be read.
    """
    if window.is_empty or window.end is None:
        return Plan()
    begin = window.start.manifest_list if window.start else None
    planned = plan(reader, begin, window.end.manifest_list, unpartitioned)
    if not (planned.before.data and window.is_forward and window.is_complete):
        return planned
    parents = {p.snapshot_id: p.manifest_list for p in (window.start, *window.steps) if p is not None}
    for step in window.steps:
        if step.operation == "replace" and step.parent_id in parents:
            upkeep = plan(reader, parents[step.parent_id], step.manifest_list, unpartitioned)
            planned = _without(planned, upkeep, unpartitioned)
    return planned


def _without(planned: Plan, upkeep: Plan, unpartitioned: frozenset[int]) -> Plan:
    """`planned` without the exchange that `upkeep` made, if its files are as they were when the window started and
    ended; files that the window itself brought, or has changed since, have to be compared row by row."""
    after, before = _visible(planned.after, unpartitioned), _visible(planned.before, unpartitioned)
    came, went = _visible(upkeep.after, unpartitioned), _visible(upkeep.before, unpartitioned)
    lists = ((planned.after, after), (planned.before, before), (upkeep.after, came), (upkeep.before, went))
    if any(len(visible) != len(side.data) for side, visible in lists):
        return planned  # a file is listed twice
    if not (came and went and came.keys() <= after.keys() and went.keys() <= before.keys()):
        return planned

    def rest(side: Side, have: dict[Visible, Entry], gone: dict[Visible, Entry]) -> Side:
        return _side([e for v, e in have.items() if v not in gone], side.deletes, unpartitioned, side.list_kind)

    return replace(planned, after=rest(planned.after, after, came), before=rest(planned.before, before, went))


Visible = tuple[str, int, frozenset[tuple[str, int, int]]]


def _visible(side: Side, unpartitioned: frozenset[int]) -> dict[Visible, Entry]:
    """Data files by what is seen of them: path, sequence number and the deletes that apply."""
    index = DeleteIndex(side.deletes, unpartitioned)
    out: dict[Visible, Entry] = {}
    for e in side.data:
        applying = frozenset((d.path, d.offset, d.sequence_number) for d in index.applying_to(e))
        out[e.path, e.sequence_number, applying] = e
    return out


def _states(entries: Iterable[Entry]) -> dict[State, list[Entry]]:
    """Data files by path and sequence number; a table may list one file twice."""
    out: dict[State, list[Entry]] = {}
    for e in entries:
        out.setdefault((e.path, e.sequence_number), []).append(e)
    return out


def _minus(some: dict[State, list[Entry]], others: dict[State, list[Entry]]) -> list[Entry]:
    return [e for state, entries in some.items() for e in entries[len(others.get(state, ())) :]]


def _changed_deletes(old: Iterable[Entry], new: Iterable[Entry]) -> list[Entry]:
    def by_state(entries: Iterable[Entry]) -> dict[tuple[str, int, int], Entry]:
        return {(e.path, e.offset, e.sequence_number): e for e in entries if e.content}

    before, after = by_state(old), by_state(new)
    return [e for k, e in after.items() if k not in before] + [e for k, e in before.items() if k not in after]


def _touched(
    reader: ManifestReader, index: DeleteIndex, common: Sequence[Manifest], starts: dict[str, Manifest]
) -> list[tuple[Entry, Entry]]:
    """Files in manifests that did not change, which deletes that did change apply to; as start and end see them."""
    todo = [m for m in common if index.may_reach(m)]
    paths = index.paths
    if paths is not None and len(paths) <= MANY_PATHS:
        found = reader.entries_of(todo, paths, keep=index.applying_to)
    else:
        found = reader.completed(reader.entries(todo, keep=index.applying_to))
    # An upgrade to v3 gives row ids to manifests that exist: the file is the same, but start knows no ids for it.
    return [(e if _same_ids(e, starts) else _without_ids(e, starts[e.manifest.path]), e) for e in found]


def _same_ids(e: Entry, starts: dict[str, Manifest]) -> bool:
    return starts[e.manifest.path].first_row_id == e.manifest.first_row_id


def _without_ids(e: Entry, manifest: Manifest) -> Entry:
    return replace(e, manifest=manifest, raw={**e.raw, "data_file": {**e.file, "first_row_id": None}})


def _standing(reader: ManifestReader, manifests: Sequence[Manifest], data: Sequence[Entry]) -> list[Entry]:
    """The deletes that both snapshots have and that may apply to `data`."""
    if not data:
        return []
    oldest = min(e.sequence_number for e in data)
    return reader.entries(m for m in manifests if m.sequence_number >= oldest)


def _ids_are_distinct(entries: Iterable[Entry]) -> bool:
    """Whether no two files were given the same row ids, and no file other ids on the other side.

    The specification rules both out. Engines that copy manifest entries without knowing row ids do not.
    """
    ranges: dict[str, tuple[int, int]] = {}
    for e in entries:
        if e.first_row_id is None or ranges.setdefault(e.path, (e.first_row_id, e.records))[0] != e.first_row_id:
            return False
    taken = 0
    for first, records in sorted(r for r in ranges.values() if r[1]):
        if first < taken:
            return False
        taken = first + records
    return True


def _side(
    data: Sequence[Entry], deletes: Sequence[Entry], unpartitioned: frozenset[int], kind: AvroKind | None
) -> Side:
    if not data:
        return Side()
    index = DeleteIndex(deletes, unpartitioned)
    applying: dict[tuple[str, int, int], Entry] = {}
    for e in data:
        for d in index.applying_to(e):
            applying[d.path, d.offset, d.sequence_number] = d
    return Side(tuple(data), tuple(applying.values()), kind)
