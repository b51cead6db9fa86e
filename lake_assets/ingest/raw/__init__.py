"""Raw tables: which files and records are new, each of them landed once, and which source tables they brought."""
