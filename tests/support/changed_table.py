"""A table, and statements of Spark that change it."""

from __future__ import annotations

from lake_assets import Lake
from tests.support.capture_oracle import assert_exact


class History:
    """A table, and the statements that change it."""

    def __init__(
        self, lake: Lake, table: str, version: int, mode: str = "copy-on-write", columns: str = "", more: str = ""
    ):
        self.lake, self.table = lake, table
        modes = ",".join(f"'write.{w}.mode'='{mode}'" for w in ("merge", "update", "delete"))
        self.sql(
            f"CREATE TABLE {{t}} ({columns or 'id INT, g INT, v STRING'}) USING iceberg {more} "
            f"TBLPROPERTIES ('format-version'='{version}', {modes})"
        )

    def sql(self, *statements: str) -> int | None:
        for text in statements:
            self.lake.spark().sql(text.replace("{t}", self.lake.sql_name(self.table)).replace("{n}", self.table))
        current = self.lake.table(self.table).current_snapshot()
        return current.snapshot_id if current else None

    def exact(self, *windows: tuple[int | None, int | None]) -> None:
        for start, end in windows:
            assert_exact(self.lake, self.table, start, end)


ROWS = "INSERT INTO {t} SELECT CAST(id AS INT), CAST(id % 3 AS INT), CAST(id AS STRING) FROM range(12)"
