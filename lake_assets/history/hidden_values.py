"""Hide the values of sensitive columns in the history of a row."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lake_assets.final.final_spec import FinalSpec
from lake_assets.formats.event_model import SEQUENCE
from lake_assets.history.absorbed_events import Event
from lake_assets.history.history_document import Change, RowHistory, RowVersion, Source, SourceRow
from lake_assets.history.snapshot_rows import every_column
from lake_assets.history.wanted_rows import text_of
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.redaction import HIDDEN
from lake_assets.lake.sensitive_values import SensitiveColumns
from lake_assets.pipeline.sensitive_columns import SensitiveTables
from lake_assets.pipeline.table_graph import Spec


def without_values(lake: LakeBase, specs: Mapping[TableId, Spec], found: RowHistory) -> RowHistory:
    """Return a history without sensitive values: of the row, its key, its events, their records and its source rows."""
    table = TableId.parse(found.table)
    spec, sensitive = specs.get(table), SensitiveTables.of_specs(lake, specs.values())
    tables = _Tables(lake, specs, sensitive)
    own = tables.of(table)
    events = tables.of(spec.staging) if isinstance(spec, FinalSpec) else own
    return _Hidden(tables, own, events, found.key).history(found)


_NOTE = f"{HIDDEN} in a command stands for a sensitive value, so the command finds no row: `--show-sensitive` shows it"


@dataclass(frozen=True)
class _Tables:
    lake: LakeBase
    specs: Mapping[TableId, Spec]
    sensitive: SensitiveTables

    def of(self, table: TableId) -> SensitiveColumns:
        """Return the sensitive columns of a table, as declared now and by its last step: its older rows are shown too.

        What a dropped column was computed from, nothing tells any more.
        """
        loaded, spec = self.lake.find(table), self.specs.get(table)
        found = self.sensitive.of(table) | SensitiveColumns.stored(loaded)
        if loaded is None or not (found or (spec is not None and self.sensitive.read_by(spec))):
            return found
        current = {f.field_id for f in loaded.schema().fields}
        return found | SensitiveColumns.of(f.name for f in every_column(loaded).fields if f.field_id not in current)


@dataclass(frozen=True)
class _Hidden:
    tables: _Tables
    own: SensitiveColumns
    events: SensitiveColumns
    key: Mapping[str, Any]

    def history(self, found: RowHistory) -> RowHistory:
        hidden = replace(
            found,
            key=self.own.row(found.key),
            matches=tuple(_source_row(m, self.own) for m in found.matches),
            versions=tuple(map(self._version, found.versions)),
            without_effect=tuple(map(self._event, found.without_effect)),
            pending=tuple(map(self._event, found.pending)),
            events_command=self._text(_command(found.events_command, self.own | self.events)),
            notes=tuple(map(self._text, found.notes)),
        )
        return replace(hidden, notes=(*hidden.notes, _NOTE)) if _has_hidden_commands(hidden) else hidden

    def _version(self, version: RowVersion) -> RowVersion:
        return replace(
            version,
            changes=tuple(_change(c, self.own) for c in version.changes),
            events=tuple(map(self._event, version.events)),
            sources=tuple(map(self._source, version.sources)),
            notes=tuple(map(self._text, version.notes)),
        )

    def _event(self, event: Event) -> Event:
        record = event.record
        if record is not None and self.tables.of(TableId.parse(record.table)).covers("record"):
            record = replace(record, text=HIDDEN)
        return replace(
            event,
            values=self.events.row(event.values),
            moved=self.events.row(self.own.row(event.moved)),
            sequence=self.events.value(SEQUENCE, event.sequence),
            record=record,
        )

    def _source(self, source: Source) -> Source:
        columns = self.tables.of(TableId.parse(source.table))
        return replace(
            source,
            how=self._text(source.how),
            conditions=tuple(map(self._text, source.conditions)),
            changed=tuple(_source_row(r, columns) for r in source.changed),
            others=tuple(_source_row(r, columns) for r in source.others),
        )

    def _text(self, text: str) -> str:
        """Return a text without the sensitive values of the row's key."""
        for column, value in self.key.items():
            if self.own.covers(column) and value is not None and text_of(value):
                text = text.replace(text_of(value), HIDDEN)
        return text


def _source_row(row: SourceRow, columns: SensitiveColumns) -> SourceRow:
    change = _change(row.change, columns) if row.change else None
    return replace(row, key=columns.row(row.key), command=_command(row.command, columns), change=change)


def _change(change: Change, columns: SensitiveColumns) -> Change:
    before, after = (None if row is None else columns.row(row) for row in (change.before, change.after))
    return replace(change, before=before, after=after)


def _has_hidden_commands(found: RowHistory) -> bool:
    sources = [s for v in found.versions for s in v.sources]
    rows = [*found.matches, *(r for s in sources for r in (*s.changed, *s.others))]
    return any(f"={HIDDEN}" in c for c in (found.events_command, *(r.command for r in rows)))


def _command(command: str, columns: SensitiveColumns) -> str:
    """Return a command without the sensitive values of its key."""
    if not columns:
        return command
    words = [w.partition("=") for w in shlex.split(command)]
    return shlex.join(f"{c}={HIDDEN}" if sep and columns.covers(c) else c + sep + v for c, sep, v in words)
