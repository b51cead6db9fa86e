"""What others do to keep tables small."""

from __future__ import annotations

from lake_assets import Lake


def compact_and_expire(lake: Lake, *tables: str) -> None:
    """Rewrite all data files of the tables and expire all snapshots that nothing holds on to."""
    spark = lake.spark()
    for table in tables:
        spark.sql(f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
        spark.sql(
            f"CALL lake.system.expire_snapshots(table => '{table}', "
            "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
        )
