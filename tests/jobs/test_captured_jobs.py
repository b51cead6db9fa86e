"""Declared jobs: commands, functions, notebooks and dbt selections as tables of a pipeline; without Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import PipelineError
from lake_assets.jobs import step_notes
from lake_assets.lake import TableId
from tests.support.cli import caller
from tests.support.daily_job import DAILY, PLAYS, play, rows_of

pytestmark = pytest.mark.system

# A job as a user writes it: no import of anything but PyIceberg and the step.
JOB = """
import os
from lake_assets import Lake, LakeConfig
from lake_assets.jobs import current_step

step = current_step()
media = Lake(LakeConfig(home=os.environ["HOME_OF_LAKE"]))
rows = media.table(step.sources["raw.playback"].after).scan().to_arrow()
media.ensure_namespace(("agg",))
table = media.catalog.create_table_if_not_exists("agg.playback_daily", rows.schema)
table.append(rows, snapshot_properties=dict(step.properties) if os.environ.get("CARRIES") else {})
if os.environ.get("FAILS"):
    raise SystemExit("out of luck")
"""


@pytest.fixture
def declared(media: Lake, tmp_path: Path) -> Callable[..., Pipeline]:
    """Declares a job over the plays in a YAML file, with lines for what it runs."""

    def write(*lines: str, folder: str = "job") -> Pipeline:
        file = tmp_path / folder / "defs.yaml"
        file.parent.mkdir(exist_ok=True)
        (file.parent / "job.py").write_text(JOB)
        head = [
            "type: lake_assets.CapturedJob",
            "attributes:",
            f"  table: {DAILY}",
            f"  inputs: [{PLAYS}]",
            "  ranges: [day]",
        ]
        file.write_text("\n".join([*head, *(f"  {line}" for line in lines)]))
        return Pipeline.load(file)

    return write


def command(media: Lake, **env: str) -> list[str]:
    variables = json.dumps({"HOME_OF_LAKE": str(media.config.home), "PYTHONPATH": str(Path.cwd()), **env})
    return [f"command: [{sys.executable}, job.py]", f"env: {variables}"]


def writes(media: Lake, tmp_path: Path, *what: str) -> list[str]:
    """A command that writes its arguments into a file, one per line."""
    code = f"import sys; open({str(tmp_path / 'printed')!r}, 'a').write(chr(10).join(sys.argv[1:]) + chr(10))"
    return ["writes: elsewhere", f"command: {json.dumps([sys.executable, '-c', code, *what])}"]


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [{}, pytest.param({"CARRIES": "yes"}, marks=pytest.mark.long)])
def test_a_command_absorbs_each_change_once(
    media: Lake, declared: Callable[..., Pipeline], env: dict[str, str]
) -> None:
    pipeline = declared(*command(media, **env), "owners: [team:data]")
    assert [p.source for p in pipeline.pending(media)] == [PLAYS]
    for expected in (2, 0, 3):
        (outcome,) = pipeline.run(media)
        assert outcome.error is None
        assert outcome.status == ("absorbed" if expected else "nothing")
        assert outcome.inserted == expected
        assert rows_of(media) == rows_of(media, PLAYS)
        assert pipeline.pending(media) == []
        if expected:
            assert outcome.details["watermark"] == ("with the job's commit" if env else "after the job")
        else:
            play(media, (3, 3, 3), (4, 4, 4), (4, 4, 4))
    (window,) = outcome.windows
    assert window.ranges["day"] == "2024-01-03..2024-01-04"
    (spec,) = pipeline.specs(media)
    assert spec.shown.owners == ("team:data",)
    assert spec.shown.kinds == ("shell",)


@pytest.mark.long
def test_a_job_whose_source_was_emptied_before_its_first_run_waits(
    media: Lake, declared: Callable[..., Pipeline]
) -> None:
    pipeline = declared(*command(media))
    media.table(PLAYS).delete()
    for _ in range(2):
        (outcome,) = pipeline.run(media)
        assert (outcome.status, outcome.why) == ("waiting", f"{PLAYS} has no rows yet")
        assert step_notes.find_note(media, TableId.parse(DAILY)) is None
    play(media, (3, 3, 3))
    (outcome,) = pipeline.run(media)
    assert (outcome.status, outcome.inserted) == ("absorbed", 1)


def test_a_command_gets_placeholders_and_keeps_its_arguments_apart(
    media: Lake, declared: Callable[..., Pipeline], tmp_path: Path
) -> None:
    arguments = [
        "{low.day} to {high.day}",
        "{start.raw.playback|none}",
        "{table}",
        "{{low.day}}",
        "${low.day}",
        "{x y}",
    ]
    pipeline = declared(*writes(media, tmp_path, *arguments))
    (outcome,) = pipeline.run(media)
    assert outcome.error is None
    printed = (tmp_path / "printed").read_text().splitlines()
    assert printed == ["2024-01-01 to 2024-01-02", "none", DAILY, "{low.day}", "${low.day}", "{x y}"]
    play(media, (1, 20, 1))
    pipeline.run(media)
    assert (tmp_path / "printed").read_text().splitlines()[6] == "2024-01-20 to 2024-01-20"


def test_values_in_the_text_of_a_shell_are_quoted(
    media: Lake, declared: Callable[..., Pipeline], tmp_path: Path
) -> None:
    script = f"echo {{raw|$(touch {tmp_path}/injected)}} {{start.raw.playback|a; touch {tmp_path}/injected}} > printed"
    with pytest.raises(PipelineError, match="no parameter is called 'raw'"):
        declared("writes: elsewhere", f"command: {json.dumps(['bash', '-c', script])}")
    script = script.replace("{raw|", "{start.raw.playback|")
    (outcome,) = declared("writes: elsewhere", f"command: {json.dumps(['bash', '-c', script])}").run(media)
    assert outcome.error is None
    assert not (tmp_path / "injected").exists()
    printed = (tmp_path / "job" / "printed").read_text()
    assert printed == f"$(touch {tmp_path}/injected) a; touch {tmp_path}/injected\n"


def test_spark_submit_gets_the_watermark_as_conf(
    media: Lake, declared: Callable[..., Pipeline], tmp_path: Path
) -> None:
    declared(*writes(media, tmp_path, "{spark_conf}", "job.py")).run(media)
    printed = (tmp_path / "printed").read_text().splitlines()
    assert printed[0::2][:2] == ["--conf", "--conf"]
    assert printed[1].startswith("spark.sql.iceberg.snapshot-property.lake-assets.watermark={")
    assert printed[-1] == "job.py"


@pytest.mark.parametrize("carries", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_command_that_fails_after_writing(media: Lake, declared: Callable[..., Pipeline], carries: bool) -> None:
    env = {"CARRIES": "yes"} if carries else {}
    (outcome,) = declared(*command(media, FAILS="yes", **env)).run(media)
    assert outcome.status == "failed"
    assert "exit code 1:\nout of luck" in (outcome.error or "")
    (again,) = declared(*command(media, **env)).run(media)
    if carries:  # its rows and the watermark are there
        assert again.status == "nothing"
        assert rows_of(media) == rows_of(media, PLAYS)
    else:
        assert "StepUnknownError" in (again.error or "")
        assert f"lake-assets step {DAILY} --done" in (again.error or "")


def test_a_program_that_is_missing_is_an_error(media: Lake, declared: Callable[..., Pipeline]) -> None:
    (outcome,) = declared("command: [no-such-program]").run(media)
    assert "there is no program 'no-such-program'" in (outcome.error or "")
    assert step_notes.find_note(media, TableId.parse(DAILY)) is None


FUNCTION = """
def daily(step):
    from tests.support.daily_job import append, new_rows
    append(step.lake, new_rows(step.lake, step), step.properties)
    return {"low": str(step.ranges["day"].low)}

