"""Which records of the raw table a staging table has to read: its pending window, or all of them again.

The position of a record is its identity. After a rollback of raw, landing assigns the positions of the undone records
again: to the same records if it finds the same files in the same order, otherwise to others. Until raw has as many
records as before, it is unknown which of the two will be true, so staging waits. After lost history only the records
that staging lacks are absorbed.

Most declarations only affect later records. Some decide what a record means, so earlier rows would contradict later
ones: the key by which updates are split into a delete and an insert, the type of an existing column, the position that
the table starts at, the columns of a change set (`flag`, `time`), a rename of a column whose new name the table has
already as another column, and `order_by` once it is removed, since it accepted records without a position of their own.
The table's properties store the declaration with which it was read; if it changes so, all records are read again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets.capture import capture
from lake_assets.errors import RecordsGoneError
from lake_assets.formats.event_model import ARRIVED_AT, MANY, MISFITS, POSITION
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.ingest.raw_tables import deleted_about, kept_since, next_position, nothing_until, position_after
from lake_assets.ingest.records import rejects
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.column_spelling import caseless
from lake_assets.lake.metadata.snapshot_log import between
from lake_assets.tables.pending_windows import Window, head_of, known_marks, rebuild_advice, window_of
from lake_assets.tables.schema_changes import formers, promotes, routed
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.table_ddl import key_set_of, types_in
from lake_assets.tables.writing.table_state import (
    GENERATION_PROPERTY,
    KEY_SET_PROPERTY,
    PARTED_PROPERTY,
    READ_PROPERTY,
)

# Declared renames of which the table keeps both columns, since its records cannot be read again.
IN_PLACE_PROPERTY = "lake-assets.renamed-in-place"
_EVERY_COLUMN = ["*"]


def pending_of(spec: StagingSpec, table: Table | None, raw: Table) -> tuple[Window, str | None]:
    """Return the pending window of the raw table, and why all of it must be read again, if so.

    Reads metadata only. Many tables share a raw table: the window begins at the first commit that may have brought
    records for this one. If there is none, nothing is pending, and the watermark does not move.

    If the raw table's history is lost, the window is the whole table: positions tell which records are new.

    Raises:
        TableReplacedError: the raw table was replaced by another one.
    """
    spec = spelled(spec, table)
    window = window_of(spec.table, table, spec.raw, raw)
    if window.lost and window.lost.option == "on_replaced":
        raise window.lost.error(rebuild_advice(spec.table, spec.raw))
    reached = nothing_until(raw, window.start, window.head.snapshot, spec.source_table)
    if reached != window.start:
        window = replace(window, mark=replace(window.mark or window.head, snapshot=reached))
    reason = reason_to_reread(spec, table) if table is not None else None
    if reason:
        return replace(window, mark=None, lost=None), reason
    if window.mark and missing_after_rollback(raw, window):
        window = replace(window, head=window.mark)
    return replace(window, is_due=has_former_names(spec, table)), None


def spelled(spec: StagingSpec, table: Table | None) -> StagingSpec:
    """Return the declaration with its columns spelled as in the table, if that exists."""
    return spec.spelled_as(f.name for f in table.schema().fields) if table else spec


def about(records: DataFrame, spec: StagingSpec) -> DataFrame:
    """Return the records about the source table, alone or with others, from `start_position` on."""
    own = records.where(F.col("source_table").isin(str(spec.source_table), MANY))
    return own.where(F.col("position") >= spec.start) if spec.start else own


@dataclass(frozen=True)
class DueRecords:
    """The records of the raw table that a step of a staging table reads.

    Attributes:
        spec: the declaration, with its columns spelled as in the table.
        table: the staging table as the step found it; None: it does not exist yet.
        raw: the raw table.
        window: the window of the raw table.
        reread: why every record is read again; empty: only new ones are.
        is_fresh: whether the table gets the columns and key of the records, ignoring those it has.
    """

    lake: LakeBase
    spec: StagingSpec
    table: Table | None
    raw: Table
    window: Window
    reread: str = ""
    is_fresh: bool = False

    @property
    def commit(self) -> Commit:
        """The step's commit."""
        marks = {**({} if self.is_fresh else known_marks(self.table)), str(self.spec.raw): self.window.head}
        return Commit(self.lake, self.spec.table, self.table, marks)

    @property
    def unites(self) -> bool:
        """Whether every record is read again for a declared rename alone."""
        is_asked = bool(self.reread) and not self.is_fresh
        return is_asked and self.table is not None and self.reread == reason_to_unite(self.spec, self.table)

    @property
    def is_whole(self) -> bool:
        """Whether the step takes no columns from the table, so that it sees when they appeared."""
        moves = bool(self.reread) and self.table is not None and starts_elsewhere(self.spec, self.table)
        return self.is_fresh or moves

    @property
    def described(self) -> tuple[str, str]:
        """The strategy of the step, and the reason for it."""
        if self.reread:
            return "rebuild", f"{self.reread}: every record is read again"
        if self.window.lost:
            return "append", f"{self.window.lost.why}: new records are found by their positions"
        return "append", "every event is kept"

    def reason_to_wait(self) -> str:
        """Return why staging waits until raw has landed undone records again; empty: it does not wait."""
        spec, missing = self.spec, 0
        if self.table is None or self.reread:
            return ""
        if self.window.lost:
            last = self._stored().agg(F.max(POSITION)).collect()[0][0]
            missing = max(0, (-1 if last is None else last) + 1 - next_position(self.lake, spec.raw, self.raw))
        elif self.window.is_empty:
            missing = missing_after_rollback(self.raw, window_of(spec.table, self.table, spec.raw, self.raw))
        return what_is_missing(spec.table, spec.raw, missing) if missing else ""

    def check_kept(self) -> None:
        """Raise RecordsGoneError if raw no longer holds some of the records: the table was rolled back."""
        spec, raw, window = self.spec, self.raw, self.window
        deleted = deleted_about(raw)
        until = max(deleted.get(str(spec.source_table), 0), deleted.get(MANY, 0))
        if self.table is None or self.reread or until <= spec.start:
            return
        start = None
        if not window.lost:
            steps = between(raw.metadata, window.start, window.head.snapshot).steps
            if all(s.summary is not None and s.summary.operation == Operation.APPEND for s in steps):
                return
            start = position_after(raw, window.start)
        if start is None:
            last = self._stored().agg(F.max(POSITION)).collect()[0][0]
            start = 0 if last is None else last + 1
        if start < until and (since := kept_since(raw)):
            raise RecordsGoneError(
                f"{spec.table} was rolled back to before record {start:,} of {spec.raw}, where records of "
                f"{spec.source_table} before record {until:,} were deleted (`keep_records`: those from before "
                f"{since:%Y-%m-%d}). Going on from there would lose their events, so nothing was written. Set "
                f"{spec.table} to a later snapshot again. To start from what {spec.raw} holds now, let the connector "
                f"read the source table again, then drop {spec.table} and run the pipeline"
            )

    def after_rollback(self) -> DueRecords:
        """Return every record, if raw has other records at absorbed positions; otherwise these."""
        if self.reread or not (other := self._other_records()):
            return self
        why = f"{self.spec.raw} was rolled back, and {other:,} records have not landed again in their places"
        return replace(self, window=Window(self.spec.raw, None, head_of(self.raw)), reread=why)

    def without_absorbed(self, records: DataFrame) -> DataFrame:
        """Return the records that are neither in the table nor rejected."""
        absorbed = self._stored().select(F.col(POSITION).alias("position"))
        listed = rejects.listed_of(self.lake, self.spec.raw, str(self.spec.source_table))
        if listed is not None:
            absorbed = absorbed.unionAll(listed.select("position"))
        return records.join(absorbed.distinct(), "position", "left_anti")

    def _stored(self) -> DataFrame:
        return self.lake.spark().table(self.lake.sql_name(self.spec.table))

    def _other_records(self) -> int:
        """Return at how many absorbed positions the raw table has another record than before."""
        lake, spec, window = self.lake, self.spec, self.window
        if window.lost:
            # A record that landed at another time than the absorbed one.
            absorbed = self._stored().selectExpr(f"{POSITION} AS position", f"{ARRIVED_AT} AS then").distinct()
            raw = about(lake.spark().table(lake.sql_name(spec.raw)), spec)
            others = raw.join(absorbed, "position").where("NOT arrived_at <=> then")
            return others.select("position").distinct().count()
        if window.start is None or between(self.raw.metadata, window.start, window.head.snapshot).is_forward:
            return 0
        with capture(lake, spec.raw, window.start, window.head.snapshot) as captured:
            rows = about(captured.signed(lake.spark(), ("position", "source_table", "record")), spec)
            # A record that landed again is a deleted and an inserted row.
            sums = rows.groupBy("position", "record").agg(F.sum("__lake_sign").alias("n"))
            return sums.where("n < 0").count()


