"""From records to tables: landing (raw), change events with types (staging), one row a key (final).

Each step is one function that derives its window from the target's watermark, does its work in Spark and commits data
and watermark together; run again, it finds nothing to do. SQL models live in `lake_assets.models`; Dagster is not
known here.
"""
