"""How stored rows that a change replaces are found if recomputing them may give other values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from lake_assets.models.operators import query_tree as op
from lake_assets.models.operators.query_tree import column, refs, substitute, text, top_operator
from lake_assets.models.operators.stability import Doubt, State, state, worst


@dataclass(frozen=True)
class Identity:
    """Columns of a result whose values are the same in every computation, and the rows that they replace.

    Attributes:
        kind: what is replaced. `group`: all rows of a touched group, computed at once. `key`: single rows. `row`: all
            rows that agree in the exact columns.
        columns: the expression over `node` for each of these columns.
        node: the operator whose changed rows determine the touched values.
        doubt: the reason why an identity is needed.
        is_rounded: whether each row is correct by itself, whenever it was computed.
    """

    kind: Literal["group", "key", "row"]
    columns: Mapping[str, exp.Expr]
    node: op.Node
    doubt: Doubt
    is_rounded: bool

    @property
    def why(self) -> str:
        """The reason and what is replaced, for people."""
        by = ", ".join(self.columns)
        what = {"group": f"all rows of a touched {by} are replaced together", "key": f"rows are replaced by {by}",
                "row": f"rows are found by {by} alone"}[self.kind]  # fmt: skip
        return f"{self.doubt.why}, so {what}"


def identity(tree: op.Tree, key: Collection[str]) -> Identity | Doubt | None:
    """Return how stored rows of a result are identified; a doubt if it prevents that; None if every computation gives
    the same rows.
    """
    whole = state(tree.root)
    doubtful = {o: whole.columns[c] for o, c in tree.outputs.items() if c in whole.columns}
    doubt = worst(whole.rows, *doubtful.values())
    if doubt is None:
        return None
    exact: dict[str, exp.Expr] = {o: column(c) for o, c in tree.outputs.items() if o not in doubtful}
    top = top_operator(tree.root)
    is_rounded = State(doubtful, whole.rows).is_rounded
    if isinstance(top, op.Aggregate) and top.keys and state(top.input).is_rounded:
        groups = _groups(tree.root, exact, lambda node, _: node is top.input)
        if groups and len(groups[1]) == len(top.keys):
            return Identity("group", groups[1], groups[0], doubt, is_rounded)
    if is_rounded and key and not set(key) & set(doubtful):
        return Identity("key", {k: exact[k] for k in key}, tree.root, doubt, is_rounded)
    # Rows that are correct by themselves are replaced one by one, unless their groups are computed from exact rows
    # only.
    if groups := _groups(tree.root, exact, lambda _, of: of.is_exact if is_rounded else of.is_rounded):
        return Identity("group", groups[1], groups[0], doubt, is_rounded)
    return Identity("row", exact, tree.root, doubt, is_rounded) if is_rounded and exact else doubt


def _groups(
    node: op.Node, columns: Mapping[str, exp.Expr], until: Callable[[op.Node, State], bool]
) -> tuple[op.Node, dict[str, exp.Expr]] | None:
    """Return the deepest operator above which everything is computed within groups of some result columns, and these
    columns over it; None if there is no such operator."""
    columns, of = dict(columns), state(node)
    while not until(node, of):
        match node:
            case op.Filter() | op.Distinct():
                pass
            case op.Project():
                by = dict(node.items)
                columns = {o: substitute(e, by) for o, e in columns.items()}
            case op.Generate():
                below = set(node.input.columns)
                columns = {o: e for o, e in columns.items() if refs(e) <= below}
            case op.Window():
                same = {text(p) for p in node.partition}
                columns = {o: e for o, e in columns.items() if text(e) in same}
            case op.Aggregate():
                keys = dict(node.keys)
                columns = {o: keys[e.name] for o, e in columns.items() if isinstance(e, exp.Column) and e.name in keys}
            case _:
                return None
        node = node.input
        of = state(node)
        columns = {o: e for o, e in columns.items() if refs(e) and not refs(e) & set(of.columns)}
        if not columns:
            return None
    return node, columns
