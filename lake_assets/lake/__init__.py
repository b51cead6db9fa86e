"""The lake: one configuration for a PyIceberg catalog and a Spark session, and names of tables.

Independent of captures, change events, models and Dagster. What does not belong here: anything that reads the rows of a
table.
"""

from lake_assets.lake.config import LakeConfig, SparkConfig
from lake_assets.lake.lake_base import LakeBase
from lake_assets.lake.names import TableId, quote

__all__ = ["LakeBase", "LakeConfig", "SparkConfig", "TableId", "quote"]
