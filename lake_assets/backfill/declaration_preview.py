"""The preview of a changed declaration: which tables get another meaning, what that recomputes, and who reads them.

It reads metadata only and writes nothing. `preview_aside` computes the tables, and compares their rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from pyiceberg.table import Table

from lake_assets.backfill.backfill_record import BackfillRecord
from lake_assets.backfill.table_readers import Reader, Readers
from lake_assets.errors import LakeError
from lake_assets.final.final_spec import FinalSpec
from lake_assets.jobs.job_spec import JobSpec
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.counts import plural
from lake_assets.lake.metadata.row_counts import number, summary_of, visible_rows
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.models.steps.cost_estimate import past_costs
from lake_assets.models.steps.planned_models import planned
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.pending import after_redeclaration
from lake_assets.pipeline.table_graph import Spec, lookups_of
from lake_assets.pipeline.table_steps import step_of
from lake_assets.tables.table_step import ChangedSetting, review_of
from lake_assets.tables.writing.table_ddl import check_owner_in

# `follows`: it is declared as before, and reads a table that is computed again.
Kind = Literal["changed", "new", "follows", "removed"]
# `rebuild`: all of its rows are computed; `rows`, `keys`, `ranges`: what the differences of its sources touch; `job`:
# its job gets them; `waits`: for a backfill that is open; `stops`: its next step fails until somebody decides.
How = Literal["rebuild", "rows", "keys", "ranges", "job", "nothing", "waits", "stops"]
_BY_STRATEGY: Mapping[str, How] = {"retract": "rows", "keys": "keys", "ranges": "ranges", "full": "rebuild"}
_FOLLOWS: Mapping[How, str] = {
    "rows": "adds and subtracts the rows that differ",
    "keys": "computes the keys again that differ",
    "ranges": "computes the ranges again that differ",
}


@dataclass(frozen=True)
class Cost:
    """What a recomputation is estimated to read and to take.

    Attributes:
        rows, bytes: of its sources and lookups, as they are now.
        seconds: None: nothing is known.
        basis: what `seconds` is taken from; empty: nothing is known.
        is_bound: whether rows and bytes are the most that is read: only differences are, and how many is not known.
    """

    rows: int
    bytes: int
    seconds: float | None = None
    basis: str = ""
    is_bound: bool = False


@dataclass(frozen=True)
class TablePreview:
    """What a changed declaration does to one table.

    Attributes:
        table: its name.
        kind: why it is in the preview.
        how: what its next step does.
        why: the same in words, with the reason.
        settings: what is declared otherwise, as far as the table stores what it was computed by.
        added, dropped: columns of a SQL model.
        cost: of computing it; None: nothing is computed.
        readers: who reads it.
    """

    table: str
    kind: Kind
    how: How
    why: str
    settings: tuple[ChangedSetting, ...] = ()
    added: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    cost: Cost | None = None
    readers: tuple[Reader, ...] = ()


@dataclass(frozen=True)
class Preview:
    """What a declaration changes.

    Attributes:
        pipeline: the name of the pipeline.
        tables: the tables that it changes, upstream first, then those that it no longer declares.
    """

    pipeline: str
    tables: tuple[TablePreview, ...]

    @property
    def is_changed(self) -> bool:
        """Whether the declaration is another one than the lake's tables were computed by."""
        return bool(self.tables)

    @property
    def changed(self) -> tuple[TablePreview, ...]:
        """The tables that are declared otherwise."""
        return self.of("changed")

    @property
    def recomputed(self) -> tuple[TablePreview, ...]:
        """The tables that are declared otherwise, and have all of their rows computed again, by a run or a command."""
        return tuple(t for t in self.changed if t.how in ("rebuild", "stops"))

    def of(self, kind: Kind) -> tuple[TablePreview, ...]:
        """Return the tables of one kind."""
        return tuple(t for t in self.tables if t.kind == kind)

    @property
    def seconds(self) -> float:
        """The estimated seconds of everything whose duration is known."""
        return sum(t.cost.seconds for t in self.tables if t.cost and t.cost.seconds is not None)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The tables that are computed in a time that is not known."""
        return tuple(t.table for t in self.tables if t.cost and t.cost.seconds is None)


def preview(
    lake: LakeBase,
    pipeline: Pipeline,
    columns: Mapping[TableId, Sequence[str]] | None = None,
    past: Sequence[BackfillRecord] = (),
) -> Preview:
    """Compare a declaration with what the tables of a lake were computed by. Reads metadata only.

    Args:
        lake: the lake.
        pipeline: the declaration.
        columns: the columns of its SQL models, as far as they are known (see `CheckResult`).
        past: earlier backfills, for estimates.

    Raises:
        TableClaimedError: a table belongs to another pipeline.
        LakeError: the declaration cannot be used.
    """
    declared, readers = _Declared(lake, columns or {}, past), Readers(lake)
    specs = pipeline.specs(lake, alone=False)
    tables: list[TablePreview] = []
    recomputed: set[TableId] = set()
    for spec in specs:
        found = declared.otherwise(spec) or declared.following(spec, recomputed)
        if found is None:
            continue
        if found.kind != "new" and found.how not in ("nothing", "waits", "stops"):
            recomputed.add(spec.table)
        tables.append(found)
    names = {s.table for s in specs}
    for name, loaded in sorted(readers.tables_of(pipeline.name).items()):
        if name not in names:
            why = f"no longer declared: it stays in the lake with its {visible_rows(loaded.current_snapshot()):,} rows"
            tables.append(TablePreview(str(name), "removed", "nothing", f"{why}, and no run adds to them"))
    return Preview(pipeline.name, tuple(replace(t, readers=readers.of(TableId.parse(t.table))) for t in tables))


@dataclass(frozen=True)
class _Declared:
    """The declarations of a pipeline over a lake."""

    lake: LakeBase
    columns: Mapping[TableId, Sequence[str]]
    past: Sequence[BackfillRecord]

    def otherwise(self, spec: Spec) -> TablePreview | None:
        """Return what becomes of a table that is new, or declared otherwise; None: it is declared as before."""
        table, name, step = self.lake.find(spec.table), str(spec.table), step_of(spec)
        if table is None:
            waits = [str(s) for s in spec.sources if not self.lake.exists(s)]
            once = f", once there is {', '.join(waits)}" if waits else ""
            cost = self._cost(spec, None) if spec.sources else None  # raw tables read no table
            return TablePreview(name, "new", "rebuild", f"the next run fills it{once}", cost=cost)
        if not isinstance(spec, JobSpec):
            check_owner_in(table, spec.table, spec.pipeline)
        sources = {s: t for s in spec.sources if (t := self.lake.find(s)) is not None}
        text = after_redeclaration(self.lake, spec)
        settings = step.changed_settings(self.lake, table, sources)
        if not text and not settings:
            return None
        how, why = self._next_of(spec, table, text)
        cost = self._cost(spec, table) if how == "rebuild" else None
        added, dropped = self._columns(spec, table)
        return TablePreview(name, "changed", how, why, settings, added, dropped, cost)

    def _next_of(self, spec: Spec, table: Table, text: str) -> tuple[How, str]:
        """Return what the next step does with a table that is declared otherwise."""
        if review_of(table):
            return "waits", text
        if not text:
            return "nothing", "its rows stay (`on_query_change: keep`): only later changes follow the new declaration"
        stops = step_of(spec).why_not_rebuilt(table) or getattr(step_of(spec), "is_stopped_by_change", False)
        return ("stops" if stops else "rebuild"), text

    def following(self, spec: Spec, recomputed: Iterable[TableId]) -> TablePreview | None:
        """Return how a table that is declared as before follows tables that are computed again; None: it does not."""
        above = [t for t in (*spec.sources, *lookups_of(spec)) if t in set(recomputed)]
        if not above:
            return None
        table, of = self.lake.table(spec.table), ", ".join(map(str, dict.fromkeys(above)))
        how, why = self._way_to_follow(spec, table, of, [t for t in above if t in spec.sources])
        cost = None
        if how in _FOLLOWS or how == "rebuild":
            cost = self._cost(spec, table) if how == "rebuild" else replace(self._sources(spec), is_bound=True)
        added, dropped = self._columns(spec, table)
        return TablePreview(str(spec.table), "follows", how, why, (), added, dropped, cost)

    def _way_to_follow(self, spec: Spec, table: Table, of: str, above: Sequence[TableId]) -> tuple[How, str]:
        if not above:
            return "nothing", f"reads {of} with the changes of its other tables, and does not follow it"
        if isinstance(spec, JobSpec):
            return "job", f"its job gets the differences of {of}"
        if isinstance(spec, FinalSpec):
            return "rebuild", f"{of} is read again, so all of its rows are computed again"
        if isinstance(spec, PythonModelSpec):
            if not set(above) & set(spec.inputs.values()):
                return "rebuild", f"{of} is a lookup whose changes compute everything (`on_lookup_change: rebuild`)"
            if spec.model.write == "append":
                return "rows", f"adds what its code makes of the differences of {of} to its rows"
            return "keys", f"its code gets the differences of {of}"
        if any(self._columns(spec, table)):
            return "rebuild", f"its columns change with those of {of}"
        try:
            assert isinstance(spec, ModelSpec)
            model = planned(spec, {s: self.lake.table(s) for s in spec.sources})
        except LakeError as e:
            return "rebuild", f"follows {of}; how is not known before that is computed: {e}"
        how = _BY_STRATEGY.get(model.strategy, "rebuild")
        if how == "rebuild":
            return how, f"computes everything again if rows of {of} differ ({model.why})"
        return how, f"{_FOLLOWS[how]} in {of}; if its tables are small, everything"

    def _columns(self, spec: Spec, table: Table) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the columns that a SQL model gets and loses; none if they are not known."""
        declared = self.columns.get(spec.table, ())
        if not declared:
            return (), ()
        stored = [f.name for f in table.schema().fields]
        before, after = ({c.lower() for c in names} for names in (stored, declared))
        return tuple(c for c in declared if c.lower() not in before), tuple(c for c in stored if c.lower() not in after)

    def _sources(self, spec: Spec) -> Cost:
        """Return what a table reads if it reads all of its sources, in an unknown time."""
        read = dict.fromkeys((*spec.sources, *lookups_of(spec)))
        found = [t.current_snapshot() for name in read if (t := self.lake.find(name)) is not None]
        return Cost(sum(map(visible_rows, found)), sum(number(summary_of(s), "total-files-size") for s in found))

    def _cost(self, spec: Spec, table: Table | None) -> Cost:
        """Estimate computing a table from all of its sources."""
        cost = self._sources(spec)
        rows = cost.rows
        done = [
            t
            for r in self.past
            for t in r.tables
            if t.table == str(spec.table) and t.redo == "everything" and t.is_done and t.rows_read and t.seconds
        ]
        if done:
            rate = median(t.seconds / t.rows_read for t in done)
            what = f"{plural(len(done), 'past backfill')} of all of its rows"
            return replace(cost, seconds=rate * rows, basis=what)
        full = next((c for c in past_costs(table) if c.strategy == "full"), None)
        if full is None:
            return cost
        return replace(cost, seconds=full.seconds * rows / max(full.rows, 1), basis="its last step over all rows")
