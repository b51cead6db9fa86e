"""Connections to Postgres, and what an error of theirs means."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

from lake_assets.errors import SourceError, SourceUnavailableError
from lake_assets.sources.debezium_java import require
from lake_assets.sources.live_specs import PostgresSpec

Ask = Callable[..., list[tuple[Any, ...]]]
"""Runs a statement with values, and returns its rows."""


def connect(spec: PostgresSpec, **more: Any) -> Any:
    """Return a connection of `psycopg2` that commits each statement.

    Args:
        more: further parameters of the connection.

    Raises:
        SourceError: the server does not accept the user.
        SourceUnavailableError: it does not answer.
    """
    require("postgres", "psycopg2")
    import psycopg2

    try:
        connection = psycopg2.connect(
            host=spec.host,
            port=spec.port,
            dbname=spec.database,
            user=spec.user,
            password=spec.password or None,
            sslmode=spec.sslmode,
            connect_timeout=10,
            application_name="lake_assets",
            **more,
        )
    except psycopg2.OperationalError as e:
        text = " ".join(str(e).split())
        if "password" in text or "authentication" in text:
            raise SourceError(
                f"{spec.where} refuses user {spec.user}: {text}. The password comes from the environment variable "
                f"{spec.password_from}, which is {'set' if spec.password else 'not set'}"
            ) from e
        raise SourceUnavailableError(f"{spec.where} does not answer: {text}") from e
    if not more:  # one for replication is in that mode, and cannot be told so
        connection.autocommit = True
    return connection


def asking(connection: Any) -> Ask:
    """Return a function that runs statements of a connection."""

    def ask(statement: str, *values: object) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    return ask


@contextlib.contextmanager
def connected(spec: PostgresSpec) -> Generator[Ask]:
    """Yield a function that runs a statement and returns its rows.

    Raises:
        SourceError, SourceUnavailableError: see `connect`.
    """
    connection = connect(spec)
    import psycopg2

    try:
        yield asking(connection)
    except psycopg2.Error as e:  # it has ended the connection, is a standby, ...
        raise SourceUnavailableError(f"{spec.where} does not answer: {' '.join(str(e).split())}") from e
    finally:
        connection.close()


def drop_slot(ask: Ask, slot: str) -> None:
    """Drop a replication slot that is there, and that nobody reads."""
    ask(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s AND NOT active", slot
    )


def quoted(*names: str) -> str:
    """Return names as an identifier: "schema"."table"."""
    return ".".join('"' + n.replace('"', '""') + '"' for n in names)
