"""Size of a window's change per file, from metadata alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from lake_assets.capture.field_ranges import ANYTHING, FieldRange, field_ranges
from lake_assets.capture.files.delete_files import DeleteIndex
from lake_assets.capture.files.deletion_vectors import is_vector
from lake_assets.capture.files.manifests import EQUALITY_DELETES, Entry
from lake_assets.capture.files.planned_files import Plan
from lake_assets.capture.files.row_ids import RowIds


@dataclass(frozen=True)
class Piece:
    """One file whose visible state changed.

    Attributes:
        range: range of one column over all rows of the file, changed or not; unbounded if rows may have been carried
            over between files, since any file may then contain changed rows.
        came, went: number of rows added or deleted; None if unknown.
        bytes: size of the file if it was added, else of the deletes that apply to it.
    """

    range: FieldRange
    came: int | None
    went: int | None
    bytes: int


def pieces(
    planned: Plan,
    column: str,
    schema: Schema,
    specs: Mapping[int, PartitionSpec],
    unpartitioned: frozenset[int],
    unreadable: Mapping[int, object],
    ids: RowIds | None,
) -> Iterator[Piece]:
    """Yield the files of a plan; a file on both sides, with different deletes, once.

    Args:
        column: a top-level column of a primitive type.
        unreadable: ids of fields that have another type in files of the start.
        ids: row ids in the window; None if rows have no ids, or the start is not an ancestor of the end.
    """
    deletes_before, deletes_after = (
        DeleteIndex(planned.before.deletes, unpartitioned),
        DeleteIndex(planned.after.deletes, unpartitioned),
    )
    projection = schema.select(column)
    field_id = projection.find_field(column).field_id
    both = {e.path: e for e in planned.after.data if e.path in planned.shared}
    # If files were added and removed, rows may have been carried over between them.
    may_carry = any(e.path not in both for e in planned.before.data) and (
        ids is None or any(ids.may_carry(e) for e in planned.after.data if e.path not in both)
    )

    def range_(e: Entry, *, old: bool = False) -> FieldRange:
        if (old and field_id in unreadable) or (may_carry and e.path not in both):
            return ANYTHING
        hull = field_ranges([e], projection, specs)[column]
        values = zip(specs[e.spec_id].fields, e.partition, strict=True)
        # Nulls have their own partition.
        of_value = any(f.source_id == field_id and v is not None for f, v in values)
        return replace(hull, nulls=False) if of_value else hull

    for e in planned.after.data:
        if e.path not in both:
            yield Piece(range_(e), None if may_carry else _visible_rows(e, deletes_after), 0, e.bytes)
    for e in planned.before.data:
        if e.path not in both:
            yield Piece(range_(e, old=True), 0, None if may_carry else _visible_rows(e, deletes_before), 0)
            continue
        new = both[e.path]
        before, after = _deleted_rows(e, deletes_before), _deleted_rows(new, deletes_after)
        size = sum(d.bytes for d in deletes_after.applying_to(new))
        if before is None or after is None:
            yield Piece(range_(e, old=True), None, None, size)
        else:
            yield Piece(range_(e, old=True), max(0, before - after), max(0, after - before), size)


def _visible_rows(e: Entry, deletes: DeleteIndex) -> int | None:
    deleted = _deleted_rows(e, deletes)
    return None if deleted is None else e.records - deleted


def _deleted_rows(e: Entry, deletes: DeleteIndex) -> int | None:
    """Return how many rows of a file are deleted; None if unknown."""
    applying = deletes.applying_to(e)
    if not applying:
        return 0
    if len(applying) > 1 or applying[0].content == EQUALITY_DELETES or not is_vector(applying[0]):
        return None
    return applying[0].records
