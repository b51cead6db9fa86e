"""`lake-assets report`: what needs attention in a lake, in the terminal or as a page of HTML."""

from __future__ import annotations

from collections.abc import Mapping

from rich.markup import escape

from lake_assets.commands.costs import Since
from lake_assets.commands.printing import console, say_written
from lake_assets.commands.table_lookup import Html, known_pipelines, page_file
from lake_assets.facade import Lake
from lake_assets.lake.counts import plural
from lake_assets.report.amounts import core_time
from lake_assets.report.contents import Report
from lake_assets.report.contents import report as report_on
from lake_assets.report.findings import Kind
from lake_assets.report.html_page import write_page
from lake_assets.report.period import since_of

_COLOURS: Mapping[Kind, str] = {
    "failing": "bold red",
    "late": "red",
    "silent": "red",
    "not exact": "yellow",
    "rejected": "yellow",
    "warning": "yellow",
    "slower": "yellow",
    "notice": "dim",
}
# Lines in a terminal; the page has all of them.
_FINDINGS, _SENTENCES = 20, 10


def report(
    html: Html = None,
    since: Since = "1d",
) -> None:
    """Say what is late, failing or not exact, and what to do first; `--html` writes a page with all figures."""
    lake, start = Lake.load_existing(), since_of(since)
    file = page_file(html)
    pipelines, unread = known_pipelines(lake)
    contents = report_on(lake, pipelines, start, unread=unread)
    if file:
        write_page(file, contents)
        say_written(file)
        return
    _show(contents)


def _show(contents: Report) -> None:
    console.print(
        f"[bold]lake {escape(contents.lake)}[/], {plural(len(contents.tables), 'table')}, {contents.made_at} UTC"
    )
    if not contents.tables and not contents.findings:
        console.print("no pipeline has filled a table in this lake yet: try `lake-assets demo`", markup=False)
        return
    if not contents.urgent:
        console.print("[green]no table fails, is late or silent[/]")
    for f in contents.findings[:_FINDINGS]:
        waiting = f" ({plural(f.waiting, 'table waits', 'tables wait')} for it)" if f.waiting else ""
        console.print(
            f"[{_COLOURS[f.kind]}]{f.kind}[/] [bold]{escape(f.table)}[/]{waiting}: {escape(f.what)}", soft_wrap=True
        )
        if f.do:
            console.print(f"  do first: {f.do}", markup=False, soft_wrap=True)
    if len(contents.findings) > _FINDINGS:
        more = len(contents.findings) - _FINDINGS
        console.print(f"... and {more} more: `lake-assets report --html FILE` lists all", style="dim")
    if contents.costs:
        total = contents.costs.total
        used = f"{plural(total.steps, 'step')} since {contents.since} UTC used {core_time(total.cpu_seconds)}"
        in_full = f"; computing everything is estimated at {core_time(total.in_full)}" if total.estimated else ""
        console.print(f"{used}{in_full} (`lake-assets costs`)", markup=False, soft_wrap=True)
        for text in contents.costs.sentences[:_SENTENCES]:
            console.print(f"- {text}", markup=False, soft_wrap=True)
    for text in contents.unread:
        console.print(f"whether declarations have changed is not known: {text}", markup=False, soft_wrap=True)
