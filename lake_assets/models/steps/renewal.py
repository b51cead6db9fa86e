"""Changes of a result by the identity of its rows: what goes is what the table holds, what comes is computed once.

A change says which identities are touched. What it says of the values before is not used to remove rows: computed
again, they may be other ones than those that are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlglot import exp

from lake_assets.lake import quote
from lake_assets.models.operators.operator_deltas import Deltas
from lake_assets.models.operators.operator_rows import KeyFilter, Rows, restricted
from lake_assets.models.operators.query_tree import Tree
from lake_assets.models.operators.row_identity import Identity
from lake_assets.models.steps.kept_frames import SIGN, Frame, Frames
from lake_assets.models.steps.model_writer import cast, net
from lake_assets.tables.row_differences import incomparable


@dataclass(frozen=True)
class Renewed:
    """The change of a stored result.

    Attributes:
        sql: rows with `SIGN`, of which those that go are the table's own; None: nothing changes.
        what: what was done, for people.
        lost: why the stored rows that go cannot be told; empty: they can.
    """

    sql: str | None
    what: str
    lost: str = ""


@dataclass(frozen=True)
class Renewal:
    """Finds the change of one model's table in one step.

    Attributes:
        stored: the table in SQL.
        types: its columns.
        typed: a column of the table with its type.
    """

    tree: Tree
    by: Identity
    deltas: Deltas
    frames: Frames
    rows: Rows
    stored: str
    types: Mapping[str, str]
    typed: Callable[[str], exp.Column]

    def change(self) -> Renewed:
        """The change of the table."""
        if not self._columns:
            return Renewed(None, "", lost=f"values of {', '.join(self.by.columns)} cannot be compared")
        if self.by.kind == "group":
            touched = self.deltas.touched_in(self.by.node, [self.by.columns[o] for o in self._columns])
            return self._again(touched, "groups") if touched else Renewed(None, "no group touched")
        sql = self.deltas.sql(self.tree.root)
        if sql is None:
            return Renewed(None, "no row changed")
        outputs = ", ".join(f"{quote(c)} AS {quote(o)}" for o, c in self.tree.outputs.items())
        changed = f"SELECT {outputs}, {SIGN} FROM ({sql})"
        is_direct = self.deltas.is_direct(self.tree.root)
        if is_direct and self.by.kind == "key":
            return Renewed(changed, "changed rows")
        held = self.frames.view(self.frames.kept(cast(changed, self.types)))
        listed = ", ".join(f"{quote(o)} AS __k{i}" for i, o in enumerate(self._columns))
        touched = self.frames.measured(f"SELECT DISTINCT {listed} FROM ({net(f'SELECT * FROM {held}', self.types)})")
        if not touched.rows:
            return Renewed(None, "no row changed")
        return self._counted(held, touched) if is_direct else self._again(touched, "rows")

    @property
    def _columns(self) -> list[str]:
        """The columns of the identity that can be compared: any of them will do, the more the better."""
        return [o for o in self.by.columns if not incomparable({o: self.types[o]})]

    def _again(self, touched: Frame, what: str) -> Renewed:
        """Compute what belongs to the touched identities as of the end, all of it at once."""
        inner = [self._inner(o) for o in self._columns]
        names = tuple(f"__k{i}" for i in range(len(inner)))
        listed = ", ".join(f"{quote(self.tree.outputs[c])} AS {quote(c)}" for c in self.types)
        now = f"SELECT {listed} FROM ({self.rows.sql(self.tree.root, 'end', KeyFilter(tuple(inner), names, touched))})"
        was = self._within(f"SELECT {self._listed} FROM {self.stored}", touched)
        return Renewed(_both(self._listed, now, was), f"{touched.rows} {what} recomputed")

    def _counted(self, held: str, touched: Frame) -> Renewed:
        """Replace the stored rows by those that come, if the change speaks of all of them.

        Args:
            held: a view of the rows that go and come, of which those that go are rows of the result before.
            touched: the identities.
        """
        was = self.frames.view(self.frames.kept(self._within(f"SELECT {self._listed} FROM {self.stored}", touched)))
        changed = self._within(f"SELECT * FROM {held}", touched)
        by = ", ".join(map(quote, self._columns))
        sides = (
            f"SELECT {by}, 1 AS __going, 0 AS __there FROM ({changed}) WHERE {SIGN} < 0 "
            f"UNION ALL SELECT {by}, 0, 1 FROM {was}"
        )
        counts = f"SELECT sum(__going) AS __going, sum(__there) AS __there FROM ({sides}) GROUP BY {by}"
        (found,) = self.frames.sql(
            f"SELECT count_if(__there < __going) AS fewer, count_if(__there > __going) AS more FROM ({counts})"
        ).collect()
        if found["fewer"]:
            what = (
                f"of {touched.rows:,} touched rows, {found['fewer']:,} are not in the table as often as they have to be"
            )
            return Renewed(None, what, lost=what)
        if found["more"]:
            # Others share their exact columns: which of the stored rows is which cannot be told.
            return self._again(touched, "rows")
        now = f"SELECT {self._listed} FROM ({changed}) WHERE {SIGN} > 0"
        return Renewed(_both(self._listed, now, f"SELECT * FROM {was}"), f"{touched.rows} rows replaced")

    @property
    def _listed(self) -> str:
        return ", ".join(map(quote, self.types))

    def _within(self, sql: str, touched: Frame) -> str:
        names = tuple(f"__k{i}" for i in range(len(self._columns)))
        return restricted(sql, KeyFilter(tuple(self.typed(o) for o in self._columns), names, touched))

    def _inner(self, output: str) -> exp.Column:
        found = exp.column(self.tree.outputs[output], quoted=True)
        found.type = self.typed(output).type
        return found


def _both(listed: str, now: str, was: str) -> str:
    return f"SELECT {listed}, 1 AS {SIGN} FROM ({now}) UNION ALL SELECT {listed}, -1 AS {SIGN} FROM ({was})"
