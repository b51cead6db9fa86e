"""Open the lake for a step, and turn its errors into Dagster's."""

import contextlib
import threading
from collections.abc import Generator, Mapping
from typing import Any, NoReturn

import dagster as dg

from lake_assets.errors import LakeError
from lake_assets.facade import Lake
from lake_assets.lake import LakeConfig
from lake_assets.orchestration.runs.resources import PYSPARK, LakePySparkResource, session_of

_alone = threading.Lock()
RETRIES = 3
SECONDS_BETWEEN = 5
Context = dg.AssetExecutionContext | dg.AssetCheckExecutionContext


@contextlib.contextmanager
def opened(context: Context, config: LakeConfig) -> Generator[Lake]:
    """Open the lake for one step, with a Spark session of the run if the step needs one."""
    resource: Any = getattr(context.resources, PYSPARK)
    lake = Lake(config, session=lambda: session_of(resource, config))
    try:
        # A user's resource has one session for all threads. Settings of one step, such as the watermark of its commit,
        # must not reach the commit of another.
        with contextlib.nullcontext() if isinstance(resource, LakePySparkResource) else _alone:
            yield lake
    finally:
        if "catalog" in vars(lake):
            lake.catalog.close()


def fail(context: Context, error: LakeError) -> NoReturn:
    """End the step: at once for a permanent error, after some retries for a temporary one.

    Raises:
        dagster.RetryRequested: the error is temporary and retries are left.
        dagster.Failure: otherwise.
    """
    retry(context, error)
    facts: Mapping[str, Any] = {"error": type(error).__name__, "permanent": error.permanent}
    raise dg.Failure(f"{type(error).__name__}: {error}", metadata=facts, allow_retries=False) from error


def retry(context: Context, error: BaseException | None) -> None:
    """Raise dagster.RetryRequested for an error that may pass, while tries are left."""
    if isinstance(error, LakeError) and not error.permanent and _tries(context) < RETRIES:
        raise dg.RetryRequested(max_retries=RETRIES, seconds_to_wait=SECONDS_BETWEEN * 2 ** _tries(context)) from error


def _tries(context: Context) -> int:
    return context.op_execution_context.retry_number
