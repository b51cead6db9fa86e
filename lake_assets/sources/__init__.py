"""Where records come from besides files of change events: what a source is read by, and how far it has been read.

Nothing here knows raw tables, formats' parsing or staging: `ingest` lands what a source gives.
"""
