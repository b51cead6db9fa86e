"""Run a SQL model: absorb the changes of its sources in one commit that moves all of its watermarks."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from pyiceberg.table import Table
from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    ParseException,
    SparkRuntimeException,
)

from lake_assets.capture import Capture, capture
from lake_assets.capture.renamed_columns import renamed_text
from lake_assets.errors import (
    DefinitionChangedError,
    HistoryError,
    UnsupportedCaptureError,
)
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.foreign_errors import first_line, wrapped_value_error
from lake_assets.lake.metadata.watermark import PROPERTY, find_property
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.operators.kept_frames import Frames
from lake_assets.models.operators.maintenance import reason_all_rows_change
from lake_assets.models.sql.model_plan import ModelPlan, fingerprint, parse
from lake_assets.models.steps.absorbed_ranges import absorb_ranges
from lake_assets.models.steps.cost_estimate import Estimate, estimate, past_costs
from lake_assets.models.steps.full_result import full, make_table
from lake_assets.models.steps.incremental import incremental, plan_with_types
from lake_assets.models.steps.model_context import Done, ModelContext, NotAcceptedError
from lake_assets.models.steps.model_sources import Sources
from lake_assets.models.steps.planned_models import needed_columns, planned
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.models.steps.written_changes import full_by_differences
from lake_assets.tables.audits.audit_gate import Gate, forget_failed
from lake_assets.tables.batch_limits import left_behind
from lake_assets.tables.lost_history import rebuilt_if_lost, started_again
from lake_assets.tables.outcome import Absorbed, Outcome
from lake_assets.tables.pending_windows import Window, continues, head_of, known_marks, missing_sources, window_of
from lake_assets.tables.published import published
from lake_assets.tables.spark_tuning import tuned_for
from lake_assets.tables.specs import BatchSize
from lake_assets.tables.writing.table_ddl import check_owner_in
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY

log = logging.getLogger(__name__)

# Errors of a step's SQL that the query itself need not have.
_OF_A_PART = (
    NotAcceptedError, AnalysisException, ArithmeticException, ArrayIndexOutOfBoundsException, DateTimeException,
    NumberFormatException, ParseException, SparkRuntimeException,
)  # fmt: skip


def absorb_sources(lake: LakeBase, spec: ModelSpec, pins: SnapshotPins | None = None, *, rebuild: str = "") -> Outcome:
    """Update a model's table from its sources.

    The sources' snapshots are fixed at the start, so a join reads them as of one moment.

    Args:
        lake: the lake.
        spec: the model.
        pins: the snapshots that other models of the same run have read, so that all of them read the same.
        rebuild: why the table is rebuilt in full; empty if it is not.

    Raises:
        SnapshotExpiredError, TableReplacedError: see `next_of`.
        MissingDataFileError: a file of a source is missing, and the table is declared to stop, or needs the file.
        ModelError: the query is wrong for the current sources. Nothing is written.
        DefinitionChangedError: the query has changed, and the model is declared to stop.
        ConcurrentWriteError: the step lost a race to another run.
        AuditFailedError: the new rows do not pass the audits. Nothing is published.
    """
    pins = pins or SnapshotPins()
    return rebuilt_if_lost(spec, lambda reason: _absorb_sources(lake, spec, pins, reason), rebuild)


@dataclass(frozen=True)
class _Due:
    """A step with something to do.

    Attributes:
        tables: the sources.
        target: the model's table; None if it does not exist yet.
        windows: the window of each source.
        begun: whether it continues from the table's contents.
    """

    tables: Mapping[TableId, Table]
    target: Table | None
    windows: Mapping[TableId, Window]
    begun: bool

    @property
    def lost(self) -> str:
        """Why the history of sources is lost; empty if it is not."""
        return "; ".join(w.lost.why for w in self.windows.values() if w.lost)


def _due(lake: LakeBase, spec: ModelSpec, pins: SnapshotPins, rebuild: str) -> _Due | Outcome:
    """Return the step, or the outcome if there is nothing to do."""
    name = str(spec.table)
    loaded = {s: lake.find(s) for s in spec.sources}
    target = lake.find(spec.table)
    if missing := [s for s, table in loaded.items() if table is None]:
        return Outcome(name, "waiting", why=missing_sources(target, missing))
    tables = {s: table for s, table in loaded.items() if table is not None}
    if target is not None:
        check_owner_in(target, spec.table, spec.pipeline)
    is_current = target is not None and is_same_query(target, spec)
    windows, begun = next_of(lake, spec, target, tables, pins, rebuild=bool(rebuild))
    if begun and all(w.is_absorbed for w in windows.values()):
        why = renamed_text({str(s): (tables[s], w.start) for s, w in windows.items()})
        if why:
            planned(spec, tables)  # a query that reads such a column fails now, not with the next change
        return Outcome(name, "nothing", why=why)
    if target is not None and not is_current and not rebuild and spec.on_query_change == "stop" and known_marks(target):
        raise DefinitionChangedError(
            f"{name} was built by another query, or with other partitions, and the model declares `on_query_change: "
            f"stop`. Restore them, or run `lake-assets rebuild {name}` to compute the table by the new ones; with "
            "`on_query_change: rebuild`, the next run does so"
        )
    return _Due(tables, target, windows, begun)


def _absorb_sources(lake: LakeBase, spec: ModelSpec, pins: SnapshotPins, rebuild: str) -> Outcome:
    began, clock = time.monotonic(), time.time()
    due = _due(lake, spec, pins, rebuild)
    if isinstance(due, Outcome):
        return due
    plan = planned(spec, due.tables)
    forget_failed(lake, spec.table, due.target)
    gate, base = Gate(lake, spec.table, spec.audits, plan.key), known_marks(due.target)
    marks = {**base, **{str(s): w.head for s, w in due.windows.items()}}
    with contextlib.ExitStack() as scope:
        scope.enter_context(tuned_for(lake, (spec.table, *spec.sources)))
        captures = {
            s: scope.enter_context(_captured(lake, plan, w, begun=due.begun))
            for s, w in due.windows.items()
            if not (due.begun and w.is_absorbed)
        }
        if rebuild:
            for captured in captures.values():
                captured.check_files()
        absorbed = tuple(Absorbed.of(str(s), c) for s, c in captures.items())
        frames, needed = Frames(lake.spark(), scope), needed_columns(plan.tree) if plan.tree else {}
        sources = Sources(lake, due.tables, due.windows, captures, frames, needed, spec.table, pins.changes)
        expected = estimate(
            plan.strategy, due.windows, due.tables, captures, past_costs(due.target), spec.full_above,
            readers=pins.changes.readers_of, target=due.target, operators=plan.operators, is_read=spec.is_read,
        )  # fmt: skip
        ctx = ModelContext(
            lake, spec, plan, sources, frames, due.target, marks, clock, expected, definition(spec), gate
        )
        if spec.audits:
            gate.check({f.name: f.dataType.simpleString() for f in ctx.query.schema.fields})
        rebuilt = _create_or_rebuild(ctx, due, needed, rebuild)
        done = rebuilt or _absorb(ctx)
    log.info("%s: %s: %s (%s)", spec.table, done.strategy, done.why, expected)
    details: dict[str, object] = {"estimate": str(expected), "key": ", ".join(plan.key) or plan.key_why}
    if plan.warnings:
        details["warning"] = "; ".join(plan.warnings)
    details |= left_behind(*due.windows.values())
    return published(
        lake, spec.table, absorbed, strategy=done.strategy, why=done.why, began=began, marks=marks,
        former=due.target, gate=gate, details=details,
    )  # fmt: skip


def _create_or_rebuild(
    ctx: ModelContext, due: _Due, needed: Mapping[TableId, Collection[str]], rebuild: str
) -> Done | None:
    """Create or rebuild the table; return None if its query and columns are unchanged."""
    # The types of the result follow from the query and its sources' schemas.
    is_schema_kept = all(_is_schema_kept(table, due.windows[t].start) for t, table in due.tables.items())
    is_schema_kept = is_schema_kept and _has_own_columns(due.target)
    replaced = [] if is_schema_kept or not due.begun else _replaced_columns(due.tables, due.windows, needed)
    if due.begun and not replaced and (is_schema_kept or not ctx.columns_differ()):
        return None
    make_table(ctx)
    if due.target is not None and (rebuild or due.lost):
        return Done("rebuild", rebuild or due.lost)
    if replaced:
        return Done("full", f"the name {', '.join(replaced)} now belongs to another column")
    if due.target is None:
        return Done("full", "first run")
    return Done("full", "the query, its sources or the columns of its table changed")


def next_of(
    lake: LakeBase,
    spec: ModelSpec,
    target: Table | None,
    tables: Mapping[TableId, Table],
    pins: SnapshotPins,
    *,
    rebuild: bool = False,
) -> tuple[dict[TableId, Window], bool]:
    """Return each source's window for the next step, and whether it continues from the table; reads metadata only.

    Args:
        lake: the lake.
        spec: the model.
        target: its table, if it exists.
        tables: its sources.
        pins: snapshots fixed by other models of the run; the pins of this step are added.
        rebuild: whether the table is rebuilt in full.

    Raises:
        TableReplacedError, SnapshotExpiredError: see `windows_of`.
    """
    if rebuild:
        windows = {s: Window(s, None, head_of(table)) for s, table in tables.items()}
    else:
        windows = windows_of(spec, target, tables)
    begun = target is not None and is_same_query(target, spec) and continues(windows.values())
    size = _batch(spec, tables) if begun and not all(w.is_absorbed for w in windows.values()) else BatchSize()
    return pins.pin(lake, windows, tables, size), begun


def windows_of(spec: ModelSpec, target: Table | None, tables: Mapping[TableId, Table]) -> dict[TableId, Window]:
    """Return the pending windows of a model's sources. Reads metadata only.

    If the history of a source is lost, and the model is declared to be rebuilt or recomputes everything on each change
    anyway, all windows start at the beginning.

    Args:
        spec: the model.
        target: its table, if it exists.
        tables: its existing sources.

    Raises:
        TableReplacedError, SnapshotExpiredError: the history of a source is lost, and the model is declared to stop.
    """
    windows = {s: window_of(spec.table, target, s, table) for s, table in tables.items()}
    if not any(w.lost for w in windows.values()):
        return windows
    is_incremental = len(tables) == len(spec.sources) and planned(spec, tables).strategy != "full"
    return started_again(spec, windows, may_stop=is_incremental)


def _batch(spec: ModelSpec, tables: Mapping[TableId, Table]) -> BatchSize:
    """Return the limits of a step: none if it computes everything anyway."""
    if spec.batch.is_limited and planned(spec, tables).strategy != "full":
        return spec.batch
    return BatchSize()


def _captured(lake: LakeBase, model: ModelPlan, window: Window, *, begun: bool) -> Capture:
    """Capture the changes of a source, or all of it if the changes are unknown and not needed."""
    if begun and model.strategy != "full":
        return capture(lake, window.source, window.start, window.end)
    with contextlib.suppress(HistoryError):
        if begun:
            return capture(lake, window.source, window.start, window.end)
    return capture(lake, window.source, None, window.end)


def _absorb(ctx: ModelContext) -> Done:
    """Absorb the captured windows."""
    changed = {t for t, c in ctx.sources.captures.items() if not c.is_empty}
    if not changed:
        return ctx.nothing("nothing changed in the sources' rows")
    strategy, why = choice(ctx.plan, ctx.expected, changed)
    if strategy == "full":
        if ctx.expected.overwrites or not (ctx.expected.has_few_rows or ctx.expected.is_small):
            return full(ctx, why)
        return _or_in_full(ctx, lambda: full_by_differences(ctx, why), "Spark did not compare the stored rows")
    try:
        plan, mixed_types = plan_with_types(ctx)
        if strategy == "ranges":
            assert plan.tree is not None
            return absorb_ranges(ctx, plan.tree, why)
        if mixed_types:
            return full(ctx, mixed_types)
        return _or_in_full(ctx, lambda: incremental(ctx, plan, why), "Spark did not accept a part of the query")
    except UnsupportedCaptureError as e:
        # Raised while changes are read, before anything is written.
        return full(ctx, f"the changes of a source cannot be determined: {e}")


def _or_in_full(ctx: ModelContext, step: Callable[[], Done], failed: str) -> Done:
    """Run a step; compute everything instead if Spark accepts the query, but not the step's SQL.

    Some types are not determined by a part of the query alone, some cannot be written in SQL, and a row that a
    condition would have filtered out may fail in a cast.
    """
    try:
        return step()
    except Exception as e:
        message = first_line(e) if isinstance(e, _OF_A_PART) else wrapped_value_error(e)
        if not message:
            raise
        # Nothing is written before these errors. If the query itself fails, it fails again below.
        log.warning("%s: computed in full: %s", ctx.spec.table, failed, exc_info=True)
        return full(ctx, f"{failed}: {message}")


def _is_schema_kept(table: Table, snapshot: int | None) -> bool:
    """Whether a source still has its schema of a snapshot."""
    entry = table.snapshot_by_id(snapshot) if snapshot is not None else None
    return entry is not None and entry.schema_id == table.metadata.current_schema_id


def _has_own_columns(target: Table | None) -> bool:
    """Whether nobody has changed a table's columns since its last step."""
    stored = find_property(target, PROPERTY) if target else None
    if target is None or stored is None:
        return True
    return stored[1].schema_id in (None, target.metadata.current_schema_id)


