"""Jobs that are Python functions: called with the step, and with Dagster's context if they take it."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lake_assets.errors import JobError, LakeError
from lake_assets.jobs.captured_step import CapturedStep
from lake_assets.jobs.job_spec import current_context


@dataclass(frozen=True)
class FunctionJob:
    """A function, named as `module:function`, or the function itself.

    Attributes:
        function: called with the step; with Dagster's context too, if it has a second parameter.
        folder: searched for the module before the Python path.
    """

    function: str | Callable[..., Any]
    folder: Path = field(default_factory=Path)

    @property
    def summary(self) -> str:
        """How the job runs."""
        name = self.function if isinstance(self.function, str) else self.function.__qualname__
        return f"Calls `{name}` over what changed in its sources."

    def run(self, step: CapturedStep) -> Mapping[str, object]:
        """Call the function; a mapping that it returns becomes metadata.

        Raises:
            JobError: there is no such function, or it fails.
        """
        function = self.function if not isinstance(self.function, str) else _loaded(self.function, self.folder, step)
        takes_context = len(inspect.signature(function).parameters) > 1
        try:
            result = function(step, current_context()) if takes_context else function(step)
        except LakeError:
            raise
        except Exception as e:
            raise JobError(f"{step.table}: {_name(function)} failed: {type(e).__name__}: {e}") from e
        return dict(result) if isinstance(result, Mapping) else {}


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{getattr(function, '__qualname__', function)}"


def _loaded(reference: str, folder: Path, step: CapturedStep) -> Callable[..., Any]:
    module_name, _, name = reference.partition(":")
    path = str(folder.resolve())
    sys.path.insert(0, path)
    try:
        importlib.invalidate_caches()
        module = importlib.import_module(module_name)
    except Exception as e:  # users' code: it may raise anything
        raise JobError(
            f"{step.table}: `python: {reference}`: {module_name} cannot be imported from {path} or the Python path: "
            f"{type(e).__name__}: {e}"
        ) from e
    finally:
        sys.path.remove(path)
    function = getattr(module, name, None)
    if not callable(function):
        raise JobError(f"{step.table}: `python: {reference}`: {module.__file__} has no function {name!r}")
    return function
