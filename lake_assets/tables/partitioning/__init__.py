"""Partitions of a table: declared by time or value, stored as Iceberg's fields, touched by commits."""
