"""`lake-assets explain`: how a model is maintained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from lake_assets.commands.printing import console, facts, listing, print_json, size
from lake_assets.commands.table_lookup import AsJson, pipeline_of
from lake_assets.errors import PipelineError, TableNotFoundError
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.lake.counts import plural
from lake_assets.models.explanation import Explanation, Operator, explain_code
from lake_assets.models.explanation import explain as explained
from lake_assets.models.model_spec import ModelSpec, spec_of
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.pipeline.sensitive_steps import windows_without_values
from lake_assets.tables.outcome import Absorbed


def explain(
    table: Annotated[str, typer.Argument(help="layer.table of a model")],
    pipeline: Annotated[
        str | None,
        typer.Option(
            "--pipeline",
            "-p",
            help="YAML file, folder or name; default: all that are known here, then the query stored in the table",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain how a model is maintained, and how pending changes would be absorbed. Reads metadata only."""
    lake = Lake.load_existing()
    name = lake.named(table)
    spec = _spec(lake, name, pipeline)
    if isinstance(spec, PythonModelSpec):
        show_python_model(lake, spec, as_json=as_json)
        return
    explanation = explained(lake, spec)
    explanation = replace(explanation, windows=windows_without_values(lake, spec, explanation.windows))
    if as_json:
        print_json(explanation)
        return
    show(explanation)


def _spec(lake: Lake, name: TableId, pipeline: str | None) -> ModelSpec | PythonModelSpec:
    """Return the declared model; without a declaration, the query by which the table was built."""
    try:
        specs = pipeline_of(lake, name, pipeline).specs(lake, alone=False)
    except PipelineError as declared:
        if pipeline:
            raise
        try:
            return spec_of(name, lake.table(name))
        except TableNotFoundError as e:
            raise TableNotFoundError(f"{e}; {declared}") from e
    spec = next(s for s in specs if s.table == name)
    if not isinstance(spec, ModelSpec | PythonModelSpec):
        raise PipelineError(f"{name} is no model: `lake-assets status` says how far it is")
    return spec


def show_python_model(lake: Lake, spec: PythonModelSpec, *, as_json: bool) -> None:
    """Print how the rows of a function, or of a SELECT over changes, are computed and applied, and what is pending."""
    model, (now, windows) = spec.model, explain_code(lake, spec)
    rows: dict[str, object] = {
        "table": str(spec.table),
        "code": model.where,
        "write": model.write,
        "key": ", ".join(model.key),
        "replaced": ", ".join(f"{c} ({e if isinstance(e, str) else dict(e)})" for c, e in model.replace.items()),
        "changes of": ", ".join(dict.fromkeys(map(str, spec.inputs.values()))),
        "lookups": ", ".join(map(str, spec.lookups)),
        "kept": model.past,
        "now": now,
    }
    if as_json:
        print_json({**rows, "windows": windows_without_values(lake, spec, windows)})
        return
    table = facts()
    for name, text in rows.items():
        if text:
            table.add_row(name, escape(str(text)))
    _add_pending(table, windows)
    console.print(table)


def _add_pending(table: Table, windows: Iterable[Absorbed]) -> None:
    for window in windows:
        table.add_row("pending", escape(f"{window.source}: {plural(window.files, 'file')}, {size(window.bytes)}"))


def show(explanation: Explanation) -> None:
    """Print an explanation."""
    table = facts()
    table.add_row("table", escape(explanation.table))
    table.add_row("strategy", f"[green]{explanation.strategy}[/]: {escape(explanation.why)}")
    table.add_row(
        "key",
        escape(f"{', '.join(explanation.key)}: {explanation.key_why}" if explanation.key else explanation.key_why),
    )
    table.add_row("sources", escape(", ".join(explanation.sources)))
    now = f"[green]{explanation.now}[/]: {escape(explanation.now_why)}" if explanation.now else "nothing is pending"
    table.add_row("now", now)
    if explanation.stages:
        lines = (f"{n}. {stage.what}" for n, stage in enumerate(explanation.stages, 1))
        table.add_row("stages", escape("\n".join(lines)))
    if explanation.estimate:
        table.add_row("estimate", escape(str(explanation.estimate)))
    _add_pending(table, explanation.windows)
    for warning in explanation.warnings:
        table.add_row("[yellow]warning[/]", f"[yellow]{escape(warning)}[/]")
    console.print(table)
    if explanation.operators:
        tree = Tree(_label(explanation.operators))
        _grow(tree, explanation.operators)
        console.print(tree)
    if explanation.lineage:
        columns = listing("column", "is made of", fixed=["column"], fold=True)
        for column, of in explanation.lineage.items():
            columns.add_row(
                escape(column), escape(", ".join(of)) or "[dim]no column: a number of rows, or a constant[/]"
            )
        console.print(columns)


def _grow(tree: Tree, operator: Operator) -> None:
    for below in operator.below:
        _grow(tree.add(_label(below)), below)


def _label(operator: Operator) -> str:
    return f"[bold]{escape(operator.what)}[/]\n[dim]{escape(operator.how)}[/]"
