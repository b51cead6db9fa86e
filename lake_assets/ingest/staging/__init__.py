"""Staging tables: one row per change event, appended, merged, or read again from raw."""
