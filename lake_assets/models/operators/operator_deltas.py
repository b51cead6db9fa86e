"""The change of an operator's rows: those that go and those that come, with a sign.

Rows at the end are the rows at the start without those of sign -1 and with those of sign 1, counted. A row may be
among both. Operators over single rows and inner joins pass changes on; the others find which keys are touched, and
give the rows of those keys at the start and at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from lake_assets.lake import TableId, quote
from lake_assets.models.operators.operator_rows import At, KeyFilter, Rows, beside, full, generated, scan_sql
from lake_assets.models.operators.query_tree import (
    Aggregate,
    Distinct,
    Filter,
    FullJoin,
    Generate,
    InnerJoin,
    Node,
    Project,
    Scan,
    SetOp,
    SideJoin,
    UnionAll,
    Window,
    column,
    equals,
    refs,
    text,
)
from lake_assets.models.steps.kept_frames import MAX_BROADCAST, SIGN, Frame, Frames

_MINUS, _PLUS = f"CAST(-1 AS INT) AS {SIGN}", f"CAST(1 AS INT) AS {SIGN}"


class Deltas:
    """The changes of the operators of one tree in one step.

    Args:
        frames: keeps what is computed.
        rows: the operators' rows at start and end.
        feed: the changed rows of a table with `SIGN`, under the table's own names; None: nothing changed in it.
    """

    def __init__(self, frames: Frames, rows: Rows, feed: Callable[[TableId], Frame | None]) -> None:
        self._frames, self._rows, self._feed = frames, rows, feed
        self._sql: dict[int, str | None] = {}
        self._measured: dict[int, Frame | None] = {}

    def sql(self, node: Node) -> str | None:
        """A SELECT with the operator's columns and `SIGN`; None: nothing changes."""
        if id(node) not in self._sql:
            self._sql[id(node)] = self._make(node)
        return self._sql[id(node)]

    def frame(self, node: Node) -> Frame | None:
        """The same, computed; None: nothing changes."""
        if id(node) not in self._measured:
            sql = self.sql(node)
            found = self._frames.measure(sql) if sql is not None else None
            self._measured[id(node)] = found if found and found.rows else None
        return self._measured[id(node)]

    def changed_input_keys(self, node: Node, keys: Sequence[exp.Expr]) -> Frame | None:
        """The distinct values (`__k0`, ...) of expressions over what changes below an operator; None: nothing does."""
        return self._touched([(i, keys) for i in node.inputs])

    def changed_keys(self, node: Node, keys: Sequence[exp.Expr]) -> Frame | None:
        """The distinct values (`__k0`, ...) of expressions over an operator's changed rows; None: no row changed."""
        return self._touched([(node, keys)])

    def is_direct(self, node: Node) -> bool:
        """Whether all rows that go are rows of the start, and all that come are rows of the end.

        Where several inputs of a join changed, rows that never were go and come: they cancel only where both times the
        same values are computed.
        """
        if isinstance(node, Aggregate | Window | Distinct | SetOp | FullJoin):
            return True  # made of the rows at the start and those at the end
        changed = [i for i in node.inputs if self.sql(i) is not None]
        is_join = isinstance(node, InnerJoin | SideJoin)
        return not (is_join and len(changed) > 1) and all(self.is_direct(i) for i in changed)

    def _touched(self, sides: Sequence[tuple[Node, Sequence[exp.Expr]]], more: str = "") -> Frame | None:
        parts = [f"SELECT {_keys(keys)} FROM ({sql})" for node, keys in sides if (sql := self._once(node))]
        if not parts:
            return None
        found = self._frames.measure(f"SELECT DISTINCT * FROM ({' UNION ALL '.join(parts)}){more}")
        return found if found.rows else None

    def _once(self, node: Node) -> str | None:
        """The change as SQL that is cheap to read more than once."""
        if is_simple(node):
            return self.sql(node)
        found = self.frame(node)
        return f"SELECT * FROM {found.view}" if found else None

    def _make(self, node: Node) -> str | None:
        match node:
            case Scan():
                feed = self._feed(node.table)
                return scan_sql(node, feed.view, f", {SIGN}") if feed else None
            case Filter():
                below = self.sql(node.input)
                return f"SELECT * FROM ({below}) WHERE {text(node.condition)}" if below else None
            case Project():
                below = self.sql(node.input)
                items = ", ".join(f"{text(e)} AS {quote(n)}" for n, e in node.items)
                return f"SELECT {items}, {SIGN} FROM ({below})" if below else None
            case Generate():
                below = self.sql(node.input)
                return generated(node, below) if below else None
            case UnionAll():
                parts = [f"(SELECT {_listed(node)}, {SIGN} FROM ({s}))" for i in node.inputs if (s := self.sql(i))]
                return f"SELECT * FROM ({' UNION ALL '.join(parts)})" if parts else None
            case InnerJoin():
                parts = [s for i in range(len(node.inputs)) if (s := self._joined(node, i))]
                return f"SELECT * FROM ({' UNION ALL '.join(f'({p})' for p in parts)})" if parts else None
            case SideJoin():
                parts = [s for s in (self._from_left(node), self._from_right(node)) if s]
                return f"SELECT * FROM ({' UNION ALL '.join(f'({p})' for p in parts)})" if parts else None
            case FullJoin():
                return self._full(node)
            case Aggregate() | Window() | Distinct() | SetOp():
                return self._by_key(node)

    # --- inner joins --------------------------------------------------------------------------------------------

    def _joined(self, node: InnerJoin, at: int) -> str | None:
        """The change of one input, joined with those before it as they were and those after it as they are."""
        changed = self._small(node.inputs[at])
        if changed is None:
            return None
        sql, frame = changed
        have = set(node.inputs[at].columns)
        rest, todo = list(node.on), [i for i in range(len(node.inputs)) if i != at]
        while todo:
            nth = next((i for i in todo if equals(rest, have, node.inputs[i].columns)), todo[0])
            todo.remove(nth)
            side = node.inputs[nth]
            pairs = equals(rest, have, side.columns)
            cut = self._cut(sql, frame, pairs, is_simple(side))
            have |= set(side.columns)
            on = [c for c in rest if refs(c) <= have]
            rest = [c for c in rest if not refs(c) <= have]
            there = self._rows.sql(side, "start" if nth < at else "end", cut)
            hint = "/*+ BROADCAST(changed) */" if frame.rows <= MAX_BROADCAST else ""
            said = " AND ".join(f"({text(c)})" for c in on) or "true"
            sql = f"SELECT {hint} * FROM ({sql}) changed JOIN ({there}) ON {said}"
            if todo:
                # How many rows there are now decides how the next input is read.
                frame = self._frames.measure(sql)
                if not frame.rows:
                    return None
                sql = f"SELECT * FROM {frame.view}"
        return f"SELECT {_listed(node)}, {SIGN} FROM ({sql})"

    def _small(self, node: Node) -> tuple[str, Frame] | None:
        """The change of an operator as SQL, with a frame that bounds it."""
        scan = node
        while isinstance(scan, Filter):
            scan = scan.input
        if isinstance(scan, Scan):
            feed, sql = self._feed(scan.table), self.sql(node)
            return (sql, feed.renamed(scan.fields)) if feed and sql else None
        frame = self.frame(node)
        return (f"SELECT * FROM {frame.view}", frame) if frame else None

    def _cut(
        self, sql: str, frame: Frame, pairs: Sequence[tuple[exp.Expr, exp.Expr]], simple: bool
    ) -> KeyFilter | None:
        """Those rows of the other side of a join that the changed ones can meet."""
        if simple:
            # The changed rows are sent to where the side is read: conditions on it are all that is of use.
            plain = [(x, y) for x, y in pairs if isinstance(x, exp.Column)]
            names = tuple(x.name for x, _ in plain)
            return KeyFilter(tuple(y for _, y in plain), names, frame.loosely()) if plain else None
        if not pairs:
            return None
        keys = self._frames.measure(f"SELECT DISTINCT {_keys([x for x, _ in pairs])} FROM ({sql})")
        return _cut_of([y for _, y in pairs], keys)

    # --- outer, semi and anti joins -----------------------------------------------------------------------------

    def _from_left(self, node: SideJoin) -> str | None:
        """The change of the left side, with the right one as it is."""
        changed = self._once(node.left)
        if changed is None:
            return None
        cut = None
        if node.kind != "null_anti" and (pairs := equals(node.on, node.left.columns, node.right.columns)):
            keys = self._frames.measure(f"SELECT DISTINCT {_keys([x for x, _ in pairs])} FROM ({changed})")
            cut = _cut_of([y for _, y in pairs], keys)
        right = self._rows.sql(node.right, "end", cut)
        return f"SELECT {_listed(node)}, {SIGN} FROM ({beside(node, changed, right)})"

    def _from_right(self, node: SideJoin) -> str | None:
        """What the change of the right side does to the left one as it was."""
        on = node.on[:1] if node.kind == "null_anti" else node.on
        pairs = equals(on, node.left.columns, node.right.columns)
        changed = self._once(node.right)
        if changed is None:
            return None
        if not pairs:
            return self._two(node, self._rows.sql(node.left, "start"), None)
        if node.kind == "null_anti":
            return self._not_in(node, pairs, changed)
        held = " AND ".join(f"__k{i} IS NOT NULL" for i in range(len(pairs)))
        touched = self._touched([(node.right, [y for _, y in pairs])], f" WHERE {held}")
        if touched is None:
            return None
        left = self._rows.sql(node.left, "start", _cut_of([x for x, _ in pairs], touched))
        return self._two(node, left, _cut_of([y for _, y in pairs], touched))

    def _not_in(self, node: SideJoin, pairs: Sequence[tuple[exp.Expr, exp.Expr]], changed: str) -> str | None:
        """NOT IN: rows without a value are there only while the subquery is empty, and a null in it touches all."""
        (x, y), *_ = pairs
        found = self._frames.measure(f"SELECT DISTINCT {_keys([y])} FROM ({changed}) UNION SELECT NULL")
        with_null = self._frames.sql(f"SELECT 1 FROM ({changed}) WHERE {text(y)} IS NULL LIMIT 1").take(1)
        return self._two(node, self._rows.sql(node.left, "start", None if with_null else _cut_of([x], found)), None)

    def _two(self, node: SideJoin, left: str, right: KeyFilter | None) -> str:
        kept = self._frames.view(self._frames.materialize(left))
        was, now = (
            f"SELECT {_listed(node)}, {sign} FROM "
            f"({beside(node, f'SELECT * FROM {kept}', self._rows.sql(node.right, at, right))})"
            for at, sign in _sides()
        )
        return f"({was}) UNION ALL ({now})"

    def _full(self, node: FullJoin) -> str | None:
        pairs = equals(node.on, node.left.columns, node.right.columns)
        if pairs:
            xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
            touched = self._touched([(node.left, xs), (node.right, ys)])
            if touched is None:
                return None
            cuts: tuple[KeyFilter | None, KeyFilter | None] = (_cut_of(xs, touched), _cut_of(ys, touched))
        else:
            if self.sql(node.left) is None and self.sql(node.right) is None:
                return None
            cuts = (None, None)
        was, now = (
            f"SELECT {_listed(node)}, {sign} FROM "
            f"({full(node, self._rows.sql(node.left, at, cuts[0]), self._rows.sql(node.right, at, cuts[1]))})"
            for at, sign in _sides()
        )
        return f"({was}) UNION ALL ({now})"

    # --- by key -------------------------------------------------------------------------------------------------

    def _by_key(self, node: Aggregate | Window | Distinct | SetOp) -> str | None:
        below, above = keys_of(node)
        if all(self.sql(i) is None for i in node.inputs):
            return None
        cut = None
        if below:
            touched = self._touched([(i, below) for i in node.inputs])
            if touched is None:
                return None
            cut = _cut_of(above, touched)
        was, now = (f"SELECT {_listed(node)}, {sign} FROM ({self._rows.sql(node, at, cut)})" for at, sign in _sides())
        return f"({was}) UNION ALL ({now})"


