"""The lake: one configuration that gives a PyIceberg catalog, a Spark session, and names for tables.

Knows nothing of captures, change events, models or Dagster. What does not belong here: anything that looks into a
table's history or content.
"""

from lake_assets.lake.config import LakeConfig, SparkConfig
from lake_assets.lake.lake_base import LakeBase
from lake_assets.lake.names import TableId, quote

__all__ = ["LakeBase", "LakeConfig", "SparkConfig", "TableId", "quote"]
