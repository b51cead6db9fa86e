"""Jobs that are Python functions: called with the step, and with Dagster's context if they take it."""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lake_assets.errors import JobError, JobNotStartedError, LakeError
from lake_assets.jobs.captured_step import CapturedStep
from lake_assets.jobs.job_spec import current_context
from lake_assets.lake.names import nearest
from lake_assets.lake.user_modules import import_file


@dataclass(frozen=True)
class FunctionJob:
    """A function, named as `module:function`, or the function itself.

    Attributes:
        function: called with the step; with Dagster's context too, if it has a second parameter.
        folder: searched for the module's file before the Python path.
    """

    function: str | Callable[..., Any]
    folder: Path = field(default_factory=Path)

    @property
    def summary(self) -> str:
        """What runs."""
        name = self.function if isinstance(self.function, str) else self.function.__qualname__
        return f"Calls `{name}`"

    def run(self, step: CapturedStep) -> Mapping[str, object]:
        """Call the function; a mapping that it returns becomes metadata.

        Raises:
            JobNotStartedError: there is no such function.
            JobError: it fails.
        """
        function = self.function if not isinstance(self.function, str) else _loaded(self.function, self.folder, step)
        takes_context = len(inspect.signature(function).parameters) > 1
        try:
            result = function(step, current_context()) if takes_context else function(step)
        except LakeError:
            raise
        except Exception as e:
            name = self.function if isinstance(self.function, str) else _name(function)
            raise JobError(f"{step.table}: {name} failed{_place(function, e)}: {type(e).__name__}: {e}") from e
        return dict(result) if isinstance(result, Mapping) else {}


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{getattr(function, '__qualname__', function)}"


def _place(function: Callable[..., Any], error: BaseException) -> str:
    """Return the last line of the function's file that an error passed through; empty if there is none."""
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    return f" ({file}, line {lines[-1]})" if lines else ""


def _loaded(reference: str, folder: Path, step: CapturedStep) -> Callable[..., Any]:
    """Return a function of a file in the folder, or of a module on the Python path."""
    module_name, _, name = reference.partition(":")
    file = folder.resolve().joinpath(*module_name.split(".")).with_suffix(".py")
    try:
        module = import_file(file) if file.is_file() else importlib.import_module(module_name)
    except Exception as e:  # users' code: it may raise anything
        raise JobNotStartedError(
            f"{step.table}: `python: {reference}`: {module_name} cannot be imported from {folder.resolve()} or the "
            f"Python path: {type(e).__name__}: {e}"
        ) from e
    function = getattr(module, name, None)
    if not callable(function):
        functions = [n for n, value in vars(module).items() if callable(value)]
        raise JobNotStartedError(
            f"{step.table}: `python: {reference}`: {getattr(module, '__file__', None) or module_name} has no function "
            f"{name!r}{nearest(name, functions)}"
        )
    return function
