"""The lake: one configuration for a PyIceberg catalog and a Spark session, and names of tables.

Knows nothing of captures, change events, models or Dagster. What does not belong here: anything that reads a
table's history or contents.
"""

from lake_assets.lake.config import LakeConfig, SparkConfig
from lake_assets.lake.lake_base import LakeBase
from lake_assets.lake.names import TableId, quote

__all__ = ["LakeBase", "LakeConfig", "SparkConfig", "TableId", "quote"]
