"""The files of a run's events, where Dagster's instance is kept in SQLite files.

Dagster opens such a file for each event and each claim of a pool, and closes it again. Who closes one last has SQLite
write its log back and delete it, which costs more than the event does, and a step is a dozen of them. So a run's
process holds the files open.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator
from pathlib import Path

import dagster as dg

from lake_assets.orchestration._compat import INDEX_SHARD_NAME, SqliteEventLogStorage

# Seconds that a file may be held by another process.
_TIMEOUT = 5.0


@contextlib.contextmanager
def held_open(instance: dg.DagsterInstance, run_id: str) -> Generator[None]:
    """Hold the SQLite files of a run's events open in the body; nothing where they are kept elsewhere.

    Nothing is read through these connections, and no lock is held, so that nobody waits for them.
    """
    storage = instance.event_log_storage
    with contextlib.ExitStack() as scope:
        if isinstance(storage, SqliteEventLogStorage):
            for shard in (INDEX_SHARD_NAME, run_id):
                _hold(Path(storage.path_for_shard(shard)), scope)
        yield


def _hold(file: Path, scope: contextlib.ExitStack) -> None:
    if not file.is_file():
        return
    connection = sqlite3.connect(file, timeout=_TIMEOUT)
    scope.callback(connection.close)
    # The file is opened when it is first read. It only costs time where that fails.
    with contextlib.suppress(sqlite3.Error):
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
