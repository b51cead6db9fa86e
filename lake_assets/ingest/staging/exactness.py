"""What is known to be inexact in a table: stored with it, so that outcomes, `status` and assets can say so.

A stream does not carry everything: a column that is added with a default fills rows that no event reports, a rename is
no event at all, and a rejected record leaves its row as it was. Staging notes what it sees of this; a final table keeps
those notes that still matter for its own rows, and whatever is made of a final table is as inexact as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table
from pyspark.sql import functions as F

from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records.rejects import rejected_of
from lake_assets.ingest.staging.staging_tables import set_property
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.metadata.watermark import PROPERTY as WATERMARK
from lake_assets.lake.metadata.watermark import find_property, read_marks
from lake_assets.tables.outcome import INEXACT

PROPERTY = "lake-assets.not-exact"


@dataclass(frozen=True)
class Reason:
    """Why a table is not exact.

    Attributes:
        kind: `rejected`, `default`, `rename` or `deletes`.
        text: the sentence for people.
        columns: those that it is about: of a rename, the old one and the new one.
        count: how many records, where it is about some.
    """

    kind: str
    text: str
    columns: tuple[str, ...] = ()
    count: int = 0


def rejected(count: int) -> Reason:
    """Return the reason for a table of which some records are rejected."""
    what = (
        "1 record is rejected, and what it says" if count == 1 else f"{count} records are rejected, and what they say"
    )
    return Reason("rejected", f"{what} is missing (`lake-assets rejected`)", count=count)


def added_with_default(column: str) -> Reason:
    """Return the reason for a column that the source filled without an event."""
    return Reason(
        "default",
        f"column {column} was added with a default at the source: rows that have not changed since hold null here",
        (column,),
    )


def renamed(old: str, new: str) -> Reason:
    """Return the reason for a rename that nobody has declared."""
    return Reason(
        "rename",
        f"column {new} came when {old} went. If that was a rename, declare `rename: {{{old}: {new}}}`; until then "
        f"rows that have not changed since have their value in {old}. If it was none, declare "
        f"`rename: {{{old}: {old}}}`",
        (old, new),
    )


def deletes_without_row(count: int) -> Reason:
    """Return the reason for a table without a key in which deleted rows were not found."""
    return Reason(
        "deletes", f"{count} deletes or updates were about rows with values that no row here has", count=count
    )


def stored_in(table: Table) -> tuple[Reason, ...]:
    """Return the reasons that are stored with a table."""
    stored = json.loads(table.properties.get(PROPERTY, "[]"))
    return tuple(Reason(r["kind"], r["text"], tuple(r["columns"]), r["count"]) for r in stored)


def store(lake: LakeBase, table: TableId, reasons: Sequence[Reason]) -> None:
    """Store the reasons with the table, in place of those that it has."""
    loaded = lake.table(table)
    if tuple(reasons) != stored_in(loaded) or PROPERTY not in loaded.properties:
        set_property(lake, table, PROPERTY, json.dumps([asdict(r) for r in reasons]))


def reasons_of(lake: LakeBase, table: TableId) -> list[str]:
    """Return why a table is not exact: by its own reasons, or, where it notes none of its own, by those of its sources.

    Reads metadata only.
    """
    loaded = lake.find(table)
    if loaded is None:
        return []
    if PROPERTY in loaded.properties:
        return [r.text for r in stored_in(loaded)]
    # Tables that are filled from files have none.
    marks = read_marks(loaded) if find_property(loaded, WATERMARK) else {}
    sources = (TableId.parse(source) for source in marks)
    return [f"{source}: {text}" for source in sources for text in reasons_of(lake, source)]


def said_in(reasons: Iterable[Reason]) -> dict[str, object]:
    """Return what an outcome's details say of it; nothing for a table that is exact."""
    return {INEXACT: texts} if (texts := [r.text for r in reasons]) else {}


# --- staging ----------------------------------------------------------------------------------------------------


def of_staging(
    lake: LakeBase, spec: StagingSpec, seen: Sequence[Reason], *, has_rejects: bool, is_whole: bool
) -> tuple[Reason, ...]:  # fmt: skip
    """Store and return what is inexact after a step.

    Args:
        lake: the lake.
        spec: the staging table.
        seen: what the step saw.
        has_rejects: whether the step rejected records, or took in rejected ones.
        is_whole: whether it read all records.
    """
    loaded = lake.table(spec.table)
    stored, columns = stored_in(loaded), {f.name for f in loaded.schema().fields}
    before = () if is_whole else stored
    found = [
        r
        for r in dict.fromkeys((*before, *seen))
        if r.kind != "rejected" and (r.kind != "rename" or _is_undeclared(r, spec)) and columns.issuperset(r.columns)
    ]
    if has_rejects or any(r.kind == "rejected" for r in stored):
        count = _rejected_records(lake, spec.raw, str(spec.source_table))
        found += [rejected(count)] if count else []
    if found or stored:
        store(lake, spec.table, found)
    return tuple(found)


def _is_undeclared(reason: Reason, spec: StagingSpec) -> bool:
    old, new = reason.columns
    return spec.rename.get(old) != new and old not in spec.not_renamed


def _rejected_records(lake: LakeBase, raw: TableId, source_table: str) -> int:
    rejects = lake.find(rejected_of(raw))
    if rejects is None:
        return 0
    mine = EqualTo("source_table", source_table)  # pyright: ignore[reportCallIssue]
    rows = rejects.scan(row_filter=mine, selected_fields=("position",)).to_arrow()
    return len(set(rows["position"].to_pylist()))


# --- final tables -----------------------------------------------------------------------------------------------


def of_final(
    lake: LakeBase, table: TableId, staging: TableId, called: Mapping[str, str], without_row: int, *, is_new: bool
) -> tuple[Reason, ...]:
    """Store and return what is inexact after a step: what staging notes and still matters, and what the step found.

    Args:
        lake: the lake.
        table: the final table.
        staging: its staging table.
        called: names of its columns by those of staging's that they are as they stand there.
        without_row: how many deletes of the step found no row.
        is_new: whether the step made the table anew.
    """
    noted, before = stored_in(lake.table(staging)), stored_in(lake.table(table))
    found = [r for r in noted if not r.columns or _shows(lake, table, [called.get(c) for c in r.columns])]
    earlier = [] if is_new else [r for r in before if r.kind == "deletes"]
    if without_row:
        earlier = [deletes_without_row(without_row + sum(r.count for r in earlier))]
    found += earlier
    if found or before or noted:
        store(lake, table, found)
    return tuple(found)


def _shows(lake: LakeBase, table: TableId, columns: Sequence[str | None]) -> bool:
    """Whether some row still lacks the value: that of the last column, where those before it hold one."""
    if None in columns:
        return False
    *old, new = (F.col(quote(c or "")) for c in columns)
    lacking = new.isNull()
    for column in old:
        lacking = lacking & column.isNotNull()
    return not lake.spark().table(lake.sql_name(table)).where(lacking).limit(1).isEmpty()
