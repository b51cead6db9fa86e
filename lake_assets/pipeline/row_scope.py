"""Which rows of a table are redone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lake_assets.errors import PipelineError
from lake_assets.lake.counts import plural
from lake_assets.pipeline.table_graph import ComputedSpec


@dataclass(frozen=True)
class RowScope:
    """Rows of a table to redo.

    Attributes:
        where: a condition in SQL over the table's columns that is true or false for every row, never null.
        columns: the columns in it.
        label: what they are, such as `3 partitions`.
    """

    where: str
    columns: tuple[str, ...]
    label: str


# The whole table, from the current contents of its sources.
EVERYTHING = RowScope("", (), "")


def rows_of_partitions(spec: ComputedSpec, keys: Sequence[str], types: Mapping[str, str]) -> RowScope:
    """Return the rows of some partitions.

    Args:
        spec: the table, with `partitions`.
        keys: keys of the partitions.
        types: the table's columns with Spark SQL types; empty: it does not exist.

    Raises:
        PipelineError: the table has no `partitions`, or a key is not one of them.
    """
    by = spec.partitions
    if by is None:
        raise PipelineError(f"{spec.table} has no `partitions`")
    by = by.spelled_as(types)
    where = by.condition(keys, types[by.by]) if by.by in types else "false"
    return RowScope(where, (by.by,), plural(len(keys), "partition"))
