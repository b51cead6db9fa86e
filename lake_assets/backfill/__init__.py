"""Backfills: redo tables and everything downstream aside, compare, publish together, undo.

A backfill makes working copies of its tables (`lake.metadata.working_copies`) and registers them in a catalog of its
own, its side catalog. The steps of the pipeline run there as they run on main: they read each other's copies, audits
included, and nobody else does. Publishing grafts all copies onto their tables in one commit.

Previews of changed declarations are here as well: from metadata alone, and by a backfill that waits for a decision.
"""
