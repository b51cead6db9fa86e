"""Hold the files of a run's events open, if Dagster's instance uses SQLite files.

Dagster opens and closes such a file for each event and each claim of a pool. When its last connection is closed, SQLite
checkpoints and deletes the write-ahead log, which costs more than the event itself, and a step has a dozen events. So a
run's process keeps one connection open.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator
from pathlib import Path

import dagster as dg

from lake_assets.orchestration._compat import INDEX_SHARD_NAME, SqliteEventLogStorage

# Seconds to wait while another process has the file locked.
_TIMEOUT = 5.0


@contextlib.contextmanager
def held_open(instance: dg.DagsterInstance, run_id: str) -> Generator[None]:
    """Hold the SQLite files of a run's events open within the context; do nothing with other storages.

    These connections hold no lock, so no other process waits for them.
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
    # SQLite opens the file on the first read. If that fails, events are only slower.
    with contextlib.suppress(sqlite3.Error):
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
