"""Which snapshots of its sources a model reads, so that all models of a run see the same."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyiceberg.table import Table

from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.metadata.watermark import PROPERTY as WATERMARK
from lake_assets.lake.metadata.watermark import Watermark, parse_marks
from lake_assets.models.model_spec import FINGERPRINT_PROPERTY
from lake_assets.tables.batch_limits import cut
from lake_assets.tables.pending_windows import Window
from lake_assets.tables.specs import BatchSize


@dataclass
class SnapshotPins:
    """The snapshots that the models of one run read: the first to read a table settles it for those after it.

    Across runs, a model whose sources have absorbed different snapshots of one table below them reads the newest of
    theirs that agree.

    Models may settle theirs in several threads.

    Attributes:
        newest: where each source was when a model of the run looked at it first.
        pinned: up to where one took it.
    """

    newest: dict[TableId, Watermark] = field(default_factory=dict[TableId, Watermark])
    pinned: dict[TableId, Watermark] = field(default_factory=dict[TableId, Watermark])
    # Who reads a source up to there: those that failed do not count.
    _readers: dict[TableId, set[object]] = field(default_factory=dict[TableId, set[object]])
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)
    _thread: threading.local = field(default_factory=threading.local, repr=False, compare=False)

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
        with self._lock:
            newest = {s: self._not_back(w, self.newest.setdefault(s, w.head), tables[s]) for s, w in windows.items()}
            bound = {s: self.pinned[s] for s, w in windows.items() if self._is_bound(s, w, tables[s])}
            while True:
                heads = {s: bound.get(s) or cut(w, tables[s], size).head for s, w in newest.items()}
                out = self._at(lake, windows, tables, heads)
                if any(not w.is_absorbed for w in out.values()):
                    # Only what it takes of a source is settled: where it stands still, nobody has to wait for it.
                    reader = getattr(self._thread, "reader", None) or object()
                    for source in (s for s, w in out.items() if not w.is_absorbed):
                        if self.pinned.setdefault(source, heads[source]) == heads[source]:
                            self._readers.setdefault(source, set()).add(reader)
                    break
                if all(heads[s] == w.head for s, w in newest.items() if s not in bound):
                    break
                size = size.doubled
            if not size.is_limited:
                return out
            return {s: replace(w, left=_after(tables[s], w.head, windows[s].head)) for s, w in out.items()}

    @contextlib.contextmanager
    def unless_failed(self) -> Generator[None]:
        """What a model settles that fails then is not settled: nobody is to be held up by it. What another model has
        read up to the same place meanwhile stays.
        """
        self._thread.reader = reader = object()
        try:
            yield
        except BaseException:
            with self._lock:
                for source in [s for s, readers in self._readers.items() if reader in readers]:
                    self._readers[source].discard(reader)
                    if not self._readers[source]:
                        del self._readers[source], self.pinned[source]
            raise
        finally:
            self._thread.reader = None

    def _is_bound(self, source: TableId, window: Window, table: Table) -> bool:
        """Whether another model has settled the source, and this one is not ahead of that."""
        pinned = self.pinned.get(source)
        if pinned is None or pinned.snapshot == window.start or window.start is None:
            return pinned is not None
        return pinned.snapshot not in {s.snapshot_id for s in ancestors(table, window.start)}

    def _at(
        self,
        lake: LakeBase,
        windows: Mapping[TableId, Window],
        tables: Mapping[TableId, Table],
        heads: Mapping[TableId, Watermark],
    ) -> dict[TableId, Window]:
        out = {s: self._not_back(w, heads[s], tables[s]) for s, w in windows.items()}
        loaded: dict[str, Table | None] = {str(s): t for s, t in tables.items()}
        while len(out) > 1 and not all(w.is_absorbed for w in out.values()):
            agreeing = _agreeing(lake, out, tables, loaded)
            if agreeing == out:
                break
            out = agreeing
        return out

    def _not_back(self, window: Window, head: Watermark, table: Table) -> Window:
        """With another head, unless the target has absorbed more already."""
        if head.uuid != window.head.uuid:
            return window
        if window.start is not None and head.snapshot != window.start and head.snapshot is not None:
            newer = {s.snapshot_id for s in ancestors(table, window.start)}
            if head.snapshot in newer and head.snapshot != window.head.snapshot:
                return replace(window, head=replace(window.head, snapshot=window.start))
        return replace(window, head=head)


def _after(table: Table, head: Watermark, newest: Watermark) -> int:
    """How many snapshots of a source come after the one that is read."""
    if head.snapshot == newest.snapshot or newest.snapshot is None:
        return 0
    later = [s.snapshot_id for s in ancestors(table, newest.snapshot)]
    return later.index(head.snapshot) if head.snapshot in later else 0


def _agreeing(
    lake: LakeBase,
    windows: dict[TableId, Window],
    tables: Mapping[TableId, Table],
    loaded: dict[str, Table | None],
) -> dict[TableId, Window]:
    """Windows whose ends have absorbed the same of one more of the tables below them, or as they are: they all agree.

    Of tables that other models make alone: what is late in one stream does not hold up what came in others.
    """
    below = {s: _below(lake, str(s), w.head, loaded) for s, w in windows.items()}
    names = {n for found in below.values() for n in found}
    for name in sorted(n for n in names if sum(n in found for found in below.values()) > 1):
        behind = _behind(lake, name, [found[name] for found in below.values() if name in found], loaded)
        if behind is None:
            continue
        moved: dict[TableId, Window] = {}
        concerned = [s for s, found in below.items() if name in found]
        for source in concerned:
            window, mark, table = windows[source], below[source][name], tables[source]
            if mark.snapshot == behind:
                continue
            earlier = next(
                (
                    s.snapshot_id
                    for s in ancestors(table, window.head.snapshot)
                    if _is_at(lake, str(source), replace(window.head, snapshot=s.snapshot_id), name, behind, loaded)
                ),
                None,
            )
            if earlier is None:
                moved = _held([windows[s] for s in concerned])
                break
            passed = window.start in {s.snapshot_id for s in ancestors(table, window.head.snapshot)} and earlier in {
                s.snapshot_id for s in ancestors(table, window.start)
            }
            at = window.start if passed else earlier
            moved[source] = replace(window, head=replace(window.head, snapshot=at))
        if any(windows[s] != w for s, w in moved.items()):
            return windows | moved
    return windows


def _held(windows: Sequence[Window]) -> dict[TableId, Window]:
    """Windows that end where they begin, until what is behind has caught up: what is read must have been once.

    Of a first run they do not: what is newest has to do.
    """
    if any(w.start is None for w in windows):
        return {}
    return {w.source: replace(w, head=replace(w.head, snapshot=w.start)) for w in windows}


def _is_at(
    lake: LakeBase, source: str, head: Watermark, name: str, snapshot: int, loaded: dict[str, Table | None]
) -> bool:
    found = _below(lake, source, head, loaded).get(name)
    return found is not None and found.snapshot == snapshot


def _below(lake: LakeBase, name: str, mark: Watermark, loaded: dict[str, Table | None]) -> dict[str, Watermark]:
    """Of which snapshots a table's snapshot is made: its own, and those of what models below it read."""
    found = {name: mark}
    if name not in loaded:
        loaded[name] = lake.find(name)
    table = loaded[name]
    if table is None or FINGERPRINT_PROPERTY not in table.properties or mark.snapshot is None:
        return found
    for snapshot in ancestors(table, mark.snapshot):
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        if WATERMARK in said:
            for below, its in parse_marks(said[WATERMARK]).items():
                for n, m in _below(lake, below, its, loaded).items():
                    found.setdefault(n, m)
            break
    return found


def _behind(lake: LakeBase, name: str, marks: list[Watermark], loaded: dict[str, Table | None]) -> int | None:
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
