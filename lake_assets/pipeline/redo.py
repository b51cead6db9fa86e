"""Redo a table: what a rebuild, recomputed partitions and a backfill do to each table, with another scope.

Everything is computed from the current contents of the sources, and moves the watermarks. Some rows are computed from
what the table has absorbed, and its watermarks stay. Both are one commit that writes the rows that differ, so
downstream tables follow it like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lake_assets.lake import LakeBase
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.pipeline.redo_rows import recompute
from lake_assets.pipeline.redo_table import Past, rebuild
from lake_assets.pipeline.row_scope import EVERYTHING, RowScope, rows_of_partitions
from lake_assets.pipeline.table_graph import ComputedSpec, Spec
from lake_assets.tables.outcome import Outcome
from lake_assets.tables.writing.table_ddl import columns_of


def redo(
    lake: LakeBase,
    spec: Spec,
    scope: RowScope = EVERYTHING,
    pins: SnapshotPins | None = None,
    *,
    file: Path | None = None,
    past: Past | None = None,
) -> Outcome:
    """Redo a table, or some of its rows.

    Args:
        lake: the lake.
        spec: the table; a final table or a model, if `scope` is not everything.
        scope: the rows.
        pins: snapshots that the models of this run have read so far; for everything.
        file: the file of the pipeline, for the note of a failure; for everything.
        past: what becomes of rows that cannot be computed again; for everything.

    Raises:
        LakeError: see `redo_table.rebuild` and `redo_rows.recompute`.
    """
    if scope == EVERYTHING:
        return rebuild(lake, spec, pins, file=file, past=past)
    assert isinstance(spec, ComputedSpec)
    return recompute(lake, spec, scope)


def redo_partitions(lake: LakeBase, spec: ComputedSpec, keys: Sequence[str]) -> Outcome:
    """Redo some partitions of a table; see `redo`.

    Raises:
        PipelineError: the table has no `partitions`, or a key is not one of them.
    """
    types = {} if lake.find(spec.table) is None else columns_of(lake, spec.table)
    return redo(lake, spec, rows_of_partitions(spec, keys, types))
