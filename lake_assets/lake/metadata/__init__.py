"""Metadata of Iceberg tables beside Spark: versions, snapshot summaries, refs, watermarks."""
