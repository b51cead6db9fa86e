"""`lake-assets verify`: compare a table with its recomputed rows."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from lake_assets.commands.printing import console, listing, print_json
from lake_assets.commands.table_lookup import AsJson, PipelineOption, ShowSensitive, computed_spec
from lake_assets.errors import PipelineError
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.lake.setting_values import share_of
from lake_assets.pipeline.verification import Verification
from lake_assets.pipeline.verification import verify as verify_model


def verify(
    table: Annotated[
        str, typer.Argument(help="a final table, model or table of a job, such as agg.sales", show_default=False)
    ],
    pipeline: PipelineOption = None,
    sample: Annotated[str, typer.Option(help="compare only this share of the keys: 0.01 or 1%")] = "100%",
    limit: Annotated[int, typer.Option(help="maximum differing rows to show", min=1)] = 20,
    show_sensitive: ShowSensitive = False,
    as_json: AsJson = False,
) -> None:
    """Recompute TABLE from the snapshots it has absorbed, and compare; exit code 1 if rows differ."""
    share, lake = _share(sample), Lake.load_existing()
    spec = computed_spec(lake, TableId.parse(table), pipeline)
    if as_json:
        result = verify_model(lake, spec, sample=share, limit=limit, shows_sensitive=show_sensitive)
        print_json(vars(result) | {"differences": [vars(d) for d in result.differences], "equal": result.equal})
    else:
        with console.status("computing the table again"):
            result = verify_model(lake, spec, sample=share, limit=limit, shows_sensitive=show_sensitive)
        _show(result)
    if not result.equal:
        raise typer.Exit(1)


def _share(text: str) -> float:
    try:
        return share_of(text)
    except ValueError as e:
        raise PipelineError(f"--sample: {e}") from e


def _show(result: Verification) -> None:
    at = ", ".join(f"{source} @ {snapshot}" for source, snapshot in result.sources.items())
    of = f" in a sample of {result.sample:.4%} of the keys" if result.sample < 1 else ""
    console.print(f"{result.table} @ {result.snapshot}, computed again from {at}", markup=False)
    for column, why in result.not_compared.items():
        console.print(f"[yellow]not compared: {escape(column)}[/]: {escape(why)}", soft_wrap=True)
    if result.equal:
        console.print(f"[bold green]equal[/]: {result.found:,} rows{of}")
        return
    console.print(
        f"[bold red]{result.different:,} rows differ[/]: computed again there are {result.expected:,} rows, the "
        f"table holds {result.found:,}{of}"
    )
    if result.doubt:
        console.print(f"[yellow]which need not be wrong[/]: {escape(result.doubt)}", soft_wrap=True)
    printed = listing("expected", "found", right=["expected", "found"], fold=True)
    for column in result.differences[0].row:
        printed.add_column(escape(column), overflow="fold")
    for difference in result.differences:
        values = ("(null)" if v is None else escape(str(v)) for v in difference.row.values())
        printed.add_row(str(difference.expected), str(difference.found), *values)
    console.print(printed)
    if result.different > len(result.differences):
        console.print(f"... and {result.different - len(result.differences):,} more (--limit)")
