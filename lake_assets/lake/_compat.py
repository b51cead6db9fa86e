"""Private APIs of PySpark that nothing public replaces; `tests/lake/test_compat.py` checks them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator

from pyspark.sql import SparkSession


@contextlib.contextmanager
def active_session(session: SparkSession) -> Generator[None]:
    """Make a Spark Connect session the active one of this thread within the context; do nothing for a local session.

    PySpark binds the frame that a checkpoint returns to the thread's active session, or else to the first session of
    the process, instead of the session that made the checkpoint. Reading the frame then fails with "No DataFrame with
    id", and its rows stay on the server, since the request to remove them goes to the wrong session too.
    """
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    if not isinstance(session, ConnectSession):
        yield
        return
    active = ConnectSession._active_session  # pyright: ignore[reportPrivateUsage]
    before = getattr(active, "session", None)
    active.session = session
    try:
        yield
    finally:
        active.session = before


def has_local_spark() -> bool:
    """Whether this process has started a local Spark."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None  # pyright: ignore[reportPrivateUsage]


def has_connect_mode() -> bool:
    """Whether PySpark's functions build columns for Spark Connect, as they do after the first Connect session."""
    return "SPARK_CONNECT_MODE_ENABLED" in os.environ
