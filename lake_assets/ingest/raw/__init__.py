"""Raw tables: which files and records are new, landing each once, and the source tables of their records."""
