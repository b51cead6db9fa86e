"""The open ICDC tables of a capture, and the data files behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.table import Table
from pyiceberg.types import NestedField

from lake_assets.capture import icdc, source_tags
from lake_assets.capture.changed_files import Part
from lake_assets.capture.files.deletion_vectors import DeletedRows, deleted_rows
from lake_assets.capture.files.file_partitions import unpartitioned_specs
from lake_assets.capture.files.manifests import THREADS
from lake_assets.capture.files.planned_files import Plan, Side
from lake_assets.capture.files.row_ids import RowIds, row_ids
from lake_assets.capture.snapshot_points import Point
from lake_assets.capture.windows import Window
from lake_assets.errors import LOST_FILE_ADVICE_OF_CAPTURE, MissingDataFileError
from lake_assets.lake import LakeBase, TableId


@dataclass(frozen=True)
class PartTables:
    """Quoted names of the ICDC tables over one part; None for a table without files, or one that is not needed."""

    after: str | None = None
    before: str | None = None
    shared: tuple[str, str] | None = None
    """Without row lineage: the files on both sides, as before and as after."""
    only_before: str | None = None
    only_after: str | None = None
    newer: str | None = None
    """With row lineage: the files that may contain inserted or updated rows."""
    all_newer: bool = False
    """Whether these files contain only such rows."""
    deleted: tuple[str | None, str | None] | None = None
    """If deletion vectors identify the deleted rows: these rows, and the files into which some may be carried over."""
    carried_rows: int = 0
    is_restored: bool = False
    """Whether deleted rows came back: then, with row lineage, the versions of all rows have to be compared."""


class OpenTables:
    """Creates the tables of a capture's parts on first use, and drops them together."""

    def __init__(
        self,
        lake: LakeBase,
        source: Table,
        old_types: Mapping[int, NestedField],
        expires: datetime | None = None,
        *,
        keep: Iterable[int] = (),
    ) -> None:
        """
        Args:
            old_types: top-level fields, by id, with a type at the window's start that its end cannot read.
            expires: when the tables may be swept; None: when this process has ended.
            keep: snapshots that tags keep from expiring while the tables are open.
        """
        self._expires = expires
        tag = source_tags.of_capture(lasts=expires is not None)
        self._tags = {f"{tag}.{n}": snapshot for n, snapshot in enumerate(keep)}
        self._lake = lake
        self._source = source
        self._old_types = old_types
        self._unpartitioned = unpartitioned_specs(source.specs())
        self._registered: list[icdc.RegisteredTable] = []
        self._of: dict[int, PartTables] = {}
        self._is_kept = False

    def of(self, part: Part) -> PartTables:
        """Return the tables of a part.

        Raises:
            MissingDataFileError: a captured file is missing; names it.
            CaptureWriteError: the tables cannot be created.
        """
        if id(part) not in self._of:
            self._check(part)
            self._of[id(part)] = self._open(part)
        return self._of[id(part)]

    def sides_of(self, part: Part) -> tuple[str | None, str | None]:
        """Return tables over all files of a part, as before and as after.

        Raises:
            MissingDataFileError, CaptureWriteError: see `of`.
        """
        self._check(part)
        before, after = self._write(part, part.plan, icdc.new_name(part.window.table))
        return str(before) if before else None, str(after) if after else None

    def close(self) -> None:
        """Drop the tables."""
        self._of.clear()
        while self._registered:
            icdc.drop(self._lake, self._registered.pop())
        if self._is_kept:
            source_tags.release(self._lake, TableId.parse(self._source.name()), lambda _: self._tags)
        self._is_kept = False

    def _check(self, part: Part) -> None:
        """Tag the snapshots that are to be kept, once, and check that the files of a part exist."""
        if not self._is_kept and self._tags:
            lasts = (self._expires - datetime.now(UTC)).total_seconds() if self._expires else 0
            source_tags.keep(self._lake, self._source, self._tags, source_tags.days_until(lasts))
            self._is_kept = True
        check_files(self._lake, self._source, part.window, part.plan)

    def _open(self, part: Part) -> PartTables:
        planned, name = part.plan, icdc.new_name(part.window.table)
        ids = row_ids(self._source, part.window, planned) if part.has_lineage else None
        path = icdc.vectors_path(self._source, f"{name}_went_before")
        deleted = (
            deleted_rows(self._source.io, planned, self._unpartitioned, path, ids) if ids and planned.shared else None
        )
        if deleted is not None and ids is not None and not deleted.is_restored:
            return self._by_vectors(part, ids, deleted, name)
        is_restored = deleted is not None
        ids = None if is_restored else ids
        before, after = self._sides(part, planned, name)
        if not (before and after):
            return PartTables(after, before)
        if part.has_lineage:
            newer = planned if ids is None else ids.newer(planned)
            if len(newer.after.data) == len(planned.after.data):
                return PartTables(after, before, newer=after, is_restored=is_restored)
            return PartTables(after, before, newer=self._sides(part, newer, f"{name}_newer")[1])
        shared, exchanged = planned.split()
        if shared.is_empty:
            return PartTables(after, before, None, before, after)
        if exchanged.is_empty:
            return PartTables(after, before, (before, after))
        only_before, only_after = self._sides(part, exchanged, f"{name}_moved")
        shared_before, shared_after = self._sides(part, shared, f"{name}_shared")
        both = (shared_before, shared_after) if shared_before and shared_after else None
        return PartTables(after, before, both, only_before, only_after)

    def _by_vectors(self, part: Part, ids: RowIds, deleted: DeletedRows, name: str) -> PartTables:
        """Return the tables of a part whose deleted rows are identified by deletion vectors."""
        newer = ids.newer(part.plan)
        added = self._sides(part, newer, f"{name}_newer")[1]
        all_newer = not any(map(ids.may_carry, newer.after.data))
        tables = self._sides(part, Plan(deleted.after, deleted.before), f"{name}_went", deleted.puffin)
        rows = sum(e.records for e in deleted.after.data)
        return PartTables(None, None, newer=added, all_newer=all_newer, deleted=tables, carried_rows=rows)

    def _sides(
        self, part: Part, planned: Plan, name: str, vectors: bytes | None = None
    ) -> tuple[str | None, str | None]:
        """Create the tables as before and as after; return their quoted names."""
        before, after = self._write(part, planned, name, vectors)
        sql = self._lake.sql_name
        return sql(before) if before else None, sql(after) if after else None

    def _write(
        self, part: Part, planned: Plan, name: str, vectors: bytes | None = None
    ) -> tuple[TableId | None, TableId | None]:
        window = part.window
        before = self._table(window, planned.before, window.start, f"{name}_before", self._old_types, vectors)
        return before, self._table(window, planned.after, window.end, f"{name}_after")

    def _table(
        self,
        window: Window,
        side: Side,
        point: Point | None,
        name: str,
        old_types: Mapping[int, NestedField] | None = None,
        vectors: bytes | None = None,
    ) -> TableId | None:
        if not side.data or point is None:
            return None
        self._registered.append(
            icdc.write(self._lake, self._source, window, side, point, name, old_types, vectors, self._expires)
        )
        return self._registered[-1].table