def keys_of(node: Node) -> tuple[list[exp.Expr], list[exp.Expr]]:
    """What tells which of an operator's rows depend on which of its inputs' rows: over the inputs, and over its own."""
    match node:
        case Aggregate():
            return [e for _, e in node.keys], [column(n) for n, _ in node.keys]
        case Window():
            return list(node.partition), list(node.partition)
        case Distinct() | SetOp():
            return [column(c) for c in node.columns], [column(c) for c in node.columns]
        case _:
            return [], []


def is_simple(node: Node) -> bool:
    """Whether an operator reads one table row by row."""
    while isinstance(node, Filter | Project | Generate):
        node = node.input
    return isinstance(node, Scan)


def _sides() -> tuple[tuple[At, str], tuple[At, str]]:
    return ("start", _MINUS), ("end", _PLUS)


def _keys(keys: Sequence[exp.Expr]) -> str:
    return ", ".join(f"{text(e)} AS __k{i}" for i, e in enumerate(keys))


def _cut_of(expressions: Sequence[exp.Expr], keys: Frame) -> KeyFilter:
    return KeyFilter(tuple(expressions), tuple(f"__k{i}" for i in range(len(expressions))), keys)


def _listed(node: Node) -> str:
    return ", ".join(quote(c) for c in node.columns)
