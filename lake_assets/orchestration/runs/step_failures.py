"""Open the lake for a step, and convert its errors to Dagster's failures and retries."""

import contextlib
import threading
from collections.abc import Generator
from typing import Any, NoReturn

import dagster as dg

from lake_assets.errors import LakeError
from lake_assets.facade import Lake
from lake_assets.lake import LakeConfig
from lake_assets.lake.foreign_errors import error_text
from lake_assets.orchestration.runs.resources import PYSPARK, LakePySparkResource, session_of

_shared_session_lock = threading.Lock()
RETRIES = 3
SECONDS_BETWEEN = 5
Context = dg.AssetExecutionContext | dg.AssetCheckExecutionContext
# What a failed step could not absorb, as the sensor identifies it: in the metadata of the failure.
ATTEMPTED = "attempted"


@contextlib.contextmanager
def open_lake(context: Context, config: LakeConfig) -> Generator[Lake]:
    """Open the lake for one step. Its Spark session, one of the run's, starts on first use."""
    resource: Any = getattr(context.resources, PYSPARK)
    lake = Lake(config, session=lambda: session_of(resource, config))
    try:
        # A user's resource has one session for all threads, so steps take turns: the session settings of one step, such
        # as the watermark of its commit, must not end up in another step's commit.
        with contextlib.nullcontext() if isinstance(resource, LakePySparkResource) else _shared_session_lock:
            yield lake
    finally:
        if "catalog" in vars(lake):
            lake.catalog.close()


def fail(context: Context, error: LakeError, attempted: str = "") -> NoReturn:
    """End the step: at once for a permanent error, after some retries for a temporary one.

    Args:
        context: the step's context.
        error: why it ends.
        attempted: the fingerprint of what it could not absorb; see `ATTEMPTED`.

    Raises:
        dagster.RetryRequested: the error is temporary and retries remain.
        dagster.Failure: otherwise.
    """
    retry(context, error)
    metadata: dict[str, Any] = {"error": type(error).__name__, "permanent": error.permanent}
    metadata |= {ATTEMPTED: attempted} if attempted else {}
    raise dg.Failure(error_text(error), metadata=metadata, allow_retries=False) from error


def retry(context: Context, error: BaseException | None) -> None:
    """Raise dagster.RetryRequested if the error is temporary and retries remain."""
    if isinstance(error, LakeError) and not error.permanent and _retry_number(context) < RETRIES:
        raise dg.RetryRequested(
            max_retries=RETRIES, seconds_to_wait=SECONDS_BETWEEN * 2 ** _retry_number(context)
        ) from error


def _retry_number(context: Context) -> int:
    return context.op_execution_context.retry_number
