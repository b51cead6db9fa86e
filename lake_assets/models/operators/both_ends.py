"""The rows of an operator at both ends of a step, read once: the rows at the start are those at the end, without the
inserted and with the deleted ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lake_assets.lake import quote
from lake_assets.models.operators.kept_frames import Frames
from lake_assets.models.operators.operator_rows import KeyFilter, Rows
from lake_assets.models.operators.query_tree import Filter, Node, Project, Scan
from lake_assets.models.operators.unique_columns import unique
from lake_assets.tables.writing.row_differences import SIGN

# Whether a row is one of the start, and one of the end.
AT_START, AT_END = "__at_start", "__at_end"


def row_key(node: Node) -> tuple[str, ...]:
    """Return the columns by which inserted rows are found among the rows at the end; empty if there are none.

    Only operators over single rows of one table: changes of others may hold rows that never existed.
    """
    below = node
    while isinstance(below, Filter | Project):
        below = below.input
    keys = unique(node) if isinstance(below, Scan) else []
    return tuple(sorted(keys[0])) if keys else ()


def at_both_ends(
    node: Node,
    rows: Rows,
    frames: Frames,
    key_filter: KeyFilter,
    change: tuple[str, str] | None,
    computed: Callable[[str], str],
    *aggregates: str,
) -> tuple[str, list[Any]]:
    """Compute something from the rows of an operator at the start and at the end.

    Args:
        key_filter: selects all changed rows, among others.
        change: SQL of the operator's changed rows with `SIGN`, each a row of the start or of the end, and the hint to
            broadcast those `inserted`; None if it has no `row_key`.
        computed: returns the SQL to compute, which keeps all inserted rows, from SQL of rows with `AT_START` and
            `AT_END`.
        aggregates: SQL of aggregates over the computed rows.

    Returns:
        A view of the computed rows, and the aggregates.
    """
    end = rows.sql(node, "end", key_filter)
    if change:
        changed, hint = change
        result, (marked, *values) = frames.materialize_with_aggregates(
            computed(_read_once(node, end, changed, hint)), f"count_if(NOT {AT_START})", *aggregates
        )
        (inserted,) = frames.sql(f"SELECT count_if({SIGN} > 0) AS n FROM ({changed})").collect()
        if marked == inserted["n"]:
            return frames.view(result), values
        # Somebody has written a row under an existing key: the key does not tell which of both is new.
    start = rows.sql(node, "start", key_filter)
    sql = computed(_read_twice(node, start, end))
    result, (_, *values) = frames.materialize_with_aggregates(sql, "count(*)", *aggregates)
    return frames.view(result), values


def _read_once(node: Node, end: str, changed: str, hint: str) -> str:
    listed = ", ".join(map(quote, node.columns))
    names = {c: f"__u{i}" for i, c in enumerate(row_key(node))}
    keys = ", ".join([*(f"{quote(c)} AS {n}" for c, n in names.items()), "true AS __inserted"])
    same = " AND ".join(f"{n} <=> {quote(c)}" for c, n in names.items()) or "true"
    return (
        f"SELECT {hint} {listed}, __inserted IS NULL AS {AT_START}, true AS {AT_END} FROM ({end}) "
        f"LEFT JOIN (SELECT {keys} FROM ({changed}) WHERE {SIGN} > 0) inserted ON {same} "
        f"UNION ALL SELECT {listed}, true, false FROM ({changed}) WHERE {SIGN} < 0"
    )


def _read_twice(node: Node, start: str, end: str) -> str:
    """Return SQL in which each row is one of the start or of the end."""
    listed = ", ".join(map(quote, node.columns))
    return (
        f"SELECT {listed}, true AS {AT_START}, false AS {AT_END} FROM ({start}) "
        f"UNION ALL SELECT {listed}, false, true FROM ({end})"
    )
