"""All rows of Postgres's tables as of the place where its log is read from, by several connections at once.

The replication slot is made first, and Postgres exports the snapshot as of its beginning: what that does not show is in
the log. The tables are then read in ranges of blocks, which needs no key, and balances.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv

from lake_assets.errors import SourceUnavailableError
from lake_assets.lake import thresholds
from lake_assets.lake.counts import plural
from lake_assets.sources.live_source import Rows, Stopped
from lake_assets.sources.live_specs import PostgresSpec
from lake_assets.sources.postgres_checks import what_slot_waits_for
from lake_assets.sources.postgres_connection import Ask, asking, connect, connected, drop_slot
from lake_assets.sources.postgres_rows import DELIMITER, LEAST_VERSION, LoadedTable, Part, RecordTexts, loaded_table

log = logging.getLogger(__name__)
_SETTINGS = (
    "SET client_encoding = 'UTF8'; SET timezone = 'UTC'; SET datestyle = 'ISO, YMD'; SET extra_float_digits = 1; "
    "SET bytea_output = 'hex'; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0"
)
Chunk = tuple[LoadedTable, Part, int, int | None]


class PostgresLoad:
    """See `RowLoad`; only within `postgres_load`.

    Attributes:
        lsn: the place in the log as of which the rows are.
        micros: its time, in microseconds since 1970.
        transaction: one that the rows are no older than.
        tables: the source tables whose rows are read.
    """

    def __init__(
        self, spec: PostgresSpec, found: Sequence[LoadedTable], prefix: str, stop: threading.Event, *,
        snapshot: str, lsn: int, micros: int, transaction: int,
    ) -> None:  # fmt: skip
        self.spec, self.found, self.stop, self.snapshot = spec, found, stop, snapshot
        self.lsn, self.micros, self.transaction = lsn, micros, transaction
        self.tables = [t.name for t in found]
        self._texts = {t.name: RecordTexts(t, prefix, spec.database, lsn, micros) for t in found}
        self._rows, self._expected = 0, sum(p.rows for t in found for p in t.parts)

    @property
    def progress(self) -> str:
        """How many rows have been read."""
        about = f" of about {self._expected:,}" if self._expected else ""
        return f"{plural(self._rows, 'row')}{about}"

    def read(self) -> Iterator[Rows]:
        """See `RowLoad`."""
        self._rows = 0
        readers = _Readers(self, [c for t in self.found for p in t.parts for c in _chunks(t, p)])
        try:
            yield from readers.rows()
        finally:
            readers.end()
        self._check_files()

    def counted(self, rows: Rows) -> Rows:
        """Count rows that are handed over."""
        self._rows += len(rows.records)
        return rows

    def texts(self, table: LoadedTable) -> RecordTexts:
        """Return how the rows of a table become records."""
        return self._texts[table.name]

    def _check_files(self) -> None:
        """Check that no table was truncated or rewritten: to an older snapshot, such a table looks empty."""
        with connected(self.spec) as ask:
            for table in self.found:
                now = loaded_table(ask, table.schema, table.table)
                if now is None or {(p.name, p.file) for p in now.parts} != {(p.name, p.file) for p in table.parts}:
                    raise SourceUnavailableError(
                        f"{self.spec.where}: {table.name} was truncated, dropped or rewritten while its rows were "
                        "read. They are read again"
                    )


def _chunks(table: LoadedTable, part: Part) -> Iterator[Chunk]:
    """Yield ranges of blocks; the last one has no end, since the table may have grown."""
    step = thresholds.LOAD_BLOCKS
    for first in range(0, max(part.blocks, 1), step):
        yield table, part, first, first + step if first + step < part.blocks else None


class _Readers:
    """Threads, each with a connection, that read chunks and hand over their rows."""

    def __init__(self, load: PostgresLoad, chunks: Sequence[Chunk]) -> None:
        self.load, self.count = load, min(thresholds.LOAD_READERS, os.cpu_count() or 1, len(chunks))
        self.chunks = iter(chunks)
        self.left = Counter(table.name for table, *_ in chunks)
        # None: a reader has ended.
        self.found: queue.Queue[Rows | BaseException | None] = queue.Queue(2 * thresholds.LOAD_READERS)
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self._run, daemon=True) for _ in range(self.count)]

    def rows(self) -> Iterator[Rows]:
        """Yield the rows of all chunks."""
        for thread in self.threads:
            thread.start()
        running = self.count
        while running:
            if self.load.stop.is_set():
                raise Stopped
            with contextlib.suppress(queue.Empty):
                found = self.found.get(timeout=0.2)
                if isinstance(found, BaseException):
                    raise found
                if found is None:
                    running -= 1
                else:
                    yield self.load.counted(found)

    def end(self) -> None:
        """End the threads."""
        self.ended.set()
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(thresholds.LIVE_CLOSE_SECONDS)

    def hand_over(self, found: Rows | BaseException | None) -> None:
        """Hand something over, unless nobody waits for it any more."""
        while not self.ended.is_set():
            with contextlib.suppress(queue.Full):
                self.found.put(found, timeout=0.2)
                return

    def _run(self) -> None:
        import psycopg2

        spec = self.load.spec
        try:
            connection = connect(spec)
            try:
                asking(connection)(_SETTINGS)
                while not self.ended.is_set() and (chunk := self._next()):
                    self._read(connection, chunk)
            finally:
                connection.close()
            self.hand_over(None)
        except psycopg2.Error as e:
            text = " ".join(str(e).split())
            self.hand_over(SourceUnavailableError(f"{spec.where}: rows cannot be read ({text}). They are read again"))
        except BaseException as e:  # it is raised where the rows are wanted
            self.hand_over(e)

    def _next(self) -> Chunk | None:
        with self.lock:
            return next(self.chunks, None)

    def _read(self, connection: Any, chunk: Chunk) -> None:
        """Read a chunk in a transaction of its own, so that no lock is held for longer."""
        table, part, first, end = chunk
        ask = asking(connection)
        ask("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        ask(f"SET TRANSACTION SNAPSHOT '{self.load.snapshot}'")
        sink = _Sink(self, table)
        with connection.cursor() as cursor:
            cursor.copy_expert(table.statement(part, first or None, end), sink)
        ask("COMMIT")
        sink.flush()
        with self.lock:
            self.left[table.name] -= 1
            is_last = not self.left[table.name]
        if is_last:
            self.hand_over(self.load.texts(table).end())


class _Sink:
    """Takes the lines of a COPY, and hands them over in batches."""

    def __init__(self, readers: _Readers, table: LoadedTable) -> None:
        self.readers, self.table = readers, table
        self.lines: list[bytes] = []
        self.size = 0

    def write(self, line: bytes) -> None:
        """Take a line."""
        self.lines.append(line)
        self.size += len(line)
        if self.size >= thresholds.LOAD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand over the lines that have come."""
        if self.readers.ended.is_set():
            raise Stopped
        if not self.lines:
            return
        text, self.lines, self.size = b"".join(self.lines), [], 0
        types = {"key": pa.string(), "row": pa.string()}
        read = pacsv.read_csv(
            pa.py_buffer(text),
            read_options=pacsv.ReadOptions(column_names=["key", "row"], use_threads=False, block_size=len(text) + 1),
            parse_options=pacsv.ParseOptions(delimiter=DELIMITER, quote_char=False, double_quote=False),
            convert_options=pacsv.ConvertOptions(column_types=types, strings_can_be_null=False),
        )
        keys, rows = (read[c].combine_chunks() for c in ("key", "row"))
        self.readers.hand_over(self.readers.load.texts(self.table).rows(keys, rows))


