"""Choose the snapshots of its sources that a model reads, so that all models of a run read the same ones."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from pyiceberg.table import Table

from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.metadata.watermark import PROPERTY as WATERMARK
from lake_assets.lake.metadata.watermark import Watermark, parse_marks
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.steps.shared_changes import SharedChanges
from lake_assets.tables.batch_limits import cut
from lake_assets.tables.pending_windows import Window
from lake_assets.tables.specs import BatchSize
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY


@dataclass
class SnapshotPins:
    """Snapshots that the models of one run read: the first model to read a table pins its snapshot for later models.

    If the sources of a model have absorbed different snapshots of a common upstream table, the model reads the newest
    snapshots of its sources that agree on it.

    Models may pin snapshots from several threads.

    Attributes:
        newest: the head of each source when the first model of the run loaded it.
        pinned: the head up to which a model of the run reads each source.
        changes: the changes up to there, which models share.
    """

    newest: dict[TableId, Watermark] = field(default_factory=dict[TableId, Watermark])
    pinned: dict[TableId, Watermark] = field(default_factory=dict[TableId, Watermark])
    changes: SharedChanges = field(default_factory=SharedChanges)
    # The models that read a source up to its pin; failed models are removed.
    _readers: dict[TableId, set[object]] = field(default_factory=dict[TableId, set[object]])
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)
    _thread: threading.local = field(default_factory=threading.local, repr=False, compare=False)

    @classmethod
    def for_run(cls, tables: Iterable[object]) -> Self:
        """Return the pins of a run over some tables, whose SQL models share the changes that they read."""
        return cls(changes=SharedChanges([t for t in tables if isinstance(t, ModelSpec)]))

    def pin(
        self,
        lake: LakeBase,
        windows: Mapping[TableId, Window],
        tables: Mapping[TableId, Table],
        size: BatchSize,
    ) -> dict[TableId, Window]:
        """Return the windows with the heads to read, and pin those heads.

        Args:
            windows: the windows of all sources up to their current heads.
            size: limits of a batch. Pins of other models take precedence. If batches of this size end at snapshots that
                do not agree with each other, larger batches are tried, so that the model makes progress.
        """
        with self._lock:
            newest = {s: self._with_head(w, self.newest.setdefault(s, w.head), tables[s]) for s, w in windows.items()}
            bound = {s: self.pinned[s] for s, w in windows.items() if self._is_bound(s, w, tables[s])}
            while True:
                heads = {s: bound.get(s) or cut(w, tables[s], size).head for s, w in newest.items()}
                out = self._at(lake, windows, tables, heads)
                if any(not w.is_absorbed for w in out.values()):
                    # Only sources that the model absorbs from are pinned: no other model waits for the rest.
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
    def release_on_failure(self) -> Generator[None]:
        """Release the pins of a model that fails within the block, so that it does not hold up other models. Pins that
        another model uses by then stay.
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
        """Whether another model has pinned the source, and this model is not ahead of the pin."""
        pinned = self.pinned.get(source)
        if pinned is None or pinned.snapshot == window.start or window.start is None:
            return pinned is not None
        return not _is_before(table, pinned.snapshot, window)

    def _at(
        self,
        lake: LakeBase,
        windows: Mapping[TableId, Window],
        tables: Mapping[TableId, Table],
        heads: Mapping[TableId, Watermark],
    ) -> dict[TableId, Window]:
        out = {s: self._with_head(w, heads[s], tables[s]) for s, w in windows.items()}
        upstream = _Upstream(lake, {str(s): t for s, t in tables.items()})
        while len(out) > 1 and not all(w.is_absorbed for w in out.values()):
            agreeing = _agreeing(upstream, out, tables)
            if agreeing == out:
                break
            out = agreeing
        return out

    def _with_head(self, window: Window, head: Watermark, table: Table) -> Window:
        """Return the window with another head; its head becomes its start if the target has absorbed more already."""
        if head.uuid != window.head.uuid:
            return window
        is_other = head.snapshot not in (window.start, window.head.snapshot)
        if window.start is not None and is_other and _is_before(table, head.snapshot, window):
            return replace(window, head=replace(window.head, snapshot=window.start))
        return replace(window, head=head)


def _is_before(table: Table, snapshot: int | None, window: Window) -> bool:
    """Whether a window starts after a snapshot; None: the empty table."""
    if snapshot is None:  # the table was empty before its first snapshot, or was emptied since the start
        return window.head.snapshot is not None and window.start in _ids(table, window.head.snapshot)
    return window.start is not None and snapshot in _ids(table, window.start)


