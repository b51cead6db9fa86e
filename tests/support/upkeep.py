"""What others do to tables: keep them small, or replace them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.lake import TableId, thresholds
from lake_assets.lake.metadata.metadata_commits import commit
from lake_assets.tables.upkeep_policy import UpkeepPolicy


def make_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small numbers of files and snapshots be many."""
    monkeypatch.setattr(thresholds, "UPKEEP_INPUT_FILES", 2)
    monkeypatch.setattr(thresholds, "UPKEEP_EXPIRED_SNAPSHOTS", 2)
    monkeypatch.setattr(thresholds, "SNAPSHOTS_KEPT", 3)
    monkeypatch.setattr(thresholds, "ORPHAN_SEARCH_SECONDS", 0)


def eager(policy: UpkeepPolicy) -> UpkeepPolicy:
    """A policy of which a few batches make every kind of action due."""
    return replace(policy, commits=3, small_files=0.01, deleted_rows=0.1, keep=0.0)


def compact_and_expire(lake: Lake, *tables: str) -> None:
    """Rewrite all data files of the tables and expire all snapshots that nothing holds on to."""
    spark = lake.spark()
    for table in tables:
        compact(lake, table)
        spark.sql(
            f"CALL lake.system.expire_snapshots(table => '{table}', "
            "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
        )


def compact(lake: Lake, table: str) -> None:
    """Rewrite all data files of a table."""
    lake.spark().sql(f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")


def expire(lake: Lake, table: str | TableId) -> None:
    """Expire all snapshots of a table but those that branches and tags name; without Spark."""
    loaded = lake.table(table)
    kept = {ref.snapshot_id for ref in loaded.refs().values()}
    loaded.maintenance.expire_snapshots().by_ids(
        [s.snapshot_id for s in loaded.snapshots() if s.snapshot_id not in kept]
    ).commit()


def forget_history(lake: Lake, *tables: str) -> None:
    """Expire all snapshots of tables but the current one, and remove the tags that consumers have on others."""
    spark = lake.spark()
    for table in tables:
        name, metadata = lake.sql_name(table), lake.table(table).metadata
        for ref in [r for r in metadata.refs if r != "main"]:
            kind = metadata.refs[ref].snapshot_ref_type.name
            spark.sql(f"ALTER TABLE {name} DROP {kind} `{ref}`")
        ids = [s.snapshot_id for s in metadata.snapshots if s.snapshot_id != metadata.current_snapshot_id]
        if ids:
            listed = ", ".join(map(str, ids))
            spark.sql(f"CALL lake.system.expire_snapshots(table => '{table}', snapshot_ids => ARRAY({listed}))")


def empty_in_place(lake: Lake, table: str) -> None:
    """Leave what CREATE OR REPLACE TABLE leaves: the same uuid and snapshots, none of them current; without Spark."""

    def emptied(metadata: dict[str, Any]) -> dict[str, Any]:
        refs = {name: ref for name, ref in metadata.get("refs", {}).items() if name != "main"}
        return {**metadata, "current-snapshot-id": -1, "refs": refs, "snapshot-log": []}

    commit(lake.table(table), emptied)
