"""Iceberg's Java API in Spark's JVM, by py4j: the only place that commits with it.

`tests/tables/test_commits_by_position.py` checks what is used. Spark Connect has no JVM at hand.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from lake_assets.tables.writing.position_files import NewFiles


def has_jvm(spark: SparkSession) -> bool:
    """Whether Spark runs in a JVM of this process."""
    return getattr(spark, "_jvm", None) is not None


def commit_files(spark: SparkSession, name: str, branch: str, files: NewFiles, properties: Mapping[str, str]) -> None:
    """Commit files to a branch of a table.

    Args:
        name: the table in SQL.
        branch: the name of a branch at the snapshot that `files` were made for, to which nobody else writes: no
            conflict is possible.
        properties: properties of the snapshot.
    """
    jvm: Any = spark._jvm  # type: ignore[union-attr]
    iceberg = jvm.org.apache.iceberg
    with _active(spark):
        table = iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, name)  # type: ignore[attr-defined]
    specs, parser, mapper = table.specs(), iceberg.ContentFileParser, iceberg.util.JsonUtil.mapper()
    delta = table.newRowDelta().toBranch(branch)
    # Otherwise Iceberg takes the vectors of all earlier snapshots for those of another writer.
    delta.validateFromSnapshot(files.table.metadata.current_snapshot_id)
    for add, described in (
        (delta.addRows, files.data),
        (delta.addDeletes, files.vectors),
        (delta.removeDeletes, files.replaced),
    ):
        for text in described:
            add(parser.fromJson(mapper.readTree(text), specs))
    for key, value in properties.items():
        delta.set(key, value)
    delta.commit()


@contextlib.contextmanager
def _active(spark: SparkSession) -> Generator[None]:
    """Make a session the active one of this thread: whichever is active gives a catalog its settings."""
    sessions: Any = spark._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