def check_files(lake: LakeBase, source: Table, window: Window, planned: Plan) -> None:
    """Raise MissingDataFileError if a captured file is missing, before a reader fails halfway."""
    sides = (planned.after, planned.before)
    paths = list({e.path for side in sides for e in (*side.data, *side.deletes)})
    with ThreadPoolExecutor(THREADS) as pool:
        exists = pool.map(lambda p: source.io.new_input(p).exists(), paths)
        missing = [p for p, is_file in zip(paths, exists, strict=True) if not is_file]
    if not missing:
        return
    what = missing[0] + (f" (and {len(missing) - 1} more)" if len(missing) > 1 else "")
    now = lake.find(window.table)
    points = [p for p in (window.start, window.end) if p is not None]
    if now is None or now.metadata.table_uuid != source.metadata.table_uuid:
        raise MissingDataFileError(
            f"{what} is gone: {window.table} was dropped{' and created again' if now else ''} since this capture was "
            "planned. Run again, or capture the table that is there now"
        )
    if expired := [p for p in points if now.snapshot_by_id(p.snapshot_id) is None]:
        raise MissingDataFileError(
            f"{what} is gone: the snapshot of {window.table} that names it has expired since this capture was planned. "
            f"Run again, or capture from a snapshot that exists (expired: "
            f"{', '.join(str(p.snapshot_id) for p in expired)})"
        )
    raise MissingDataFileError(
        f"{what} is gone, but a snapshot still names it: it was deleted outside of Iceberg, by an orphan removal with "
        f"too short an age or by hand. {LOST_FILE_ADVICE_OF_CAPTURE}"
    )
