"""Jobs that are programs: any command, a notebook by papermill, a dbt selection."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from lake_assets.errors import JobError, JobNotStartedError
from lake_assets.jobs.captured_step import CapturedStep
from lake_assets.jobs.step_parameters import StepParameters, filled
from lake_assets.lake import TableId
from lake_assets.runtime.processes import identity

_LINES = 20
# Lines of Spark that hide the cause of an error: logs of its shutdown, frames of Java stack traces.
_NOISE = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|WARN) |\s+at [\w.$/]+[(<]|\s+\.\.\. \d+ more")
_SECONDS_TO_END = 10.0
# The program starts once the step's note names its process: if this process is killed before, it never does.
_START = 'read -r _ || exit 125; exec "$@" </dev/null'


@dataclass(frozen=True)
class CommandJob:
    """A command, run in a folder with the step's variables in its environment.

    Attributes:
        command: its arguments, with placeholders; see `step_parameters.filled`.
        folder: where it runs; relative programs are found there.
        env: further variables; may hold placeholders too.
    """

    command: tuple[str, ...]
    folder: Path = field(default_factory=Path)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def summary(self) -> str:
        """What runs; without its arguments, which may hold secrets."""
        return f"Runs `{Path(self.command[0]).name}`"

    def run(self, step: CapturedStep) -> Mapping[str, object]:
        """Run the command; see `run_command`."""
        return run_command(step, filled(self.command, _parameters(step)), self.folder, self.env)


@dataclass(frozen=True)
class NotebookJob:
    """A notebook, run by papermill in a process of its own with the step's values as parameters.

    Attributes:
        notebook: its file.
        output: the executed notebook; with placeholders. None: next to the notebook, with `.out` before its ending.
        folder: where it runs.
        env: further variables.
    """

    notebook: Path
    output: str | None = None
    folder: Path = field(default_factory=Path)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def summary(self) -> str:
        """What runs."""
        return f"Runs the notebook `{self.notebook.name}`"

    def run(self, step: CapturedStep) -> Mapping[str, object]:
        """Run the notebook; see `run_command`.

        Raises:
            JobNotStartedError: papermill is not installed.
        """
        if importlib.util.find_spec("papermill") is None:
            raise JobNotStartedError(
                f"{step.table}: `notebook` needs papermill, which is not installed: `pip install papermill ipykernel` "
                f"in the environment of {sys.executable}"
            )
        source = self.folder / self.notebook
        default = f"{source.with_suffix('')}.out{source.suffix}"
        parameters = _parameters(step)
        (output,) = filled([self.output or default], parameters, "notebook")
        values = json.dumps(variables(parameters))
        command = [sys.executable, "-m", "papermill", str(source), output, "--parameters_yaml", values]
        return {**run_command(step, command, self.folder, self.env), "notebook": output}


@dataclass(frozen=True)
class DbtJob:
    """A dbt selection, built with the step's values as variables.

    Attributes:
        project: the folder of the dbt project.
        select: what is built, in dbt's syntax.
        arguments: further arguments of dbt, such as `--target prod`.
        folder: what `project` is relative to.
        env: further variables.
    """

    project: Path
    select: str
    arguments: tuple[str, ...] = ()
    folder: Path = field(default_factory=Path)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def summary(self) -> str:
        """What runs."""
        return f"Builds `{self.select}` of the dbt project `{self.project}`"

    def run(self, step: CapturedStep) -> Mapping[str, object]:
        """Build the selection; see `run_command`.

        Raises:
            JobNotStartedError: dbt is not installed.
        """
        if shutil.which("dbt", path=self.env.get("PATH")) is None:
            raise JobNotStartedError(
                f"{step.table}: `dbt` needs dbt, which is not installed: `pip install dbt-core` and the adapter of "
                "your engine, or add the folder of `dbt` to PATH"
            )
        project = str(self.folder / self.project)
        command = ["dbt", "build", "--project-dir", project, "--select", self.select]
        arguments = ["--vars", json.dumps(variables(_parameters(step))), *self.arguments]
        return run_command(step, [*command, *arguments], self.folder, self.env)


def _parameters(step: CapturedStep) -> StepParameters:
    """Return what the program is handed. If something cannot be handed to it, nothing of the job has run."""
    with step.before_job():
        _ = step.env
        return step.parameters


def variables(step: StepParameters) -> dict[str, str]:
    """Return the single values of a step under names of variables: `low_day`, `after_raw_playback`, …."""
    return {name.removeprefix("LAKE_STEP_").lower(): value for name, value in step.env.items() if name != "LAKE_STEP"}


def run_command(
    step: CapturedStep, command: Sequence[str], folder: Path, env: Mapping[str, str]
) -> Mapping[str, object]:
    """Run a command to its end; with this process's end, short of a kill, it ends as well.

    Its output goes where this process's goes.

    Raises:
        JobError: it cannot be started, or exits with another code than 0; with the last lines of its output.
    """
    more = dict(zip(env, filled(list(env.values()), step.parameters, "env"), strict=True))
    environment = {**os.environ, **more, **step.env}
    program = _program(step.table, command[0], folder, environment.get("PATH"))
    with step.before_job():
        process, start = _started([program, *command[1:]], folder, environment)
    tail: deque[str] = deque(maxlen=_LINES)
    # spark-submit prints a Python program's errors to its output.
    streams = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
    readers = [threading.Thread(target=_copy, args=(*pair, tail), daemon=True) for pair in streams]
    for reader in readers:
        reader.start()
    try:
        # It may have been killed already: its exit code tells.
        with contextlib.suppress(BrokenPipeError, ProcessLookupError), os.fdopen(start, "w") as pipe:
            step.runs_in(identity(process.pid))
            pipe.write("\n")
        code = process.wait()
    except BaseException:
        _end(process)
        raise
    for reader in readers:
        reader.join(_SECONDS_TO_END)  # a process that it left behind may hold its output open
    if code:
        output = "".join(tail).strip()
        raise JobError(f"{step.table}: {command[0]} {_ended(code)}" + (f":\n{output}" if output else "")).quoting(
            *([output] if output else ())
        )
    return {"command": Path(command[0]).name}


def _ended(code: int) -> str:
    return f"ended with exit code {code}" if code > 0 else f"was killed by signal {-code} ({signal.strsignal(-code)})"


def _program(table: TableId, name: str, folder: Path, path: str | None) -> str:
    """Return the file of a program on the PATH, or else in the folder."""
    if found := shutil.which(name, path=path):
        return found
    file = (folder / name).resolve()
    if not file.is_file():
        raise JobNotStartedError(
            f"{table}: there is no program {name!r}, neither in {folder} nor on the PATH: correct `command`, or set "
            "PATH in `env`"
        )
    if not os.access(file, os.X_OK):
        raise JobNotStartedError(
            f"{table}: {file} is not executable: `chmod +x {file}`, or begin `command` with what runs it: "
            f"[python, {name}]"
        )
    return str(file)


def _started(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> tuple[subprocess.Popen[str], int]:
    """Start a process that waits for a line on a pipe before it runs the command; return it and the pipe."""
    wait, start = os.pipe()
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _START, "sh", *command],
            cwd=folder,
            env=env,
            stdin=wait,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except BaseException:
        os.close(start)
        raise
    finally:
        os.close(wait)
    return process, start


def _copy(source: IO[str], target: IO[str], tail: deque[str]) -> None:
    with source:
        for line in source:
            target.write(line)
            target.flush()
            if not _NOISE.match(line):
                tail.append(line)


def _end(process: subprocess.Popen[str]) -> None:
    """End a process with all that it has started."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)
            return
