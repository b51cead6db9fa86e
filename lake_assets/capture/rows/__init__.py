"""Changed rows as DataFrames: compared by row id or value; as upserts, feed, keys or change events."""
