"""`lake-assets upkeep`: how well the files of tables are kept, what is due, and doing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from lake_assets.commands.printing import console, listing, print_json, size, stderr
from lake_assets.commands.table_lookup import AsJson, PipelineOption, all_pipelines, find_pipeline
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.tables.upkeep_policy import UpkeepPolicy
from lake_assets.upkeep.attend import TableUpkeep, attend, looked
from lake_assets.upkeep.attended import Attended
from lake_assets.upkeep.upkept_tables import of_pipelines

_OFF = "off, by declaration"


def upkeep(
    table: Annotated[
        list[str] | None, typer.Argument(help="tables, such as final.users; default: all", show_default=False)
    ] = None,
    pipeline: PipelineOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what is due, and change nothing")] = False,
    as_json: AsJson = False,
) -> None:
    """Combine small files, remove deleted rows and expire snapshots, as far as the policies of tables say so.

    Quiet hours and budgets apply to automatic upkeep only: this command ignores them. Exit code 1 if an action
    failed.
    """
    lake = Lake.load_existing()
    pipelines = [find_pipeline(pipeline)] if pipeline else all_pipelines(lake)
    wanted = of_pipelines(lake, pipelines, table or None)
    if dry_run:
        found, attended = _looked(lake, wanted)
        print_json([_table_json(t) for t in found]) if as_json else _show(found)
        for error in attended:
            _report(error, stderr if as_json else console)
    else:
        with console.status("looking at the files of tables") if not as_json else nullcontext():
            attended = attend(lake, wanted, is_forced=True, on_done=None if as_json else _report)
        found = _looked(lake, wanted)[0]
        if as_json:
            print_json({"tables": [*map(_table_json, found)], "actions": [*map(_action_json, attended)]})
        else:
            _show(found)
    if any(a.done is not None and a.done.error for a in attended):
        raise typer.Exit(1)


def _looked(lake: Lake, wanted: Mapping[TableId, UpkeepPolicy]) -> tuple[list[TableUpkeep], list[Attended]]:
    """Return how tables are, and the errors of those that cannot be looked at."""
    found = [looked(lake, t, policy) for t, policy in wanted.items()]
    return [t for t in found if isinstance(t, TableUpkeep)], [t for t in found if isinstance(t, Attended)]


def _report(attended: Attended, to: Console = console) -> None:
    """Print one line for an action."""
    done = attended.done
    if attended.action.kind == "claims" and done is not None and not done.error and not done.files:
        return  # what consumers are told is printed below the tables
    style = "yellow" if done is None else "bold red" if done.error else None
    to.print(attended.text, style=style, markup=False, soft_wrap=True)


def _show(tables: Sequence[TableUpkeep]) -> None:
    if not tables:
        console.print("no pipeline has filled a table in this lake yet: try `lake-assets demo`")
        return
    numbers = ("files", "small", "size", "deleted", "manifests", "snapshots", "metadata")
    printed = listing("table", *numbers, "kept by", "due", right=numbers, fixed=["table"], fold=True)
    for t in (t for t in tables if not t.policy.only_claims_of):
        h = t.health
        lines = [f"{a.kind}: {a.reason}" for a in (*t.due, *t.paused)]
        if (kept := t.policy.retention) and kept.refused:
            lines.append(f"all {kept.kind} stay: {kept.refused}")
        due = "; ".join(lines) if t.policy.is_on else _OFF
        printed.add_row(
            escape(str(t.table)),
            f"{h.files:,}",
            f"{h.small_files:,}",
            size(h.bytes),
            f"{h.deleted_rows / h.rows:.0%}" if h.rows else "",
            f"{h.manifests:,}",
            f"{h.snapshots:,}",
            size(h.metadata_bytes),
            escape(_held_by(t)),
            escape(due),
        )
    console.print(printed)
    for text in (c.text for t in tables for c in t.claims if c.is_warning and t.policy.is_on):
        console.print(f"[yellow]{escape(text)}[/]", soft_wrap=True)


def _held_by(table: TableUpkeep) -> str:
    """Return who keeps a snapshot that the policy would let expire, and since when."""
    old = [h for h in table.health.holds if h.age >= table.policy.keep]
    return ", ".join(f"{h.name} ({h.age / 86_400:.0f} days)" for h in sorted(old, key=lambda h: -h.age))


def _table_json(table: TableUpkeep) -> dict[str, Any]:
    health = asdict(table.health) | {"small": [asdict(s) for s in table.health.small]}
    return {
        **health,
        "upkeep": table.policy.is_on,
        "claims": [asdict(c) for c in table.claims],
        "due": _actions(table.due),
        "paused": _actions(table.paused),
        "done": [asdict(d) for d in table.record.done],
    }


def _actions(actions: Iterable[Any]) -> list[dict[str, Any]]:
    return [asdict(a) for a in actions]


def _action_json(attended: Attended) -> dict[str, Any]:
    return {
        **asdict(attended.action),
        "done": asdict(attended.done) if attended.done else None,
        "why_not": attended.why_not,
    }