def has_former_names(spec: StagingSpec, table: Table | None) -> bool:
    """Whether a declared rename of a column is not applied yet, or no snapshot has its new name."""
    snapshot = table.current_snapshot() if table is not None else None
    if table is None or snapshot is None or snapshot.schema_id is None:
        return False
    columns = {f.name for f in table.schemas()[snapshot.schema_id].fields}
    return any(old in columns and new not in columns for old, new in spec.rename.items())


# --- after a rollback of raw ------------------------------------------------------------------------------------


def what_is_missing(table: TableId, raw: TableId, records: int) -> str:
    """Return what a staging table waits for, and what to do, given the number of missing records."""
    return (
        f"{raw} was rolled back, and {records:,} records that {table} may have absorbed have not landed again. Land "
        f"them again, or roll {raw} back to a snapshot that has them. To start from the records that {raw} holds now, "
        f"drop {table} and run the pipeline"
    )


def missing_after_rollback(raw: Table, window: Window) -> int:
    """Return how many records the raw table lacks at its end, compared with the absorbed snapshot."""
    if window.start is None or between(raw.metadata, window.start, window.head.snapshot).is_forward:
        return 0
    before, now = (position_after(raw, snapshot) for snapshot in (window.start, window.head.snapshot))
    # Without the snapshots of landings, nothing is known.
    return max(0, before - now) if before is not None and now is not None else 0


