"""What a step is declared to do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Literal

from pyiceberg.table import Table

from lake_assets.capture.renamed_columns import reused_names, schema_at
from lake_assets.capture.source_tags import is_of_others
from lake_assets.errors import PipelineError, TableClaimedError
from lake_assets.jobs.step_notes import StepNote
from lake_assets.lake import TableId
from lake_assets.lake.column_spelling import caseless
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, Watermark
from lake_assets.lake.names import nearest
from lake_assets.tables.lost_history import started_again
from lake_assets.tables.pending_windows import LostHistory, Window, window_of
from lake_assets.tables.writing.table_ddl import check_owner_in

# The owner of tables whose steps belong to no pipeline.
STEP_OWNER = "lake.step"
# The column, or for keys the SQL expression, over every source; or by source, the others having none.
ByColumn = str | Mapping[str, str]


@dataclass(frozen=True)
class StepSettings:
    """What a step is declared to do; see `captured_step`."""

    table: TableId
    sources: tuple[TableId, ...]
    ranges: Mapping[str, ByColumn] = field(default_factory=dict)
    keys: Mapping[str, ByColumn] = field(default_factory=dict)
    lookups: tuple[TableId, ...] = ()
    lifetime: timedelta | None = None
    writes: Literal["table", "elsewhere"] = "table"
    on_unknown: Literal["stop", "rerun"] = "stop"
    on_gap: Literal["stop", "rebuild"] = "stop"
    on_replaced: Literal["stop", "rebuild"] = "stop"
    owner: str = STEP_OWNER

    def windows(
        self, target: Table | None, sources: Mapping[TableId, Table], again: StepNote | None = None
    ) -> dict[TableId, Window]:
        """Return the pending window of each existing source; those of an interrupted step (`again`) are run again.

        Reads metadata only.

        Raises:
            HistoryError: the history of a source is lost, and the step is declared to stop.
        """
        windows = {s: window_of(self.table, target, s, table) for s, table in sources.items()}
        for source, window in windows.items():
            if again and (noted := again.windows.get(str(source))) and noted.uuid == window.head.uuid:
                mark = Watermark(noted.uuid, noted.start) if noted.start is not None else None
                windows[source] = Window(source, mark, noted.head)
            elif why := self._why_ranges_unknown(sources[source], window):
                windows[source] = replace(window, mark=None, lost=LostHistory("on_replaced", why))
        return started_again(
            self,
            windows,
            lambda option: (
                f"With `{option}: rebuild` declared, the next step gives the job all that its sources hold; or drop "
                f"{self.table}, if the job makes it again"
            ),
        )

    def _why_ranges_unknown(self, source: Table, window: Window) -> str:
        """Return why the declared ranges and keys of a window do not cover the rows that the job has to compute again;
        empty if they do.

        If a name belongs to another column, earlier rows have other values there, or none, and no snapshot has changed
        them.
        """
        if window.start is None or window.is_empty or not is_of_others(source):
            return ""
        declared = [of_source(by, str(window.source)) or "" for by in (*self.ranges.values(), *self.keys.values())]
        names = {name for text in declared for name in re.findall(r"\w+", caseless(text))}
        reused = reused_names(schema_at(source, window.start), schema_at(source, window.head.snapshot))
        others = dict.fromkeys(t.column for t in reused if caseless(t.column) in names)
        if not others:
            return ""
        return (
            f"{window.source}: the name {', '.join(others)} now belongs to another column, so the ranges or keys of "
            f"what {self.table} was computed from are unknown"
        )

    def check_owner(self, target: Table | None) -> None:
        """Raise TableClaimedError if the table belongs to a pipeline, and the step to another one or to none."""
        owner = target.properties.get(PIPELINE_PROPERTY) if target is not None else None
        if target is None or owner in (None, STEP_OWNER, self.owner):
            return
        if self.owner == STEP_OWNER:
            raise TableClaimedError(
                f"{self.table} belongs to pipeline {owner!r}, which runs its steps: name another table for this step, "
                f"or remove {self.table} from the pipeline and drop the table to have the job create it again"
            )
        check_owner_in(target, self.table, self.owner)


def of_source(by: ByColumn, source: str) -> str | None:
    """Return the column or expression for a source; None: it has none."""
    return by if isinstance(by, str) else by.get(source)


def check_columns(
    table: TableId, ranges: Mapping[str, ByColumn], keys: Mapping[str, ByColumn], sources: Sequence[TableId]
) -> None:
    """Check that what is declared by source names sources, and that a source has all keys or none.

    Raises:
        PipelineError: one does not; or a source has an expression for some keys only.
    """
    names = [str(s) for s in sources]
    for setting, values in (("ranges", ranges), ("keys", keys)):
        for name, by in values.items():
            for source in () if isinstance(by, str) else by:
                if source not in names:
                    raise PipelineError(
                        f"{table}: `{setting}`: {name} names {source}, which is no source{nearest(source, names)}: the "
                        f"sources are {', '.join(names)}"
                    )
    for source in names:
        missing = [name for name, by in keys.items() if of_source(by, source) is None]
        if missing and len(missing) < len(keys):
            others = ", ".join(name for name in keys if name not in missing)
            raise PipelineError(
                f"{table}: `keys`: {', '.join(missing)} has no expression over {source}, and {others} has. Give it "
                f"one; or name all keys by source and leave {source} out: its changes then belong to no key"
            )


def names_of(tables: Sequence[str | TableId]) -> tuple[TableId, ...]:
    """Return the names of tables, each once."""
    return tuple(dict.fromkeys(map(TableId.parse, tables)))


def columns_by_name(
    table: TableId, setting: Literal["ranges", "keys"], declared: Sequence[str] | Mapping[str, ByColumn] | None
) -> dict[str, ByColumn]:
    """Return ranges or keys by name; a list names columns.

    Raises:
        PipelineError: a name has no column.
    """
    by_name: dict[str, ByColumn] = dict(declared if isinstance(declared, Mapping) else {n: n for n in declared or ()})
    for name, by in by_name.items():
        if not by:
            raise PipelineError(
                f"{table}: `{setting}`: {name!r} has no column: write `{{{name}: column}}`, or by source "
                f"`{{{name}: {{layer.table: column}}}}`"
            )
    return by_name
