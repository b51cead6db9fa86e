"""`lake-assets history`: all versions of one row, and what made each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.markup import escape

from lake_assets.commands.printing import console, print_json
from lake_assets.commands.table_lookup import AsJson, PipelineOption, ShowSensitive, pipeline_of
from lake_assets.errors import PipelineError
from lake_assets.facade import Lake
from lake_assets.history.absorbed_events import Event
from lake_assets.history.history_document import Change, HistoryRequest, RowHistory, RowVersion, Source, SourceRow
from lake_assets.history.row_history import row_history
from lake_assets.history.wanted_rows import text_of
from lake_assets.lake import TableId
from lake_assets.lake.counts import plural
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.models.model_spec import is_of_query, spec_of
from lake_assets.pipeline.table_graph import Spec

_STYLES = {
    "found": "dim",
    "inserted": "green",
    "added": "green",
    "updated": "yellow",
    "deleted": "red",
    "removed": "red",
}
_WORDS = {"found": "as of the oldest kept snapshot"}
# Events of a version that are shown without `--json`.
_EVENTS = 20


def history(
    table: Annotated[
        str, typer.Argument(help="a final, staging or agg table, such as final.users", show_default=False)
    ],
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="a column of the row's key and its value; repeatable", metavar="COLUMN=VALUE"),
    ] = None,
    null: Annotated[
        list[str] | None, typer.Option("--null", help="a key column that is null; repeatable", metavar="COLUMN")
    ] = None,
    all_columns: Annotated[
        bool, typer.Option("--all-columns", help="show all columns of an updated row, not only those that changed")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="show the text of the raw records")] = False,
    limit: Annotated[int, typer.Option(help="maximum rows to list if a part of a key is named", min=1)] = 20,
    pipeline: PipelineOption = None,
    show_sensitive: ShowSensitive = False,
    as_json: AsJson = False,
) -> None:
    """Show all versions of one row of TABLE, and what made each of them; exit code 1 if there never was such a row.

    A version has its commit, the columns before and after, and the change events or source rows that made it.
    """
    lake = Lake.load_existing()
    name = lake.named(table)
    asked = HistoryRequest(name, key or (), null or (), pipeline or "", limit)
    timeline = row_history(lake, _specs(lake, name, pipeline), asked, shows_sensitive=show_sensitive)
    if as_json:
        print_json(_document(timeline, raw=raw))
    else:
        _show(timeline, all_columns=all_columns, raw=raw)
    if not timeline.is_known:
        raise typer.Exit(1)


def _specs(lake: Lake, table: TableId, named: str | None) -> list[Spec]:
    """Return the tables of the pipeline that declares a table; none if it is a table of another program.

    Raises:
        PipelineError: the named pipeline does not declare it, or nobody does and it does not exist.
    """
    try:
        return pipeline_of(lake, table, named).specs(lake, alone=False)
    except PipelineError:
        loaded = lake.find(table)
        if named or loaded is None:
            raise
        if loaded.properties.get(PIPELINE_PROPERTY) and is_of_query(loaded):
            return [spec_of(table, loaded)]
        return []


# --- JSON -------------------------------------------------------------------------------------------------------------


def _document(timeline: RowHistory, *, raw: bool) -> dict[str, Any]:
    document = _plain(asdict(timeline))
    for event in _events_in(document):
        if event["record"] is not None and not raw:
            del event["record"]["text"]
    return document


def _events_in(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for version in document["versions"]:
        yield from version["events"]
    yield from document["without_effect"]
    yield from document["pending"]


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; bytes as hexadecimal digits."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, bool | int | float | str) else text_of(value)


# --- for people -------------------------------------------------------------------------------------------------------


def _show(timeline: RowHistory, *, all_columns: bool, raw: bool) -> None:
    mode = f" ({timeline.mode})" if timeline.mode and timeline.mode != "scd1" else ""
    _line(f"[bold]{escape(timeline.table)}[/]{mode}, {escape(_key(timeline.key))}")
    if timeline.matches:
        _show_matches(timeline)
        return
    if not timeline.versions:
        _line(f"[bold]no such row[/] in any of the {timeline.snapshots:,} kept states of the table")
    for version in timeline.versions:
        console.print()
        _show_version(version, timeline.kind, all_columns=all_columns, raw=raw)
    console.print()
    if timeline.without_effect:
        is_certain = not any(v.notes for v in timeline.versions)
        _line(
            "absorbed since, without a change of the row:" if is_certain else "absorbed since, or by an earlier commit:"
        )
        _show_events(timeline.without_effect, raw=raw)
    if timeline.pending:
        _line("not absorbed yet:")
        _show_events(timeline.pending, raw=raw)
    if timeline.events_command and (
        timeline.without_effect or timeline.pending or any(v.events for v in timeline.versions)
    ):
        _line(f"[dim]its events: `{escape(timeline.events_command)}`[/]")
    _line(
        f"[dim]{plural(timeline.snapshots, 'state')} compared, {plural(timeline.files, 'data file')} read; "
        f"{escape(timeline.begins)}[/]"
    )
    for note in timeline.notes:
        _line(f"[yellow]note[/]: {escape(note)}")


def _show_matches(timeline: RowHistory) -> None:
    _line(f"a part of the key: {len(timeline.matches):,} current rows")
    for row in timeline.matches:
        _line(f"  {escape(_key(row.key))}   [dim]`{escape(row.command)}`[/]")
    for note in timeline.notes:
        _line(f"[yellow]note[/]: {escape(note)}")


def _show_version(version: RowVersion, kind: str, *, all_columns: bool, raw: bool) -> None:
    whats = list(dict.fromkeys(c.what for c in version.changes))
    what = ", ".join(f"[bold {_STYLES[w]}]{_WORDS.get(w, w)}[/]" for w in whats)
    _line(f"{what}   {_time(version.committed_at)}   snapshot {version.snapshot}")
    inserted, updated, deleted = version.rows
    counted = f"{version.operation}: +{inserted:,} ~{updated:,} -{deleted:,} rows of the table"
    where = f", in {version.executed_in}" if version.executed_in else ""
    _line(f"  [dim]by {escape(version.made_by + where)}; {counted}[/]")
    if version.absorbed:
        marks = ", ".join(f"{source} @ {snapshot or 'nothing'}" for source, snapshot in version.absorbed.items())
        _line(f"  [dim]absorbed {escape(marks)}[/]")
    for text in version.declaration:
        _line(f"  [yellow]declaration changed[/]: {escape(text)}")
    if kind != "staging":
        for change in version.changes:
            _show_change(change, several=len(version.changes) > 1, all_columns=all_columns)
    if version.events:
        _show_events(version.events, raw=raw, values=kind == "staging")
    for source in version.sources:
        _show_source(source)
    for note in version.notes:
        _line(f"  [yellow]note[/]: {escape(note)}")


def _show_change(change: Change, *, several: bool, all_columns: bool) -> None:
    indent = "  "
    if several:
        _line(f"  [{_STYLES[change.what]}]{_WORDS.get(change.what, change.what)}[/]")
        indent = "    "
    before, after = change.before or {}, change.after or {}
    names = list(change.after if change.after is not None else before)
    if change.what == "updated" and not all_columns:
        names = list(change.changed)
    width = max(map(len, names), default=0)
    for name in names:
        new = _value(after.get(name))
        text = new if change.before is None else _value(before.get(name))
        if change.what == "updated" and name in change.changed:
            text = f"[red]{escape(text)}[/] -> [green]{escape(new)}[/]"
        else:
            text = escape(text)
        _line(f"{indent}{escape(name.ljust(width))}  {text}")


def _show_events(events: Iterable[Event], *, raw: bool, values: bool = False) -> None:
    listed = list(events)
    for event in listed[:_EVENTS]:
        at = f"position {event.position}{f'.{event.index}' if event.index else ''}"
        when = f", {_time(event.event_time)}" if event.event_time else ""
        order = f", sequence {event.sequence}" if event.sequence else ""
        _line(f"  [bold]event[/] {event.op}, {at}{escape(order)}{when}")
        if event.moved:
            _line(f"    the same change in the source's log as that of {escape(_key(event.moved))}")
        if event.unavailable:
            _line(f"    without {escape(', '.join(event.unavailable))}")
        if values:
            _line(f"    {escape(', '.join(f'{n} = {_value(v)}' for n, v in event.values.items()))}")
        _show_record(event, raw=raw)
    if len(listed) > _EVENTS:
        _line(f"  ... and {plural(len(listed) - _EVENTS, 'more event')} (--json lists all)")


def _show_record(event: Event, *, raw: bool) -> None:
    record = event.record
    if record is None:
        _line("    [dim]its record is not in raw any more[/]")
        return
    landed = f"snapshot {record.snapshot}" if record.snapshot else "an expired snapshot"
    _line(f"    [dim]{escape(f'{record.table}, {landed}: {record.file}, line {record.line}')}[/]")
    if raw:
        _line(f"    {escape(record.text)}")


def _show_source(source: Source) -> None:
    if source.rows is None:
        _line(f"  [bold]from {escape(source.table)}[/] ({escape(source.how)}): the absorbed snapshot has expired")
        return
    rows = plural(source.rows, "row")
    more = f"; not checked: {'; '.join(source.conditions)}" if source.conditions else ""
    _line(f"  [bold]from {escape(source.table)}[/] ({escape(source.how)}): {rows}{escape(more)}")
    for row in source.changed:
        _show_source_row(row)
    for row in source.others:
        _line(f"    {escape(_key(row.key))}   [dim]`{escape(row.command)}`[/]")
    if source.rows > (left := len(source.others) + sum(1 for c in source.changed if c.change and c.change.after)):
        _line(f"    ... and {source.rows - left:,} more that did not change")


def _show_source_row(row: SourceRow) -> None:
    change = row.change
    assert change is not None
    text = ""
    if change.what == "updated":
        pairs = ((n, (change.before or {}).get(n), (change.after or {}).get(n)) for n in change.changed)
        text = ", ".join(f"{n} {_value(old)} -> {_value(new)}" for n, old, new in pairs)
    _line(
        f"    [{_STYLES[change.what]}]{change.what}[/] {escape(_key(row.key))} {escape(text)}   "
        f"[dim]`{escape(row.command)}`[/]"
    )


def _key(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{column} = {_value(value)}" for column, value in values.items())


def _value(value: Any) -> str:
    if value is None:
        return "(null)"
    if not isinstance(value, datetime) and not text_of(value):
        return '""'
    return _time(value) if isinstance(value, datetime) else text_of(value)


def _time(at: datetime) -> str:
    text = f"{at:%Y-%m-%d %H:%M:%S}{f'.{at.microsecond:06}'.rstrip('0') if at.microsecond else ''}"
    return f"{text} UTC" if at.tzinfo else text


def _line(text: str) -> None:
    console.print(text, soft_wrap=True)