# --- when all records are read again -------------------------------------------------------------------------------


def reason_to_reread(spec: StagingSpec, table: Table) -> str | None:
    """Return why all records have to be read again; None if new ones can be appended."""
    if starts_elsewhere(spec, table):
        return f"it now starts at record {spec.start}"
    parted = table.properties.get(PARTED_PROPERTY)
    if parted is not None:
        before = {spec.rename.get(k, k) for k in json.loads(parted)}
        now = key_set_of(table, spec.keys, spec.rename) if spec.keys else _parted_by(spec, ())
        if set(map(caseless, before)) != set(map(caseless, now)):
            return "another key is declared"
    if changed := retyped(spec, table):
        declared, undeclared = ([c for c in changed if (c in spec.types) is is_in] for is_in in (True, False))
        return "; ".join([
            *([f"another type is declared for {', '.join(declared)}"] if declared else []),
            *([f"no type is declared for {', '.join(undeclared)} any more"] if undeclared else []),
        ])  # fmt: skip
    if spec.layout and _read_as(table).get("layout") != spec.layout.read_as:
        return "another `flag` or `time` is declared"
    if not spec.layout and _read_as(table).get("layout"):
        return "`flag` and `time` are no longer declared"
    if _read_as(table).get("ordered") and not spec.order_by:
        return "`order_by` is no longer declared"
    return reason_to_unite(spec, table)


