"""Absorb changes by adjusting groups, recomputing keys, replacing rows by their identity, or counting copies."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from lake_assets.errors import Refused
from lake_assets.lake import quote
from lake_assets.lake.counts import plural
from lake_assets.models.operators import query_tree as op
from lake_assets.models.operators.adjustable_groups import Retraction, retraction
from lake_assets.models.operators.kept_frames import Frame, types_of
from lake_assets.models.operators.operator_deltas import Deltas, keys_of
from lake_assets.models.operators.operator_rows import KeyFilter, restricted
from lake_assets.models.operators.operator_types import with_common_types
from lake_assets.models.operators.query_tree import Tree
from lake_assets.models.operators.row_identity import Identity, identity
from lake_assets.models.operators.stability import Doubt
from lake_assets.models.steps.model_context import ModelContext
from lake_assets.models.steps.model_step import StepResult
from lake_assets.models.steps.retract_step import adjust, adjust_at_once
from lake_assets.models.steps.stored_result import full, full_for_lost_rows, replace_keys, write_change
from lake_assets.tables.writing.row_differences import SIGN, cast, incomparable, net


def tree_with_types(ctx: ModelContext, tree: op.Tree) -> op.Tree:
    """Return the operators completed with types from Spark.

    Only joins and set operations over computed values need Spark's analysis: columns of tables have known types.
    """

    def schema_of(node: op.Node) -> dict[str, str]:
        return types_of(ctx.sql(ctx.rows.sql(node, "end")))

    return with_common_types(tree, schema_of)


def incremental(ctx: ModelContext, tree: op.Tree, why: str) -> StepResult:
    """Absorb the changes.

    Args:
        tree: the result of `tree_with_types`.
        why: the reason for the plan's strategy.
    """
    plan, strategy = ctx.plan, ctx.plan.strategy
    how = retraction(tree, plan.key, ctx.type_of) if plan.retraction else None
    if isinstance(how, Retraction) and (done := adjust_at_once(ctx, tree, how)):
        return done if done.strategy == "none" else done.because(why)
    deltas = Deltas(ctx.frames, ctx.rows, ctx.sources.feed, ctx.sources.size)
    if not ctx.sources.changed():
        return ctx.nothing("nothing changed in the columns that the query reads")
    if full_reason := _why_full(ctx):
        return full(ctx, full_reason)
    if isinstance(how, Retraction):
        return adjust(ctx, tree, how, deltas.sql(how.aggregate.input)).because(why)
    if isinstance(how, Refused):
        why, strategy = how.reason, "keys"
    by = identity(tree, plan.key)
    if isinstance(by, Doubt):
        return full(ctx, by.no_identity)
    keyed = top_key(tree)
    if keyed and (by is None or (by.node is keyed[0].inputs[0] and _is_by(by, keyed[1]))):
        return _keys(ctx, tree, *keyed, deltas).because(why)
    done = _renewed(ctx, tree, by, deltas, strategy) if by else _changes(ctx, tree, deltas, strategy)
    return done.because(why)


def _why_full(ctx: ModelContext) -> str:
    """Return why everything is recomputed, now that the changed rows are counted; empty if it is not."""
    if ctx.expected.exact or not ctx.expected.prefers_full:
        return ""
    changed = sum(f.rows for t in ctx.sources.captures if (f := ctx.sources.feed(t)))
    counted = replace(ctx.expected, changed=changed, exact=True)
    return f"computing everything is estimated to be cheaper: {counted}" if counted.prefers_full else ""


def _changes(ctx: ModelContext, tree: op.Tree, deltas: Deltas, strategy: str) -> StepResult:
    """Write inserted and deleted rows, by key or by counting copies."""
    sql = deltas.sql(tree.root)
    if sql is None:
        return ctx.nothing("no row changed")
    delta = f"SELECT {tree.selected}, __sign FROM ({sql})"
    return write_change(ctx, delta, strategy, "changed rows" if ctx.plan.key else "changed rows, counted")


def _renewed(ctx: ModelContext, tree: op.Tree, by: Identity, deltas: Deltas, strategy: str) -> StepResult:
    """Replace the table's rows of the same identity by new rows."""
    change = Renewal(ctx, tree, by, deltas).change()
    if isinstance(change, Refused):
        return full_for_lost_rows(ctx, change.reason)
    if change.sql is None:
        return ctx.nothing(change.what)
    return write_change(ctx, change.sql, strategy, change.what)


def _keys(ctx: ModelContext, tree: op.Tree, node: op.Node, keys: Mapping[str, str], deltas: Deltas) -> StepResult:
    """Recompute the rows of the touched keys and replace them."""
    below, _ = keys_of(node)
    changed_keys = deltas.changed_keys([(i, below) for i in node.inputs])
    if changed_keys is None:
        return ctx.nothing("no key touched")
    names = {o: f"__k{i}" for i, o in enumerate(keys)}
    replace_keys(ctx, tree, changed_keys, names, None)
    return StepResult("keys", f"{plural(changed_keys.rows, 'key')} recomputed")


def _is_by(by: Identity, keys: Collection[str]) -> bool:
    """Whether rows are replaced by a key whose columns are all exact: a rounded value does not find its stored row."""
    return by.kind == "group" and set(keys) <= set(by.columns)


def top_key(tree: op.Tree) -> tuple[op.Node, dict[str, str]] | None:
    """Return the topmost key operator and its key columns in the result, if the result outputs its key.

    The key's columns are in the operator's order.
    """
    outputs = {c: o for o, c in reversed(list(tree.outputs.items()))}
    node = tree.root
    while isinstance(node, op.Project | op.Filter):
        if isinstance(node, op.Project):
            outputs = {
                e.name: outputs[n] for n, e in reversed(node.items) if isinstance(e, exp.Column) and n in outputs
            }
        node = node.input
    if not isinstance(node, op.Aggregate | op.Distinct | op.SetOp) or (isinstance(node, op.SetOp) and node.all):
        return None
    keys = [n for n, _ in node.keys] if isinstance(node, op.Aggregate) else list(node.columns)
    if not keys or not all(k in outputs for k in keys):
        return None
    return node, {outputs[k]: k for k in keys}


