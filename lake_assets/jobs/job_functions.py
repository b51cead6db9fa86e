"""Jobs that are Python functions: called with the step, and with Dagster's context if they take it."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import cloudpickle

from lake_assets.errors import JobError, JobNotStartedError, LakeError
from lake_assets.jobs.captured_step import CapturedStep
from lake_assets.jobs.job_spec import current_context


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
        """How the job runs."""
        name = self.function if isinstance(self.function, str) else self.function.__qualname__
        return f"Calls `{name}` over what changed in its sources."

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
            raise JobError(f"{step.table}: {_name(function)} failed: {type(e).__name__}: {e}") from e
        return dict(result) if isinstance(result, Mapping) else {}


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{getattr(function, '__qualname__', function)}"


def _loaded(reference: str, folder: Path, step: CapturedStep) -> Callable[..., Any]:
    """Return a function of a file in the folder, or of a module on the Python path."""
    module_name, _, name = reference.partition(":")
    file = folder.resolve().joinpath(*module_name.split(".")).with_suffix(".py")
    try:
        module = _of_file(file) if file.is_file() else importlib.import_module(module_name)
    except Exception as e:  # users' code: it may raise anything
        raise JobNotStartedError(
            f"{step.table}: `python: {reference}`: {module_name} cannot be imported from {folder.resolve()} or the "
            f"Python path: {type(e).__name__}: {e}"
        ) from e
    function = getattr(module, name, None)
    if not callable(function):
        raise JobNotStartedError(f"{step.table}: `python: {reference}`: {module.__file__} has no function {name!r}")
    return function


def _of_file(file: Path) -> ModuleType:
    """Import a file, with its folder on the path meanwhile, under a name that no other folder's file has."""
    name = f"lake_assets_job_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
    # Python workers of Spark cannot import it: functions that they run bring their code along.
    cloudpickle.register_pickle_by_value(module)
    return module
