"""Why a staging table is not exact: what a step saw in its records, and reasons that it stored before."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyiceberg.table import Table
from pyspark.sql import functions as F

from lake_assets.formats.event_model import MANY, MISFITS, OP, READ
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.raw.source_snapshots import read_snapshots
from lake_assets.ingest.raw_tables import deleted_about, kept_since
from lake_assets.ingest.records.event_rows import DOES_NOT_FIT
from lake_assets.ingest.records.parsing import Parsed
from lake_assets.ingest.records.rejects import rejected_records
from lake_assets.ingest.staging import exactness
from lake_assets.ingest.staging.exactness import Reason
from lake_assets.ingest.staging.staging_writes import Written
from lake_assets.lake import LakeBase, quote
from lake_assets.lake.names import literal
from lake_assets.tables.pending_windows import known_marks
from lake_assets.tables.writing.table_ddl import set_properties

# Columns that records have left out, and that have been looked up (see `_only_read`).
LEFT_OUT_PROPERTY = "lake-assets.left-out"


def store_reasons(
    lake: LakeBase,
    spec: StagingSpec,
    parsed: Parsed | None,
    written: Written,
    *,
    is_reread: bool = False,
    is_whole: bool = False,
    is_new: bool = False,
) -> tuple[Reason, ...]:
    """Store and return the reasons after a step.

    Args:
        lake: the lake.
        spec: the staging table.
        parsed: the new records that the step read, if any.
        written: what it wrote.
        is_reread: whether it read all records.
        is_whole: whether it also took no columns from the table, so that it saw when they appeared.
        is_new: whether it created the table.
    """
    table = lake.table(spec.table)
    seen = [exactness.saturated(c) for c in written.saturated]
    if parsed is not None:
        left_out = [c for c in parsed.left_out if c not in {old for old, _ in parsed.renames}]
        seen += [exactness.generated(c) for c in _only_read(lake, spec, table, left_out, is_whole=is_whole)]
        seen += [exactness.added_with_default(parsed.filled[c], parsed.since.get(c)) for c in parsed.defaults]
        seen += [exactness.renamed(old, new, spec.rename, parsed.since.get(new)) for old, new in parsed.renames]
        seen += [exactness.by_time()] if parsed.is_by_time else []
        seen += [exactness.deleted_by_tombstones()] if parsed.has_tombstones else []
    if written.misfits:
        seen += [exactness.taken_as_null(c) for c in _misfitting_columns(lake, spec)]
    mark, raw = known_marks(table).get(str(spec.raw)), lake.find(spec.raw)
    deleted = deleted_about(raw) if raw is not None else {}
    until = max(deleted.get(str(spec.source_table), 0), deleted.get(MANY, 0))
    lacks_rows = until > spec.start
    if mark is not None and mark.snapshot is not None and raw is not None:
        last = read_snapshots(raw, mark.snapshot).get(str(spec.source_table))
        start = last.start if last and last.is_complete else None
        lacks_rows = lacks_rows and (start is None or start < until)
        if last and start is not None and last.is_repeated and start > spec.start:
            seen.append(exactness.read_again(start))
    since = kept_since(raw) if raw is not None and (is_new or is_whole) else None
    if since is not None and lacks_rows:
        seen.append(exactness.records_deleted(str(spec.raw), since))
    return add_reasons(
        lake,
        spec,
        seen,
        has_rejects=bool(written.rejected),
        is_reread=is_reread,
        is_whole=is_whole,
        has_rows_again=until > 0 and not lacks_rows,
    )


def add_reasons(
    lake: LakeBase,
    spec: StagingSpec,
    seen: Sequence[Reason],
    *,
    has_rejects: bool = False,
    is_reread: bool = False,
    is_whole: bool = False,
    has_rows_again: bool = False,
) -> tuple[Reason, ...]:
    """Add reasons to the stored ones that still hold; store and return them. See `store_reasons`.

    `has_rows_again`: whether a snapshot, or the declared start, is after all records that were deleted for their age.
    """
    loaded = lake.table(spec.table)
    stored, columns = exactness.stored_in(loaded), {f.name for f in loaded.schema().fields}
    ended = {"snapshot", *(["misfits"] if is_reread else []), *(["records"] if has_rows_again else [])}
    kept = [r for r in stored if r.kind not in ended]
    reasons = [
        r
        for r in dict.fromkeys((*(() if is_whole else kept), *seen))
        if r.kind != "rejected" and _is_undeclared(r, spec) and columns.issuperset(r.columns)
    ]
    if has_rejects or any(r.kind == "rejected" for r in stored):
        count = rejected_records(lake, spec.raw, str(spec.source_table))
        reasons += [exactness.rejected(count)] if count else []
    if reasons or stored:
        exactness.store(lake, spec.table, reasons)
    return tuple(reasons)


def _is_undeclared(reason: Reason, spec: StagingSpec) -> bool:
    """Whether the declaration does not say otherwise."""
    if reason.kind == "generated":
        return reason.columns[0] not in spec.not_renamed
    if reason.kind != "rename":
        return True
    old, new = (spec.rename.get(c, c) for c in reason.columns)
    return old != new and reason.columns[0] not in spec.not_renamed


def _only_read(
    lake: LakeBase, spec: StagingSpec, table: Table, left_out: Sequence[str], *, is_whole: bool
) -> list[str]:
    """Return the columns that snapshots have and no change has; the others of them were dropped.

    Each column is looked up once, when the newest records leave it out first, and again if all records are read again
    (`is_whole`).
    """
    stored = json.loads(table.properties.get(LEFT_OUT_PROPERTY, "[]"))
    existing = {f.name for f in table.schema().fields}
    new = [c for c in left_out if c in existing and (is_whole or c not in stored)]
    if not new:
        return []
    looks = [
        f"coalesce(bool_or({quote(c)} IS NOT NULL AND {quote(OP)} {sign} {literal(READ)}), false)"
        for c in new
        for sign in ("=", "<>")
    ]
    found = iter(lake.spark().table(lake.sql_name(spec.table)).selectExpr(*looks).collect()[0])
    set_properties(lake, spec.table, {LEFT_OUT_PROPERTY: json.dumps(sorted({*stored, *new}))})
    return [c for c, is_read, is_changed in zip(new, found, found, strict=True) if is_read and not is_changed]


def _misfitting_columns(lake: LakeBase, spec: StagingSpec) -> list[str]:
    """Return the columns with values that do not fit their types and are null instead."""
    rows = lake.spark().table(lake.sql_name(spec.table)).where(F.col(MISFITS).isNotNull())
    names = rows.select(F.explode(MISFITS).alias("m")).select(F.expr(f"split_part(m, {literal(DOES_NOT_FIT)}, 1)"))
    return sorted(r[0] for r in names.distinct().collect())
