"""The settings of a stream of dumps (`format: snapshot`), and what is wrong with them together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from lake_assets.ingest.ingest_specs import DumpRules
from lake_assets.pipeline.config.setting_types import Strict, checked
from lake_assets.pipeline.config.stream_tables import StreamTable
from lake_assets.sources.dump_folders import SUCCESS, Completeness
from lake_assets.sources.dump_rows import KeyColumns
from lake_assets.tables.specs import Limit

SNAPSHOT = "snapshot"
_SETTINGS = ("complete", "max_deleted", "max_changed")


class DumpSettings(Strict):
    """The settings of a stream whose source delivers dumps of a whole table."""

    complete: Annotated[str, checked(Completeness.parse)] | None = Field(
        default=None,
        description="snapshots: when a dump in the folder is complete: the name of a file that is written last, or how "
        f"long its files have not changed (10m quiet); default: {SUCCESS}",
    )
    max_deleted: Annotated[str | int, checked(Limit.parse)] | None = Field(
        default=None,
        description="snapshots: how many rows of the last dump may be missing in the next, as a number (100) or a "
        "share (5%), before that is held back; default: all",
    )
    max_changed: Annotated[str | int, checked(Limit.parse)] | None = Field(
        default=None,
        description="snapshots: how many rows of the last dump may be missing or have other values in the next, before "
        "that is held back; default: all",
    )


def dump_mistakes(settings: DumpSettings, kind: str, tables: list[StreamTable], *, is_table: bool) -> Iterator[str]:
    """Yield what is wrong with the settings of a stream of some format.

    Args:
        is_table: whether its source is a table, and not a folder.
    """
    if kind != SNAPSHOT:
        if declared := [name for name in _SETTINGS if getattr(settings, name) is not None]:
            are = "is" if len(declared) == 1 else "are"
            yield f"`{'` and `'.join(declared)}` {are} for `format: snapshot`, and the format is {kind}"
        return
    if is_table and settings.complete is not None:
        yield "`complete` is for dumps in a folder; a table (`source`) is complete with its commit"
    if len(tables) != 1 or tables[0].is_pattern:
        yield (
            "`format: snapshot` reads the dumps of one table, which do not name it: declare exactly one under "
            "`tables`, without a pattern, and a stream for each other table"
        )
        return
    table = tables[0]
    if not table.key:
        yield f"{table.table}: dumps do not name a key: declare `key`, or `key: '*'` if rows have none"
    if len(table.keys) > 1:
        yield f"{table.table}: declare one `key`: the dumps of `format: snapshot` are compared by it"
    if table.order_by:
        yield f"{table.table}: `order_by` is not for `format: snapshot`: dumps are ordered by their names"


def dump_rules(tables: list[StreamTable], settings: DumpSettings) -> DumpRules:
    """Return how the dumps of a stream are read."""
    table = tables[0]
    columns = table.keys[0] if table.keys else ()
    former = {k: tuple(old for old, new in table.rename.items() if new == k and old != new) for k in columns}
    limits = (settings.max_deleted, settings.max_changed)
    deleted, changed = (Limit.parse(v) if v is not None else None for v in limits)
    complete = Completeness.parse(settings.complete) if settings.complete is not None else Completeness()
    return DumpRules(complete, KeyColumns(columns, former), deleted, changed)
