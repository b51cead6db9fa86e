"""Settings of tables that a pipeline reads and somebody else writes."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from lake_assets.pipeline.config.asset_settings import AssetSettings, ColumnTexts
from lake_assets.pipeline.config.setting_types import TableName, combination


class ExternalTable(AssetSettings):
    """What Dagster shows of a table that no pipeline writes."""

    table: TableName = Field(description="layer.table, for example crm.regions")
    description: str | None = Field(default=None, description="contents of the table, and who writes it")
    column_descriptions: ColumnTexts = Field(default_factory=dict, description="what its columns mean, by column")

    @combination
    def _has_no_lag(self) -> Iterator[str]:
        if self.target_lag is not None:
            yield f"{self.table}: `target_lag` is for tables that a pipeline writes"
