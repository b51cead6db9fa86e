"""The change of an operator's rows: deleted and inserted rows, with a sign.

The rows at the end are the rows at the start, less the rows of sign -1, plus the rows of sign 1, as multisets. A row
may occur with both signs. Operators over single rows and inner joins pass changes on. The others determine the touched
keys, and return all rows of these keys at the start and at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sqlglot import exp

from lake_assets.lake import TableId, thresholds
from lake_assets.models.operators import query_tree as op
from lake_assets.models.operators.both_ends import AT_END, AT_START, read_once, read_twice, row_key
from lake_assets.models.operators.kept_frames import Frame, Frames
from lake_assets.models.operators.operator_rows import (
    At,
    KeyFilter,
    Rows,
    full_join_sql,
    generate_sql,
    items_of,
    names_of,
    scan_sql,
    side_join_sql,
)
from lake_assets.models.operators.query_tree import column, equals, refs, scans, text
from lake_assets.models.operators.window_frames import RowFrames, RunningWindows, row_frames, running_windows
from lake_assets.tables.writing.row_differences import SIGN

_MINUS, _PLUS = f"CAST(-1 AS INT) AS {SIGN}", f"CAST(1 AS INT) AS {SIGN}"


class Deltas:
    """The changes of the operators of one tree in one step.

    Args:
        feed: returns the changed rows of a table with `SIGN`, under the table's own names; None if no row changed.
    """

    def __init__(
        self, frames: Frames, rows: Rows, feed: Callable[[TableId], Frame | None], size: Callable[[TableId], int]
    ) -> None:
        self._frames, self._rows, self._feed, self._size = frames, rows, feed, size
        self._sql: dict[int, str | None] = {}
        self._measured: dict[int, Frame | None] = {}

    def sql(self, node: op.Node) -> str | None:
        """Return a SELECT of the change, with the operator's columns and `SIGN`; None if nothing changes."""
        if id(node) not in self._sql:
            self._sql[id(node)] = self._make(node)
        return self._sql[id(node)]

    def frame(self, node: op.Node) -> Frame | None:
        """Return the materialized change; None if nothing changes."""
        if id(node) not in self._measured:
            sql = self.sql(node)
            change = self._frames.measure(sql) if sql is not None else None
            self._measured[id(node)] = change if change and change.rows else None
        return self._measured[id(node)]

    def is_direct(self, node: op.Node) -> bool:
        """Whether all deleted rows are rows of the start, and all inserted rows are rows of the end.

        If several inputs of a join changed, rows that never existed are inserted and deleted: they cancel out only if
        both computations give the same values.
        """
        if isinstance(node, op.Aggregate | op.Window | op.Distinct | op.SetOp | op.FullJoin):
            return True  # computed from the rows at the start and at the end
        changed = [i for i in node.inputs if self.sql(i) is not None]
        is_join = isinstance(node, op.InnerJoin | op.SideJoin)
        return not (is_join and len(changed) > 1) and all(self.is_direct(i) for i in changed)

    def changed_keys(self, sides: Sequence[tuple[op.Node, Sequence[exp.Expr]]], more: str = "") -> Frame | None:
        """Return the distinct values (`__k0`, ...) of expressions over the changes of some operators; None if no row
        changed."""
        parts = [f"SELECT {_keys(keys)} FROM ({sql})" for node, keys in sides if (sql := self._reusable(node))]
        if not parts:
            return None
        keys_frame = self._frames.measure(f"SELECT DISTINCT * FROM ({' UNION ALL '.join(parts)}){more}")
        return keys_frame if keys_frame.rows else None

    def _reusable(self, node: op.Node) -> str | None:
        """Return the change as SQL that is cheap to read several times."""
        if is_simple(node):
            return self.sql(node)
        change = self.frame(node)
        return f"SELECT * FROM {change.view}" if change else None

    def _make(self, node: op.Node) -> str | None:
        match node:
            case op.Scan():
                feed = self._feed(node.table)
                return scan_sql(node, feed.view, f", {SIGN}") if feed else None
            case op.Unit():
                return None
            case op.Filter():
                below = self.sql(node.input)
                return f"SELECT * FROM ({below}) WHERE {text(node.condition)}" if below else None
            case op.Project():
                below = self.sql(node.input)
                return f"SELECT {items_of(node.items)}, {SIGN} FROM ({below})" if below else None
            case op.Generate():
                below = self.sql(node.input)
                return generate_sql(node, below) if below else None
            case op.UnionAll():
                parts = [f"(SELECT {names_of(node)}, {SIGN} FROM ({s}))" for i in node.inputs if (s := self.sql(i))]
                return f"SELECT * FROM ({' UNION ALL '.join(parts)})" if parts else None
            case op.InnerJoin():
                parts = [s for i in range(len(node.inputs)) if (s := self._joined(node, i))]
                return f"SELECT * FROM ({' UNION ALL '.join(f'({p})' for p in parts)})" if parts else None
            case op.SideJoin():
                parts = [s for s in (self._from_left(node), self._from_right(node)) if s]
                return f"SELECT * FROM ({' UNION ALL '.join(f'({p})' for p in parts)})" if parts else None
            case op.FullJoin():
                return self._full(node)
            case op.Window() if frames := row_frames(node):
                return self._by_frames(frames)
            case op.Window() if running := running_windows(node):
                return self._running(running)
            case op.Aggregate() | op.Window() | op.Distinct() | op.SetOp():
                return self._by_key(node)

    # --- inner joins --------------------------------------------------------------------------------------------

    def _joined(self, node: op.InnerJoin, position: int) -> str | None:
        """Return the change of one input, joined with the inputs on its left at the start and on its right at the
        end."""
        changed = self._bounded_change(node.inputs[position])
        if changed is None:
            return None
        sql, frame = changed
        is_counted = True  # whether `frame` holds the rows of `sql`, and not only bounds of them
        have = set(node.inputs[position].columns)
        rest, todo = list(node.on), [i for i in range(len(node.inputs)) if i != position]
        while todo:
            nth = next((i for i in todo if equals(rest, have, node.inputs[i].columns)), todo[0])
            todo.remove(nth)
            side = node.inputs[nth]
            if not is_counted and not self._is_small(side):
                # How a large input is read depends on the number of rows.
                frame, is_counted = self._frames.measure(sql), True
                if not frame.rows:
                    return None
                sql = f"SELECT * FROM {frame.view}"
            pairs = equals(rest, have, side.columns)
            key_filter = self._join_filter(sql, frame, pairs, is_simple(side))
            have |= set(side.columns)
            on = [c for c in rest if refs(c) <= have]
            rest = [c for c in rest if not refs(c) <= have]
            side_rows = self._rows.sql(side, "start" if nth < position else "end", key_filter)
            hint = "/*+ BROADCAST(changed) */" if is_counted and frame.rows <= thresholds.BROADCAST_ROWS else ""
            condition = " AND ".join(f"({text(c)})" for c in on) or "true"
            sql = f"SELECT {hint} * FROM ({sql}) changed JOIN ({side_rows}) ON {condition}"
            is_counted = False
        return f"SELECT {names_of(node)}, {SIGN} FROM ({sql})"

    def _bounded_change(self, node: op.Node) -> tuple[str, Frame] | None:
        """Return the change of an operator as SQL, with a frame that bounds it; None if nothing changes."""
        scan = node
        while isinstance(scan, op.Filter):
            scan = scan.input
        if isinstance(scan, op.Scan):
            feed, sql = self._feed(scan.table), self.sql(node)
            return (sql, feed.renamed(scan.fields)) if feed and sql else None
        frame = self.frame(node)
        return (f"SELECT * FROM {frame.view}", frame) if frame else None

    def _is_small(self, node: op.Node) -> bool:
        return is_simple(node) and all(self._size(s.table) <= thresholds.SMALL_SIDE_ROWS for s in scans(node))

    def _join_filter(
        self, sql: str, frame: Frame, pairs: Sequence[tuple[exp.Expr, exp.Expr]], simple: bool
    ) -> KeyFilter | None:
        """Return the filter for the rows of the other side of a join that the changed rows can match."""
        if simple:
            # The change is broadcast to the other side, so only pushed-down conditions help.
            plain = [(x, y) for x, y in pairs if isinstance(x, exp.Column)]
            names = tuple(x.name for x, _ in plain)
            return KeyFilter(tuple(y for _, y in plain), names, frame.inexact()) if plain else None
        if not pairs:
            return None
        keys = self._frames.measure(f"SELECT DISTINCT {_keys([x for x, _ in pairs])} FROM ({sql})")
        return _key_filter([y for _, y in pairs], keys)

    # --- outer, semi and anti joins -----------------------------------------------------------------------------

    def _from_left(self, node: op.SideJoin) -> str | None:
        """Return the change of the left side, joined with the right side at the end."""
        changed = self._reusable(node.left)
        if changed is None:
            return None
        key_filter = None
        if node.kind != "null_anti" and (pairs := equals(node.on, node.left.columns, node.right.columns)):
            keys = self._frames.measure(f"SELECT DISTINCT {_keys([x for x, _ in pairs])} FROM ({changed})")
            key_filter = _key_filter([y for _, y in pairs], keys)
        right = self._rows.sql(node.right, "end", key_filter)
        return f"SELECT {names_of(node)}, {SIGN} FROM ({side_join_sql(node, changed, right)})"

    def _from_right(self, node: op.SideJoin) -> str | None:
        """Return the change that changed rows of the right side cause, over the left side at the start."""
        on = node.on[:1] if node.kind == "null_anti" else node.on
        pairs = equals(on, node.left.columns, node.right.columns)
        changed = self._reusable(node.right)
        if changed is None:
            return None
        if not pairs:
            return self._from_right_without_equality(node, changed)
        if node.kind == "null_anti":
            return self._not_in(node, pairs, changed)
        not_null = " AND ".join(f"__k{i} IS NOT NULL" for i in range(len(pairs)))
        touched_keys = self.changed_keys([(node.right, [y for _, y in pairs])], f" WHERE {not_null}")
        if touched_keys is None:
            return None
        left = self._rows.sql(node.left, "start", _key_filter([x for x, _ in pairs], touched_keys))
        return self._recomputed_left(node, left, _key_filter([y for _, y in pairs], touched_keys))

    def _from_right_without_equality(self, node: op.SideJoin, changed: str) -> str | None:
        """Return the change of the left rows that a changed row matches; of NOT IN, any row may be affected."""
        left = self._rows.sql(node.left, "start")
        if node.kind == "null_anti":
            return self._recomputed_left(node, left, None)
        touched = self._frames.measure(side_join_sql(replace(node, kind="semi"), left, changed))
        return self._recomputed_left(node, f"SELECT * FROM {touched.view}", None) if touched.rows else None

    def _not_in(self, node: op.SideJoin, pairs: Sequence[tuple[exp.Expr, exp.Expr]], changed: str) -> str | None:
        """Return the change of NOT IN: left rows without a value pass only while the subquery is empty, and a null in
        it affects all rows."""
        (x, y), *_ = pairs
        keys = self._frames.measure(f"SELECT DISTINCT {_keys([y])} FROM ({changed}) UNION SELECT NULL")
        with_null = self._frames.sql(f"SELECT 1 FROM ({changed}) WHERE {text(y)} IS NULL LIMIT 1").take(1)
        return self._recomputed_left(
            node, self._rows.sql(node.left, "start", None if with_null else _key_filter([x], keys)), None
        )

    def _recomputed_left(self, node: op.SideJoin, left: str, right: KeyFilter | None) -> str:
        left_view = self._frames.view(self._frames.materialize(left))
        before, after = (
            f"SELECT {names_of(node)}, {sign} FROM "
            f"({side_join_sql(node, f'SELECT * FROM {left_view}', self._rows.sql(node.right, at, right))})"
            for at, sign in _sides()
        )
        return f"({before}) UNION ALL ({after})"

    def _full(self, node: op.FullJoin) -> str | None:
        pairs = equals(node.on, node.left.columns, node.right.columns)
        if pairs:
            xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
            touched_keys = self.changed_keys([(node.left, xs), (node.right, ys)])
            if touched_keys is None:
                return None
            left: KeyFilter | None = _key_filter(xs, touched_keys)
            right: KeyFilter | None = _key_filter(ys, touched_keys)
        else:
            if self.sql(node.left) is None and self.sql(node.right) is None:
                return None
            left = right = None
        before, after = (
            f"SELECT {names_of(node)}, {sign} FROM "
            f"({full_join_sql(node, self._rows.sql(node.left, at, left), self._rows.sql(node.right, at, right))})"
            for at, sign in _sides()
        )
        return f"({before}) UNION ALL ({after})"

    # --- by key -------------------------------------------------------------------------------------------------

    def _by_key(self, node: op.Aggregate | op.Window | op.Distinct | op.SetOp) -> str | None:
        input_keys, own_keys = keys_of(node)
        if all(self.sql(i) is None for i in node.inputs):
            return None
        key_filter = None
        if input_keys:
            touched_keys = self.changed_keys([(i, input_keys) for i in node.inputs])
            if touched_keys is None:
                return None
            key_filter = _key_filter(own_keys, touched_keys)
        before, after = (
            f"SELECT {names_of(node)}, {sign} FROM ({self._rows.sql(node, at, key_filter)})" for at, sign in _sides()
        )
        return f"({before}) UNION ALL ({after})"

    def _by_frames(self, frames: RowFrames) -> str | None:
        """Return the rows whose frames have changed, at the start and at the end."""
        node = frames.node
        changed = self.changed_keys([(node.input, [*node.partition, *(o.this for o in frames.order)])])
        if changed is None:
            return None
        key_filter = _key_filter(node.partition, changed)
        view, counts = self._at_both_ends(
            node.input, key_filter, lambda rows: frames.numbered(rows, changed.view), *frames.counts()
        )
        parts: list[str] = []
        for i, (side, (_, sign)) in enumerate(zip((AT_START, AT_END), _sides(), strict=True)):
            evaluated = frames.evaluated(frames.at(side, view), *counts[2 * i : 2 * i + 2])
            parts.append(f"(SELECT {names_of(node)}, {sign} FROM ({evaluated}))")
        return " UNION ALL ".join(parts)

    def _running(self, running: RunningWindows) -> str | None:
        """Return the rows whose running totals have changed, at the start and at the end."""
        node = running.node
        touched = self.changed_keys([(node.input, node.partition)])
        if touched is None:
            return None
        view, _ = self._at_both_ends(node.input, _key_filter(node.partition, touched), running.differing)
        return running.change(view)

    def _at_both_ends(
        self, node: op.Node, key_filter: KeyFilter, computed: Callable[[str], str], *aggregates: str
    ) -> tuple[str, list[Any]]:
        """Compute something from the rows of an operator at the start and at the end.

        Args:
            node: the operator.
            key_filter: selects all changed rows, among others.
            computed: returns the SQL to compute, which keeps all inserted rows, from SQL of rows with `AT_START` and
                `AT_END`.
            aggregates: SQL of aggregates over the computed rows.

        Returns:
            A view of the computed rows, and the aggregates.
        """
        end = self._rows.sql(node, "end", key_filter)
        if row_key(node) and (feed := self._feed(scans(node)[0].table)) and (changed := self.sql(node)):
            hint = "/*+ BROADCAST(inserted) */" if feed.rows <= thresholds.BROADCAST_ROWS else ""
            result, (marked, *values) = self._frames.materialize_with_aggregates(
                computed(read_once(node, end, changed, hint)), f"count_if(NOT {AT_START})", *aggregates
            )
            (inserted,) = self._frames.sql(f"SELECT count_if({SIGN} > 0) AS n FROM ({changed})").collect()
            if marked == inserted["n"]:
                return self._frames.view(result), values
            # Somebody has written a row under an existing key: the key does not tell which of both is new.
        start = self._rows.sql(node, "start", key_filter)
        sql = computed(read_twice(node, start, end))
        result, (_, *values) = self._frames.materialize_with_aggregates(sql, "count(*)", *aggregates)
        return self._frames.view(result), values


def keys_of(node: op.Node) -> tuple[list[exp.Expr], list[exp.Expr]]:
    """Return the keys by which an operator's rows depend on its inputs' rows: expressions over the inputs, and over its
    own columns."""
    match node:
        case op.Aggregate():
            return [e for _, e in node.keys], [column(n) for n, _ in node.keys]
        case op.Window():
            return list(node.partition), list(node.partition)
        case op.Distinct() | op.SetOp():
            return [column(c) for c in node.columns], [column(c) for c in node.columns]
        case _:
            return [], []


def is_simple(node: op.Node) -> bool:
    """Whether an operator processes the rows of one table one by one."""
    while isinstance(node, op.Filter | op.Project | op.Generate):
        node = node.input
    return isinstance(node, op.Scan)


def _sides() -> tuple[tuple[At, str], tuple[At, str]]:
    return ("start", _MINUS), ("end", _PLUS)


def _keys(keys: Sequence[exp.Expr]) -> str:
    return ", ".join(f"{text(e)} AS __k{i}" for i, e in enumerate(keys))


def _key_filter(expressions: Sequence[exp.Expr], keys: Frame) -> KeyFilter:
    return KeyFilter(tuple(expressions), tuple(f"__k{i}" for i in range(len(expressions))), keys)
