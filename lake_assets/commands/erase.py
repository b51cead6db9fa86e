"""`lake-assets erase`: remove the rows of keys from tables, history and files, and prove it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from lake_assets.backfill.backfill_record import Records
from lake_assets.commands.printing import check_folder_of, console, listing, local, print_json, stderr, visible_json
from lake_assets.commands.table_lookup import AsJson, PipelineOption, all_pipelines, pipeline_of
from lake_assets.erase.erase_plan import ErasePlan, asked_keys, plan
from lake_assets.erase.erase_record import alone, open_plan, plan_file
from lake_assets.erase.erasure import Erasure
from lake_assets.erase.key_columns import source_of
from lake_assets.erase.key_values import read_file, read_words
from lake_assets.errors import ErasureError
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.lake.counts import plural
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.pipeline import Pipeline, grouped
from lake_assets.pipeline.table_graph import Spec

_SHOWN = 20


def erase(
    table: Annotated[
        str, typer.Option("--table", help="a final or staging table that has the key, such as final.users")
    ],
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            help="a column of the key and its value; repeat it for each column, and for further keys",
            metavar="COLUMN=VALUE",
        ),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option("--keys", help="a .csv file with a header or a .jsonl file with keys", metavar="FILE")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            help="the column of the key in a table that users' code computes; several with commas",
            metavar="TABLE=COLUMN",
        ),
    ] = None,
    pipeline: PipelineOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and stop")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    drop_refs: Annotated[
        bool, typer.Option("--drop-refs", help="drop branches and tags of others that hold old snapshots")
    ] = False,
    report: Annotated[Path | None, typer.Option("--report", help="write the report here too", metavar="FILE")] = None,
    as_json: AsJson = False,
) -> None:
    """Erase keys from raw, staging, final tables and all tables downstream, with their history and files.

    The plan is printed first. Afterwards all files of these tables are searched for the keys. What cannot be undone is
    done only after you have agreed. Exit code 1 if a file still holds a key. A command that was interrupted goes on
    when it is repeated.
    """
    target = local(report, "--report") if report else None
    if target:
        check_folder_of(target, "--report")
    if as_json and not (yes or dry_run):
        raise ErasureError("--json cannot ask: add --yes, or --dry-run")
    lake = Lake.load_existing()
    name = lake.named(table)
    given = [*read_words(key or ()), *(read_file(local(keys, "--keys")) if keys else ())]
    with alone(lake):
        specs = _specs(lake, name, pipeline)
        planned = _planned(lake, specs, name, given, column or ())
        work = Erasure(lake, specs, planned, drop_refs)
        if not as_json:
            _show(planned)
        if dry_run:
            print_json(planned.to_json()) if as_json else None
            return
        work.check()
        if not yes and not typer.confirm("Erase? This cannot be undone"):
            raise typer.Exit(1)
        with console.status("erasing") if not as_json else nullcontext() as status:
            work.report = lambda text: status.update(escape(text)) if status else None
            result = work.run()
    if target:
        target.write_text(visible_json(json.dumps(result, indent=2, ensure_ascii=False)), "utf-8")
    print_json(result) if as_json else _show_result(result)
    if not result["is_proven"]:
        raise typer.Exit(1)


def _specs(lake: Lake, table: TableId, named: str | None) -> list[Spec]:
    """Return the tables of the pipeline of a table, and of all others that have tables in the lake, upstream first."""
    owner = pipeline_of(lake, table, named)
    if named:
        return owner.specs(lake, alone=False)
    used = {found.properties.get(PIPELINE_PROPERTY) for t in lake.all_tables() if (found := lake.find(t)) is not None}
    others: dict[str, Pipeline] = {p.name: p for p in all_pipelines(lake) if p.name in used and p.name != owner.name}
    return grouped([owner, *others.values()]).specs(lake, alone=False)


def _planned(
    lake: Lake, specs: Sequence[Spec], table: TableId, given: Sequence[dict[str, str]], columns: Sequence[str]
) -> ErasePlan:
    """Return the plan; that of the erasure that was begun, if there is one.

    Raises:
        ErasureError: the one that was begun is about other keys.
    """
    declared: dict[TableId, tuple[str, ...]] = {}
    for word in columns:
        of, found, named = word.partition("=")
        if not found:
            raise ErasureError(f"--column {word}: write TABLE=COLUMN, such as --column agg.log=user_id")
        declared[TableId.parse(of)] = tuple(named.split(","))
    begun = open_plan(lake)
    if begun is None:
        planned = plan(lake, specs, table, given, declared)
        touched = {t.table for t in planned.tables}
        backfills = [r for r in Records(lake).all() if r.is_open and touched & {t.table for t in r.tables}]
        open_ones = [
            f"backfill {r.id} is open: publish it (`lake-assets publish {r.id}`) or discard it" for r in backfills
        ]
        return replace(planned, blocked=[*planned.blocked, *open_ones])
    is_same = str(table) == begun.table
    if is_same:
        asked = asked_keys(lake, source_of(lake, specs, table), given)
        is_same = sorted(asked) == sorted(begun.key_tuples[: begun.asked])
    if not is_same:
        raise ErasureError(
            f"the erasure {begun.id} of {begun.table} is not completed: repeat its command with the same keys first "
            f"(they are in {plan_file(lake, begun)})"
        )
    return begun


def _show(planned: ErasePlan) -> None:
    connected = [", ".join(k) for k in planned.keys[planned.asked :]]
    console.print(
        f"[bold]{escape(planned.table)}[/]: {plural(planned.asked, 'key')}, {plural(len(planned.positions), 'record')}"
    )
    if connected:
        more = f", and {len(connected) - _SHOWN:,} more" if len(connected) > _SHOWN else ""
        listed = escape("; ".join(connected[:_SHOWN]))
        console.print(f"[yellow]also keys that the same rows had before or after[/]: {listed}{more}", soft_wrap=True)
    printed = listing(
        "table", "kind", "rows", "files", "snapshots", "branches, tags", right=("rows", "files", "snapshots")
    )
    for t in planned.tables:
        rows = f"{t.rows:,}" if t.rows is not None else "recomputed" if t.kind == "model" else "unknown"
        printed.add_row(escape(t.table), t.kind, rows, f"{t.files:,}", f"{t.snapshots:,}", escape(", ".join(t.refs)))
    console.print(printed)
    for text in planned.not_covered:
        console.print(f"not covered: {escape(text)}", soft_wrap=True)
    for text in planned.blocked:
        console.print(f"[bold red]in the way[/]: {escape(text)}", soft_wrap=True)
    if planned.is_empty:
        console.print("no record and no row has these keys: old snapshots go, and the files are searched, nevertheless")


def _show_result(result: dict[str, Any]) -> None:
    console.print(f"{plural(result['records'], 'record')} erased, {plural(result['files_scanned'], 'file')} searched")
    for file in result["landed_files"]:
        lines = file["lines"]
        more = f", ... ({len(lines):,})" if len(lines) > _SHOWN else ""
        noun, listed = "line" if len(lines) == 1 else "lines", ", ".join(map(str, lines[:_SHOWN]))
        console.print(f"landed: {escape(file['file'])}, {noun} {listed}{more}", soft_wrap=True)
    for text in result["not_covered"]:
        console.print(f"not covered: {escape(text)}", soft_wrap=True)
    for found in result["findings"]:
        stderr.print(f"[bold red]{escape(found['path'])}[/]: {escape(found['where'])}", soft_wrap=True)
    if result["new_events"]:
        console.print(f"{result['new_events']:,} new events of the keys have arrived meanwhile: they are new data")
    said = "no file holds a key" if result["is_proven"] else "these files still hold a key: remove them, and repeat"
    console.print(said)
