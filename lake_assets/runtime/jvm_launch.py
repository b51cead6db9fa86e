"""Pass settings to a JVM in a file that only its user can read.

Every user of a machine can see command lines, and settings contain passwords and keys.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import psutil

from lake_assets.runtime.jvm_folders import java_option, new_folder
from lake_assets.runtime.private_files import write_private

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_OPTIONS = "spark.driver.defaultJavaOptions"
# How long a process may take until it has stopped or ended.
_SECONDS = 10.0


def start_jvm(settings: Mapping[str, object]) -> None:
    """Start this process's JVM with settings, unless it has one."""
    from lake_assets.runtime import _compat

    if _compat.gateway() is not None:
        return
    before = os.environ.get(_ARGUMENTS)
    own = psutil.Process().children()
    folder = new_folder()
    file = folder / "spark.conf"
    write_settings(file, with_folder(settings, folder))
    os.environ[_ARGUMENTS] = f"{shlex.join(arguments_for(file))} {before or 'pyspark-shell'}"
    try:
        _compat.start_gateway()
    except BaseException:
        # PySpark has removed the folder in which a starting JVM writes its port: the JVM would fail to write it, and
        # never exit.
        if _compat.gateway() is None:
            _end_children(str(file), own)
        raise
    finally:
        file.unlink(missing_ok=True)
        if before is None:
            del os.environ[_ARGUMENTS]
        else:
            os.environ[_ARGUMENTS] = before


def _end_children(argument: str, others: Collection[psutil.Process]) -> None:
    """End the child processes that were started with an argument, also one that does not run its program yet."""
    this = psutil.Process()
    for child in this.children():
        # The interrupt is raised again, whatever becomes of the child.
        with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            command = child.cmdline()  # its parent's until it runs its program, and none at that moment
            if argument in command or (child not in others and command in ([], this.cmdline())):
                _end(child)
                child.wait(_SECONDS)  # the system forgets it only then


def _end(process: psutil.Process) -> None:
    """End a process with all that it has started; it is suspended before, so that it cannot start any more.

    spark-submit is a shell script: what its commands have started outlives it.
    """
    process.suspend()
    _await(process, psutil.STATUS_STOPPED)
    for child in process.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            _end(child)
    process.kill()
    _await(process)


def _await(process: psutil.Process, *states: str) -> None:
    """Wait until a process has ended or is in one of some states."""
    deadline = time.monotonic() + _SECONDS
    while process.status() not in (psutil.STATUS_ZOMBIE, *states) and time.monotonic() < deadline:
        time.sleep(0.001)


def with_folder(settings: Mapping[str, object], folder: Path) -> dict[str, object]:
    """Add the folder of a JVM's temporary files to its settings."""
    options = " ".join(filter(None, [_text(settings.get(_OPTIONS, "")), java_option(folder)]))
    return {**settings, _OPTIONS: options}


def arguments_for(file: Path) -> list[str]:
    """Return arguments that let spark-submit read settings from a file, in addition to Spark's own defaults."""
    return ["--properties-file", str(file), "--load-spark-defaults"]


def write_settings(file: Path, settings: Mapping[str, object]) -> None:
    """Write settings as Java properties, readable by this user only."""
    write_private(file, "".join(f"{_escaped(k, ' =:')}={_escaped(_text(v))}\n" for k, v in settings.items()))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escaped(text: str, more: str = "") -> str:
    """Escape a text for a Java properties file: backslashes, line ends, leading spaces and the characters in `more`."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    for char in more:
        escaped = escaped.replace(char, f"\\{char}")
    return f"\\{escaped}" if escaped[:1] in (" ", "#", "!") else escaped