@contextlib.contextmanager
def postgres_load(
    spec: PostgresSpec, tables: Sequence[tuple[str, str]], prefix: str, stop: threading.Event
) -> Generator[PostgresLoad | None]:
    """Make a new replication slot, and yield the rows as of its beginning; None: Debezium is to read all rows.

    Args:
        tables: schema and name of each.
        prefix: of the names of topics.

    Raises:
        SourceError, SourceUnavailableError: the server does not answer, or refuses a slot.
    """
    import psycopg2
    from psycopg2.extras import LogicalReplicationConnection

    with connected(spec) as ask:
        found = _loaded(ask, tables)
        if not found:
            yield None
            return
        # Nothing of it has landed, so nobody needs what it keeps.
        drop_slot(ask, spec.slot)
    limit = f"-c lock_timeout={thresholds.LIVE_SLOT_SECONDS}s"
    exporter = connect(spec, connection_factory=LogicalReplicationConnection, options=limit)
    try:
        with exporter.cursor() as cursor:
            try:
                cursor.execute(f'CREATE_REPLICATION_SLOT "{spec.slot}" LOGICAL pgoutput')
                _, place, snapshot, _ = cursor.fetchone()
            except psycopg2.Error as e:
                with connected(spec) as ask:
                    why = what_slot_waits_for(ask) or f"no replication slot can be made: {' '.join(str(e).split())}"
                raise SourceUnavailableError(f"{spec.where}: {why}") from e
        with connected(spec) as ask:
            ((lsn, micros, transaction),) = ask(
                "SELECT pg_wal_lsn_diff(%s, '0/0')::bigint, (extract(epoch FROM now()) * 1000000)::bigint, "
                "mod(txid_snapshot_xmin(txid_current_snapshot()), 4294967296)",
                place,
            )
        yield PostgresLoad(
            spec, found, prefix, stop, snapshot=snapshot, lsn=lsn, micros=micros, transaction=transaction
        )
    finally:
        exporter.close()


def _loaded(ask: Ask, tables: Sequence[tuple[str, str]]) -> list[LoadedTable]:
    ((version, in_recovery),) = ask("SELECT current_setting('server_version_num')::int, pg_is_in_recovery()")
    if version < LEAST_VERSION or in_recovery:
        return []
    found = [(name, loaded_table(ask, *name)) for name in tables]
    if left := [".".join(name) for name, table in found if table is None]:
        log.info("Debezium reads the rows of %s, which have columns of rare types", ", ".join(left))
    return [table for _, table in found if table]
