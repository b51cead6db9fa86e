"""The source rows that a model's row was computed from, as of what the model had absorbed at each of its versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from lake_assets.errors import LakeError, Refused, RowHistoryError
from lake_assets.history.file_rows import Row, comparable
from lake_assets.history.snapshot_rows import SnapshotRows, Visible, every_column
from lake_assets.history.wanted_rows import wanted
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.metadata.watermark import Watermarks
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.operators.query_tree import Scan
from lake_assets.models.operators.row_lineage import BoundScan, RowLineage, row_lineage
from lake_assets.models.steps.planned_models import planned


@dataclass(frozen=True)
class SourceRows:
    """The rows of one occurrence of a table in a model's query, which a row of the model was computed from.

    Attributes:
        bound: how they are found.
        rows: how the rows are read: their table and columns.
        at: the rows at each of the asked states of the model; None: the snapshot that the model had absorbed is gone.
    """

    bound: BoundScan
    rows: SnapshotRows
    at: tuple[Visible | None, ...]
    snapshots: tuple[int | None, ...]

    @property
    def table(self) -> TableId:
        """The table."""
        return self.bound.scan.table


@dataclass(frozen=True)
class Traced:
    """The source rows of a model's row.

    Attributes:
        sources: by occurrence of a table in the query.
        notes: what is not traced, and why, for people.
    """

    sources: tuple[SourceRows, ...]
    notes: tuple[str, ...]


def lineage_of(lake: LakeBase, spec: ModelSpec, key: Sequence[str]) -> RowLineage | Refused:
    """Return how the source rows of a row of a SQL model are found; a refusal if they cannot be."""
    try:
        plan = planned(spec, {s: lake.table(s) for s in spec.sources})
    except LakeError as e:
        return Refused(f"its query cannot be read for its sources as they are now: {e}")
    if plan.tree is None:
        return Refused(f"its query is computed as a whole ({plan.why})")
    if not key or not set(key) <= plan.tree.outputs.keys():
        return Refused(f"its rows have no key ({plan.key_why})")
    lineage = row_lineage(plan.tree, key)
    if not lineage.bound:
        return Refused("its key is computed, and is no column of a source as it is")
    return lineage


def traced(lake: LakeBase, lineage: RowLineage, values: Mapping[str, Any], states: Sequence[Watermarks]) -> Traced:
    """Return the source rows of the row with these values of its key, at some states of the model.

    Args:
        states: what the model had absorbed, by source.
    """
    found: dict[Scan, SourceRows] = {}
    notes = list(lineage.notes)
    for bound in lineage.bound:
        if any(s not in found for _, s, _ in bound.joins):
            continue  # the one that it is joined with was not traced
        try:
            rows = _read(lake, bound, values, states, found)
        except RowHistoryError:
            rows = Refused(f"it has more than {thresholds.HISTORY_ROWS:,} of them")
        if isinstance(rows, Refused):
            notes.append(f"{bound.scan.table}: its rows are not traced: {rows.reason}")
        else:
            found[bound.scan] = rows
    for scan in lineage.loose:
        notes.append(
            f"{scan.table}: the query does not bind its rows to the key by equal columns, so they are not traced"
        )
    return Traced(tuple(found.values()), tuple(dict.fromkeys(notes)))


def _read(
    lake: LakeBase,
    bound: BoundScan,
    values: Mapping[str, Any],
    states: Sequence[Watermarks],
    found: Mapping[Scan, SourceRows],
) -> SourceRows | Refused:
    table = lake.find(bound.scan.table)
    if table is None:
        return Refused("it does not exist any more")
    allowed = [_allowed(bound, values, found, n) for n in range(len(states))]
    union: dict[str, dict[Any, Any]] = {}
    for at in allowed:
        for column, these in at.items():
            union.setdefault(column, {}).update(these)
    if any(len(v) > thresholds.HISTORY_JOINED_VALUES for v in union.values()):
        return Refused(f"more than {thresholds.HISTORY_JOINED_VALUES:,} rows are joined with it")
    if any(c not in {f.name for f in table.schema().fields} for c in union):
        return Refused("its columns have changed")
    try:
        types = schema_to_pyarrow(table.schema())
        rows = SnapshotRows(lake, bound.scan.table, table, wanted(types, {c: [*v.values()] for c, v in union.items()}))
    except (pa.ArrowException, NotImplementedError, TypeError, ValueError) as e:
        return Refused(f"its columns have another type than the key: {e}")
    snapshots = [_snapshot(table, bound.scan.table, marks) for marks in states]
    ids = {c: every_column(table).find_field(c).field_id for c in union}
    at = (
        None if isinstance(s, Refused) else _only(rows.at(s), ids, these)
        for s, these in zip(snapshots, allowed, strict=True)
    )
    kept = tuple(None if isinstance(s, Refused) else s for s in snapshots)
    return SourceRows(bound, rows, tuple(at), kept)


def _allowed(
    bound: BoundScan, values: Mapping[str, Any], found: Mapping[Scan, SourceRows], state: int
) -> dict[str, dict[Any, Any]]:
    """Return the values that each bound column may have at a state, by what they are compared by."""
    allowed = {c: {comparable(values[o]): values[o]} for c, o in bound.pins.items()}
    for column, scan, of in bound.joins:
        other = found[scan]
        field = other.rows.schema.find_field(of).field_id
        joined = (row.get(field) for row in (other.at[state] or {}).values())
        these = {comparable(v): v for v in joined if v is not None}
        # Joined with several occurrences, it has a value of each.
        allowed[column] = {k: v for k, v in these.items() if column not in allowed or k in allowed[column]}
    return allowed


def _snapshot(table: Table, name: TableId, marks: Watermarks) -> int | Refused | None:
    """Return the snapshot of a source that a model had absorbed."""
    mark = marks.get(str(name))
    if mark is None:
        return Refused("unknown")
    if mark.snapshot is None:
        return None
    is_there = mark.uuid == str(table.metadata.table_uuid) and table.snapshot_by_id(mark.snapshot) is not None
    return mark.snapshot if is_there else Refused("expired")


def _only(rows: Visible, ids: Mapping[str, int], allowed: Mapping[str, Mapping[Any, Any]]) -> Visible:
    def fits(row: Row) -> bool:
        return all(comparable(row.get(ids[c])) in these for c, these in allowed.items())

    return {place: row for place, row in rows.items() if fits(row)}