def broken(step, context):
    raise ValueError(f"no luck with {context}")
"""


def test_a_function_is_called_with_the_step(media: Lake, declared: Callable[..., Pipeline], tmp_path: Path) -> None:
    pipeline = declared("python: plays_job:daily")
    (tmp_path / "job" / "plays_job.py").write_text(FUNCTION)
    (outcome,) = pipeline.run(media)
    assert outcome.error is None
    assert outcome.details["low"] == "2024-01-01"
    assert rows_of(media) == rows_of(media, PLAYS)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("plays_job:broken", "ValueError: no luck with None"),
        ("plays_job:daly", "has no function 'daly'"),
        ("no_such_module:f", "no_such_module cannot be imported"),
    ],
)
def test_a_function_that_fails_is_an_error(
    media: Lake, declared: Callable[..., Pipeline], tmp_path: Path, function: str, says: str
) -> None:
    pipeline = declared(f"python: {function}")
    (tmp_path / "job" / "plays_job.py").write_text(FUNCTION)
    (outcome,) = pipeline.run(media)
    assert says in (outcome.error or "")


def test_dbt_gets_the_values_as_variables(
    media: Lake, declared: Callable[..., Pipeline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a program `dbt` that writes down its arguments."""
    lines = ["writes: elsewhere", "dbt: {project: shop_dbt, select: daily+, arguments: [--target, prod]}"]
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    (missing,) = declared(*lines).run(media)
    assert "pip install dbt-core" in (missing.error or "")
    program = tmp_path / "bin" / "dbt"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nfor a in "$@"; do printf "%s\\n" "$a"; done > {tmp_path}/printed\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/bin:/usr/bin")
    (outcome,) = declared(*lines).run(media)
    assert outcome.error is None
    printed = (tmp_path / "printed").read_text().splitlines()
    assert printed[:3] == ["build", "--project-dir", str(tmp_path / "job" / "shop_dbt")]
    assert printed[3:6] == ["--select", "daily+", "--vars"]
    assert printed[7:] == ["--target", "prod"]
    assert json.loads(printed[6])["low_day"] == "2024-01-01"


