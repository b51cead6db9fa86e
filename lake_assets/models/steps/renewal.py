"""Changes of a result by the identity of its rows: stored rows are deleted, and their replacements computed once.

A change tells which identities are touched. Its old values are not used to delete rows: recomputed, they may differ
from the stored ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from lake_assets.errors import Refused
from lake_assets.lake import quote
from lake_assets.models.operators.kept_frames import Frame
from lake_assets.models.operators.operator_deltas import Deltas
from lake_assets.models.operators.operator_rows import KeyFilter, restricted
from lake_assets.models.operators.query_tree import Tree
from lake_assets.models.operators.row_identity import Identity
from lake_assets.models.steps.model_context import ModelContext
from lake_assets.tables.writing.row_differences import SIGN, cast, incomparable, net


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
    """Computes the change of one model's table in one step."""

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
        return Renewed(_both(self._column_list, new, f"SELECT * FROM {old_view}"), f"{keys.rows} rows replaced")

    @property
    def _column_list(self) -> str:
        return ", ".join(map(quote, self.ctx.types))

    def _within(self, sql: str, keys: Frame) -> str:
        names = tuple(f"__k{i}" for i in range(len(self._columns)))
        return restricted(sql, KeyFilter(tuple(self.ctx.typed(o) for o in self._columns), names, keys))


def _both(columns: str, new: str, old: str) -> str:
    return f"SELECT {columns}, 1 AS {SIGN} FROM ({new}) UNION ALL SELECT {columns}, -1 AS {SIGN} FROM ({old})"
