"""Commit with the watermark, and detect lost races."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import DataFrame, SparkSession

from lake_assets.errors import ConcurrentWriteError, LakeError
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.foreign_errors import spark_error_text
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.row_counts import rows_added_and_deleted, summary_of
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.metadata.watermark import PROPERTY, Watermarks, read_marks, to_properties
from lake_assets.lake.names import literal
from lake_assets.lake.spark_session import set_all
from lake_assets.tables.leftovers import branch_name

if TYPE_CHECKING:
    from lake_assets.tables.audits.audit_gate import Gate

log = logging.getLogger(__name__)
_PREFIX = "spark.sql.iceberg.snapshot-property."
# Messages of Iceberg about a conflicting commit of another writer.
_LOST_RACE = (
    "ValidationException",
    "CommitFailedException",
    # Two runs create the same table: the second one has to start again.
    "AlreadyExistsException",
    "TABLE_OR_VIEW_ALREADY_EXISTS",
    "CommitStateUnknownException",
    "Found conflicting files",
    # The clock was set back during the step: the next attempt first corrects the table's times.
    "Invalid update timestamp",
    "Invalid snapshot timestamp",
    "[BUG] Expected sorted",
    "Found new conflicting delete files",
    "missing data files",
    "is not an ancestor of",
    # The table was replaced meanwhile, with its snapshots.
    "to unknown snapshot",
)
# An overwrite whose condition cuts through a file: the job's own mistake, which every attempt repeats.
_NO_RACE = "Cannot delete file where some, but not all, rows match"


@contextlib.contextmanager
def committing(
    spark: SparkSession, table: TableId, marks: Watermarks | None, more: Mapping[str, str] | None = None
) -> Generator[None]:
    """Add `marks` to the summary of every Iceberg commit of this session within the context.

    Args:
        spark: the session.
        table: the written table.
        marks: the watermarks; None: unchanged.
        more: other properties.

    Raises:
        ConcurrentWriteError: another writer was faster; nothing of the commit is in the table.
    """
    watermark = to_properties(marks) if marks is not None else {}
    properties = {_PREFIX + k: v for k, v in {**watermark, **(more or {})}.items()}
    set_all(spark, properties)
    try:
        with as_race(table):
            yield
    finally:
        for key in properties:
            spark.conf.unset(key)


@contextlib.contextmanager
def as_race(table: TableId) -> Generator[None]:
    """Raise ConcurrentWriteError for a commit that loses a race to another writer."""
    try:
        yield
    except LakeError:
        raise  # its text may quote rows, which may contain any text
    except Exception as e:
        # A PySparkException over Spark Connect, py4j's exception locally: only Iceberg's message is reliable.
        if lost_race(e):
            raise ConcurrentWriteError(f"{table}: another writer committed during this step: {_first(e)}") from e
        raise


def lost_race(error: Exception) -> bool:
    """Whether an error of Spark is a commit that lost a race to another writer."""
    # Hadoop's error of the same ending is about a file in the place of a folder.
    message = spark_error_text(error).replace("FileAlreadyExistsException", "")
    return _NO_RACE not in message and any(text in message for text in _LOST_RACE)


def _first(error: Exception) -> str:
    lines = spark_error_text(error).strip().splitlines()
    return next((line for line in lines if any(text in line for text in _LOST_RACE)), lines[0]).strip(" :")[:300]


@contextlib.contextmanager
def writing(lake: LakeBase, table: TableId, marks: Watermarks, base: Watermarks, gate: Gate) -> Generator[str]:
    """Return the SQL name for one commit with `marks`: the table, or a branch if audits must pass before publishing.

    Raises:
        ConcurrentWriteError: another writer committed first.
        AuditFailedError: see `on_branch`.
    """
    if gate.is_blocking:
        with on_branch(lake, table, marks, base, gate) as branch:
            yield branch
    else:
        with committing(lake.spark(), table, marks):
            yield lake.sql_name(table)


def commit_marks(lake: LakeBase, table: TableId, marks: Watermarks) -> None:
    """Move only the watermark, by a commit without files."""
    spark = lake.spark()
    name = lake.sql_name(table)
    with committing(spark, table, marks):
        spark.table(name).limit(0).writeTo(name).append()


def append_if_unmoved(
    lake: LakeBase,
    table: TableId,
    rows: DataFrame,
    marks: Watermarks,
    base: Watermarks,
    before_publishing: Callable[[], None] | None = None,
    gate: Gate | None = None,
) -> None:
    """Append `rows`, unless another run has moved the table's watermark from `base`.

    Iceberg lets any two appends succeed, in any order, so two runs of one step would both add their rows.

    Args:
        lake: the lake.
        table: the table to append to.
        rows: rows with the table's columns.
        marks: the watermarks of the commit.
        base: the expected watermarks of the table; otherwise another run was faster.
        before_publishing: called after the rows are written, before they are published.
        gate: the audits that must pass first.

    Raises:
        ConcurrentWriteError: main has moved.
        AuditFailedError: see `on_branch`.
    """
    with on_branch(lake, table, marks, base, gate) as branch:
        rows.writeTo(branch).append()
        if before_publishing:
            before_publishing()


@contextlib.contextmanager
def on_branch(
    lake: LakeBase,
    table: TableId,
    marks: Watermarks,
    base: Watermarks,
    gate: Gate | None = None,
    properties: Mapping[str, str] | None = None,
) -> Generator[str]:
    """Create a branch of the table for one commit with `marks`, then fast-forward main to it.

    Main is moved to the branch only if it is still at the start of the branch, so reads from the branch were reads of
    main until the end. If the catalog allows it, that is one commit without Spark, which also drops the branch.

    Args:
        lake: the lake.
        table: the written table.
        marks: the watermarks of the commit.
        base: the expected watermarks of the table; otherwise another run was faster.
        gate: the audits that must pass before main is moved; None: no audits.
        properties: properties that the table must still have: those of the definition by which the rows are computed.

    Raises:
        ConcurrentWriteError: main has moved, or has other watermarks or properties.
        AuditFailedError: a blocking audit fails; main does not move.
    """
    branch, current = branch_name(), lake.table(table)
    if read_marks(current) != dict(base):
        raise ConcurrentWriteError(f"{table}: another run absorbed the same window")
    if any(current.properties.get(k) != v for k, v in (properties or {}).items()):
        raise ConcurrentWriteError(f"{table}: another run has built it by another definition")
    with committing(lake.spark(), table, marks, gate.properties(current) if gate else None):
        if refs.can_commit(lake.catalog) and current.metadata.current_snapshot_id is not None:
            branched = _branched_beside_spark(table, current, branch)
        else:
            branched = _branched_by_spark(lake, table, current, branch)
        with branched:
            yield f"{lake.sql_name(table)}.`branch_{branch}`"
            if gate:
                gate.audit_branch(branch, current)


@contextlib.contextmanager
def _branched_beside_spark(table: TableId, current: Table, branch: str) -> Generator[None]:
    """Implement `on_branch` with metadata commits of this process; Spark only writes."""
    base = current.metadata.current_snapshot_id
    assert base is not None
    conflicts = (refs.MovedError, CommitFailedException)
    try:
        # A run that is killed here leaves its branch behind: the next step drops it.
        refs.create_branch(current, branch, base, days=1)
    except conflicts as e:
        raise _lost(table, e) from e
    try:
        yield
        try:
            refs.publish(current, branch, base)
        except conflicts as e:
            raise _lost(table, e) from e
    except BaseException:
        try:
            refs.drop(current, branch)
        except Exception as e:  # the first error matters; the next step of another process drops the branch
            log.warning("%s: the branch %s remains: %s", table, branch, e)
        raise


def _lost(table: TableId, why: Exception) -> ConcurrentWriteError:
    return ConcurrentWriteError(f"{table}: another writer committed during this step: {why}")


@contextlib.contextmanager
def _branched_by_spark(lake: LakeBase, table: TableId, current: Table, branch: str) -> Generator[None]:
    """Implement `on_branch` for every catalog, and for tables without a snapshot."""
    spark, name = lake.spark(), lake.sql_name(table)
    snapshot = current.metadata.current_snapshot_id
    at = f"AS OF VERSION {snapshot}" if snapshot is not None else ""
    # A run that is killed here leaves its branch behind: the next step drops it.
    spark.sql(f"ALTER TABLE {name} CREATE BRANCH `{branch}` {at} RETAIN 1 DAYS")
    try:
        # Without a snapshot, the branch begins at the current main, which may have moved.
        if snapshot is None and "main" in lake.table(table).metadata.refs:
            raise ConcurrentWriteError(f"{table}: another run absorbed the same window")
        yield
        spark.sql(
            f"CALL `{lake.config.name}`.system.fast_forward("
            f"table => {literal(_quoted(table))}, branch => 'main', to => '{branch}')"
        )
    finally:
        spark.sql(f"ALTER TABLE {name} DROP BRANCH IF EXISTS `{branch}`")


def _quoted(table: TableId) -> str:
    return ".".join(quote(p) for p in table.parts)


def snapshot_of(lake: LakeBase, table: TableId, marks: Watermarks, base: Watermarks | None = None) -> Snapshot | None:
    """Return the snapshot of the commit with `marks`, for its counts.

    Args:
        lake: the lake.
        table: the written table.
        marks: the watermarks of the commit.
        base: the watermarks before the step; None: it replaced the table.

    Raises:
        ConcurrentWriteError: another run committed in between. A MERGE does not notice a commit from before it began to
            read, and may have overwritten newer rows: repeating the step from the current watermark corrects them.
    """
    expected, commit = to_properties(marks), None
    for snapshot in ancestors(lake.table(table)):
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        if commit is None:
            if all(summary.get(k) == v for k, v in expected.items()):
                commit = snapshot
                if base is None:
                    break
        elif PROPERTY in summary:
            if json.loads(summary[PROPERTY]) != json.loads(to_properties(base or {})[PROPERTY]):
                raise ConcurrentWriteError(f"{table}: another run wrote to it at the same time")
            break
    return commit


_COUNTED = ("inserted", "updated", "deleted")
_OWN_COUNTS, _SPARKS_COUNTS = "lake-assets.rows-", "spark.merge-into.num-target-rows-"


def count_properties(inserted: int, updated: int, deleted: int) -> dict[str, str]:
    """Return snapshot properties with the counts of a commit that writes more rows than it changes."""
    return {_OWN_COUNTS + what: str(n) for what, n in zip(_COUNTED, (inserted, updated, deleted), strict=True)}


def has_counts(snapshot: Snapshot | None) -> bool:
    """Whether a commit stores its number of changed rows (`count_properties`)."""
    summary = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
    return _OWN_COUNTS + _COUNTED[0] in summary


def counts(snapshot: Snapshot | None) -> tuple[int, int, int]:
    """Return the rows inserted, updated and deleted by a commit, from its summary."""
    summary = summary_of(snapshot)
    for prefix in (_OWN_COUNTS, _SPARKS_COUNTS):
        values = [summary.get(prefix + what) for what in _COUNTED]
        if any(v is not None for v in values):
            inserted, updated, deleted = (int(v or 0) for v in values)
            return inserted, updated, deleted
    added, deleted = rows_added_and_deleted(snapshot)
    return added, 0, deleted
