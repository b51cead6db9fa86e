"""Whoever follows the advice in the error of a job gets a job that absorbs each change once; without Spark."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import JobError, PipelineError, TableClaimedError
from lake_assets.jobs import StepParameters, current_step
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.pipeline.pipeline_checks import check
from tests.support.daily_job import DAILY, PLAYS, job, play, rows_of

OTHER = "raw.other"

FUNCTIONS = f"""
from tests.support.daily_job import append, new_rows

def daily(step):
    if step.is_initial and step.lake.exists("{DAILY}"):
        step.lake.table("{DAILY}").delete()
    append(step.lake, new_rows(step.lake, step), step.properties)

def with_other(step):
    step.capture("{OTHER}")
    daily(step)

def nothing(step):
    pass
"""


@pytest.fixture
def folder(media: Lake, tmp_path: Path) -> Path:
    """The folder of a job's declaration, with its functions and programs."""
    folder = tmp_path / "job"
    (folder / "bin").mkdir(parents=True)
    (folder / "plays_job.py").write_text(FUNCTIONS)
    for name, mode in (("bin/load", 0o755), ("plain.sh", 0o644)):
        (folder / name).write_text('#!/bin/sh\necho "$@" > printed\n')
        (folder / name).chmod(mode)
    others = pa.table({"account": ["a"], "played_on": pa.array([1], pa.date32())})
    media.catalog.create_table(OTHER, others.schema).append(others)
    return folder


def declare(folder: Path, settings: Mapping[str, Any]) -> Pipeline:
    attributes = {"table": DAILY, "inputs": [PLAYS], **settings}
    text = json.dumps({"type": "lake_assets.CapturedJob", "attributes": attributes}).replace("FOLDER", str(folder))
    (folder / "defs.yaml").write_text(text)
    return Pipeline.load(folder / "defs.yaml")


def failure(lake: Lake, folder: Path, settings: Mapping[str, Any]) -> str:
    """The error of a declaration, or else of its run; empty if there is none."""
    try:
        (outcome,) = declare(folder, settings).run(lake)
    except PipelineError as e:
        return str(e)
    return outcome.error or ""


# --- declarations -----------------------------------------------------------------------------------------------------

BY_DAY = {"python": "plays_job:daily", "inputs": [PLAYS, OTHER], "ranges": ["day"]}
OF_TWO_TYPES = {**BY_DAY, "ranges": {"day": {PLAYS: "day", OTHER: "account"}}}
BY_SOURCE = {"day": {PLAYS: "day", OTHER: "played_on"}}
TWO_KEYS = {**BY_DAY, "ranges": [], "keys": {"who": "account", "day": {PLAYS: "day"}}}
ONE_NAME = {"ranges": {"the.day": "day", "the_day": "day"}, "command": ["bin/load"], "writes": "elsewhere"}
FUNCTION = {"command": [], "python": "plays_job:daily"}
SHELL = {"writes": "elsewhere", "command": ["sh", "-c", "echo {start.raw.playback}"]}
NO_START = "start.raw.playback has no value in this step .*{start.raw.playback.none}, or an empty one, {start.raw."

