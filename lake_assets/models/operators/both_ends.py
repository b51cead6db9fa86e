"""The rows of an operator at both ends of a step, read once: the rows at the start are those at the end, without the
inserted and with the deleted ones."""

from __future__ import annotations

from lake_assets.lake import quote
from lake_assets.models.operators.query_tree import Node, Scan, top_operator
from lake_assets.models.operators.unique_columns import unique
from lake_assets.tables.writing.row_differences import SIGN

# Whether a row is one of the start, and one of the end.
AT_START, AT_END = "__at_start", "__at_end"


def row_key(node: Node) -> tuple[str, ...]:
    """Return the columns by which inserted rows are found among the rows at the end; empty if there are none.

    Only operators over single rows of one table: changes of others may hold rows that never existed.
    """
    keys = unique(node) if isinstance(top_operator(node), Scan) else []
    return tuple(sorted(keys[0])) if keys else ()


def read_once(node: Node, end: str, changed: str, hint: str) -> str:
    """Return SQL of the rows at both ends, with `AT_START` and `AT_END`.

    Args:
        node: the operator, which has a `row_key`.
        end: SQL of its rows at the end.
        changed: SQL of its changed rows with `SIGN`, each a row of the start or of the end.
        hint: the hint to broadcast those `inserted`.
    """
    listed = ", ".join(map(quote, node.columns))
    names = {c: f"__u{i}" for i, c in enumerate(row_key(node))}
    keys = ", ".join([*(f"{quote(c)} AS {n}" for c, n in names.items()), "true AS __inserted"])
    same = " AND ".join(f"{n} <=> {quote(c)}" for c, n in names.items()) or "true"
    return (
        f"SELECT {hint} {listed}, __inserted IS NULL AS {AT_START}, true AS {AT_END} FROM ({end}) "
        f"LEFT JOIN (SELECT {keys} FROM ({changed}) WHERE {SIGN} > 0) inserted ON {same} "
        f"UNION ALL SELECT {listed}, true, false FROM ({changed}) WHERE {SIGN} < 0"
    )


def read_twice(node: Node, start: str, end: str) -> str:
    """Return the same from SQL of the rows at each end; each row is one of the start or of the end."""
    listed = ", ".join(map(quote, node.columns))
    return (
        f"SELECT {listed}, true AS {AT_START}, false AS {AT_END} FROM ({start}) "
        f"UNION ALL SELECT {listed}, false, true FROM ({end})"
    )