def _replaced_columns(
    tables: Mapping[TableId, Table], windows: Mapping[TableId, Window], needed: Mapping[TableId, Collection[str]]
) -> list[str]:
    """Return the query's columns whose names belonged to other columns at the last step (dropped and added again, or
    swapped).

    Changes are read with the current columns, but the stored result was computed from the former ones.
    """
    replaced: list[str] = []
    for name, table in tables.items():
        start = windows[name].start
        snapshot = table.snapshot_by_id(start) if start is not None else None
        old_schema = table.schemas().get(snapshot.schema_id) if snapshot and snapshot.schema_id is not None else None
        if old_schema is None:
            continue
        old_ids = {f.name: f.field_id for f in old_schema.fields}
        new_ids = {f.name: f.field_id for f in table.schema().fields}
        replaced += [
            f"{name}.{c}" for c in sorted(needed.get(name, new_ids)) if c in old_ids and old_ids[c] != new_ids.get(c)
        ]
    return replaced


def choice(model: ModelPlan, expected: Estimate, changed: set[TableId]) -> tuple[str, str]:
    """Return the strategy for a change of some sources, and the reason."""
    if model.strategy == "full" or model.tree is None:
        return "full", model.why
    if expected.is_small:
        return "full", str(expected)
    if expected.prefers_full and (expected.exact or expected.limit == 0):
        return "full", f"computing everything is estimated to be cheaper: {expected}"
    if not expected.exact and (why := expected.reason_not_to_compare):
        return "full", why
    if model.strategy != "ranges" and (why := reason_all_rows_change(model.tree.root, changed)):
        return "full", why
    return model.strategy, model.why


def is_same_query(target: Table, spec: ModelSpec) -> bool:
    """Whether a table was built from the current query."""
    return target.properties.get(FINGERPRINT_PROPERTY) == definition(spec)


def definition(spec: ModelSpec) -> str:
    """Return a fingerprint of the definition of a table."""
    text = fingerprint(parse(str(spec.table), spec.sql), spec.sql)
    text = text if not spec.key else f"{text}:{','.join(spec.key)}"
    # Files are written by the fields of Iceberg's partition spec: a changed spec rebuilds the table.
    return f"{text}:{spec.partitions.field.sql}" if spec.partitions else text
