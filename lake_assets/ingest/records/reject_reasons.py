"""Why records are rejected, counted by reason, and what can be done about each reason."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from lake_assets.formats.files.limited_files import KEPT_IN_PART, TOO_LARGE
from lake_assets.ingest.records.event_rows import SEPARATOR, UNREADABLE
from lake_assets.ingest.records.rejects import has_closings, open_rows, rejected_of
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.limited_cache import LimitedCache
from lake_assets.lake.metadata.lost_files import lost_file
from lake_assets.lake.redaction import HIDDEN
from lake_assets.lake.sensitive_values import SensitiveColumns

# Prefixes of the reasons for which no declaration reads a record as it was delivered.
_NEVER = (*KEPT_IN_PART, "not JSON", "a row of ")
# Reasons that quote nothing of a record.
_WITHOUT_VALUES = re.compile(
    rf"key column .+ is (null|missing|null or missing)|{re.escape(UNREADABLE)}|{re.escape(TOO_LARGE)}[\d.]+ ?\w+ "
    r"\(`max_record`\), and only its beginning is kept"
)
_CLOSE = "`lake-assets rejected close`, with `--position` and `--because`, then says that it does not count"
_DELIVER_AGAIN = (
    "No declaration reads it as it was delivered. Deliver the row again, corrected, or leave it: nothing waits for it. "
    + _CLOSE
)
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_PLAIN = {"yes", "no", "on", "off", "true", "false", "null"}


@dataclass(frozen=True)
class RejectReason:
    """A reason, without values of rows.

    Attributes:
        records: the number of records that are rejected for it.
        can_be_replayed: whether these records can be read again after a fix of the declaration.
    """

    reason: str
    records: int
    can_be_replayed: bool


@dataclass(frozen=True)
class RejectCounts:
    """The rejects of a raw table, in records.

    Attributes:
        records: those that are not closed.
        closed: those of which a person has decided that they do not count.
        reasons: why those that are not closed are rejected, the most frequent reason first.
        unrouted: the same of those that may be about any table: it cannot be told which.
    """

    records: int = 0
    closed: int = 0
    reasons: tuple[RejectReason, ...] = ()
    unrouted: tuple[RejectReason, ...] = ()


def reject_counts(lake: LakeBase, raw: TableId) -> RejectCounts:
    """Return how many records of a raw table are rejected, and why.

    Raises:
        MissingDataFileError, CorruptMetadataError: a file of the table of rejected records cannot be read.
    """
    table = lake.find(rejected_of(raw))
    if table is None:
        return RejectCounts()
    is_hidden = bool(SensitiveColumns.stored(lake.find(raw)))
    key = str(table.metadata.table_uuid), table.metadata.current_snapshot_id, is_hidden
    try:
        return _counts.get(key) or _counts.put(key, _counted(table, is_hidden))
    except Exception as e:  # of PyIceberg, of PyArrow
        if (lost := lost_file(table)) is None:
            raise
        raise lost from e


# By the snapshot of the rejects, and whether the values of their records are hidden.
_counts: LimitedCache[tuple[str, int | None, bool], RejectCounts] = LimitedCache(
    10_000, lambda found: 1 + len(found.reasons) + len(found.unrouted)
)


def _counted(table: Table, is_hidden: bool) -> RejectCounts:
    rows = table.scan(row_filter=open_rows(table), selected_fields=("position", "source_table", "reason")).to_arrow()
    closed = 0
    if has_closings(table):
        of_closed = table.scan(row_filter="closed_at IS NOT NULL", selected_fields=("position",)).to_arrow()
        closed = _records(of_closed)

    def reasons(rejected: pa.Table) -> tuple[RejectReason, ...]:
        # A record may hold several events, and one value of a column many texts.
        each = rejected.group_by(["reason"]).aggregate([("position", "count_distinct")]).to_pylist()
        return counted(
            (without_values(r["reason"]) if is_hidden else r["reason"], r["position_count_distinct"]) for r in each
        )

    unrouted = rows.filter(pc.field("source_table").is_null())
    return RejectCounts(_records(rows), closed, reasons(rows), reasons(unrouted))


def _records(rejects: pa.Table) -> int:
    return len(rejects["position"].unique())


def counted(reasons: Iterable[tuple[str, int]]) -> tuple[RejectReason, ...]:
    """Return reasons with their numbers of records, those that differ only in a value as one."""
    counts, replayed = Counter[str](), dict[str, bool]()
    for reason, records in reasons:
        kind = kind_of(reason)
        counts[kind] += records
        replayed[kind] = can_be_replayed(reason)
    return tuple(RejectReason(kind, n, replayed[kind]) for kind, n in counts.most_common())


def kind_of(reason: str) -> str:
    """Return a reason without its value, so that similar reasons are counted together."""
    if " is unknown" in reason and " is " in reason.split(": ", 1)[0]:
        return f"{reason.split(' is ', 1)[0]} has no place in the order of changes"
    if misfits := misfits_in(reason):
        return ", ".join(f"{column} does not fit {kind}" for column, kind in misfits)
    return reason.split(" (", 1)[0]


def misfits_in(reason: str) -> list[tuple[str, str]]:
    """Return the columns, with their types, whose values do not fit."""
    return re.findall(rf"(?:^|{SEPARATOR})((?:(?!{SEPARATOR}).)+?) does not fit ([a-z_]+(?:[(<][^:]*?[)>])?): ", reason)


def without_values(reason: str) -> str:
    """Return a reason without anything that it may quote of the record: for tables with sensitive columns."""
    if misfits := misfits_in(reason):
        return SEPARATOR.join(f"{column} does not fit {kind}: {HIDDEN}" for column, kind in misfits)
    if _WITHOUT_VALUES.fullmatch(reason):
        return reason
    # What it begins with tells whether a replay can help.
    beginning = next((b.strip() for b in _NEVER if reason.startswith(b)), "")
    return f"{beginning} ({HIDDEN})" if beginning else HIDDEN


def can_be_replayed(reason: str) -> bool:
    """Whether a record can be read again after a fix of the declaration; else it has to be delivered again."""
    # Without a value, the end of a beginning is cut off as well.
    return not f"{reason} ".startswith(_NEVER)


def fix(reason: str) -> str:
    """Return the setting of the table that reads the records rejected for a reason, as YAML; empty: none is known."""
    misfits = misfits_in(reason)
    # Bytes and arrays as text are in the notation of the format.
    if not misfits or any(kind.startswith(("binary", "array")) for _, kind in misfits):
        return ""
    return f"types: {{{', '.join(f'{_in_yaml(column)}: string' for column, _ in misfits)}}}"


def _in_yaml(name: str) -> str:
    is_plain = _PLAIN_NAME.fullmatch(name) and name.lower() not in _NOT_PLAIN
    return name if is_plain else json.dumps(name, ensure_ascii=False)


def advice(reason: str, source_table: str | None) -> str:
    """Return what can be done about a rejected record.

    Args:
        source_table: the table that it is about; None: that cannot be told.
    """
    heal = f"Correct it at the source (a newer event of the row heals it, and {_CLOSE})"
    if reason.startswith(TOO_LARGE):
        return "Raise `max_record`, and deliver the record again: only its beginning is kept. Or leave it"
    if not can_be_replayed(reason):
        return _DELIVER_AGAIN
    if misfits_in(reason):
        types = "types that hold such values (`types`)"
        if setting := fix(reason):
            types = f"`{setting}` beside other settings of {source_table} in the stream (string keeps every value)"
        return f"{heal}, or declare {types}, or `on_misfit: null` to take such values as null; then replay"
    if "place in the order of changes" in reason or "order of changes is unknown" in reason:
        return "Correct it at the source, or declare `order_by` with columns that order the changes; then replay"
    if reason.startswith("key column "):
        values = "whose values are never null" if reason.endswith(" is null") else "that every event has"
        return f"Correct it at the source, or declare the table's `key` with columns {values}; then replay"
    if source_table is None:
        return "Check the stream's `format`, and name its one table if records do not say; then replay"
    return f"{heal}, or the declaration; then replay"