# What is wrong, the error, and each way out that it names. FOLDER stands for the folder of the declaration.
MISTAKES: list[tuple[dict[str, Any], str, list[dict[str, Any]]]] = [
    (
        {"python": "plays_job:nothing", "writes": "elsewhere", "ranges": ["dya"]},
        r"`ranges`: raw.playback has no column 'dya' \(did you mean day\?\)",
        [{"ranges": ["day"]}],
    ),
    (
        BY_DAY,
        "raw.other has no column 'day', .*Name the column by source, or read raw.other as a lookup",
        [{"ranges": BY_SOURCE}, {"inputs": [PLAYS], "lookups": [OTHER]}],
    ),
    (
        OF_TWO_TYPES,
        r"Name columns of one type by source, or give raw.other a range of its own: "
        r"`\{day: \{raw.playback: day\}, NAME: \{raw.other: account\}\}`",
        [{"ranges": BY_SOURCE}, {"ranges": {"day": {PLAYS: "day"}, "account": {OTHER: "account"}}}],
    ),
    (
        {**BY_DAY, "ranges": {"day": {"raw.plays": "day"}}},
        r"names raw.plays, which is no source \(did you mean raw.playback\?\): the sources are raw.playback, raw.other",
        [{"ranges": {"day": {PLAYS: "day"}}}],
    ),
    (
        {**BY_DAY, "ranges": {"day": ""}},
        r"agg.playback_daily: `ranges`: 'day' has no column: write `\{day: column\}`, or by source `\{day: \{layer.table",
        [{"inputs": [PLAYS], "ranges": {"day": "day"}}, {"ranges": BY_SOURCE}],
    ),
    (
        TWO_KEYS,
        "day has no expression over raw.other, and who has. Give it one; or name all keys by source and leave raw.other",
        [
            {"keys": {"who": "account", "day": BY_SOURCE["day"]}},
            {"keys": {"who": {PLAYS: "account"}, "day": {PLAYS: "day"}}},
        ],
    ),
    (
        {"python": "plays_job:with_other"},
        r"raw.other is no source of this step: its sources are raw.playback. To read another table, add it to them \(`inputs`",
        [{"inputs": [PLAYS, OTHER]}],
    ),
    (
        {"python": "plays_job:daly"},
        r"plays_job.py has no function 'daly' \(did you mean daily\?\)",
        [{"python": "plays_job:daily"}],
    ),
    (
        {"python": "play_job:daily"},
        "play_job cannot be imported from .*/job or the Python path: ModuleNotFoundError",
        [{"python": "plays_job:daily"}],
    ),
    (
        {"python": "plays_job:nothing"},
        "there is no table agg.playback_daily: create it in the job. .*declare `writes: elsewhere`",
        [{"python": "plays_job:daily"}, {"writes": "elsewhere"}],
    ),
    (SHELL, f"`command`: {NO_START}", [{"command": ["sh", "-c", f"echo {{start.{PLAYS}|{t}}}"]} for t in ("none", "")]),
    (
        {"writes": "elsewhere", "command": ["true"], "env": {"START": f"{{start.{PLAYS}}}"}},
        f"`env`: {NO_START}",
        [{"env": {"START": f"{{start.{PLAYS}|none}}"}}],
    ),
    (
        {"writes": "elsewhere", "command": ["sh", "-c", "bin/load {spark_conf} daily.py"]},
        r'\{spark_conf\} becomes several arguments, so it stands alone in `command`: \[spark-submit, "\{spark_conf\}", d',
        [{"command": ["bin/load", "{spark_conf}", "daily.py"]}],
    ),
    (
        {"writes": "elsewhere", "command": ["bin/load"], "env": {"CONF": "{spark_conf}"}},
        r"\{spark_conf\} becomes several arguments, so it stands alone in `command`",
        [{"env": {}, "command": ["bin/load", "{spark_conf}"]}],
    ),
    (
        ONE_NAME,
        r"two parameters are called LAKE_STEP_LOW_THE_DAY in the environment: low.the.day and low.the_day. Name a range "
        r"otherwise \(`ranges: \{NAME: column\}`\); a function \(`python`\) needs no variables",
        [{"ranges": {"day": "day", "the_day": "day"}}, {"command": [], "python": "plays_job:nothing"}],
    ),
    (
        {"writes": "elsewhere", "command": ["load"]},
        "there is no program 'load', neither in .*/job nor on the PATH: correct `command`, or set PATH in `env`",
        [{"command": ["bin/load"]}, {"env": {"PATH": "FOLDER/bin:/usr/bin:/bin"}}],
    ),
    (
        {"writes": "elsewhere", "command": ["plain.sh"]},
        "plain.sh is not executable: .*or begin `command` with what runs it",
        [{"command": ["sh", "plain.sh"]}],
    ),
    ({"command": ["sh", "-c", "kill -9 $$"]}, r"sh was killed by signal 9 \(Killed\)", [FUNCTION]),
    ({"command": ["sh", "-c", "echo no luck; exit 3"]}, "sh ended with exit code 3:\nno luck", [FUNCTION]),
]


@pytest.mark.parametrize(
    ("wrong", "says", "correction"),
    [
        pytest.param(
            *(wrong, says, correction),
            marks=[*[pytest.mark.system] * ("command" in wrong), *[pytest.mark.long] * (n > 0)],
        )
        for wrong, says, corrections in MISTAKES
        for n, correction in enumerate(corrections)
    ],
)
def test_a_declaration_that_is_corrected_as_its_error_says_runs(
    media: Lake, folder: Path, wrong: dict[str, Any], says: str, correction: dict[str, Any]
) -> None:
    """Also of jobs that write elsewhere: it is known that nothing of them has run, so no step has to be settled."""
    assert re.search(says, failure(media, folder, wrong), re.DOTALL)
    corrected = {**wrong, **correction}
    assert failure(media, folder, corrected) == ""
    assert declare(folder, corrected).pending(media) == []
    if corrected.get("writes") != "elsewhere":
        assert rows_of(media) == rows_of(media, PLAYS)


