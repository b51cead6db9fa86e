"""`lake-assets step`: show the running or interrupted step of a job, and settle it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

import typer

from lake_assets.commands.printing import console, print_json
from lake_assets.commands.table_lookup import AsJson, declared_specs
from lake_assets.errors import ConfigError
from lake_assets.facade import Lake
from lake_assets.jobs.job_watermark import settle
from lake_assets.jobs.step_notes import StepNote, find_note
from lake_assets.lake.names import nearest

_MEANING = {
    "running": "it is running, or was killed on another machine",
    "done": "it was interrupted after its commit: the next step continues from there",
    "nothing-written": "it was interrupted before it wrote anything: the next step repeats it",
    "unknown": "it was interrupted, and may have written its rows: settle it with --done or --rerun",
    "rerun": "the next step repeats it",
}


def step(
    table: Annotated[str, typer.Argument(help="the table of a job, such as agg.playback_daily")],
    done: Annotated[bool, typer.Option("--done", help="the job wrote its rows: move the watermark")] = False,
    rerun: Annotated[
        bool, typer.Option("--rerun", help="the job did not write its rows: run it over the same windows again")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the running or interrupted step of a job; with --done or --rerun, say whether it wrote its rows."""
    if done and rerun:
        raise ConfigError("--done and --rerun contradict each other: choose one")
    lake = Lake.load_existing()
    name = lake.named(table)
    decision: Literal["done", "rerun"] | None = "done" if done else "rerun" if rerun else None
    note = settle(lake, name, decision) if decision else find_note(lake, name)
    if as_json:
        print_json(None if note is None else _facts(lake, note, decision))
        return
    if note is None:
        near = "" if lake.exists(name) else nearest(str(name), map(str, declared_specs(lake)))
        console.print(f"no step of {name} is running or interrupted{near}", markup=False)
        return
    facts = _facts(lake, note, decision)
    for source, window in note.windows.items():
        console.print(f"{source}: {window}", markup=False)
    console.print(f"began {facts['began']} UTC", markup=False)
    if note.error:
        console.print(f"failed: {note.error}", markup=False)
    moved = f"the watermark of {name} is at the end of these windows"
    console.print(moved if done else _MEANING[facts["state"]], markup=False)


def _facts(lake: Lake, note: StepNote, decision: str | None) -> dict[str, str]:
    return {
        "table": note.target,
        "id": note.id,
        "state": decision or ("rerun" if note.is_rerun_requested else note.state(lake.find(note.target))),
        "began": f"{datetime.fromtimestamp(note.began, UTC):%Y-%m-%d %H:%M:%S}",
        "error": note.error,
        "windows": ", ".join(f"{s} {w}" for s, w in note.windows.items()),
    }
