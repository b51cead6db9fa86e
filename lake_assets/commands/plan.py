"""`lake-assets plan`: what an edited declaration changes, before anything runs by it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from lake_assets.backfill.backfill_plan import BackfillPlan
from lake_assets.backfill.backfill_record import Records
from lake_assets.backfill.declaration_preview import Cost, Preview, TablePreview, preview
from lake_assets.backfill.preview_aside import Aside, compute_aside, discard_left, plan_aside
from lake_assets.backfill.table_readers import Reader
from lake_assets.commands.backfill import record_json, show_progress
from lake_assets.commands.check import checked, print_mistakes, rejected_by_spark
from lake_assets.commands.compared_tables import show_differences
from lake_assets.commands.printing import console, local, print_json, size, visible
from lake_assets.commands.table_lookup import AsJson, ShowSensitive, find_file, named_file
from lake_assets.errors import PipelineError
from lake_assets.facade import Lake
from lake_assets.lake.counts import plural
from lake_assets.pipeline import Pipeline
from lake_assets.report.table_differences import table_differences
from lake_assets.tables.table_step import ChangedSetting

# Exit code if the declaration changes something: 1 is that of errors.
CHANGES = 2
_STYLES = {"changed": "bold yellow", "new": "bold green", "follows": "bold", "removed": "bold red"}
_WORDS = {"changed": "is declared otherwise", "new": "is new", "follows": "follows", "removed": "is removed"}


def plan(
    pipeline: Annotated[
        str | None,
        typer.Argument(
            help="the edited declaration: a YAML file, a folder with a defs.yaml, or a name; default: the project's",
            show_default=False,
        ),
    ] = None,
    aside: Annotated[
        bool, typer.Option("--aside", help="compute the changed tables beside production, and compare their rows")
    ] = False,
    samples: Annotated[int, typer.Option(help="with --aside: changed rows to show of each table", min=0)] = 5,
    show_sensitive: ShowSensitive = False,
    as_json: AsJson = False,
) -> None:
    """Show what PIPELINE, an edited declaration, changes against what the lake's tables were computed by.

    Reads metadata only, and writes nothing. With --aside, the changed tables and everything downstream are computed in
    working copies, compared with production, and wait for `lake-assets publish` or `lake-assets discard`.

    Exit code: 0 if nothing changes, 2 if something does, 1 for errors and for mistakes in the declaration.
    """
    file, lake = _one_file(pipeline), Lake.load_existing()
    loaded, result = checked(file, lake)
    mistakes = [*result.mistakes]
    if aside and not mistakes:
        mistakes += rejected_by_spark(loaded, lake)[0]
    if mistakes:
        if as_json:
            print_json({"pipeline": loaded.name, "mistakes": mistakes})
        else:
            print_mistakes(mistakes)
        raise typer.Exit(1)
    if aside:
        discard_left(lake, loaded)
    found = preview(lake, loaded, result.columns, Records(lake).all())
    if not as_json:
        _show(found, result.open)
    computed = None
    if aside:
        computed = _computed(lake, loaded, found, samples, as_json=as_json, shows_sensitive=show_sensitive)
    if as_json:
        print_json(_json(found, result.open, computed))
    elif computed:
        _show_aside(computed, file)
    if found.is_changed:
        raise typer.Exit(CHANGES)


def _one_file(pipeline: str | None) -> Path:
    """Return the file of the pipeline.

    Raises:
        PipelineError: there is none, or a folder has several pipelines.
    """
    if pipeline is None:
        return named_file(None)
    folder = local(Path(pipeline), "the pipeline")
    several = sorted(folder.rglob("defs.yaml")) if folder.is_dir() and not (folder / "defs.yaml").is_file() else []
    if len(several) > 1:
        listed = ", ".join(str(f.parent) for f in several[:3]) + (", ..." if len(several) > 3 else "")
        raise PipelineError(f"{folder} holds {len(several)} pipelines ({listed}): preview one at a time")
    return find_file(pipeline)


def _computed(
    lake: Lake, pipeline: Pipeline, found: Preview, samples: int, *, as_json: bool, shows_sensitive: bool
) -> Aside | None:
    """Compute the changed tables aside, and print the progress; None: there are none."""
    planned: BackfillPlan = plan_aside(lake, pipeline, found)
    if not planned.tables:
        if found.is_changed and not as_json:
            console.print("no existing table is computed again: there is nothing to compare beside production")
        return None
    if as_json:
        return compute_aside(lake, pipeline, planned, samples, shows_sensitive=shows_sensitive)
    for table, why in planned.left_out.items():
        console.print(f"{table} is left out: {why}", style="yellow", markup=False, soft_wrap=True)
    with console.status("computing beside production"):
        return compute_aside(lake, pipeline, planned, samples, show_progress, shows_sensitive=shows_sensitive)


# --- printing ---------------------------------------------------------------------------------------------------------


def _show(found: Preview, unchecked: Sequence[str]) -> None:
    for message in unchecked:
        console.print(f"not checked yet: {message}", markup=False, soft_wrap=True)
    if not found.is_changed:
        console.print(f"pipeline {found.pipeline}: nothing changes", markup=False)
        return
    for t in found.tables:
        name = f"[{_STYLES[t.kind]}]{escape(visible(t.table))}[/]"
        # That it has changed is what the first words say.
        why = t.why.removeprefix("its declaration has changed: ")
        console.print(f"{name} {_WORDS[t.kind]}: {escape(visible(why))}", soft_wrap=True)
        for line in _details(t):
            console.print(f"    {line}", soft_wrap=True)
    unknown = [f"in an unknown time: {', '.join(found.unknown)}"] if found.unknown else []
    known = [f"{found.seconds:,.0f} s"] if any(t.cost and t.cost.seconds is not None for t in found.tables) else []
    if known or unknown:
        console.print(f"estimated in all: {'; '.join([*known, *unknown])}", markup=False, soft_wrap=True)


def _details(t: TablePreview) -> Iterator[str]:
    """Yield the lines about one table, with markup."""
    for setting in t.settings:
        yield from _setting_lines(setting)
    if t.kind == "changed" and not t.settings:
        yield "[dim]what differs is not stored with the table[/]"
    for what, names in (("new columns", t.added), ("dropped columns", t.dropped)):
        if names:
            yield escape(visible(f"{what}: {', '.join(names)}"))
    if t.cost:
        yield f"[dim]{_cost_text(t.cost)}[/]"
    if t.readers:
        yield escape(visible(f"read by {', '.join(map(_reader_text, t.readers))}"))


def _setting_lines(setting: ChangedSetting) -> Iterator[str]:
    if setting.name != "sql":
        before, after = (escape(visible(text)) or "none" for text in (setting.before, setting.after))
        yield f"{setting.name}: [red]{before}[/] [dim]->[/] [green]{after}[/]"
        return
    if not setting.before:
        yield "sql: differs; the former text is not stored with the table"
        return
    before, after = setting.before.splitlines(), setting.after.splitlines()
    for line in list(difflib.unified_diff(before, after, lineterm="", n=2))[2:]:
        style = {"+": "green", "-": "red", "@": "dim"}.get(line[:1], "")
        text = escape(visible(line))
        yield f"[{style}]{text}[/]" if style else text


def _cost_text(cost: Cost) -> str:
    reads = f"{'at most ' if cost.is_bound else ''}{plural(cost.rows, 'row')}, {size(cost.bytes)}"
    seconds = "time unknown" if cost.seconds is None else f"about {cost.seconds:,.1f} s, as {cost.basis} took"
    return f"estimate: reads {reads}; {seconds}"


def _reader_text(reader: Reader) -> str:
    if reader.kind == "consumer":
        return f"consumer {reader.name}"
    return f"{reader.name} (pipeline {reader.pipeline})" if reader.pipeline else reader.name


def _show_aside(computed: Aside, file: Path) -> None:
    for table, sources in computed.behind.items():
        text = f"{table} has not absorbed all of {', '.join(sources)}: these changes are among its differences"
        console.print(text, style="yellow", markup=False, soft_wrap=True)
    for result in computed.tables:
        if result.is_equal:
            console.print(f"[bold]{escape(result.table)}[/]: no row differs")
        else:
            show_differences(table_differences(result))
    backfill = computed.record.id
    console.print(
        f"production is unchanged. `lake-assets publish {backfill}` publishes all of it at once, `lake-assets discard "
        f"{backfill}` drops it, `lake-assets compare {backfill}` shows it again. Deploy {file} with the publication: "
        "a run by the former declaration would compute the tables by that again",
        markup=False,
        soft_wrap=True,
    )


def _json(found: Preview, unchecked: Sequence[str], computed: Aside | None) -> dict[str, Any]:
    """Convert a preview to JSON values."""
    values: dict[str, Any] = {
        "pipeline": found.pipeline,
        "changes": found.is_changed,
        "tables": [asdict(t) for t in found.tables],
        "seconds": found.seconds,
        "unknown_seconds": list(found.unknown),
        "not_checked": list(unchecked),
        "mistakes": [],
    }
    if computed:
        values["aside"] = {
            "backfill": record_json(computed.record),
            "tables": [asdict(t) for t in computed.tables],
            "left_out": dict(computed.left_out),
            "behind": {t: list(names) for t, names in computed.behind.items()},
        }
    return values