def reason_to_unite(spec: StagingSpec, table: Table) -> str | None:
    """Return why all records have to be read again because of a declared rename alone; None if they have not.

    Before the rename was declared, events with the new name left the old column out, and the other way round. Whether
    an event left a column out before the table had it is not stored, only the records tell.
    """
    kept = in_place(table)
    pairs = [f"{old} and {new}" for old, new in doubled(spec, table).items() if kept.get(old) != new]
    return f"{', '.join(pairs)} are declared to be one column (`rename`)" if pairs else None


def doubled(spec: StagingSpec, table: Table) -> dict[str, str]:
    """Return the declared renames of columns that are one column with another one of the table."""
    columns = [f.name for f in table.schema().fields]
    shared = Counter(spec.rename.get(c, c) for c in columns)
    return {c: spec.rename[c] for c in columns if c in spec.rename and shared[spec.rename[c]] > 1}


def carries_both(lake: LakeBase, spec: StagingSpec, table: Table) -> bool:
    """Whether some event has a value under both names of a declared rename: it could not be read as one column."""
    columns, united = [f.name for f in table.schema().fields], doubled(spec, table)
    counts = (
        " + ".join(f"int({quote(c)} IS NOT NULL)" for c in columns if spec.rename.get(c, c) == new)
        for new in set(united.values())
    )
    rows = lake.spark().table(lake.sql_name(spec.table))
    return not rows.where(" OR ".join(f"{count} > 1" for count in counts)).limit(1).isEmpty()


def in_place(table: Table) -> dict[str, str]:
    """Return the renames of which the table keeps both columns, since its records cannot be read again."""
    return json.loads(table.properties.get(IN_PLACE_PROPERTY, "{}"))


def starts_elsewhere(spec: StagingSpec, table: Table) -> bool:
    """Whether the declared start differs from the record that the table starts at."""
    return spec.start != _read_as(table).get("start", 0)


def retyped(spec: StagingSpec, table: Table) -> list[str]:
    """Return columns whose stored values cannot simply be widened to the declared type, or that lost theirs."""
    had: Mapping[str, str] = _read_as(table).get("types", {})
    columns = types_in(table)
    # A type that is no longer declared: the values have their own again.
    changed = [n for n in had if n not in spec.types and any(spec.rename.get(c, c) == n for c in columns)]
    for name, kind in spec.types.items():
        names = [n for n in columns if spec.rename.get(n, n) == name]
        if had.get(name) == kind or not names:
            continue
        has = columns[names[0]]
        apart = [c for n in names for c in (*formers(n, columns), *routed(n, columns))]
        # A value that did not fit the narrower type was stored as null and is not among the rejects, so no replay finds
        # it.
        if apart or (has != kind and (MISFITS in columns or not _reads_alike(has, kind))):
            changed.append(name)
    return changed


def _reads_alike(narrow: str, wide: str) -> bool:
    """Whether values read as the narrow type and then widened equal values read as the wide type."""
    # The float nearest to 0.1 is not the double nearest to 0.1.
    return promotes(narrow, wide) and narrow != "float"


def _parted_by(spec: StagingSpec, key_set: tuple[str, ...]) -> list[str]:
    """Return the declared key that updates are split by."""
    return _EVERY_COLUMN if spec.by_row else list(key_set if spec.keys else spec.key)


def generation_of(table: Table) -> int:
    """Return how many times all records of the table have been read again."""
    return int(table.properties.get(GENERATION_PROPERTY, "0"))


def properties_of(spec: StagingSpec, key_set: tuple[str, ...]) -> dict[str, str]:
    """Return the properties that store how the table is read, with the one of several declared keys that it has."""
    read: dict[str, Any] = {"types": dict(sorted(spec.types.items())), "start": spec.start}
    if spec.order_by:
        read["ordered"] = True
    if spec.layout:
        read["layout"] = spec.layout.read_as
    key = {KEY_SET_PROPERTY: json.dumps(key_set)} if key_set else {}
    return {**key, PARTED_PROPERTY: json.dumps(_parted_by(spec, key_set)), READ_PROPERTY: json.dumps(read)}


def _read_as(table: Table) -> dict[str, Any]:
    return json.loads(table.properties.get(READ_PROPERTY, "{}"))
