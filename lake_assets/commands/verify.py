"""`lake-assets verify`: compare a table with its recomputed rows."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from lake_assets.commands.printing import console, listing, print_json, say_written
from lake_assets.commands.table_lookup import AsJson, Html, PipelineOption, ShowSensitive, computed_spec, page_file
from lake_assets.errors import PipelineError
from lake_assets.facade import Lake
from lake_assets.lake.counts import plural
from lake_assets.lake.setting_values import share_of
from lake_assets.pipeline.verification import verify as verify_model
from lake_assets.report.html_page import write_page
from lake_assets.report.verification_contents import VerificationReport, verification_report


def verify(
    table: Annotated[
        str, typer.Argument(help="a final table, model or table of a job, such as agg.sales", show_default=False)
    ],
    pipeline: PipelineOption = None,
    sample: Annotated[str, typer.Option(help="compare only this share of the keys: 0.01 or 1%")] = "100%",
    limit: Annotated[int, typer.Option(help="maximum differing rows to show", min=1)] = 20,
    show_sensitive: ShowSensitive = False,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Recompute TABLE from the snapshots it has absorbed, and compare; exit code 1 if rows differ."""
    share, file, lake = _share(sample), page_file(html), Lake.load_existing()
    spec = computed_spec(lake, lake.named(table), pipeline)
    if as_json:
        result = verify_model(lake, spec, sample=share, limit=limit, shows_sensitive=show_sensitive)
        print_json(vars(result) | {"differences": [vars(d) for d in result.differences], "equal": result.equal})
    else:
        with console.status("computing the table again"):
            result = verify_model(lake, spec, sample=share, limit=limit, shows_sensitive=show_sensitive)
    report = verification_report(lake, spec, result)
    if not as_json:
        _show(report)
    if file:
        write_page(file, report)
        if not as_json:
            say_written(file)
    if not result.equal:
        raise typer.Exit(1)


def _share(text: str) -> float:
    try:
        return share_of(text)
    except ValueError as e:
        raise PipelineError(f"--sample: {e}") from e


def _show(report: VerificationReport) -> None:
    result = report.result
    at = ", ".join(f"{source} @ {snapshot}" for source, snapshot in result.sources.items())
    console.print(f"{result.table} @ {result.snapshot}, computed again from {at}", markup=False)
    for column, why in result.not_compared.items():
        console.print(f"[yellow]not compared: {escape(column)}[/]: {escape(why)}", soft_wrap=True)
    for text in report.known:
        console.print(f"[yellow]not exact[/]: {escape(text)}", soft_wrap=True)
    style = "bold green" if result.equal else "bold red"
    console.print(f"[{style}]{escape(report.verdict)}[/]", soft_wrap=True)
    if not result.equal:
        _show_differences(report)
    for text in report.next_steps:
        console.print(text, markup=False, soft_wrap=True)


def _show_differences(report: VerificationReport) -> None:
    result = report.result
    if result.doubt:
        console.print(f"[yellow]which need not be wrong[/]: {escape(result.doubt)}", soft_wrap=True)
    if result.key:
        console.print(
            f"by key: {result.changed:,} with other values, {result.missing:,} missing in the table, "
            f"{result.additional:,} only in the table"
        )
    for column, rows in result.columns.items():
        console.print(f"  column {column}: {plural(rows, 'row')} differ{'s' if rows == 1 else ''}", markup=False)
    printed = listing("expected", "found", right=["expected", "found"], fold=True)
    for column in report.columns:
        printed.add_column(escape(column), overflow="fold")
    for row in report.rows:
        printed.add_row(str(row.expected), str(row.found), *(escape(cell.value) for cell in row.cells))
    console.print(printed)
    if report.unshown:
        console.print(f"... and {report.unshown:,} more (--limit)")
