"""Runs in Dagster: their Spark session, their steps in threads, and the runs that came before or died."""
