"""The operators of a query and their rules: rows, changes, types, keys, and how each is maintained."""
