"""Metadata of Iceberg tables, without Spark: versions, snapshot summaries, refs, watermarks."""