def _ids(table: Table, snapshot: int | None) -> set[int]:
    return {s.snapshot_id for s in ancestors(table, snapshot)}


def _after(table: Table, head: Watermark, newest: Watermark) -> int:
    """Return the number of snapshots of a source after the head that is read."""
    if head.snapshot == newest.snapshot or newest.snapshot is None:
        return 0
    later = [s.snapshot_id for s in ancestors(table, newest.snapshot)]
    return later.index(head.snapshot) if head.snapshot in later else 0


def _agreeing(
    lake: _Upstream, windows: dict[TableId, Window], tables: Mapping[TableId, Table]
) -> dict[TableId, Window]:
    """Return the windows, moved back so that their heads agree on one more common upstream table; unchanged if they
    agree on all of them.

    Only tables upstream of models are compared: a late stream does not hold up the rows of other streams.
    """
    upstream = {s: lake.snapshots(str(s), w.head) for s, w in windows.items()}
    names = {n for snapshots in upstream.values() for n in snapshots}
    for name in sorted(n for n in names if sum(n in snapshots for snapshots in upstream.values()) > 1):
        oldest = lake.oldest(name, [snapshots[name] for snapshots in upstream.values() if name in snapshots])
        if oldest is None:
            continue
        changed: dict[TableId, Window] = {}
        concerned = [s for s, snapshots in upstream.items() if name in snapshots]
        for source in concerned:
            window, absorbed, table = windows[source], upstream[source][name], tables[source]
            if absorbed.snapshot == oldest:
                continue
            heads = [replace(window.head, snapshot=s.snapshot_id) for s in ancestors(table, window.head.snapshot)]
            earlier = next((h.snapshot for h in heads if lake.is_at(str(source), h, name, oldest)), None)
            if earlier is None:
                changed = _waiting([windows[s] for s in concerned])
                break
            is_absorbed = window.start in {h.snapshot for h in heads} and earlier in _ids(table, window.start)
            head = window.start if is_absorbed else earlier
            changed[source] = replace(window, head=replace(window.head, snapshot=head))
        if any(windows[s] != w for s, w in changed.items()):
            return windows | changed
    return windows


def _waiting(windows: Sequence[Window]) -> dict[TableId, Window]:
    """Return empty windows, for sources that wait until a late one has caught up: a model only reads combinations of
    snapshots that existed.

    On a first run there is nothing to wait with, and the newest snapshots are read.
    """
    if any(w.start is None for w in windows):
        return {}
    return {w.source: replace(w, head=replace(w.head, snapshot=w.start)) for w in windows}


@dataclass(frozen=True)
class _Upstream:
    """The tables upstream of models, each loaded once."""

    lake: LakeBase
    loaded: dict[str, Table | None]

    def _table(self, name: str) -> Table | None:
        if name not in self.loaded:
            self.loaded[name] = self.lake.find(name)
        return self.loaded[name]

    def is_at(self, source: str, head: Watermark, name: str, snapshot: int) -> bool:
        """Whether a source is computed from a snapshot of another table."""
        absorbed = self.snapshots(source, head).get(name)
        return absorbed is not None and absorbed.snapshot == snapshot

    def snapshots(self, name: str, mark: Watermark) -> dict[str, Watermark]:
        """Return the snapshot of each table that a table's snapshot is computed from: itself, and recursively what the
        models upstream have absorbed."""
        snapshots, table = {name: mark}, self._table(name)
        if table is None or FINGERPRINT_PROPERTY not in table.properties or mark.snapshot is None:
            return snapshots
        for snapshot in ancestors(table, mark.snapshot):
            properties = snapshot.summary.additional_properties if snapshot.summary else {}
            if WATERMARK in properties:
                for source, absorbed in parse_marks(properties[WATERMARK]).items():
                    for n, m in self.snapshots(source, absorbed).items():
                        snapshots.setdefault(n, m)
                break
        return snapshots

    def oldest(self, name: str, marks: list[Watermark]) -> int | None:
        """Return the oldest of some snapshots of one table; None if they are equal or cannot be ordered."""
        ids = {m.snapshot for m in marks}
        if len(ids) < 2 or None in ids or (table := self._table(name)) is None:
            return None
        order = [s.snapshot_id for s in ancestors(table)]
        if not ids <= set(order):
            return None
        return max((i for i in ids if i is not None), key=order.index)
