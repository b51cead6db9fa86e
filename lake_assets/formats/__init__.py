"""Change events: what a record of a stream says about one row, and one module per wire format.

A format answers two questions: which source table a record is about (plain Python, used while landing), and how Spark
reads it (`EventPlan`: SQL over the column `record`, so no Python runs per row). Neither Spark nor Dagster is imported
here.
"""

from lake_assets.formats.event_model import EventColumn, EventPlan, SourceTable
from lake_assets.formats.format_base import EventFormat
from lake_assets.formats.registry import FORMATS, event_format

__all__ = ["FORMATS", "EventColumn", "EventFormat", "EventPlan", "SourceTable", "event_format"]
