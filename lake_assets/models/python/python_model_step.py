"""The step of a Python model: call its function with the changes, and apply its rows in one commit."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyiceberg.table import Table

from lake_assets.errors import DefinitionChangedError
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.refresh_state import refresh_state
from lake_assets.models.operators.kept_frames import types_of
from lake_assets.models.python.function_call import FunctionCall
from lake_assets.models.python.model_inputs import replaced_columns
from lake_assets.models.python.python_model_spec import PythonModelSpec, changed_settings
from lake_assets.models.python.result_writes import ResultWriter
from lake_assets.models.steps.model_step import ComputedModel, DueModel, ModelStep, StepResult
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.tables.audits.audit_gate import Gate
from lake_assets.tables.outcome import Absorbed
from lake_assets.tables.pending_windows import Window, window_of
from lake_assets.tables.table_step import ChangedSetting
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.table_ddl import columns_of
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY, KEY_PROPERTY, PAST_PROPERTY


@dataclass(frozen=True)
class PythonModelStep(ModelStep[PythonModelSpec]):
    """Calling a function with the changes of its inputs, and applying the returned rows."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Spark, and Python unless the function is SQL over changes."""
        return ("spark", "python") if self.spec.place else ("spark",)

    @property
    def code(self) -> tuple[str, int] | None:
        """The file and line of the function."""
        return self.spec.place

    @property
    def lookups(self) -> tuple[TableId, ...]:
        """The lookups of the function."""
        return self.spec.lookups

    def needs_history(self, windows: Mapping[TableId, Window], sources: Mapping[TableId, Table]) -> bool:
        """Whether the function is called with changes whose history is lost; a changed lookup computes everything."""
        inputs = (s for s in self.spec.inputs.values() if s in windows)
        return self.spec.model.write != "overwrite" and any(windows[s].lost for s in inputs)

    def windows_of(self, table: Table | None, sources: Mapping[TableId, Table]) -> dict[TableId, Window]:
        """Return the pending windows; of a table that skips changes, those without what it skips."""
        spec = self.spec
        if not spec.skipped:
            return super().windows_of(table, sources)
        windows = {s: window_of(spec.table, table, s, sources[s]) for s in spec.sources if s in sources}
        return {
            # Due, so that the declaration and the watermarks are stored.
            s: replace(w, mark=w.head, is_due=True) if w.lost or spec.skipped == "pending" else replace(w, is_due=True)
            for s, w in windows.items()
        }

    def is_begun(self, table: Table | None, windows: Mapping[TableId, Window]) -> bool:
        """Whether a step continues from the table's contents; of a new input, it absorbs all rows."""
        return self._is_taken_over(table) or super().is_begun(table, windows)

    def is_same_definition(self, table: Table | None) -> bool:
        """Whether a table was built by the current declaration, or takes it over as it is."""
        return self._is_taken_over(table) or super().is_same_definition(table)

    def _is_taken_over(self, table: Table | None) -> bool:
        return self.spec.is_kept and table is not None and FINGERPRINT_PROPERTY in table.properties

    @property
    def is_stopped_by_change(self) -> bool:
        """Whether a changed declaration stops the table."""
        return self.spec.model.on_query_change == "stop"

    def changed_settings(
        self, lake: LakeBase, table: Table, sources: Mapping[TableId, Table]
    ) -> tuple[ChangedSetting, ...]:
        """Return what differs from the declaration that the table was computed by, also if its rows are kept."""
        return changed_settings(self.spec, table.properties.get(FINGERPRINT_PROPERTY))

    def check_due(self, due: DueModel) -> None:
        """Raise DefinitionChangedError if the declaration has changed, and the model is declared to stop."""
        name, stops = self.spec.table, self.is_stopped_by_change and not due.rebuild
        is_changed = due.table is not None and not self.is_same_definition(due.table)
        if stops and is_changed and not self.past(due.table):
            raise DefinitionChangedError(
                f"{name} was built by another declaration, and it declares `on_query_change: stop`. Restore the former "
                f"one, or run `lake-assets rebuild {name}`. With `on_query_change: rebuild`, the next run does so"
            )

    def why_stopped(self, due: DueModel) -> str:
        """Return why the step stops; it does not if its rows are kept on demand, whatever the inputs' columns are."""
        return "" if self.spec.skipped else super().why_stopped(due)

    def past(self, table: Table | None) -> str:
        """Return what of the past the table holds that its inputs do not; empty: its rows can be computed again."""
        model = self.spec.model
        return "" if model.declared_on_change == "rebuild" else model.past or super().past(table)

    @property
    def past_options(self) -> tuple[str, ...]:
        """What can become of rows that cannot be computed again."""
        return ("keep", "discard") if self.spec.model.past else super().past_options

    @property
    def ways_on(self) -> str:
        """How the table goes on: with its rows, if the present declaration can add to them."""
        if not self.spec.model.past:
            return super().ways_on
        return (
            f"`lake-assets rebuild {self.spec.table} --keep-rows` keeps its rows, and goes on with the present "
            f"declaration from the changes that are still known; {super().ways_on}. If its inputs tell all of its "
            "rows, declare `on_query_change: rebuild`"
        )

    def recovery(self, option: str = "") -> str:
        """Return how to go on after lost history."""
        return self.why_not_rebuilt(None) or super().recovery(option)

    def lost_file_advice(self, table: TableId) -> str:
        """Return the advice; a table that keeps its rows can go on without a lost file of an input."""
        advice = super().lost_file_advice(table)
        way_on = self.why_not_rebuilt(None) if table in self.spec.sources else ""
        return f"{advice}. {way_on}" if way_on else advice

    def compute(
        self, lake: LakeBase, due: DueModel, pins: SnapshotPins, began: float, scope: contextlib.ExitStack
    ) -> ComputedModel:
        """Call the function with the changes of its inputs, or with all of their rows."""
        spec, marks, afresh = self.spec, due.marks, _reason_to_begin(self.spec, due)
        windows = {s: replace(w, mark=None) for s, w in due.windows.items()} if afresh else due.windows
        gate = Gate(lake, spec.table, spec.audits, spec.model.key)
        # Rows that were computed before lookups changed do not represent the lookups' present snapshots.
        is_of_marks = not spec.lookups or spec.watched_lookups or spec.model.write == "overwrite"
        state = refresh_state(lake, marks, spec.definition, began) if is_of_marks else {}
        commit = Commit(lake, spec.table, due.table, marks, gate, state, _settings(spec, due.table))
        pinned = {t: marks[str(t)].snapshot for t in due.sources}
        call = FunctionCall(lake, spec, windows, pinned, scope)
        writer = ResultWriter(commit, spec, call.frames)
        if afresh:
            rows = call.rows()
            call.check_replaced(types_of(rows))
            done = writer.everything(rows, due.lost or afresh, again=bool(due.rebuild or due.lost))
        else:
            writer.check_kept_rows()
            done = _absorb_changes(spec, call, writer, columns_of(lake, spec.table))
        if spec.skipped:
            done = done.because(f"its rows are kept{due.lost and f'; changes are missing: {due.lost}'}")
        absorbed = tuple(Absorbed.of(str(s), c) for s, c in call.captures.items() if not windows[s].is_absorbed)
        return ComputedModel(done, absorbed, commit)


