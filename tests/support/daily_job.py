"""Plays of an account, and a job that keeps the seconds per day: without Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa

from lake_assets import Lake, LakeConfig
from lake_assets.jobs import captured_step, step_notes
from lake_assets.jobs.captured_step import CapturedStep
from lake_assets.lake import TableId

PLAYS, DAILY = "raw.playback", "agg.playback_daily"
SCHEMA = pa.schema([("account", pa.int64()), ("day", pa.date32()), ("seconds", pa.int64())])


def play(lake: Lake, *rows: tuple[int, int, int], table: str = PLAYS) -> None:
    """Append plays in one commit: account, day of January, seconds."""
    plays = [dict(zip(SCHEMA.names, (a, date(2024, 1, d), s), strict=True)) for a, d, s in rows]
    lake.ensure_namespace((table.split(".")[0],))
    found = lake.catalog.create_table_if_not_exists(table, SCHEMA)
    found.append(pa.Table.from_pylist(plays, SCHEMA))


def new_rows(lake: Lake, step: CapturedStep) -> pa.Table:
    """The rows of the step's ICDC table: the new ones, since plays are only appended."""
    after = step.icdc(PLAYS).after
    return lake.table(after).scan().to_arrow() if after else SCHEMA.empty_table()


def append(lake: Lake, rows: pa.Table, properties: dict[str, str] | None = None) -> None:
    """What a job does: append to its table, which it makes if it is missing."""
    lake.ensure_namespace(("agg",))
    table = lake.catalog.create_table_if_not_exists(DAILY, SCHEMA)
    table.append(rows, snapshot_properties=properties or {})


def rows_of(lake: Lake, table: str = DAILY) -> Counter[tuple[Any, ...]]:
    """The rows of a table, each with its number of copies."""
    found = lake.find(table)
    return Counter(tuple(r.values()) for r in found.scan().to_arrow().to_pylist()) if found else Counter()


def rows_of_play(account: int, day: int, seconds: int) -> pa.Table:
    return pa.table(
        {
            "account": pa.array([account], pa.int64()),
            "day": [date(2024, 1, day)],
            "seconds": pa.array([seconds], pa.int64()),
        }
    )


# The places at which a step is killed, and what is done there in its stead.
POINTS = ("before the note", "before the job", "after its commit", "before the watermark", "before the note is removed")


def killed_at(point: str, home: str, *, carries: bool) -> None:
    """Run one step that is killed at a point."""

    def kill(*_: object, **__: object) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    lake = Lake(LakeConfig(home=Path(home)))
    if point == "before the note":
        step_notes.claim = kill
    if point == "before the watermark":
        captured_step.CapturedStep.finish = kill
    if point == "before the note is removed":
        step_notes.remove = kill
    with lake.step(DAILY, [PLAYS]) as step:
        if point == "before the job":
            kill()
        append(lake, new_rows(lake, step), step.properties if carries else None)
        if point == "after its commit":
            kill()


def job(media: Lake, *, carries: bool = True, **settings: object) -> str:
    """One step whose job appends the new rows; returns who moved the watermark."""
    with media.step(DAILY, [PLAYS], **settings) as step:
        if not step.is_empty:
            append(media, new_rows(media, step), step.properties if carries else None)
    head = media.table(DAILY).current_snapshot()
    assert head is not None
    assert head.summary is not None
    return "job" if head.summary.additional_properties.get("added-data-files") else "step"


def killed(media: Lake, point: str, *, carries: bool) -> None:
    """Run a step in another process that is killed at a point."""
    command = [sys.executable, "-m", "tests.support.daily_job", point, str(media.config.home)]
    done = subprocess.run([*command, "carries" if carries else "appends"], check=False, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr


def note(media: Lake) -> step_notes.StepNote | None:
    """What a step that has not ended wrote down."""
    return step_notes.find_note(media, TableId.parse(DAILY))


if __name__ == "__main__":
    killed_at(sys.argv[1], sys.argv[2], carries=sys.argv[3] == "carries")