def test_a_notebook_is_run_by_papermill(
    media: Lake, declared: Callable[..., Pipeline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a module `papermill` that writes down its arguments."""
    lines = ["writes: elsewhere", "notebook: {path: daily.ipynb, output: 'out-{high.day}.ipynb'}"]
    (missing,) = declared(*lines).run(media)
    assert "pip install papermill" in (missing.error or "")
    module = tmp_path / "fake" / "papermill.py"
    module.parent.mkdir()
    module.write_text(f"import sys, json; json.dump(sys.argv[1:], open({str(tmp_path / 'printed')!r}, 'w'))")
    monkeypatch.syspath_prepend(module.parent)
    monkeypatch.setenv("PYTHONPATH", str(module.parent))
    (outcome,) = declared(*lines).run(media)
    assert outcome.error is None
    source, output, option, parameters = json.loads((tmp_path / "printed").read_text())
    assert (source, output, option) == (
        str(tmp_path / "job" / "daily.ipynb"), "out-2024-01-02.ipynb", "--parameters_yaml"
    )  # fmt: skip
    assert json.loads(parameters)["low_day"] == "2024-01-01"


# --- kills ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_program_that_outlives_a_killed_run_is_waited_for(
    media: Lake, declared: Callable[..., Pipeline], tmp_path: Path
) -> None:
    """Given a run that is killed while its program goes on; then the next run waits for the program to end."""
    wait = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done; touch {tmp_path}/done"
    pipeline = declared("writes: elsewhere", f"command: {json.dumps(['bash', '-c', wait])}")
    code = "import sys; from lake_assets.cli import main; sys.argv = ['lake-assets', 'run', sys.argv[1]]; main()"
    env = {**os.environ, "LAKE_HOME": str(media.config.home)}
    with subprocess.Popen([sys.executable, "-c", code, str(pipeline.path)], env=env) as run:
        while (note := step_notes.find_note(media, TableId.parse(DAILY))) is None or len(note.processes) < 2:
            assert run.poll() is None
            time.sleep(0.05)
        run.send_signal(signal.SIGKILL)
    (outcome,) = pipeline.run(media)
    assert "StepRunningError" in (outcome.error or "")
    (tmp_path / "go").touch()
    while note.is_running:
        time.sleep(0.05)
    assert (tmp_path / "done").exists()
    (outcome,) = pipeline.run(media)
    assert "StepUnknownError" in (outcome.error or "")


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("decision", [pytest.param("--done", marks=pytest.mark.long), "--rerun"])
def test_an_unknown_step_is_settled_by_hand(
    media: Lake,
    declared: Callable[..., Pipeline],
    decision: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LAKE_HOME", str(media.config.home))
    call = caller(monkeypatch, capsys)
    assert "no step of" in call("step", DAILY).out
    assert call("step", DAILY, "--done").code == 1
    declared(*command(media, FAILS="yes")).run(media)
    assert "may have written its rows" in call("step", DAILY).out
    assert json.loads(call("step", DAILY, "--json").out)["state"] == "unknown"
    assert call("step", DAILY, decision).code == 0
    play(media, (5, 5, 5))
    pipeline = declared(*command(media))
    outcomes = [pipeline.run(media)[0] for _ in range(2)]
    assert [o.error for o in outcomes] == [None, None]
    if decision == "--done":
        assert rows_of(media) == rows_of(media, PLAYS)
    else:  # exactly the same windows, and then the rest
        assert [o.inserted for o in outcomes] == [2, 1]
    assert "no step of" in call("step", DAILY).out


@pytest.mark.long
def test_explain_tells_a_table_of_a_job_from_a_model(
    media: Lake,
    declared: Callable[..., Pipeline],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LAKE_HOME", str(media.config.home))
    declared(*command(media)).run(media)
    assert f"{DAILY} is no model: `lake-assets status` says" in caller(monkeypatch, capsys)("explain", DAILY).err


# --- declaration ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "a job is one of command, python, notebook, dbt: found none"),
        (["command: [x]", "python: a:b"], "found command and python"),
        (["command: [x, '{low.dya}']"], r"no parameter is called 'low.dya' \(did you mean low.day"),
        (["python: nothing"], "write module:function"),
        (["command: [x]", "lookups: [raw.playback]"], "cannot be an input and something else"),
        (["command: [x]", "lifetime: soon"], "is not a duration"),
        (["command: [x]", "keys: {a: {raw.plays: b}}"], "raw.plays, which is no source"),
        (["comand: [x]"], "comand"),
        (["command: [x]", "writes: elsewhere", "audits: [{not_null: day}]"], "`audits` check rows of the table"),
        (["command: [x]", "writes: elsewhere", "full: SELECT 1 AS n FROM raw.playback"], "`full` has the rows of the"),
        (
            ["command: [x]", "full: |", "  SELECT account", "  FROM playback"],
            "`full`, line 2 of its SQL: table playback is",
        ),
        (["command: [x]", "full: |", "  SELECT a", "  FROM (raw.playback"], "`full`, line 2 of its SQL: Expecting"),
        (["command: [x]", "full: DELETE FROM raw.playback"], "`full`: expected one SELECT"),
        (["command: [x]", f"full: SELECT * FROM {DAILY}"], "it reads agg.playback_daily itself"),
    ],
)
def test_mistakes_are_errors_with_their_line(declared: Callable[..., Pipeline], lines: list[str], says: str) -> None:
    with pytest.raises(PipelineError, match=says) as error:
        declared(*lines)
    assert ", line " in str(error.value)


def test_jobs_and_models_share_a_pipeline(media: Lake, tmp_path: Path) -> None:
    """Given a SQL model over the table of a job; then the model runs after the job."""
    file = tmp_path / "defs.yaml"
    file.write_text(
        textwrap.dedent(f"""
            type: lake_assets.LakePipeline
            attributes:
              name: plays
              models:
                - name: agg.totals
                  sql: SELECT account, sum(seconds) AS seconds FROM {DAILY} GROUP BY account
              jobs:
                - table: {DAILY}
                  inputs: [{PLAYS}]
                  lookups: [agg.titles]
                  command: [run-it]
        """)
    )
    pipeline = Pipeline.load(file)
    assert [str(s.table) for s in pipeline.specs(media, alone=False)] == [DAILY, "agg.totals"]
    with pytest.raises(PipelineError, match="agg.titles, which"):
        pipeline.specs(media)
