"""Publish what a step wrote to a branch, if the table is still what the step began from.

All of a step's rows become visible in the one commit that moves main to the branch. That commit is made only if main,
columns, partitioning and definition are what they were (`TableState`), and the blocking audits pass; it also sets the
table properties that go with the rows. A run with another declaration, another writer or a repetition of the same step
therefore never mixes its rows with these.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from lake_assets.errors import LakeError
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.metadata_commits import Metadata, MovedError
from lake_assets.lake.metadata.watermark import Watermarks, to_properties
from lake_assets.lake.names import literal
from lake_assets.lake.spark_session import set_all
from lake_assets.tables.leftovers import branch_name
from lake_assets.tables.writing.races import as_race, lost
from lake_assets.tables.writing.table_state import TableState

if TYPE_CHECKING:
    from lake_assets.tables.audits.audit_gate import Gate

log = logging.getLogger(__name__)
_PREFIX = "spark.sql.iceberg.snapshot-property."
_LOST = (MovedError, CommitFailedException)


@contextlib.contextmanager
def committing(
    spark: SparkSession, table: TableId, marks: Watermarks | None, more: Mapping[str, str] | None = None
) -> Generator[None]:
    """Add watermarks (None: unchanged) and more properties to every Iceberg commit of this session within the context.

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


@dataclass
class Branch:
    """A branch of a table, to which one step writes.

    Attributes:
        ref: its name.
        name: the name to write to, in SQL.
        settings: table properties that are set when the branch is published.
    """

    ref: str
    name: str
    settings: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def on_branch(
    lake: LakeBase,
    table: TableId,
    before: Table,
    marks: Watermarks | None,
    *,
    gate: Gate | None = None,
    properties: Mapping[str, str] | None = None,
) -> Generator[Branch]:
    """Create a branch of the table, and move main to it at the end of the context.

    Reads from the branch are reads of main until the end. If the catalog allows it, publishing is one commit without
    Spark, which also sets the branch's `settings` and drops it.

    Args:
        lake: the lake.
        table: the written table.
        before: the table as it was loaded when the step decided what to write.
        marks: the watermarks of the commit; None: unchanged.
        gate: the audits that must pass before main is moved; None: no audits.
        properties: other properties of the commit.

    Raises:
        ConcurrentWriteError: another writer has changed the table since `before` was loaded.
        AuditFailedError: a blocking audit fails; main does not move.
    """
    ref, audited = branch_name(), gate.properties(before) if gate else {}
    check_unchanged(table, before, lake.table(table))
    branch = Branch(ref, f"{lake.sql_name(table)}.`branch_{ref}`")
    with committing(lake.spark(), table, marks, {**audited, **(properties or {})}):
        if refs.can_commit(lake.catalog):
            branched = _branched_beside_spark(lake, table, before, branch)
        else:
            branched = _branched_by_spark(lake, table, before, branch)
        with branched, _lost_if_changed(lake, table, before):
            yield branch
            if gate:
                gate.audit_branch(ref, before)


@contextlib.contextmanager
def _lost_if_changed(lake: LakeBase, table: TableId, before: Table) -> Generator[None]:
    """Turn an unnamed error into a lost race, if another writer has changed the table: Spark's messages are of columns
    that are no longer there, and the like."""
    try:
        yield
    except LakeError:
        raise
    except Exception as e:
        now = lake.find(table)
        if why := TableState.of(before).changed(TableState.of(now)) if now is not None else "it was dropped":
            raise lost(table, why) from e
        raise


def check_unchanged(table: TableId, before: Table, now: Table) -> None:
    """Raise ConcurrentWriteError if another writer has changed a table since it was loaded."""
    if why := TableState.of(before).changed(TableState.of(now)):
        raise lost(table, why)


def loaded_again(lake: LakeBase, table: TableId, before: Table | None) -> Table:
    """Load a table again after the step itself has created it, or changed its columns.

    Raises:
        ConcurrentWriteError: another writer has changed anything else since `before` was loaded.
    """
    now = lake.table(table)
    if before is None and now.metadata.current_snapshot_id is not None:
        raise lost(table, "it was created")
    if before is not None and (why := TableState.of(before).changed(TableState.of(now), but=("current-schema-id",))):
        raise lost(table, why)
    return now


@contextlib.contextmanager
def _branched_beside_spark(lake: LakeBase, table: TableId, before: Table, branch: Branch) -> Generator[None]:
    """Implement `on_branch` with metadata commits of this process; Spark only writes."""
    base, ref = TableState.of(before), branch.ref
    # A run that is killed here leaves its branch behind: the next step drops it.
    if base.snapshot is None:
        lake.spark().sql(f"ALTER TABLE {lake.sql_name(table)} CREATE BRANCH `{ref}` RETAIN 1 DAYS")
    else:
        try:
            refs.create_branch(before, ref, base.snapshot, days=1)
        except _LOST as e:
            raise lost(table, e) from e

    def check(metadata: Metadata) -> None:
        if why := base.changed(TableState.in_metadata(metadata)):
            raise MovedError(why)

    try:
        yield
        try:
            refs.publish(before, ref, base.snapshot, check=check, settings=branch.settings)
        except _LOST as e:
            raise lost(table, e) from e
    except BaseException:
        try:
            refs.drop(before, ref)
        except Exception as e:  # the first error matters; the next step of another process drops the branch
            log.warning("%s: the branch %s remains: %s", table, ref, e)
        raise


@contextlib.contextmanager
def _branched_by_spark(lake: LakeBase, table: TableId, before: Table, branch: Branch) -> Generator[None]:
    """Implement `on_branch` for every catalog.

    Settings are set by a commit after the rows are published: a step that is killed in between leaves a definition
    that is not the declared one, and the next step computes the table again.
    """
    spark, name, ref = lake.spark(), lake.sql_name(table), branch.ref
    snapshot = before.metadata.current_snapshot_id
    at = f"AS OF VERSION {snapshot}" if snapshot is not None else ""
    # A run that is killed here leaves its branch behind: the next step drops it.
    spark.sql(f"ALTER TABLE {name} CREATE BRANCH `{ref}` {at} RETAIN 1 DAYS")
    try:
        yield
        check_unchanged(table, before, lake.table(table))
        spark.sql(
            f"CALL `{lake.config.name}`.system.fast_forward("
            f"table => {literal(_quoted(table))}, branch => 'main', to => '{ref}')"
        )
        if branch.settings:
            spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({assignments(branch.settings)})")
    finally:
        spark.sql(f"ALTER TABLE {name} DROP BRANCH IF EXISTS `{ref}`")


def assignments(properties: Mapping[str, str]) -> str:
    """Return SQL that sets table properties."""
    return ", ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())


def _quoted(table: TableId) -> str:
    return ".".join(quote(p) for p in table.parts)
