"""Metadata of a run of several partitions, which Dagster copies to each partition."""

from __future__ import annotations

from lake_assets.final.final_spec import FinalSpec
from lake_assets.lake import TableId
from lake_assets.orchestration.asset_metadata import by_partition, of_outcome
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.partitioning.partition_changes import PartitionChange, counted


def test_figures_of_the_whole_step_are_not_those_of_a_partition() -> None:
    whole = {"rows_inserted": 3, "partitions_touched": 2, "seconds": 2.0, "dagster/row_count": 40, "detail/x": "y"}
    each = {"status": "absorbed", "strategy": "backfill", "dagster/uri": "u"}
    assert by_partition(whole | each) == (each, whole)


def test_an_unchanged_partition_reports_no_changes_of_other_partitions() -> None:
    assert counted(PartitionChange(), updated=5) == {"rows_inserted": 0, "rows_updated": 0, "rows_deleted": 0}
    assert counted(PartitionChange(2, 1), updated=5) == {}
    assert counted(PartitionChange(2, 0), updated=0) == {"rows_inserted": 2, "rows_updated": 0, "rows_deleted": 0}


def test_people_see_first_what_changed_and_no_columns_of_the_package() -> None:
    window = Absorbed("staging.users", 1, 2, 1, 3617, {"id": "1..8", "_op": "insert", "_sequence": "1..9"})
    only_own = Absorbed("staging.tombstones", 1, 2, 1, 3617, {"_op": "delete"})
    spec = FinalSpec(TableId.parse("final.users"), TableId.parse("staging.users"), "shop")
    outcome = Outcome("final.users", "absorbed", (window, only_own), inserted=8, strategy="merge", why="8 keys")
    metadata = of_outcome(outcome, spec)
    assert list(metadata)[:5] == ["status", "rows_inserted", "rows_updated", "rows_deleted", "strategy"]
    assert [r.data["column"] for r in metadata["ranges"].value.records] == ["id", "_op"]
