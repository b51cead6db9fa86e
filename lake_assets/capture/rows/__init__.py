"""Changed rows as DataFrames: by row id, by value, as upserts, feed, keys or change events."""
