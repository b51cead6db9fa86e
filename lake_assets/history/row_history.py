"""The history of one row: its versions, the events and source rows that made each, and where the history ends."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow

from lake_assets.errors import LakeError, Refused, RowHistoryError, TableNotFoundError
from lake_assets.final.final_spec import FinalSpec
from lake_assets.formats.event_model import TRUNCATE
from lake_assets.history.absorbed_events import Event, EventId, RowEvents
from lake_assets.history.file_rows import Row
from lake_assets.history.hidden_values import without_values
from lake_assets.history.history_document import (
    LISTED,
    Change,
    HistoryRequest,
    RowHistory,
    RowVersion,
    Source,
    SourceRow,
)
from lake_assets.history.row_changes import RowChange, Version, changed_columns, row_changes, versions
from lake_assets.history.row_key import RowKey, key_of, named_key
from lake_assets.history.snapshot_rows import SnapshotRows
from lake_assets.history.source_rows import SourceRows, Traced, lineage_of, traced
from lake_assets.history.timeline import Timeline, timeline
from lake_assets.history.version_runs import with_runs
from lake_assets.history.wanted_rows import text_of, wanted
from lake_assets.ingest.ingest_specs import StagingSpec
from lake_assets.lake import LakeBase, TableId
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline.table_graph import Spec

_GAP = (
    "snapshots before this one have expired, back to the one before it in this list: what it shows may be the work of "
    "several commits, and values in between are not known"
)


def row_history(
    lake: LakeBase, specs: Sequence[Spec], asked: HistoryRequest, *, shows_sensitive: bool = False
) -> RowHistory:
    """Return the history of a row; reads, and changes nothing.

    Args:
        specs: the tables of the pipeline; without that of the table, its versions alone are shown.
        shows_sensitive: whether values of sensitive columns are shown.

    Raises:
        TableNotFoundError: the table does not exist.
        RowHistoryError, ColumnNotFoundError: the key does not fit the table.
    """
    declared = {s.table: s for s in specs}
    found = _Reader(lake, declared, asked).history()
    return found if shows_sensitive else without_values(lake, declared, found)


@dataclass
class _Reader:
    lake: LakeBase
    specs: Mapping[TableId, Spec]
    asked: HistoryRequest
    notes: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.spec = self.specs.get(self.asked.table)
        self.table = self.lake.table(self.asked.table)
        self.key = key_of(self.lake, self.spec, self.table)
        self.named = named_key(self.key, self.table, self.asked.table, self.asked.words, self.asked.nulls)
        self.rows = SnapshotRows(
            self.lake, self.asked.table, self.table,
            wanted(schema_to_pyarrow(self.table.schema()), {c: [v] for c, v in self.named.values.items()}),
        )  # fmt: skip

    @property
    def kind(self) -> str:
        match self.spec:
            case StagingSpec():
                return "staging"
            case FinalSpec():
                return "final"
            case None:
                return "table"
            case _:
                return "model"

    def history(self) -> RowHistory:
        line = timeline(self.table)
        found = RowHistory(
            str(self.asked.table), self.kind, self.key.mode, self.named.values, len(line.moments), line.beginning
        )
        if self.named.missing:
            return replace(found, matches=tuple(self._matches()), notes=tuple(self.notes))
        # Of a table of another program, the named columns are taken for its key.
        identity = self.key.identity or (self.named.values if self.spec is None else ())
        listed = list(versions(line, self.rows, self._ids(identity)))
        found = with_runs(self.lake, self._with_causes(found, line, listed), line)
        if self.rows.spark_reason:
            self.notes.append(f"rows were read by Spark: {self.rows.spark_reason}")
        return replace(found, notes=tuple(dict.fromkeys((*self.notes, *found.notes))), files=self.rows.opened)

    def _with_causes(self, found: RowHistory, line: Timeline, listed: list[Version]) -> RowHistory:
        match self.spec:
            case FinalSpec():
                return self._of_final(self.spec, found, line, listed)
            case StagingSpec():
                return self._of_staging(self.spec, found, listed)
            case ModelSpec():
                return self._of_model(self.spec, found, line, listed)
            case None:
                self.notes.append(
                    f"no pipeline that was looked at declares {self.asked.table}, so what made its versions is not "
                    "shown: name its pipeline with --pipeline"
                )
            case _:
                self.notes.append(
                    f"{self.asked.table} is computed by code, which does not say which rows of its sources a row is "
                    "computed from: its versions are shown alone"
                )
        return replace(found, versions=tuple(self._version(v) for v in listed))

    # --- final tables ---------------------------------------------------------------------------------------------

    def _of_final(self, spec: FinalSpec, found: RowHistory, line: Timeline, listed: list[Version]) -> RowHistory:
        staging = self.specs.get(spec.staging)
        plain = [self._version(v) for v in listed]
        key = {self.key.in_staging[c]: v for c, v in self.named.values.items() if c in self.key.in_staging}
        events = self._events_of(spec, staging, key, line)
        if isinstance(events, Refused):
            self.notes.append(f"the events of {spec.table} are not shown: {events.reason}")
            return replace(found, versions=tuple(plain))
        log, absorbed = events
        head = log.at(log.table.metadata.current_snapshot_id)
        everything = {i: e for events in absorbed.values() for i, e in events.items()} | head
        whole = log.complete(everything.values())
        starts = [-1, *(v.index for v in listed)]
        shown = [
            replace(
                v, events=_within(absorbed, whole, before, at), notes=v.notes + self._unknown(line, absorbed, log, at)
            )
            for v, before, at in zip(plain, starts, starts[1:], strict=False)
        ]
        last = _last_known(absorbed, line, str(spec.staging))
        done = log.at(last) if last is not None else {}
        rest = _within(absorbed, whole, starts[-1], len(line.moments))
        pending = (whole[i] for i in head if i not in done)
        return replace(
            found,
            versions=tuple(shown),
            without_effect=tuple(e for e in rest if e.op != TRUNCATE),
            pending=tuple(e for e in pending if e.op != TRUNCATE),
            events_command=self._command(spec.staging, key),
        )

    def _events_of(
        self, spec: FinalSpec, staging: Spec | None, key: Mapping[str, Any], line: Timeline
    ) -> tuple[RowEvents, Mapping[int, Mapping[EventId, Event]]] | Refused:
        """Return the events with a key, by the names in staging, and which of them each moment absorbed; a refusal if
        they cannot be told from others."""
        if not isinstance(staging, StagingSpec):
            return Refused(f"{spec.staging} is not declared with it")
        if unknown := [c for c in self.named.values if c not in self.key.in_staging]:
            return Refused(f"{', '.join(unknown)} is computed, and no column of {spec.staging}")
        try:
            log = RowEvents(self.lake, staging, key, is_key=bool(self.key.columns))
            absorbed = log.absorbed(line.moments)
        except (TableNotFoundError, RowHistoryError, pa.ArrowException, TypeError, ValueError) as e:
            return Refused(f"{spec.staging} cannot be searched: {e}")
        self.notes += log.limits
        return log, absorbed

    def _unknown(self, line: Timeline, absorbed: Mapping[int, Any], log: RowEvents, at: int) -> tuple[str, ...]:
        if at in absorbed:
            return ()
        later = next((line.moments[i].id for i in sorted(absorbed) if i > at), None)
        where = f", and its events are among those of a later commit ({later})" if later else ""
        return (f"the snapshot of {'.'.join(log.table.name())} that this commit had absorbed has expired{where}",)

    # --- staging tables -------------------------------------------------------------------------------------------

    def _of_staging(self, spec: StagingSpec, found: RowHistory, listed: list[Version]) -> RowHistory:
        log = RowEvents(self.lake, spec, self.named.values, is_key=bool(self.key.columns))
        self.notes += log.limits
        events = [[log.event(c.row) for c in v.changes] for v in listed]
        whole = log.complete(e for these in events for e in these)
        shown = [
            replace(self._version(v), events=tuple(whole[e.id] for e in these))
            for v, these in zip(listed, events, strict=True)
        ]
        return replace(found, versions=tuple(shown))

    # --- models ---------------------------------------------------------------------------------------------------

    def _of_model(self, spec: ModelSpec, found: RowHistory, line: Timeline, listed: list[Version]) -> RowHistory:
        plain = [self._version(v) for v in listed]
        lineage = lineage_of(self.lake, spec, self.key.columns)
        if isinstance(lineage, Refused):
            self.notes.append(f"the source rows of {spec.table} are not traced: {lineage.reason}")
            return replace(found, versions=tuple(plain))
        if any("query" in text for m in line.moments for text in m.declaration):
            self.notes.append("its query changed: source rows of older versions are found by the query as it is now")
        marks = [m.marks for m in line.moments]
        states = [s for v in listed for s in (marks[v.index - 1] if v.index else {}, marks[v.index])]
        result = traced(self.lake, lineage, self.named.values, states)
        self.notes += result.notes
        shown = [
            replace(v, sources=tuple(self._sources(result, 2 * n, is_first=not listed[n].index)))
            for n, v in enumerate(plain)
        ]
        return replace(found, versions=tuple(shown))

    def _sources(self, result: Traced, state: int, *, is_first: bool) -> Iterator[Source]:
        for source in result.sources:
            before, after = source.at[state], source.at[state + 1]
            key = self._key_of(source.table)
            names = {f.field_id: f.name for f in source.rows.schema.fields}
            changed: list[SourceRow] = []
            if after is not None and before is not None and not is_first:
                ids = [i for i, n in names.items() if n in key.identity]
                for change in row_changes(before, after, ids, names, _columns(source, state + 1)):
                    named = _named(change, names)
                    # It need not be new: it may have had another value in the columns that bind it to the key.
                    what = {"inserted": "added", "deleted": "removed"}.get(named.what, named.what)
                    changed.append(self._source_row(source, key, change.row, replace(named, what=what)))
            rest = [r for r in (after or {}).values() if not any(_is_same(r, c, names) for c in changed)]
            others = tuple(self._source_row(source, key, r) for r in rest[:LISTED])
            yield Source(
                str(source.table), source.bound.how, source.bound.conditions, source.snapshots[state + 1],
                None if after is None else len(after), tuple(changed), others,
            )  # fmt: skip

    def _source_row(self, source: SourceRows, key: RowKey, row: Row, change: Change | None = None) -> SourceRow:
        named = {f.name: row.get(f.field_id) for f in source.rows.schema.fields}
        columns = [c for c in key.columns if c in named] or list(named)
        values = {c: named[c] for c in columns}
        return SourceRow(values, self._command(source.table, values), change)

    def _key_of(self, table: TableId) -> RowKey:
        try:
            return key_of(self.lake, self.specs.get(table), self.lake.table(table))
        except LakeError:
            return RowKey((), (), {})

    # --- all tables -----------------------------------------------------------------------------------------------

    def _version(self, version: Version) -> RowVersion:
        moment, names = version.moment, {f.field_id: f.name for f in self.rows.schema.fields}
        return RowVersion(
            moment.id, moment.at, moment.operation, moment.made_by, moment.changed,
            {source: mark.snapshot for source, mark in moment.marks.items()}, moment.declaration,
            tuple(_named(c, names) for c in version.changes), notes=(_GAP,) if moment.follows_gap else (),
        )  # fmt: skip

    def _ids(self, names: Iterable[str]) -> list[int]:
        return [self.rows.schema.find_field(n).field_id for n in names]

    def _matches(self) -> Iterator[SourceRow]:
        names = [f.name for f in self.table.schema().fields if f.name in self.key.columns]
        ids = self._ids(names)
        rows = self.rows.at(self.table.metadata.current_snapshot_id).values()
        keys = dict.fromkeys(tuple(r.get(i) for i in ids) for r in rows)
        listed = sorted(keys, key=lambda k: tuple((v is None, str(v)) for v in k))
        for key in listed[: self.asked.limit]:
            values = dict(zip(names, key, strict=True))
            yield SourceRow(values, self._command(self.asked.table, values))
        if len(listed) > self.asked.limit:
            self.notes.append(f"{len(listed):,} rows match, of which {self.asked.limit:,} are listed (--limit)")

    def _command(self, table: TableId, key: Mapping[str, Any]) -> str:
        words = ["lake-assets", "history", str(table)]
        for column, value in key.items():
            words += ["--null", column] if value is None else ["--key", f"{column}={text_of(value)}"]
        if self.asked.pipeline:
            words += ["--pipeline", self.asked.pipeline]
        return shlex.join(words)


def _within(
    absorbed: Mapping[int, Mapping[Any, Event]], whole: Mapping[Any, Event], after: int, until: int
) -> tuple[Event, ...]:
    """Return the events that were absorbed after one moment, and until another one."""
    ids = dict.fromkeys(i for index in sorted(absorbed) if after < index <= until for i in absorbed[index])
    return tuple(whole[i] for i in sorted(ids))


def _last_known(absorbed: Mapping[int, Any], line: Timeline, staging: str) -> int | None:
    if not absorbed:
        return None
    return line.moments[max(absorbed)].marks[staging].snapshot


def _columns(source: SourceRows, state: int) -> frozenset[int]:
    snapshot = source.snapshots[state]
    return frozenset() if snapshot is None else source.rows.columns_at(snapshot)


def _named(change: RowChange, names: Mapping[int, str]) -> Change:
    def named(row: Row | None) -> dict[str, Any] | None:
        return None if row is None else {names[i]: v for i, v in row.items()}

    columns = tuple(names[i] for i in changed_columns(change))
    return Change(change.what, named(change.before), named(change.after), columns)


def _is_same(row: Row, other: SourceRow, names: Mapping[int, str]) -> bool:
    after = other.change.after if other.change else None
    return after is not None and all(row.get(i) == after.get(n) for i, n in names.items() if n in after)
