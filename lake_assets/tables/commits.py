"""Commits that carry the watermark, and what becomes of a lost race."""

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
from lake_assets.lake.foreign_errors import said_by_spark
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.row_counts import rows_added_and_deleted, summary_of
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.metadata.watermark import PROPERTY, Watermarks, read_marks, to_properties
from lake_assets.lake.names import literal
from lake_assets.lake.spark_session import set_all
from lake_assets.tables.leftovers import branch_name

if TYPE_CHECKING:
    from lake_assets.tables.audit_gate import Gate

log = logging.getLogger(__name__)
_PREFIX = "spark.sql.iceberg.snapshot-property."
# What Iceberg says when another writer's commit stands in the way of this one.
_LOST_RACE = (
    "ValidationException",
    "CommitFailedException",
    # Both make a table that neither found: the second has to look again.
    "AlreadyExistsException",
    "TABLE_OR_VIEW_ALREADY_EXISTS",
    "CommitStateUnknownException",
    "Found conflicting files",
    # The clock was set back while the step was at work: before the next attempt the table's times are taken back.
    "Invalid update timestamp",
    "Invalid snapshot timestamp",
    "[BUG] Expected sorted",
    "Found new conflicting delete files",
    "missing data files",
    "is not an ancestor of",
)


@contextlib.contextmanager
def committing(
    spark: SparkSession, table: TableId, marks: Watermarks | None, more: Mapping[str, str] | None = None
) -> Generator[None]:
    """Whatever Iceberg commit the body makes in this session carries `marks` in its summary.

    Args:
        spark: the session.
        table: what is written.
        marks: the watermarks; None: they stay as they are.
        more: other properties.

    Raises:
        ConcurrentWriteError: another writer was quicker; nothing of the body's commit is in the table.
    """
    said = to_properties(marks) if marks is not None else {}
    properties = {_PREFIX + k: v for k, v in {**said, **(more or {})}.items()}
    set_all(spark, properties)
    try:
        with as_race(table):
            yield
    finally:
        for key in properties:
            spark.conf.unset(key)


@contextlib.contextmanager
def as_race(table: TableId) -> Generator[None]:
    """A commit of the body that loses against another writer's is a ConcurrentWriteError."""
    try:
        yield
    except LakeError:
        raise  # what it says may quote rows, which say what they like
    except Exception as e:
        # Over Spark Connect a PySparkException, locally py4j's own: told apart by what Iceberg says.
        if lost_race(e):
            raise ConcurrentWriteError(
                f"{table}: another writer committed while this step was at work: {_first(e)}"
            ) from e
        raise


def lost_race(error: Exception) -> bool:
    """Whether an error of Spark's is a commit that lost against another writer's."""
    said = said_by_spark(error)
    return any(text in said for text in _LOST_RACE)


def _first(error: Exception) -> str:
    said = said_by_spark(error).strip().splitlines()
    return next((line for line in said if any(text in line for text in _LOST_RACE)), said[0]).strip(" :")[:300]


@contextlib.contextmanager
def writing(lake: LakeBase, table: TableId, marks: Watermarks, base: Watermarks, gate: Gate) -> Generator[str]:
    """The SQL name that one commit with `marks` is to be written under: that of the table, or of a branch where audits
    have to pass before anybody sees it.

    Raises:
        ConcurrentWriteError: another writer was quicker.
        AuditFailedError: see `on_branch`.
    """
    if gate.is_blocking:
        with on_branch(lake, table, marks, base, gate) as branch:
            yield branch
    else:
        with committing(lake.spark(), table, marks):
            yield lake.sql_name(table)


