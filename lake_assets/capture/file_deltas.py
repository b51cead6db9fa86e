"""How much of a window's change lies where: by file, from metadata alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from lake_assets.capture.capture_planning import Plan
from lake_assets.capture.field_ranges import ANYTHING, FieldRange, field_ranges
from lake_assets.capture.files.delete_files import DeleteIndex
from lake_assets.capture.files.deletion_vectors import is_vector
from lake_assets.capture.files.manifests import EQUALITY_DELETES, Entry
from lake_assets.capture.files.row_ids import RowIds


@dataclass(frozen=True)
class Piece:
    """One file whose visible state changed.

    Attributes:
        range: of the values of one column in it, changed rows or not; where rows may have been carried from one file to
            another, it is not known which files hold changed ones: anything then.
        came, went: rows that it brought or that it does not show any more; None: not known.
        bytes: of the file where it came, else of what hides its rows.
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
    """The files of a plan; one that both sides have, with other deletes, once.

    Args:
        planned: the plan.
        column: a top-level column of a primitive type.
        schema: the table's.
        specs: its partition specs by id.
        unpartitioned: ids of those without fields.
        unreadable: ids of fields whose values files of the start hold with another type.
        ids: what row ids say about the window; None: rows have none, or the start does not lead to the end.
    """
    was, now = DeleteIndex(planned.before.deletes, unpartitioned), DeleteIndex(planned.after.deletes, unpartitioned)
    narrow = schema.select(column)
    at = narrow.find_field(column).field_id
    both = {e.path: e for e in planned.after.data if e.path in planned.shared}
    # Where files came and went, rows may have been carried from the one to the other.
    carries = any(e.path not in both for e in planned.before.data) and (
        ids is None or any(ids.may_carry(e) for e in planned.after.data if e.path not in both)
    )

    def range_(e: Entry, *, old: bool = False) -> FieldRange:
        if (old and at in unreadable) or (carries and e.path not in both):
            return ANYTHING
        found = field_ranges([e], narrow, specs)[column]
        values = zip(specs[e.spec_id].fields, e.partition, strict=True)
        # A null has a partition of its own.
        of_value = any(f.source_id == at and v is not None for f, v in values)
        return replace(found, nulls=False) if of_value else found

    for e in planned.after.data:
        if e.path not in both:
            yield Piece(range_(e), None if carries else _shown(e, now), 0, e.bytes)
    for e in planned.before.data:
        if e.path not in both:
            yield Piece(range_(e, old=True), 0, None if carries else _shown(e, was), 0)
            continue
        new = both[e.path]
        before, after = _hidden(e, was), _hidden(new, now)
        size = sum(d.bytes for d in now.applying_to(new))
        if before is None or after is None:
            yield Piece(range_(e, old=True), None, None, size)
        else:
            yield Piece(range_(e, old=True), max(0, before - after), max(0, after - before), size)


def _shown(e: Entry, deletes: DeleteIndex) -> int | None:
    hidden = _hidden(e, deletes)
    return None if hidden is None else e.records - hidden


def _hidden(e: Entry, deletes: DeleteIndex) -> int | None:
    """How many rows of a file are deleted; None: that cannot be told."""
    applying = deletes.applying_to(e)
    if not applying:
        return 0
    if len(applying) > 1 or applying[0].content == EQUALITY_DELETES or not is_vector(applying[0]):
        return None
    return applying[0].records
