"""The Spark Connect sessions of this process, which end with it.

A session that is left to the end of Python may keep its process for ever: PySpark then closes the channel in `__del__`,
which waits until a thread of gRPC has taken note of open calls, and Python has stopped that thread already. The server,
for its part, keeps the session and its rows for an hour.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from typing import TYPE_CHECKING

from lake_assets.lake import thresholds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_sessions: list[SparkSession] = []


def ends_with_process(session: SparkSession) -> SparkSession:
    """Return a session, which is stopped when this process ends."""
    if not _sessions:
        atexit.register(end_all)
    _sessions.append(session)
    return session


def are_open() -> bool:
    """Whether sessions of this process have not been stopped."""
    return bool(_sessions)


def end_all(seconds: float = thresholds.CONNECT_END_SECONDS) -> bool:
    """Stop all sessions; return whether that was possible within some seconds."""
    sessions = _sessions.copy()
    _sessions.clear()
    stopping = threading.Thread(target=lambda: [_stop(s) for s in sessions], daemon=True, name="end of Spark Connect")
    try:
        stopping.start()
    except RuntimeError:  # Python starts no threads any more
        for session in sessions:
            _stop(session)
        return True
    stopping.join(seconds)
    return not stopping.is_alive()


def _stop(session: SparkSession) -> None:
    with contextlib.suppress(Exception):  # of a server that is gone: there is nothing left to end
        # Otherwise a call to a server that is gone is repeated for minutes.
        session.client.set_retry_policies([])  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    with contextlib.suppress(Exception):
        session.stop()