def commit_marks(lake: LakeBase, table: TableId, marks: Watermarks) -> None:
    """Move the watermark alone: a commit without files."""
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
    """Append `rows`, unless somebody else has moved the table's watermark away from `base` meanwhile.

    Iceberg lets any two appends succeed, in any order, so that two runs of one step would both add their rows.

    Args:
        lake: the lake.
        table: what is appended to.
        rows: with the table's columns.
        marks: the watermarks that the commit carries.
        base: those that the table has to have, else another run was quicker.
        before_publishing: called when the rows are written and nobody sees them yet.
        gate: the audits that have to pass first.

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
    lake: LakeBase, table: TableId, marks: Watermarks, base: Watermarks, gate: Gate | None = None
) -> Generator[str]:
    """A branch of the table as it is now, by its SQL name, for one commit that carries `marks`; then main follows.

    Main is moved to the branch only while it is where the branch began: whatever the body reads from the branch was
    main until the end. Where the catalog allows, that is one commit, which also drops the branch, without Spark.

    Args:
        lake: the lake.
        table: what is written.
        marks: the watermarks that the commit carries.
        base: those that the table has to have, else another run was quicker.
        gate: the audits that what is written has to pass before main follows; None: there are none.

    Raises:
        ConcurrentWriteError: main has moved, or has other watermarks.
        AuditFailedError: a blocking audit does not pass; main stays where it is.
    """
    branch, current = branch_name(), lake.table(table)
    if read_marks(current) != dict(base):
        raise ConcurrentWriteError(f"{table}: another run absorbed the same window")
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
    """The body has a branch of the table, which main follows then; Spark is only asked for what is written."""
    base = current.metadata.current_snapshot_id
    assert base is not None
    moved = (refs.MovedError, CommitFailedException)
    try:
        # A run that is killed here leaves its branch behind: the next step drops it.
        refs.create_branch(current, branch, base, days=1)
    except moved as e:
        raise _lost(table, e) from e
    try:
        yield
        try:
            refs.publish(current, branch, base)
        except moved as e:
            raise _lost(table, e) from e
    except BaseException:
        try:
            refs.drop(current, branch)
        except Exception as e:  # what went wrong before counts; the next step of another process drops the branch
            log.warning("%s: the branch %s stays behind: %s", table, branch, e)
        raise


def _lost(table: TableId, why: Exception) -> ConcurrentWriteError:
    return ConcurrentWriteError(f"{table}: another writer committed while this step was at work: {why}")


@contextlib.contextmanager
def _branched_by_spark(lake: LakeBase, table: TableId, current: Table, branch: str) -> Generator[None]:
    """The same for every catalog, and for tables without a snapshot."""
    spark, name = lake.spark(), lake.sql_name(table)
    snapshot = current.metadata.current_snapshot_id
    at = f"AS OF VERSION {snapshot}" if snapshot is not None else ""
    # A run that is killed here leaves its branch behind: the next step drops it.
    spark.sql(f"ALTER TABLE {name} CREATE BRANCH `{branch}` {at} RETAIN 1 DAYS")
    try:
        # Without a snapshot to name, the branch begins wherever main is by now.
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
    """The snapshot whose commit carried `marks`, for its counts.

    Args:
        lake: the lake.
        table: what was written.
        marks: the watermarks of the commit.
        base: those that the step began from; None: it replaced the table, whatever that was.

    Raises:
        ConcurrentWriteError: another run committed in between. A MERGE does not notice one that was done before it
            began to read, and what it wrote may be older than what was there: the step has to be done again from where
            the table is now, which makes up for that.
    """
    wanted, found = to_properties(marks), None
    for snapshot in ancestors(lake.table(table)):
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        if found is None:
            if all(said.get(k) == v for k, v in wanted.items()):
                found = snapshot
                if base is None:
                    break
        elif PROPERTY in said:
            if json.loads(said[PROPERTY]) != json.loads(to_properties(base or {})[PROPERTY]):
                raise ConcurrentWriteError(f"{table}: another run wrote to it at the same time")
            break
    return found


_COUNTED = ("inserted", "updated", "deleted")
_OWN_COUNTS, _SPARKS_COUNTS = "lake-assets.rows-", "spark.merge-into.num-target-rows-"


def say_counts(inserted: int, updated: int, deleted: int) -> dict[str, str]:
    """Snapshot properties for a commit that writes more rows than it changes."""
    return {_OWN_COUNTS + what: str(n) for what, n in zip(_COUNTED, (inserted, updated, deleted), strict=True)}


def has_counts(snapshot: Snapshot | None) -> bool:
    """Whether a commit says itself how many rows it changed (`say_counts`)."""
    said = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
    return _OWN_COUNTS + _COUNTED[0] in said


def counts(snapshot: Snapshot | None) -> tuple[int, int, int]:
    """Rows inserted, updated and deleted by a commit, as its summary says."""
    said = summary_of(snapshot)
    for prefix in (_OWN_COUNTS, _SPARKS_COUNTS):
        found = [said.get(prefix + what) for what in _COUNTED]
        if any(v is not None for v in found):
            inserted, updated, deleted = (int(v or 0) for v in found)
            return inserted, updated, deleted
    added, deleted = rows_added_and_deleted(snapshot)
    return added, 0, deleted
