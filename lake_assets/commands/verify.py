"""`lake-assets verify`: compare a table with its recomputed rows."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from lake_assets.commands.printing import console, print_json
from lake_assets.commands.run_and_status import AsJson, find_spec
from lake_assets.errors import PipelineError
from lake_assets.facade import Lake
from lake_assets.pipeline.config.setting_types import share_of
from lake_assets.pipeline.verification import Verification
from lake_assets.pipeline.verification import verify as verify_model


def verify(
    table: Annotated[str, typer.Argument(help="a final table or a model, such as agg.sales", show_default=False)],
    pipeline: Annotated[
        str | None,
        typer.Option(
            "--pipeline",
            "-p",
            help="YAML file, folder or name of its pipeline; default: the shipped ones and LAKE_PIPELINES",
        ),
    ] = None,
    sample: Annotated[str, typer.Option(help="compare only this share of the keys: 0.01 or 1%")] = "100%",
    limit: Annotated[int, typer.Option(help="maximum differing rows to show", min=1)] = 20,
    as_json: AsJson = False,
) -> None:
    """Recompute TABLE from the snapshots it has absorbed, and compare; exit code 1 if rows differ."""
    share, lake = _share(sample), Lake.load_existing()
    spec = find_spec(lake, table, pipeline)
    if as_json:
        found = verify_model(lake, spec, sample=share, limit=limit)
        print_json(vars(found) | {"differences": [vars(d) for d in found.differences], "equal": found.equal})
    else:
        with console.status("computing the table again"):
            found = verify_model(lake, spec, sample=share, limit=limit)
        _show(found)
    if not found.equal:
        raise typer.Exit(1)


def _share(text: str) -> float:
    try:
        return share_of(text)
    except ValueError as e:
        raise PipelineError(f"--sample: {e}") from e


def _show(found: Verification) -> None:
    at = ", ".join(f"{source} @ {snapshot}" for source, snapshot in found.sources.items())
    of = f" in a sample of {found.sample:.4%} of the keys" if found.sample < 1 else ""
    console.print(f"{found.table} @ {found.snapshot}, computed again from {at}", markup=False)
    for column, why in found.not_compared.items():
        console.print(f"[yellow]not compared: {escape(column)}[/]: {escape(why)}", soft_wrap=True)
    if found.equal:
        console.print(f"[bold green]equal[/]: {found.found:,} rows{of}")
        return
    console.print(
        f"[bold red]{found.different:,} rows differ[/]: computed again there are {found.expected:,} rows, the "
        f"table holds {found.found:,}{of}"
    )
    if found.doubt:
        console.print(f"[yellow]which need not be wrong[/]: {escape(found.doubt)}", soft_wrap=True)
    shown = Table(box=None, pad_edge=False, header_style="bold")
    columns = ((escape(c), "left") for c in found.differences[0].row)
    for name, justify in (("expected", "right"), ("found", "right"), *columns):
        shown.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for difference in found.differences:
        values = ("(null)" if v is None else escape(str(v)) for v in difference.row.values())
        shown.add_row(str(difference.expected), str(difference.found), *values)
    console.print(shown)
    if found.different > len(found.differences):
        console.print(f"... and {found.different - len(found.differences):,} more (--limit)")