@dataclass(frozen=True)
class Renewed:
    """Change of a stored result.

    Attributes:
        sql: inserted and deleted rows with `SIGN`; deleted rows are read from the table. None if nothing changes.
        what: what was done, for people.
    """

    sql: str | None
    what: str


@dataclass(frozen=True)
class Renewal:
    """Computes the change of a model's table by the identity of its rows: stored rows are deleted, and their
    replacements computed once.

    A change tells which identities are touched. Its old values are not used to delete rows: recomputed, they may differ
    from the stored ones.
    """

    ctx: ModelContext
    tree: Tree
    by: Identity
    deltas: Deltas

    def change(self) -> Renewed | Refused:
        """Return the change of the table; or a refusal, if the stored rows to delete cannot be determined."""
        if not self._columns:
            return Refused(f"values of {', '.join(self.by.columns)} cannot be compared")
        if self.by.kind == "group":
            keys = self.deltas.changed_keys([(self.by.node, [self.by.columns[o] for o in self._columns])])
            return self._recomputed(keys, "groups") if keys else Renewed(None, "no group touched")
        sql = self.deltas.sql(self.tree.root)
        if sql is None:
            return Renewed(None, "no row changed")
        changed = f"SELECT {self.tree.selected}, {SIGN} FROM ({sql})"
        is_direct = self.deltas.is_direct(self.tree.root)
        if is_direct and self.by.kind == "key":
            return Renewed(changed, "changed rows")
        changed_view = self.ctx.frames.view(self.ctx.frames.materialize(cast(changed, self.ctx.types)))
        identity_columns = ", ".join(f"{quote(o)} AS __k{i}" for i, o in enumerate(self._columns))
        keys = self.ctx.frames.measure(
            f"SELECT DISTINCT {identity_columns} FROM ({net(f'SELECT * FROM {changed_view}', self.ctx.types)})"
        )
        if not keys.rows:
            return Renewed(None, "no row changed")
        return self._replaced_if_complete(changed_view, keys) if is_direct else self._recomputed(keys, "rows")

    @property
    def _columns(self) -> list[str]:
        """Comparable columns of the identity: a subset still finds every row, but replaces more of them."""
        return [o for o in self.by.columns if not incomparable({o: self.ctx.types[o]})]

    def _recomputed(self, keys: Frame, what: str) -> Renewed:
        """Compute all rows of the touched identities as of the end, at once."""
        inner = [self.ctx.inner(self.tree, o) for o in self._columns]
        names = tuple(f"__k{i}" for i in range(len(inner)))
        outputs = ", ".join(f"{quote(self.tree.outputs[c])} AS {quote(c)}" for c in self.ctx.types)
        new = (
            f"SELECT {outputs} FROM ({self.ctx.rows.sql(self.tree.root, 'end', KeyFilter(tuple(inner), names, keys))})"
        )
        old = self._within(f"SELECT {self._column_list} FROM {self.ctx.commit.name}", keys)
        return Renewed(_both(self._column_list, new, old), f"{keys.rows} {what} recomputed")

    def _replaced_if_complete(self, changed_view: str, keys: Frame) -> Renewed | Refused:
        """Replace the stored rows by the inserted ones if the change covers all of them.

        Args:
            changed_view: a view of the deleted and inserted rows; the deleted ones were rows of the result before the
                step.
        """
        old_view = self.ctx.frames.view(
            self.ctx.frames.materialize(self._within(f"SELECT {self._column_list} FROM {self.ctx.commit.name}", keys))
        )
        changed = self._within(f"SELECT * FROM {changed_view}", keys)
        by = ", ".join(map(quote, self._columns))
        sides = (
            f"SELECT {by}, 1 AS __going, 0 AS __there FROM ({changed}) WHERE {SIGN} < 0 "
            f"UNION ALL SELECT {by}, 0, 1 FROM {old_view}"
        )
        counts = f"SELECT sum(__going) AS __going, sum(__there) AS __there FROM ({sides}) GROUP BY {by}"
        (mismatches,) = self.ctx.frames.sql(
            f"SELECT count_if(__there < __going) AS fewer, count_if(__there > __going) AS more FROM ({counts})"
        ).collect()
        if mismatches["fewer"]:
            return Refused(f"of {keys.rows:,} touched rows, {mismatches['fewer']:,} are missing in the table")
        if mismatches["more"]:
            # Other rows share the values of the exact columns: which stored row is which cannot be determined.
            return self._recomputed(keys, "rows")
        new = f"SELECT {self._column_list} FROM ({changed}) WHERE {SIGN} > 0"
        return Renewed(
            _both(self._column_list, new, f"SELECT * FROM {old_view}"), f"{plural(keys.rows, 'row')} replaced"
        )

    @property
    def _column_list(self) -> str:
        return ", ".join(map(quote, self.ctx.types))

    def _within(self, sql: str, keys: Frame) -> str:
        names = tuple(f"__k{i}" for i in range(len(self._columns)))
        return restricted(sql, KeyFilter(tuple(self.ctx.typed(o) for o in self._columns), names, keys))


def _both(columns: str, new: str, old: str) -> str:
    return f"SELECT {columns}, 1 AS {SIGN} FROM ({new}) UNION ALL SELECT {columns}, -1 AS {SIGN} FROM ({old})"
