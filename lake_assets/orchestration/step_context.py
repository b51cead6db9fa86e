"""The lake and the errors of a step, whatever it does."""

import contextlib
import threading
from collections.abc import Generator, Mapping
from typing import Any, NoReturn

import dagster as dg

from lake_assets.errors import LakeError
from lake_assets.facade import Lake
from lake_assets.lake import LakeConfig
from lake_assets.orchestration.resources import PYSPARK, LakePySparkResource, session_of

_alone = threading.Lock()
RETRIES = 3
SECONDS_BETWEEN = 5
Context = dg.AssetExecutionContext | dg.AssetCheckExecutionContext


@contextlib.contextmanager
def opened(context: Context, config: LakeConfig) -> Generator[Lake]:
    """The lake for one step, with a Spark session of the run should the step need one."""
    resource: Any = getattr(context.resources, PYSPARK)
    lake = Lake(config, session=lambda: session_of(resource, config))
    try:
        # A resource of the user's has one session for all threads, should there be several. What a step sets in it,
        # such as the watermark that a commit carries, is not to reach the commit of another.
        with contextlib.nullcontext() if isinstance(resource, LakePySparkResource) else _alone:
            yield lake
    finally:
        if "catalog" in vars(lake):
            lake.catalog.close()


def fail(context: Context, error: LakeError) -> NoReturn:
    """End the step: a permanent error at once, a transient one after some tries.

    Raises:
        dagster.RetryRequested: it may pass.
        dagster.Failure: it will not, or did not.
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