@pytest.mark.system
def test_a_program_is_made_executable_by_the_command_that_its_error_quotes(media: Lake, folder: Path) -> None:
    declared = {"writes": "elsewhere", "command": ["plain.sh", "{table}"]}
    (command,) = re.findall("`(chmod [^`]+)`", failure(media, folder, declared))
    subprocess.run(shlex.split(command), check=True)
    assert failure(media, folder, declared) == ""
    assert (folder / "printed").read_text() == f"{DAILY}\n"


def test_the_error_of_a_function_names_its_line(media: Lake, folder: Path) -> None:
    file, declared = folder / "plays_job.py", {"python": "plays_job:daily"}
    lines = FUNCTIONS.replace("    append(", "    _ = 1 / 0  # seconds per play\n    append(").splitlines()
    file.write_text("\n".join(lines))
    error = failure(media, folder, declared)
    found = re.search(rf"plays_job:daily failed \({re.escape(str(file))}, line (\d+)\): ZeroDivisionError", error)
    assert found
    assert "1 / 0" in lines.pop(int(found[1]) - 1)
    file.write_text("\n".join(lines))
    assert failure(media, folder, declared) == ""
    assert rows_of(media) == rows_of(media, PLAYS)


def test_a_source_that_is_left_out_of_all_keys_changes_no_key(media: Lake, folder: Path) -> None:
    keys = {"who": {PLAYS: "account"}, "day": {PLAYS: "day"}}
    with media.step(DAILY, [PLAYS, OTHER], writes="elsewhere"):
        pass
    media.table(OTHER).append(media.table(OTHER).scan().to_arrow())
    with media.step(DAILY, [PLAYS, OTHER], keys=keys, writes="elsewhere") as step:
        assert not step.is_empty
        assert step.keys == []


@pytest.mark.parametrize("owner", ["a pipeline", "another pipeline"])
def test_a_table_of_a_pipeline_is_written_by_another_one_after_a_drop(media: Lake, folder: Path, owner: str) -> None:
    assert failure(media, folder, {"name": "plays", "python": "plays_job:daily"}) == ""
    if owner == "a pipeline":
        says = "belongs to pipeline 'plays', .*name another table for this step, or remove .* and drop the table"
        with pytest.raises(TableClaimedError, match=says):
            job(media)
        with media.step("agg.of_its_own", [PLAYS], writes="elsewhere") as step:
            assert step.is_initial
        media.catalog.drop_table(DAILY)
        job(media)
        assert rows_of(media) == rows_of(media, PLAYS)
        return
    declared = {"name": "media", "python": "plays_job:daily"}
    play(media, (3, 3, 3))
    assert "drop the table to have it created again" in failure(media, folder, declared)
    media.catalog.drop_table(DAILY)
    assert failure(media, folder, declared) == ""
    assert media.table(DAILY).properties[PIPELINE_PROPERTY] == "media"
    assert rows_of(media) == rows_of(media, PLAYS)


# --- parameters -------------------------------------------------------------------------------------------------------


def test_a_process_with_the_environment_that_the_error_quotes_finds_its_step(
    media: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JobError) as error:
        current_step()
    (advice,) = re.findall("`env=([^`]+)`", str(error.value))
    with media.step(DAILY, [PLAYS], writes="elsewhere") as step:
        for name, value in eval(advice, {"os": os, "step": step}).items():
            monkeypatch.setenv(name, value)
        assert current_step().id == step.id
        monkeypatch.setenv("LAKE_STEP", step.json()[:-2])
        with pytest.raises(JobError, match=r"hand on the text of `step.json\(\)` unchanged"):
            current_step()
        monkeypatch.setenv("LAKE_STEP", step.json())
        assert current_step().id == step.id


def test_keys_that_do_not_fit_are_replaced_by_texts_or_ranges() -> None:
    def step(**more: Any) -> StepParameters:
        return StepParameters(DAILY, "abc", {}, **more)

    with pytest.raises(JobError, match="`keys`: tags has a value of type list, .*expression that gives a text"):
        step(keys=[{"day": "a", "tags": ["a"]}]).json()
    assert StepParameters.of_json(step(keys=[{"day": "a", "tags": "a"}]).json()).keys == [{"day": "a", "tags": "a"}]
    with pytest.raises(JobError, match="50,000 keys changed. Leave `keys` out"):
        _ = step(keys=[{"n": n} for n in range(50_000)]).env
    assert StepParameters.of_json(step().env["LAKE_STEP"]).keys is None


def test_a_declared_job_goes_on_where_a_script_with_the_same_table_ended(media: Lake, folder: Path) -> None:
    job(media)
    play(media, (3, 3, 3))
    declared = {"name": "plays", "python": "plays_job:daily"}
    assert check(declare(folder, declared), media).mistakes == ()
    assert failure(media, folder, declared) == ""
    assert rows_of(media) == rows_of(media, PLAYS)
