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
from dataclasses import dataclass, field, replace
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
from lake_assets.lake.spark_session import SNAPSHOT_PROPERTY, set_all
from lake_assets.tables.leftovers import branch_name
from lake_assets.tables.writing.races import as_race, lost
from lake_assets.tables.writing.table_state import TableState

if TYPE_CHECKING:
    from lake_assets.tables.audits.audit_gate import Gate

log = logging.getLogger(__name__)
_LOST = (MovedError, CommitFailedException)


@contextlib.contextmanager
def committing(spark: SparkSession, table: TableId, properties: Mapping[str, str]) -> Generator[None]:
    """Add properties to every Iceberg commit of this session within the context.

    Raises:
        ConcurrentWriteError: another writer was faster; nothing of the commit is in the table.
    """
    prefixed = {SNAPSHOT_PROPERTY + k: v for k, v in properties.items()}
    set_all(spark, prefixed)
    try:
        with as_race(table):
            yield
    finally:
        for key in prefixed:
            spark.conf.unset(key)


@dataclass
class Branch:
    """A branch of a table, to which one step writes.

    Attributes:
        ref: its name.
        name: the name to write to, in SQL.
        settings: table properties that are set when the branch is published.
        properties: properties of the snapshot, which Spark's commits get from the session.
    """

    ref: str
    name: str
    settings: dict[str, str]
    properties: Mapping[str, str]


@dataclass(frozen=True)
class Commit:
    """What a step commits to a table, and what the table must still be then: built once, and handed down.

    Attributes:
        lake: the lake.
        table: the written table.
        base: the table as it was loaded when the step decided what to write; None: there was none. Nothing is
            published if another writer has changed the table since.
        marks: the watermarks; None: unchanged.
        gate: the audits of the table; None: it has none.
        properties: further properties of the snapshot.
        settings: table properties that are set with it.
    """

    lake: LakeBase
    table: TableId
    base: Table | None
    marks: Watermarks | None = None
    gate: Gate | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The table in SQL."""
        return self.lake.sql_name(self.table)

    @property
    def existing(self) -> Table:
        """The table as the step found it, which exists."""
        assert self.base is not None
        return self.base

    @property
    def snapshot_properties(self) -> dict[str, str]:
        """The properties of the snapshot, with the watermarks."""
        return {**(to_properties(self.marks) if self.marks is not None else {}), **self.properties}

    def check_audits(self, types: Mapping[str, str]) -> None:
        """Refuse audits that do not match the table's columns, by Spark SQL type."""
        if self.gate:
            self.gate.check(types)

    def check_unchanged(self) -> None:
        """Raise ConcurrentWriteError if another writer has changed the table since it was loaded."""
        if why := TableState.of(self.existing).changed(TableState.of(self.lake.table(self.table))):
            raise lost(self.table, why)

    def after_own_changes(self) -> Commit:
        """Return the commit to the table as it is after the step itself has created it, or changed its columns.

        Raises:
            ConcurrentWriteError: another writer has changed anything else since `base` was loaded.
        """
        now, base = self.lake.table(self.table), self.base
        if base is None and now.metadata.current_snapshot_id is not None:
            raise lost(self.table, "it was created")
        if base is not None and (why := TableState.of(base).changed(TableState.of(now), but=("current-schema-id",))):
            raise lost(self.table, why)
        return replace(self, base=now)

    @contextlib.contextmanager
    def branch(self, properties: Mapping[str, str] | None = None, *, audited: bool = True) -> Generator[Branch]:
        """Create a branch of the table, and move main to it at the end of the context.

        Reads from the branch are reads of main until the end. If the catalog allows it, publishing is one commit
        without Spark, which also sets the branch's `settings` and drops it.

        Args:
            properties: further properties of the snapshot.
            audited: whether the blocking audits must pass before main is moved.

        Raises:
            ConcurrentWriteError: another writer has changed the table since `base` was loaded.
            AuditFailedError: a blocking audit fails; main does not move.
        """
        ref, gate = branch_name(), self.gate.blocking if self.gate and audited else None
        passed = gate.properties(self.existing) if gate else {}
        self.check_unchanged()
        all_properties = {**self.snapshot_properties, **passed, **(properties or {})}
        # Those of the lake, its Spark session has already.
        of_snapshot = {**self.lake.commit_properties, **all_properties}
        branch = Branch(ref, f"{self.name}.`branch_{ref}`", dict(self.settings), of_snapshot)
        with committing(self.lake.spark(), self.table, all_properties):
            branched = _branched_beside_spark if refs.can_commit(self.lake.catalog) else _branched_by_spark
            with branched(self, branch), _lost_if_changed(self):
                yield branch
                if gate:
                    gate.audit_branch(ref, self.existing)


@contextlib.contextmanager
def _lost_if_changed(commit: Commit) -> Generator[None]:
    """Turn an unnamed error into a lost race, if another writer has changed the table: Spark's messages are of columns
    that are no longer there, and the like."""
    try:
        yield
    except LakeError:
        raise
    except Exception as e:
        now = commit.lake.find(commit.table)
        if why := TableState.of(commit.existing).changed(TableState.of(now)) if now is not None else "it was dropped":
            raise lost(commit.table, why) from e
        raise


@contextlib.contextmanager
def _branched_beside_spark(commit: Commit, branch: Branch) -> Generator[None]:
    """Implement `Commit.branch` with metadata commits of this process; Spark only writes."""
    before, table, ref = commit.existing, commit.table, branch.ref
    base = TableState.of(before)
    # A run that is killed here leaves its branch behind: the next step drops it.
    if base.snapshot is None:
        commit.lake.spark().sql(f"ALTER TABLE {commit.name} CREATE BRANCH `{ref}` RETAIN 1 DAYS")
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
def _branched_by_spark(commit: Commit, branch: Branch) -> Generator[None]:
    """Implement `Commit.branch` for every catalog.

    Settings are set by a commit after the rows are published: a step that is killed in between leaves a definition
    that is not the declared one, and the next step computes the table again.
    """
    spark, name, ref = commit.lake.spark(), commit.name, branch.ref
    snapshot = commit.existing.metadata.current_snapshot_id
    at = f"AS OF VERSION {snapshot}" if snapshot is not None else ""
    # A run that is killed here leaves its branch behind: the next step drops it.
    spark.sql(f"ALTER TABLE {name} CREATE BRANCH `{ref}` {at} RETAIN 1 DAYS")
    try:
        yield
        commit.check_unchanged()
        spark.sql(
            f"CALL `{commit.lake.config.name}`.system.fast_forward("
            f"table => {literal(_quoted(commit.table))}, branch => 'main', to => '{ref}')"
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
