"""Upkeep: keep the files, deletes, snapshots and metadata of tables few, by Iceberg's own procedures.

Policy, choice and the claims of consumers are here; rewriting and expiring is Iceberg's work. Nothing here changes what
a table holds.
"""
