"""Which snapshots of its sources a model reads, so that all models of a run see the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyiceberg.table import Table

from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.watermark import PROPERTY as WATERMARK
from lake_assets.lake.watermark import Mark, ancestors, parse_marks
from lake_assets.merge.batches import cut
from lake_assets.merge.specs import BatchSize
from lake_assets.merge.steps import Window

MODEL_PROPERTY = "lake-assets.model"


@dataclass
class Heads:
    """The snapshots that the models of one run read: the first to read a table settles it for those after it.

    Across runs, a model whose sources have absorbed different snapshots of one table below them reads the newest of
    theirs that agree.
    """

    pinned: dict[TableId, Mark] = field(default_factory=dict[TableId, Mark])

    def settled(
        self,
        lake: LakeBase,
        windows: Mapping[TableId, Window],
        tables: Mapping[TableId, Table],
        size: BatchSize,
    ) -> dict[TableId, Window]:
        """The windows with the heads that are to be read.

        Args:
            lake: the lake.
            windows: of all sources, up to where these are now.
            tables: the sources.
            size: of a batch. What another model of the run has settled counts for more, and so does getting on: where
                the ends of batches do not agree with each other, larger ones are tried.
        """
        while True:
            pinned = {s: self.pinned.get(s) or cut(w, tables[s], size).head for s, w in windows.items()}
            out = self._at(lake, windows, tables, pinned)
            whole = all(pinned[s] == w.head for s, w in windows.items() if s not in self.pinned)
            if whole or not all(w.is_absorbed for w in out.values()):
                self.pinned |= pinned
                break
            size = size.doubled
        if not size.is_limited:
            return out
        return {s: replace(w, left=_after(tables[s], w.head, windows[s].head)) for s, w in out.items()}

    def _at(
        self,
        lake: LakeBase,
        windows: Mapping[TableId, Window],
        tables: Mapping[TableId, Table],
        heads: Mapping[TableId, Mark],
    ) -> dict[TableId, Window]:
        out = {s: self._not_back(w, heads[s], tables[s]) for s, w in windows.items()}
        if len(out) > 1 and not all(w.is_absorbed for w in out.values()):
            out = _agreeing(lake, out, tables)
        return out

    def _not_back(self, window: Window, head: Mark, table: Table) -> Window:
        """With another head, unless the target has absorbed more already."""
        if head.uuid != window.head.uuid:
            return window
        if window.start is not None and head.snapshot != window.start and head.snapshot is not None:
            newer = {s.snapshot_id for s in ancestors(table, window.start)}
            if head.snapshot in newer and head.snapshot != window.head.snapshot:
                return replace(window, head=replace(window.head, snapshot=window.start))
        return replace(window, head=head)


def _after(table: Table, head: Mark, newest: Mark) -> int:
    """How many snapshots of a source come after the one that is read."""
    if head.snapshot == newest.snapshot or newest.snapshot is None:
        return 0
    later = [s.snapshot_id for s in ancestors(table, newest.snapshot)]
    return later.index(head.snapshot) if head.snapshot in later else 0


def _agreeing(lake: LakeBase, windows: dict[TableId, Window], tables: Mapping[TableId, Table]) -> dict[TableId, Window]:
    """Windows whose ends have absorbed the same of what is below them.

    Of tables that other models make alone: what is late in one stream does not hold up what came in others.
    """
    loaded: dict[str, Table | None] = {str(s): t for s, t in tables.items()}
    below = {s: _below(lake, str(s), w.head, loaded) for s, w in windows.items()}
    names = {n for found in below.values() for n in found}
    out = dict(windows)
    for name in sorted(n for n in names if sum(n in found for found in below.values()) > 1):
        behind = _behind(lake, name, [found[name] for found in below.values() if name in found], loaded)
        if behind is None:
            continue
        for source, window in windows.items():
            mark = below[source].get(name)
            if mark is None or mark.snapshot == behind:
                continue
            table = tables[source]
            earlier = next(
                (
                    s.snapshot_id
                    for s in ancestors(table, window.head.snapshot)
                    if _is_at(lake, str(source), replace(window.head, snapshot=s.snapshot_id), name, behind, loaded)
                ),
                None,
            )
            if earlier is None:
                continue  # no longer there, or never: what is newest has to do
            passed = window.start in {s.snapshot_id for s in ancestors(table, window.head.snapshot)} and earlier in {
                s.snapshot_id for s in ancestors(table, window.start)
            }
            at = window.start if passed else earlier
            out[source] = replace(out[source], head=replace(window.head, snapshot=at))
    return out


def _is_at(lake: LakeBase, source: str, head: Mark, name: str, snapshot: int, loaded: dict[str, Table | None]) -> bool:
    found = _below(lake, source, head, loaded).get(name)
    return found is not None and found.snapshot == snapshot


def _below(lake: LakeBase, name: str, mark: Mark, loaded: dict[str, Table | None]) -> dict[str, Mark]:
    """Of which snapshots a table's snapshot is made: its own, and those of what models below it read."""
    found = {name: mark}
    if name not in loaded:
        loaded[name] = lake.find(name)
    table = loaded[name]
    if table is None or MODEL_PROPERTY not in table.properties or mark.snapshot is None:
        return found
    for snapshot in ancestors(table, mark.snapshot):
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        if WATERMARK in said:
            for below, its in parse_marks(said[WATERMARK]).items():
                for n, m in _below(lake, below, its, loaded).items():
                    found.setdefault(n, m)
            break
    return found


def _behind(lake: LakeBase, name: str, marks: list[Mark], loaded: dict[str, Table | None]) -> int | None:
    """The oldest of some snapshots of one table; None: they are the same, or cannot be ordered."""
    ids = {m.snapshot for m in marks}
    if len(ids) < 2 or None in ids:
        return None
    table = loaded[name] if name in loaded else lake.find(name)
    if table is None:
        return None
    order = [s.snapshot_id for s in ancestors(table)]
    if not ids <= set(order):
        return None
    return max((i for i in ids if i is not None), key=order.index)
