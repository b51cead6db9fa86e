"""Metadata of a run of several partitions, which Dagster copies to each partition."""

from __future__ import annotations

from lake_assets.orchestration.asset_metadata import by_partition
from lake_assets.tables.partitioning.partition_changes import PartitionChange, counted


def test_figures_of_the_whole_step_are_not_those_of_a_partition() -> None:
    whole = {"rows_inserted": 3, "partitions_touched": 2, "seconds": 2.0, "dagster/row_count": 40, "detail/x": "y"}
    each = {"status": "absorbed", "strategy": "backfill", "dagster/uri": "u"}
    assert by_partition(whole | each) == (each, whole)


def test_an_unchanged_partition_reports_no_changes_of_other_partitions() -> None:
    assert counted(PartitionChange(), updated=5) == {"rows_inserted": 0, "rows_updated": 0, "rows_deleted": 0}
    assert counted(PartitionChange(2, 1), updated=5) == {}
    assert counted(PartitionChange(2, 0), updated=0) == {"rows_inserted": 2, "rows_updated": 0, "rows_deleted": 0}
