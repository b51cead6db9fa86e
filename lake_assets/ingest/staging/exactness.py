"""Reasons why a table is known to be inexact: stored with it and shown in outcomes, `status` and assets.

A stream does not carry everything. A column added with a default fills rows without an event, a rename is not an event,
and a rejected record does not change its row. Staging stores the reasons that it sees; a final table keeps those that
still matter for its own rows, and tables downstream inherit the reasons of their sources.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table
from pyspark.sql import functions as F

from lake_assets.formats.debezium_tombstones import REWRITE
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.records.rejects import rejected_of
from lake_assets.ingest.staging.staging_columns import set_property
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.metadata.watermark import PROPERTY as WATERMARK
from lake_assets.lake.metadata.watermark import find_property, read_marks
from lake_assets.tables.outcome import INEXACT

PROPERTY = "lake-assets.not-exact"


@dataclass(frozen=True)
class Reason:
    """Why a table is not exact.

    Attributes:
        kind: `rejected`, `default`, `rename`, `time`, `tombstones`, `snapshot`, `deletes` or `log`.
        text: the sentence for people.
        columns: the columns concerned; for a rename, the old one and the new one.
        count: the number of records concerned, if any; of a snapshot, the position of its first record.
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


def deletes_without_row(count: int) -> Reason:
    """Return the reason for a table without a key where rows to delete were not found."""
    return Reason(
        "deletes", f"{count} deletes or updates were about rows with values that no row here has", count=count
    )


def deleted_by_tombstones() -> Reason:
    """Return the reason for a table where tombstones are all that the stream says of some deletes."""
    return Reason(
        "tombstones",
        "tombstones are all that the stream says of some deletes, so the times of these deletes are those at which the "
        f"tombstones were sent or arrived: {REWRITE}",
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


def read_again(start: int, rows: int | None = None) -> Reason:
    """Return the reason for a table that a later snapshot read as a whole.

    Args:
        start: position in the raw table of the snapshot's first record.
        rows: number of rows that the snapshot did not hold; None: rows that it holds may be in the table twice.
    """
    what = "rows that it read are here once more"
    if rows is not None:
        these = "1 row here was" if rows == 1 else f"{rows} rows here were"
        what = f"{these} not in it any more: deleted at the source while no change was recorded"
    return Reason(
        "snapshot",
        f"the connector took another snapshot of the source table, from record {start} on, and {what}. Declare "
        f"`start_position: {start}`: then the table holds the events from that snapshot on",
        count=start,
    )


def set_back(count: int) -> Reason:
    """Return the reason for events whose position in the source's log contradicts their time."""
    these = "1 event has" if count == 1 else f"{count} events have"
    return Reason(
        "log",
        f"{these} an earlier position in the source's log than events before, but a later time. If the log began "
        "again (another server, a restored database, a reset), these changes count as older ones: "
        "declare `order_by: _position` to order the events as they arrive. If the events were only late, `lake-assets "
        "rebuild` the table",
        count=count,
    )


def by_time() -> Reason:
    """Return the reason for events that only a time orders."""
    return Reason(
        "time",
        "only a time orders the events: of two changes of a row at the same moment, the one that arrives last counts. "
        "Let ExtractNewRecordState add the position in the source's log (`add.fields`: source.lsn for Postgres; "
        "source.file, source.pos and source.row for MySQL and MariaDB) before the first load, or declare "
        "`order_by: _position` if the events arrive in the order in which they happened",
    )


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
    before = () if is_whole else [r for r in stored if r.kind != "snapshot"]
    reasons = [
        r
        for r in dict.fromkeys((*before, *seen))
        if r.kind != "rejected" and (r.kind != "rename" or _is_undeclared(r, spec)) and columns.issuperset(r.columns)
    ]
    if has_rejects or any(r.kind == "rejected" for r in stored):
        count = _rejected_records(lake, spec.raw, str(spec.source_table))
        reasons += [rejected(count)] if count else []
    if reasons or stored:
        store(lake, spec.table, reasons)
    return tuple(reasons)


def _is_undeclared(reason: Reason, spec: StagingSpec) -> bool:
    old, new = reason.columns
    return spec.rename.get(old) != new and old not in spec.not_renamed


def _rejected_records(lake: LakeBase, raw: TableId, source_table: str) -> int:
    rejects = lake.find(rejected_of(raw))
    if rejects is None:
        return 0
    is_about = EqualTo("source_table", source_table)  # pyright: ignore[reportCallIssue]
    rows = rejects.scan(row_filter=is_about, selected_fields=("position",)).to_arrow()
    return len(set(rows["position"].to_pylist()))


# Kinds of reasons that a final table sees itself. Those of events are counted over all steps.
_OF_FINAL = ("deletes", "log", "snapshot")
_COUNTED = {"deletes": deletes_without_row, "log": set_back}
_NONE = Reason("", "")


# --- final tables -----------------------------------------------------------------------------------------------


def of_final(
    lake: LakeBase,
    table: TableId,
    staging: TableId,
    names: Mapping[str, str],
    seen: Sequence[Reason],
    *,
    is_new: bool,
    shows_times: bool,
) -> tuple[Reason, ...]:
    """Store and return the reasons after a step: those of staging that still matter, and those of its own events.

    Args:
        lake: the lake.
        table: the final table.
        staging: its staging table.
        names: names of its columns by the staging column that they copy unchanged.
        seen: the reasons that the step saw; counts of earlier steps are added.
        is_new: whether the step created or replaced the table.
        shows_times: whether its rows have the times of changes.
    """
    upstream, stored = stored_in(lake.table(staging)), stored_in(lake.table(table))
    matters = [r for r in upstream if r.kind not in _OF_FINAL and (shows_times or r.kind != "tombstones")]
    reasons = [r for r in matters if not r.columns or _shows(lake, table, [names.get(c) for c in r.columns])]
    own = {r.kind: r for r in stored if r.kind in _OF_FINAL and not is_new}
    for reason in seen:
        counted = _COUNTED.get(reason.kind)
        own[reason.kind] = counted(reason.count + own.get(reason.kind, _NONE).count) if counted else reason
    reasons += own.values()
    if reasons or stored or upstream:
        store(lake, table, reasons)
    return tuple(reasons)


def _shows(lake: LakeBase, table: TableId, columns: Sequence[str | None]) -> bool:
    """Whether some row is still affected: the last column is null, and the earlier columns are not."""
    if None in columns:
        return False
    *old, new = (F.col(quote(c or "")) for c in columns)
    lacking = new.isNull()
    for column in old:
        lacking = lacking & column.isNotNull()
    return not lake.spark().table(lake.sql_name(table)).where(lacking).limit(1).isEmpty()
