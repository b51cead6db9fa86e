"""Capture the changes between two snapshots of any Iceberg table: windows, field ranges, ICDC tables and feeds.

Planning (`windows`, `changed_files`, `field_ranges`, the folder `files`) imports neither Spark nor Dagster, since a
sensor calls it. The folder `rows` turns captured files into DataFrames. Applying the changes does not belong here.
"""

from lake_assets.capture.captured import Capture, CapturedFile, capture
from lake_assets.capture.field_ranges import FieldRange
from lake_assets.capture.icdc import IcdcTables
from lake_assets.capture.snapshot_points import Point
from lake_assets.capture.windows import EMPTY, Window

__all__ = ["EMPTY", "Capture", "CapturedFile", "FieldRange", "IcdcTables", "Point", "Window", "capture"]
