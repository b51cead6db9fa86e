"""What a live source is: it reads records from an offset on, and hands them over in batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa


class Undecodable(bytes):
    """What is kept of a record that cannot be read, to be landed with the reason, as a reject.

    Attributes:
        problem: the reason.
    """

    problem: str

    def __new__(cls, kept: bytes, problem: str) -> Undecodable:
        """Return the record."""
        record = super().__new__(cls, kept)
        record.problem = problem
        return record


class Voiding(bytes):
    """A truncate that the service adds, before all rows of a table arrive again: those before it count no more."""


class Rows(NamedTuple):
    """Rows of a source table as records that differ in the row's own values alone.

    Attributes:
        table: the source table, as schema.table.
        place: the place in the source's log that all rows have.
        records: strings in the stream's format. None at all: all rows of the table have been handed over.
        payloads: the same records without their schemas.
    """

    table: str
    place: str
    records: pa.Array[Any]
    payloads: pa.Array[Any]


class RowLoad(Protocol):
    """All rows of some tables, as of one place in the source's log."""

    def read(self) -> Iterator[Rows]:
        """Yield all rows, each time it is called."""
        ...


class Land(Protocol):
    """Commits records, with the offset after them, in one snapshot of the raw table."""

    def __call__(self, records: Sequence[bytes] | RowLoad, offset: Any, history: Sequence[bytes] = ()) -> None:
        """Return after the commit; try again for as long as the lake cannot be written to.

        Args:
            records: in the stream's format, or `Undecodable`; none: only the offset is committed.
            offset: the offset after them.
            history: lines about the source's schema that it needs when it starts again. They are kept in the raw table.

        Raises:
            Stopped: the service ends meanwhile.
        """
        ...


@dataclass(frozen=True)
class Progress:
    """What is landed of a source.

    Attributes:
        offset: the last committed offset; None: nothing is landed yet.
        history: returns the lines about the schema that were landed, in their order.
        one_of_each: returns a landed record of each source table, by its name.
    """

    offset: Any
    history: Callable[[], Sequence[bytes]]
    one_of_each: Callable[[], Mapping[str, bytes]] = dict


class Stopped(Exception):
    """The service ends; what was not committed is read again by the next one."""


class LiveSource(Protocol):
    """A server whose changes are read as they happen.

    Offsets are JSON values of the source's own. None stands for the beginning: a source with a first snapshot takes it.
    """

    def check(self, offset: Any) -> None:
        """Look at the server before anything is read, and prepare it.

        Raises:
            SourceError: it lacks something, or the declaration does not fit it; the text says what to do.
            SourceUnavailableError: it does not answer.
            SourceGapError: it no longer has the changes after the offset.
        """
        ...

    def run(self, progress: Progress, land: Land, stop: threading.Event) -> None:
        """Read the records after the last landed one and land them, until `stop` is set.

        The server is told that records are done with only after `land` has returned.

        Raises:
            SourceError, SourceUnavailableError, SourceGapError: see `check`; records up to the last commit are landed.
            Stopped: the service ended while a batch was to be landed.
        """
        ...

    def request(self, tables: Sequence[str], begun: Callable[[], None]) -> None:
        """Read all rows of tables again, beside their changes.

        Args:
            tables: source tables.
            begun: to be called once that goes on by itself after a kill; until then, the request would be lost.

        Raises:
            SourceError: the source cannot do that, or does not read such a table.
        """
        ...

    def measures(self) -> Mapping[str, object]:
        """Return how it is, for `status` and Dagster: whether it is connected, how far behind it is, ...

        Called from another thread while `run` works; returns what can be told at the moment, and never fails.
        """
        ...
