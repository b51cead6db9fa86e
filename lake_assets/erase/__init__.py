"""Erase keys: remove the rows of a person from a lake's tables, their history and their files, and prove it.

The order of the work, what is kept for a restart and the scan are here; the steps of the pipeline recompute what is
downstream, and upkeep's procedures rewrite and expire.
"""
