"""Metadata of a run of several partitions, which Dagster copies to each partition."""

from __future__ import annotations

from lake_assets.orchestration.asset_metadata import for_each_partition
from lake_assets.tables.partitioning.partition_changes import PartitionChange, counted


def test_figures_of_the_whole_step_are_prefixed_on_each_partition() -> None:
    step = {"rows_inserted": 3, "rows_deleted": 1, "seconds": 2.0, "dagster/row_count": 40, "dagster/uri": "u"}
    assert for_each_partition(step) == {
        "whole_step/rows_inserted": 3,
        "whole_step/rows_deleted": 1,
        "whole_step/seconds": 2.0,
        "dagster/uri": "u",
    }


def test_an_unchanged_partition_reports_no_changes_of_other_partitions() -> None:
    assert counted(PartitionChange(), updated=5) == {"rows_inserted": 0, "rows_updated": 0, "rows_deleted": 0}
    assert counted(PartitionChange(2, 1), updated=5) == {}
    assert counted(PartitionChange(2, 0), updated=0) == {"rows_inserted": 2, "rows_updated": 0, "rows_deleted": 0}