def _settings(spec: PythonModelSpec, table: Table | None) -> dict[str, str]:
    """Return the table properties to set with the rows: those that it does not have already."""
    own = {PAST_PROPERTY: spec.model.past}
    if spec.is_kept:
        # What readers know of the table: its kept rows are checked to have this key.
        own |= {FINGERPRINT_PROPERTY: spec.definition, KEY_PROPERTY: json.dumps(list(spec.model.key))}
    return {name: value for name, value in own.items() if table is not None and table.properties.get(name) != value}


def _reason_to_begin(spec: PythonModelSpec, due: DueModel) -> str:
    """Return why everything is computed; empty: the step continues from the table's contents."""
    if not due.begun or due.rebuild:
        return due.rebuild or ("first run" if due.table is None else "its declaration changed")
    if spec.model.past:
        return ""
    moved = [f"{s}.{c}" for s, w in due.windows.items() for c in replaced_columns(due.sources[s], w)]
    return f"the name {', '.join(moved)} now belongs to another column" if moved else ""


def _absorb_changes(
    spec: PythonModelSpec, call: FunctionCall, writer: ResultWriter, types: Mapping[str, str]
) -> StepResult:
    """Apply the changes of the inputs to an existing table."""
    if all(c.is_empty for c in call.captures.values()):
        return writer.nothing("no row of its inputs changed")
    if any(not call.captures[t].is_empty for t in spec.watched_lookups):
        return writer.everything(call.from_the_beginning().rows(), "a lookup changed", again=True)
    other_columns = "its columns, or their types, changed"
    if spec.model.replace:
        if not spec.model.past and not set(spec.model.replace).issubset(types):
            return writer.everything(call.from_the_beginning().rows(), other_columns, again=False)
        call.find_affected(types)
        if not (call.frame and call.frame.rows):
            return writer.nothing("no row of its inputs changed")
    rows = call.rows()
    if writer.columns_differ(rows, types):
        if spec.model.past:
            return writer.with_columns_of(rows).apply(rows, call.frame, call.span)
        whole = call.from_the_beginning()
        return writer.everything(whole.rows(), other_columns, again=False)
    return writer.apply(rows, call.frame, call.span)
