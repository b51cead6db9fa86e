"""What a window captures: the data files whose visible state at its end is not what it was at its start.

Manifests that both snapshots list are not opened, except where deletes changed and the data files they apply to are
still to be found. Values in, values out; no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lake_assets.capture.deletes import DeleteIndex
from lake_assets.capture.manifests import AvroKind, Entry, Manifest, ManifestReader


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
        return not self.after.data and not self.before.data


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
    specs = index.specs
    todo = [
        m
        for m in common
        if m.min_sequence_number <= index.max_sequence_number and (specs is None or m.spec_id in specs)
    ]
    found = [e for e in reader.entries(todo) if index.applying_to(e)]
    found = reader.completed(found)
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
