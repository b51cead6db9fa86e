"""What the history of a row consists of, by names and values: for people, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lake_assets.history.absorbed_events import Event
from lake_assets.lake import TableId

# This many rows are listed that did not change, or that match a part of a key.
LISTED = 20


@dataclass(frozen=True)
class Change:
    """A row before and after a commit, by the names of its columns.

    Attributes:
        what: `found` (as of the oldest kept snapshot), `inserted`, `updated` or `deleted`. A source row that a model's
            row was not computed from before is `added`, one that it is not computed from any more is `removed`.
        changed: the columns that differ; all of them unless the row was updated.
    """

    what: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    changed: tuple[str, ...]


@dataclass(frozen=True)
class SourceRow:
    """A row of another table, and the command that shows its history."""

    key: Mapping[str, Any]
    command: str
    change: Change | None = None


@dataclass(frozen=True)
class Source:
    """The rows of one source that a model's row was computed from.

    Attributes:
        how: how they are found.
        conditions: what else the query asks of them, which was not evaluated.
        rows: how many there are after the commit; None: unknown, since the absorbed snapshot has expired.
        changed: those that differ from what the commit before had absorbed.
        others: some of those that do not.
    """

    table: str
    how: str
    conditions: tuple[str, ...]
    snapshot: int | None
    rows: int | None
    changed: tuple[SourceRow, ...]
    others: tuple[SourceRow, ...]


@dataclass(frozen=True)
class RowVersion:
    """What one commit did to the row.

    Attributes:
        made_by: the step or program, as far as the snapshot tells.
        rows: how many rows of the table the commit inserted, updated and deleted.
        absorbed: the snapshot of each source that the table had absorbed.
        declaration: how the declaration of the table differs from the one before.
        events: the change events that were absorbed since the version before.
        sources: for a model, the source rows.
        notes: what is not known of this version.
        run: what executed the step, as in the journal: `dagster ID`; empty: a command, or that is unknown.
        host: the machine on which it ran; empty: unknown.
    """

    snapshot: int
    committed_at: datetime
    operation: str
    made_by: str
    rows: tuple[int, int, int]
    absorbed: Mapping[str, int | None]
    declaration: tuple[str, ...]
    changes: tuple[Change, ...]
    events: tuple[Event, ...] = ()
    sources: tuple[Source, ...] = ()
    notes: tuple[str, ...] = ()
    run: str = ""
    host: str = ""

    @property
    def executed_in(self) -> str:
        """What executed the step, for people; empty: unknown."""
        kind, _, run = self.run.partition(" ")
        if kind == "dagster":
            return f"Dagster's run {run}"
        return self.run or (f"a command on {self.host}" if self.host else "")


@dataclass(frozen=True)
class RowHistory:
    """The history of a row.

    Attributes:
        kind: `final`, `staging`, `model` or `table`.
        mode: how a final table keeps its rows.
        snapshots: how many kept states of the table were compared.
        begins: where the history begins.
        versions: oldest first.
        without_effect: events that were absorbed since the last version, and changed nothing.
        pending: events that the table has not absorbed.
        matches: keys of some rows, if only a part of the key was named; then there are no versions.
        notes: what is not shown, and why.
        files: how many data files of the table were read.
    """

    table: str
    kind: str
    mode: str
    key: Mapping[str, Any]
    snapshots: int
    begins: str
    versions: tuple[RowVersion, ...] = ()
    without_effect: tuple[Event, ...] = ()
    pending: tuple[Event, ...] = ()
    matches: tuple[SourceRow, ...] = ()
    events_command: str = ""
    notes: tuple[str, ...] = ()
    files: int = 0

    @property
    def is_known(self) -> bool:
        """Whether the row, or an event of it, was ever there, as far as is kept."""
        return bool(self.versions or self.without_effect or self.pending or self.matches)


@dataclass(frozen=True)
class HistoryRequest:
    """What is asked for.

    Attributes:
        words: the key as words such as `id=17`.
        nulls: key columns that are null.
        pipeline: the pipeline as the user named it, for the commands that explain more.
        limit: how many rows are listed if a part of the key is named.
    """

    table: TableId
    words: Sequence[str]
    nulls: Sequence[str] = ()
    pipeline: str = ""
    limit: int = LISTED
