"""Reasons why a table is known to be inexact: stored with it and shown in outcomes, `status` and assets.

A stream does not carry everything. A column added with a default fills rows without an event, a rename is not an event,
and a rejected record does not change its row. Staging stores the reasons that it sees; a final table keeps those that
still matter for its own rows, and tables downstream inherit the reasons of their sources.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from pyiceberg.table import Table
from pyspark.sql import functions as F

from lake_assets.formats.event_model import OP, READ
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records.rejects import rejected_records
from lake_assets.ingest.staging.staging_columns import set_property
from lake_assets.ingest.staging.staging_rejects import at_limit
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.metadata.watermark import PROPERTY as WATERMARK
from lake_assets.lake.metadata.watermark import find_property, read_marks
from lake_assets.lake.names import literal
from lake_assets.tables.outcome import INEXACT

PROPERTY = "lake-assets.not-exact"
# Columns that records have left out, and that have been looked up (see `only_read`).
LEFT_OUT_PROPERTY = "lake-assets.left-out"


@dataclass(frozen=True)
class Reason:
    """Why a table is not exact.

    Attributes:
        kind: `rejected`, `default`, `rename`, `generated`, `saturated` or `deletes`.
        text: the sentence for people.
        columns: the columns concerned; for a rename, the old one and the new one.
        count: the number of records concerned, if any.
    """

    kind: str
    text: str = field(compare=False)  # its wording may change between versions
    columns: tuple[str, ...] = ()
    count: int = 0


def rejected(count: int) -> Reason:
    """Return the reason for a table with rejected records."""
    subject = "1 record is rejected, and its data" if count == 1 else f"{count} records are rejected, and their data"
    return Reason("rejected", f"{subject} is missing (`lake-assets rejected`)", count=count)


def added_with_default(column: str) -> Reason:
    """Return the reason for a column that the source filled without an event."""
    return Reason(
        "default",
        f"column {column} was added with a default at the source: rows that have not changed since hold null here",
        (column,),
    )


def renamed(old: str, new: str) -> Reason:
    """Return the reason for a possible rename that is not declared."""
    return Reason(
        "rename",
        f"column {new} appeared when {old} disappeared. If that was a rename, declare `rename: {{{old}: {new}}}`; "
        f"until then rows that have not changed since have their value in {old}. If it was not, declare `rename: "
        f"{{{old}: {old}}}`",
        (old, new),
    )


def generated(column: str) -> Reason:
    """Return the reason for a column that a snapshot has and the changes after it leave out."""
    return Reason(
        "generated",
        f"column {column} is in the snapshot, but in no change after it: rows that have changed since hold its old "
        "value, and new rows null. A stored generated column is left out of Postgres's stream: compute it in "
        f"`columns`, or in a model. If the column was dropped instead, declare `rename: {{{column}: {column}}}`",
        (column,),
    )


def saturated(column: str) -> Reason:
    """Return the reason for a column with values that stand for ones beyond its type."""
    return Reason(
        "saturated",
        f"column {column} holds intervals that are longer than the stream can say (292,271 years in microseconds): "
        "they arrived as the greatest or the smallest bigint",
        (column,),
    )


def deletes_without_row(count: int) -> Reason:
    """Return the reason for a table without a key where rows to delete were not found."""
    return Reason(
        "deletes", f"{count} deletes or updates were about rows with values that no row here has", count=count
    )


def stored_in(table: Table) -> tuple[Reason, ...]:
    """Return the reasons stored with a table."""
    stored = json.loads(table.properties.get(PROPERTY, "[]"))
    return tuple(Reason(r["kind"], r["text"], tuple(r["columns"]), r["count"]) for r in stored)


def store(lake: LakeBase, table: TableId, reasons: Sequence[Reason]) -> None:
    """Store the reasons with a table, replacing earlier ones."""
    loaded = lake.table(table)
    if tuple(reasons) != stored_in(loaded) or PROPERTY not in loaded.properties:
        set_property(lake, table, PROPERTY, json.dumps([asdict(r) for r in reasons]))


def reasons_of(lake: LakeBase, table: TableId) -> list[str]:
    """Return why a table is not exact: its stored reasons or, if it does not store any, those of its sources.

    Reads metadata only.
    """
    loaded = lake.find(table)
    if loaded is None:
        return []
    if PROPERTY in loaded.properties:
        return [r.text for r in stored_in(loaded)]
    # Tables filled from files have no watermark.
    marks = read_marks(loaded) if find_property(loaded, WATERMARK) else {}
    sources = (TableId.parse(source) for source in marks)
    return [f"{source}: {text}" for source in sources for text in reasons_of(lake, source)]


def details_of(reasons: Iterable[Reason]) -> dict[str, object]:
    """Return the details of an outcome; empty for an exact table."""
    return {INEXACT: texts} if (texts := [r.text for r in reasons]) else {}


# --- staging ----------------------------------------------------------------------------------------------------


def of_staging(
    lake: LakeBase, spec: StagingSpec, seen: Sequence[Reason], *, has_rejects: bool, is_whole: bool
) -> tuple[Reason, ...]:  # fmt: skip
    """Store and return the reasons after a step.

    Args:
        lake: the lake.
        spec: the staging table.
        seen: the reasons that the step saw.
        has_rejects: whether the step rejected records, or absorbed rejected ones.
        is_whole: whether it read all records.
    """
    loaded = lake.table(spec.table)
    stored, columns = stored_in(loaded), {f.name for f in loaded.schema().fields}
    before = () if is_whole else stored
    reasons = [
        r
        for r in dict.fromkeys((*before, *seen))
        if r.kind != "rejected" and _is_undeclared(r, spec) and columns.issuperset(r.columns)
    ]
    if has_rejects or any(r.kind == "rejected" for r in stored):
        count = rejected_records(lake, spec.raw, str(spec.source_table))
        reasons += [rejected(count)] if count else []
    if reasons or stored:
        store(lake, spec.table, reasons)
    return tuple(reasons)


def _is_undeclared(reason: Reason, spec: StagingSpec) -> bool:
    """Whether the declaration does not say otherwise."""
    if reason.kind == "generated":
        return reason.columns[0] not in spec.not_renamed
    return reason.kind != "rename" or (
        spec.rename.get(reason.columns[0]) != reason.columns[1] and reason.columns[0] not in spec.not_renamed
    )


def only_read(lake: LakeBase, spec: StagingSpec, left_out: Sequence[str], *, is_whole: bool) -> list[str]:
    """Return the columns that snapshots have and no change has; the others of them were dropped.

    Each column is looked up once, when it is first left out.

    Args:
        lake: the lake.
        spec: the staging table, which holds the events.
        left_out: columns that the newest records do not have.
        is_whole: whether all records were read again, so that earlier look-ups do not count.
    """
    loaded = lake.table(spec.table)
    stored = json.loads(loaded.properties.get(LEFT_OUT_PROPERTY, "[]"))
    existing = {f.name for f in loaded.schema().fields}
    new = [c for c in left_out if c in existing and (is_whole or c not in stored)]
    if not new:
        return []
    looks = [
        f"coalesce(bool_or({quote(c)} IS NOT NULL AND {quote(OP)} {sign} {literal(READ)}), false)"
        for c in new
        for sign in ("=", "<>")
    ]
    found = iter(lake.spark().table(lake.sql_name(spec.table)).selectExpr(*looks).collect()[0])
    set_property(lake, spec.table, LEFT_OUT_PROPERTY, json.dumps(sorted({*stored, *new})))
    return [c for c, is_read, is_changed in zip(new, found, found, strict=True) if is_read and not is_changed]


# --- final tables -----------------------------------------------------------------------------------------------


def of_final(
    lake: LakeBase, table: TableId, staging: TableId, names: Mapping[str, str], without_row: int, *, is_new: bool
) -> tuple[Reason, ...]:
    """Store and return the reasons after a step: those of staging that still matter, and deletes that found no row.

    Args:
        lake: the lake.
        table: the final table.
        staging: its staging table.
        names: names of its columns by the staging column that they copy unchanged.
        without_row: how many deletes of the step found no row.
        is_new: whether the step created or replaced the table.
    """
    upstream, stored = stored_in(lake.table(staging)), stored_in(lake.table(table))
    reasons = [r for r in upstream if not r.columns or _shows(lake, table, r.kind, [names.get(c) for c in r.columns])]
    earlier = [] if is_new else [r for r in stored if r.kind == "deletes"]
    if without_row:
        earlier = [deletes_without_row(without_row + sum(r.count for r in earlier))]
    reasons += earlier
    if reasons or stored or upstream:
        store(lake, table, reasons)
    return tuple(reasons)


def _shows(lake: LakeBase, table: TableId, kind: str, columns: Sequence[str | None]) -> bool:
    """Whether some row is still affected: the last column is null, and the earlier columns are not."""
    if None in columns:
        return False
    if kind == "generated":
        return True  # its old values do not show
    if kind == "saturated":
        limits = at_limit(quote(columns[0] or ""))
        return not lake.spark().table(lake.sql_name(table)).where(limits).limit(1).isEmpty()
    *old, new = (F.col(quote(c or "")) for c in columns)
    lacking = new.isNull()
    for column in old:
        lacking = lacking & column.isNotNull()
    return not lake.spark().table(lake.sql_name(table)).where(lacking).limit(1).isEmpty()
