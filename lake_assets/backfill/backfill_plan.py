"""The plan of a backfill: which tables are redone, in which order, how, and what that is estimated to cost.

Planning reads metadata, and the keys of a range of events with Spark. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from lake_assets.backfill.backfill_record import BackfillRecord, Redo, TableEstimate, TableRecord
from lake_assets.backfill.row_selection import Chunks, Selection, check_exists, chunks_of
from lake_assets.errors import BackfillError, PipelineError
from lake_assets.final.final_spec import FinalSpec
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.metadata.row_counts import number, summary_of, visible_rows
from lake_assets.lake.names import nearest
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.pipeline import Pipeline, PipelineGroup
from lake_assets.pipeline.pending import after_redeclaration
from lake_assets.pipeline.row_scope import EVERYTHING, RowScope
from lake_assets.pipeline.table_graph import ComputedSpec, JobSpec, Spec, lookups_of
from lake_assets.pipeline.table_steps import step_of

# Without past backfills of a table: rows read per second, and seconds of each piece of work.
_ROWS_PER_SECOND, _FIXED_SECONDS = 400_000, 2.0


@dataclass(frozen=True)
class TablePlan:
    """What a backfill does to one table, and the estimated cost.

    Attributes:
        table: its name.
        redo: see `TableRecord`.
        chunks: the pieces of work.
        what: what is redone, in words.
        why: the reason for this way.
        rows: an estimate of the rows that change, from the share of its sources that is redone.
        most: the stored rows that change at most: all of the table. Rows that the table lacks are added to them.
        changed: the least and the most rows that past backfills of the table changed in this way; None: there was none.
        rows_read, files_read, bytes_read: the sources, as far as they are read.
        bytes_written: an estimate as `rows`; rows that do not differ are not written.
        seconds: of all pieces.
        runs: number of past backfills of the table that `seconds` is taken from; 0: from a general rate.
    """

    table: str
    redo: Redo
    chunks: tuple[RowScope, ...]
    what: str
    why: str
    rows: int
    rows_read: int
    files_read: int
    bytes_read: int
    bytes_written: int
    seconds: float
    runs: int
    most: int = 0
    changed: tuple[int, int] | None = None

    @property
    def record(self) -> TableRecord:
        """The table in the record of a backfill that is about to begin."""
        estimate = TableEstimate(self.rows, self.seconds, self.runs)
        return TableRecord(
            self.table, self.redo, self.chunks, why=self.why, rows_read=self.rows_read, estimate=estimate
        )

    @property
    def confidence(self) -> str:
        """How far `seconds` can be trusted."""
        return confidence(self.runs)


@dataclass(frozen=True)
class BackfillPlan:
    """The plan of a backfill.

    Attributes:
        pipeline: name of the pipeline.
        request: what was asked for, in words.
        tables: the tables, upstream first.
        left_out: tables downstream that are not part of it, with reasons.
        is_preview: whether it is to show what a changed declaration does (`BackfillRecord.is_unseen`).
    """

    pipeline: str
    request: str
    tables: tuple[TablePlan, ...]
    left_out: Mapping[str, str]
    is_preview: bool = False

    @property
    def seconds(self) -> float:
        """Estimated seconds in total."""
        return sum(t.seconds for t in self.tables)


def confidence(runs: int) -> str:
    """Say how far seconds can be trusted that are taken from so many past backfills."""
    return {0: "low", 1: "medium", 2: "medium"}.get(runs, "high")


def plan(
    lake: LakeBase,
    pipeline: Pipeline,
    table: TableId,
    selection: Selection,
    *,
    downstream: bool = True,
    max_rows: int = thresholds.ROWS_A_CHUNK,
    past: Sequence[BackfillRecord] = (),
) -> BackfillPlan:
    """Plan a backfill of a table, or a selection of its rows, and everything downstream of it.

    Args:
        lake: the lake.
        pipeline: the pipeline that declares the table.
        table: the table.
        selection: what of it is redone.
        downstream: whether the tables below it are part of the backfill. Otherwise they absorb its changes afterwards.
        max_rows: rows of one piece of work, roughly.
        past: earlier backfills, for the estimate.

    Raises:
        PipelineError: the pipeline has no such table, or it was never run.
        BackfillError: the table cannot be redone, or not this part of it.
    """
    specs = pipeline.specs(lake, alone=False)
    first = next((s for s in specs if s.table == table), None)
    if first is None:
        names = [str(s.table) for s in specs]
        raise PipelineError(
            f"pipeline {pipeline.name!r} has no table {table}{nearest(str(table), names)}; it has {', '.join(names)}"
        )
    _check(lake, first)
    below = downstream_of(specs, [table]) if downstream else []
    left_out = _left_out(lake, specs, [s.table for s in below], {table})
    redone = Chunks((EVERYTHING,), 1.0)
    if not selection.is_everything:
        assert isinstance(first, ComputedSpec)
        redone = chunks_of(lake, first, selection, max_rows)
    tables = [_planned(lake, first, "everything" if selection.is_everything else "rows", redone, past)]
    follows = Chunks((EVERYTHING,), redone.share)
    tables += [_planned(lake, s, "changes", follows, past) for s in below if str(s.table) not in left_out]
    request = f"{table}: {selection}{'' if downstream else ', without downstream tables'}"
    return BackfillPlan(pipeline.name, request, tuple(tables), left_out)


def plan_tables(
    lake: LakeBase,
    pipeline: Pipeline | PipelineGroup,
    chosen: Mapping[TableId, Sequence[str] | None],
    past: Sequence[BackfillRecord] = (),
) -> BackfillPlan:
    """Plan a backfill of several chosen tables, as an orchestrator asks for it.

    `chosen` has the keys of partitions by table; none: the table follows the changes of the others; None: all of
    the table
    is redone. Tables that cannot be redone aside are left out: their own steps do what is possible.

    Raises:
        PipelineError: a key is not one of a table's partitions.
    """
    specs = [s for s in pipeline.specs(lake, alone=False) if isinstance(s, ComputedSpec) and s.table in chosen]
    asked = {s.table: f"{s.table}: {_selection(keys)}" for s in specs if (keys := chosen[s.table]) is None or keys}
    left_out = _left_out(lake, specs, chosen, asked)
    tables: list[TablePlan] = []
    shares: dict[TableId, float] = {}
    for spec in (s for s in specs if str(s.table) not in left_out):
        keys, redo = chosen[spec.table], "changes"
        redone = Chunks((EVERYTHING,), max((shares.get(s, 0.0) for s in spec.sources), default=0.0))
        if keys is None:
            redone, redo = Chunks((EVERYTHING,), 1.0), "everything"
        elif keys:
            redone, redo = chunks_of(lake, spec, _selection(keys)), "rows"
        shares[spec.table] = redone.share
        tables.append(_planned(lake, spec, redo, redone, past))
    request = "; ".join(text for table, text in asked.items() if str(table) not in left_out)
    return BackfillPlan(pipeline.name, request, tuple(tables), left_out)


def plan_redeclared(
    lake: LakeBase, pipeline: Pipeline, changed: Collection[TableId], past: Sequence[BackfillRecord] = ()
) -> BackfillPlan:
    """Plan a backfill of all rows of tables that are declared otherwise, and of everything downstream of them.

    Raises:
        BackfillError: one of them cannot be redone aside.
    """
    specs = pipeline.specs(lake, alone=False)
    for spec in (s for s in specs if s.table in changed):
        _check(lake, spec)
        if missing := [str(s) for s in (*spec.sources, *lookups_of(spec)) if not lake.exists(s)]:
            raise BackfillError(
                f"{spec.table} reads {', '.join(missing)}, which does not exist yet: `lake-assets run` with `--table "
                f"{missing[0]}` fills it, and changes no other table"
            )
    below = downstream_of(specs, changed)
    left_out = _left_out(lake, specs, [s.table for s in below], changed)
    redone, everything = {s.table for s in below if str(s.table) not in left_out}, Chunks((EVERYTHING,), 1.0)
    tables = [
        _planned(lake, s, "everything" if s.table in changed else "changes", everything, past)
        for s in specs
        if s.table in changed or s.table in redone
    ]
    request = f"declared otherwise: {', '.join(t.table for t in tables if t.redo == 'everything')}"
    return BackfillPlan(pipeline.name, request, tuple(tables), left_out, is_preview=True)


def _selection(keys: Sequence[str] | None) -> Selection:
    return Selection(tuple(keys or ()))


def downstream_of(specs: Sequence[Spec], tables: Iterable[TableId]) -> list[Spec]:
    """Return the tables that directly or indirectly read some tables, upstream first, without these tables."""
    reached = {*tables}
    found: list[Spec] = []
    for spec in specs:
        if spec.table not in reached and reached.intersection((*spec.sources, *lookups_of(spec))):
            reached.add(spec.table)
            found.append(spec)
    return found


def _check(lake: LakeBase, spec: Spec) -> None:
    if isinstance(spec, JobSpec):
        raise BackfillError(
            f"{spec.table} is written by a job, and jobs cannot write to a backfill's working copy: `lake-assets "
            f"rebuild {spec.table}` runs the job over everything"
        )
    if why := step_of(spec).why_not_rebuilt(lake.find(spec.table)):
        raise BackfillError(why)
    if isinstance(spec, StagingSpec):
        raise BackfillError(
            f"{spec.table} shares the table of rejected records with {spec.raw}, so it is not redone aside: "
            f"`lake-assets rebuild {spec.table}` reads all records again, and the tables below follow with the next run"
        )
    check_exists(lake, spec)


def _left_out(
    lake: LakeBase, specs: Sequence[Spec], tables: Collection[TableId], first: Collection[TableId]
) -> dict[str, str]:
    """Return which of some tables cannot be part of a backfill, with reasons; `first` need no table upstream."""
    left_out: dict[str, str] = {}
    members = {*first, *tables}
    for spec in specs:
        if spec.table not in tables:
            continue
        table = lake.find(spec.table)
        if isinstance(spec, JobSpec):
            left_out[str(spec.table)] = "written by a job: it absorbs the changes after they are published"
        elif why := getattr(spec, "refused", ""):
            left_out[str(spec.table)] = f"its declaration is refused: {why}"
        elif table is None or table.metadata.current_snapshot_id is None:
            left_out[str(spec.table)] = "was never run: the next run fills it"
        elif step_of(spec).why_not_rebuilt(table):
            # A copy would absorb in one step what main absorbs in several: what came and went meanwhile would be lost.
            left_out[str(spec.table)] = (
                "its rows cannot be computed again: it absorbs the changes after they are published"
            )
        elif spec.table not in first and not members.intersection((*spec.sources, *lookups_of(spec))):
            left_out[str(spec.table)] = "reads only tables that are not part of the backfill"
        else:
            continue
        members.discard(spec.table)
    return left_out


def _planned(lake: LakeBase, spec: Spec, redo: Redo, redone: Chunks, past: Sequence[BackfillRecord]) -> TablePlan:
    pieces, share = redone.chunks, redone.share
    read = [summary_of(lake.table(s).current_snapshot()) for s in spec.sources if lake.exists(s)]
    own = lake.table(spec.table).current_snapshot()
    # A final table is recomputed from all events of its keys, wherever they are in staging.
    part = share if redo == "changes" or not isinstance(spec, FinalSpec) else 1.0
    rows_read = int(part * sum(number(s, "total-records") for s in read))
    done = [t for r in past for t in r.tables if t.table == str(spec.table) and t.redo == redo and t.is_done]
    seconds = _seconds(done, rows_read, len(pieces))
    changed = [t.inserted + t.updated + t.deleted for t in done]
    # How far a changed row reaches in such a model is not known before it is computed.
    reaches = redo == "changes" and _reaches_further(spec)
    what, why = {
        "everything": ("everything", "computed from all that its sources hold"),
        "rows": (_labels(pieces), "computed from its sources; rows that differ are written"),
        "changes": ("changes of its sources", f"follows the changes of {', '.join(map(str, spec.sources))}"),
    }[redo]
    if redo == "changes" and after_redeclaration(lake, spec):
        what, why = f"{what}, by a changed declaration", f"{why}; its rows were computed by another declaration"
    return TablePlan(
        table=str(spec.table),
        redo=redo,
        chunks=pieces,
        what=what,
        why=why,
        rows=visible_rows(own) if reaches else int(share * visible_rows(own)),
        rows_read=rows_read,
        files_read=round(part * sum(number(s, "total-data-files") for s in read)),
        bytes_read=int(part * sum(number(s, "total-files-size") for s in read)),
        bytes_written=int(share * number(summary_of(own), "total-files-size")),
        seconds=seconds,
        runs=sum(1 for t in done if t.rows_read),
        most=visible_rows(own),
        changed=(min(changed), max(changed)) if changed else None,
    )


def _reaches_further(spec: Spec) -> bool:
    """Whether a changed row of a source also affects rows of other ranges."""
    if isinstance(spec, PythonModelSpec):
        return bool(spec.back or spec.forward or spec.model.cumulative)
    return isinstance(spec, ModelSpec) and spec.span is not None and spec.span.reaches


def _labels(pieces: Sequence[RowScope]) -> str:
    if len(pieces) == 1:
        return pieces[0].label
    return f"{len(pieces)} chunks, the first of {pieces[0].label}"


def _seconds(done: Sequence[TableRecord], rows: int, pieces: int) -> float:
    """Return the expected seconds, from past backfills of the table if there are any."""
    if done := [t for t in done if t.rows_read]:
        rate = median(t.seconds / t.rows_read for t in done)
        return max(min(t.seconds for t in done), rate * rows)
    return pieces * _FIXED_SECONDS + rows / _ROWS_PER_SECOND
