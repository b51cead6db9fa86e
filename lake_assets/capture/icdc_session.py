"""The ICDC tables that are open for a capture, and the data files behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from lake_assets.capture import icdc
from lake_assets.capture.capture_parts import Part
from lake_assets.capture.capture_planning import Plan
from lake_assets.capture.files.deletion_vectors import DeletedRows, deleted_rows
from lake_assets.capture.files.manifests import THREADS
from lake_assets.capture.files.partition_keys import unpartitioned_specs
from lake_assets.capture.files.row_ids import RowIds, row_ids
from lake_assets.errors import LOST_FILE_ADVICE, MissingDataFileError
from lake_assets.lake import LakeBase


@dataclass(frozen=True)
class PartTables:
    """The ICDC tables over one part; None: there is no file to read, or other tables tell."""

    after: str | None
    before: str | None
    shared: tuple[str, str] | None = None
    """Where rows have no lineage: the files on both sides, as before and as after."""
    only_before: str | None = None
    only_after: str | None = None
    newer: str | None = None
    """Where rows have lineage: the files that may hold inserted or updated rows, where not all do."""
    all_newer: bool = False
    """Whether these files hold such rows alone."""
    went: tuple[str | None, str | None] | None = None
    """Where deletion vectors tell the rows that went: these rows, and the files in which some may be carried along."""
    carried_rows: int = 0
    is_restored: bool = False
    """Whether rows came back that deletes had hidden: where rows have lineage, all versions have to be compared."""


class OpenTables:
    """Makes the tables of a capture's parts when they are asked for, once, and drops them together."""

    def __init__(
        self, lake: LakeBase, source: Table, former: Mapping[int, NestedField], expires: datetime | None = None
    ) -> None:
        """
        Args:
            lake: where the tables are made.
            source: the table that was captured.
            former: top-level fields, by id, that the window's start has with a type that its end cannot read.
            expires: when the tables may be swept; None: when this process has ended.
        """
        self._expires = expires
        self._lake = lake
        self._source = source
        self._former = former
        self._unpartitioned = unpartitioned_specs(source.specs())
        self._written: list[icdc.Written] = []
        self._of: dict[int, PartTables] = {}

    def of(self, part: Part) -> PartTables:
        """The tables of a part.

        Raises:
            MissingDataFileError: a captured file is gone; names it.
            CaptureWriteError: the tables cannot be made.
        """
        if id(part) not in self._of:
            check_files(self._source.io, part.plan)
            self._of[id(part)] = self._open(part)
        return self._of[id(part)]

    def sides_of(self, part: Part) -> tuple[str | None, str | None]:
        """Tables over all files of a part, as before and as after.

        Raises:
            MissingDataFileError, CaptureWriteError: as `of`.
        """
        check_files(self._source.io, part.plan)
        return self._sides(part, part.plan, icdc.new_name(part.window.table))

    def close(self) -> None:
        """Drop them."""
        self._of.clear()
        while self._written:
            icdc.drop(self._lake, self._written.pop())

    def _open(self, part: Part) -> PartTables:
        planned, name = part.plan, icdc.new_name(part.window.table)
        ids = row_ids(self._source, part.window, planned) if part.has_lineage else None
        path = icdc.vectors_path(self._source, f"{name}_went_before")
        went = (
            deleted_rows(self._source.io, planned, self._unpartitioned, path, ids) if ids and planned.shared else None
        )
        if went is not None and ids is not None and not went.is_restored:
            return self._by_vectors(part, ids, went, name)
        is_restored = went is not None
        ids = None if is_restored else ids
        before, after = self._sides(part, planned, name)
        if not (before and after):
            return PartTables(after, before)
        if part.has_lineage:
            newer = planned if ids is None else ids.newer(planned)
            if len(newer.after.data) == len(planned.after.data):
                return PartTables(after, before, newer=after, is_restored=is_restored)
            return PartTables(after, before, newer=self._sides(part, newer, f"{name}_newer")[1])
        shared, moved = planned.split()
        if shared.is_empty:
            return PartTables(after, before, None, before, after)
        if moved.is_empty:
            return PartTables(after, before, (before, after))
        went, came = self._sides(part, moved, f"{name}_moved")
        was, now = self._sides(part, shared, f"{name}_shared")
        return PartTables(after, before, (was, now) if was and now else None, went, came)

    def _by_vectors(self, part: Part, ids: RowIds, went: DeletedRows, name: str) -> PartTables:
        """The tables where deletion vectors tell what went."""
        newer = ids.newer(part.plan)
        came = self._sides(part, newer, f"{name}_newer")[1]
        all_newer = not any(map(ids.may_carry, newer.after.data))
        before, carried = self._sides(part, Plan(went.after, went.before), f"{name}_went", went.puffin)
        rows = sum(e.records for e in went.after.data)
        return PartTables(
            None, None, newer=came, all_newer=all_newer, went=(before, carried), carried_rows=rows
        )  # fmt: skip

    def _sides(
        self, part: Part, planned: Plan, name: str, vectors: bytes | None = None
    ) -> tuple[str | None, str | None]:
        """The tables as before and as after."""
        named: list[str | None] = []
        for which, side, point, former in (
            ("before", planned.before, part.window.start, self._former),
            ("after", planned.after, part.window.end, None),
        ):
            if side.data and point is not None:
                made = vectors if which == "before" else None
                self._written.append(
                    icdc.write(
                        self._lake,
                        self._source,
                        part.window,
                        side,
                        point,
                        f"{name}_{which}",
                        former,
                        made,
                        self._expires,
                    )
                )
                named.append(str(self._written[-1].table))
            else:
                named.append(None)
        return named[0], named[1]


def check_files(io: FileIO, planned: Plan) -> None:
    """Raise for a captured file that is gone: a reader would only find out in the middle of its work."""

    def gone(paths: Iterable[str]) -> list[str]:
        with ThreadPoolExecutor(THREADS) as pool:
            todo = list(paths)
            return [
                p
                for p, there in zip(todo, pool.map(lambda p: io.new_input(p).exists(), todo), strict=True)
                if not there
            ]

    sides = (planned.after, planned.before)
    missing = gone({e.path for side in sides for e in (*side.data, *side.deletes)})
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise MissingDataFileError(
            f"{missing[0]}{more} is gone, though a snapshot names it: it was deleted behind the table's back, by an "
            f"orphan removal with too short an age or by hand. {LOST_FILE_ADVICE}. Where it belongs to the past alone, "
            "a full capture (start=None) does not need it"
        )
