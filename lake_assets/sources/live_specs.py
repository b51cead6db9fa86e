"""Declared live sources, as plain values; secrets are named, not held."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from lake_assets.lake import thresholds
from lake_assets.sources.kafka_spec import KafkaSpec


@dataclass(frozen=True)
class SourceTableSpec:
    """A declared table of a source.

    Attributes:
        name: schema.table, or a pattern.
        keys: the declared keys, as the source names their columns; empty: the source's own.
        by_row: whether rows have no key, so that the log must hold whole rows.
        appends: whether rows are only added to the table, so that a truncate of it is an error.
    """

    name: str
    keys: tuple[tuple[str, ...], ...] = ()
    by_row: bool = False
    appends: bool = False

    @property
    def is_pattern(self) -> bool:
        """Whether the name is a pattern."""
        return any(c in self.name for c in "*?[")


@dataclass(frozen=True)
class DatabaseSpec:
    """A declared database that Debezium reads.

    Attributes:
        password_from: the environment variable that holds the password.
        tables: the declared tables.
        exclude: tables and patterns to leave out.
        snapshot: whether the first start reads all rows, or only what changes from then on.
        on_gap: what to do if the server no longer has changes that were not read.
        rows: how many records one commit holds at most; None: the default.
        wait: seconds from one commit to the next, unless many changes wait.
        heartbeat: seconds between two signs of life of a quiet database.
        properties: more settings for Debezium.
    """

    host: str
    port: int
    database: str
    user: str
    password_from: str
    tables: tuple[SourceTableSpec, ...]
    exclude: tuple[str, ...] = ()
    snapshot: Literal["initial", "none"] = "initial"
    on_gap: Literal["stop", "snapshot"] = "stop"
    rows: int | None = None
    wait: float = thresholds.LIVE_COMMIT_SECONDS
    heartbeat: float = thresholds.LIVE_HEARTBEAT_SECONDS
    properties: tuple[tuple[str, str], ...] = ()

    @property
    def password(self) -> str:
        """The password, from the environment; empty: none is needed."""
        return os.environ.get(self.password_from, "")

    @property
    def gap_text(self) -> str:
        """What a gap loses, and what to do, if that is not declared."""
        advice = ""
        if self.on_gap == "stop":
            advice = " To read all rows again and go on, set `on_gap: snapshot` in the stream's `source`."
        return (
            f"Changes since the last landed one are lost.{advice} Final tables keep rows that were deleted meanwhile, "
            "and say so in `status`"
        )


@dataclass(frozen=True)
class PostgresSpec(DatabaseSpec):
    """A declared Postgres database.

    Attributes:
        slot: name of the replication slot, which belongs to this stream alone.
        publication: name of the publication, which is created if it is missing.
        sslmode: as libpq has it.
    """

    slot: str = ""
    publication: str = ""
    sslmode: str = "prefer"

    @property
    def where(self) -> str:
        """The database, for messages."""
        return f"Postgres {self.database} on {self.host}:{self.port}"


@dataclass(frozen=True)
class MysqlSpec(DatabaseSpec):
    """A declared MariaDB or MySQL server. `database`: where patterns find tables; empty: in all of its databases.

    Attributes:
        product: which of both.
        server_id: the number under which the reader registers as a replica, unique among the server's replicas.
        sslmode: whether the connection is encrypted.
    """

    product: Literal["mariadb", "mysql"] = "mariadb"
    server_id: int = 0
    sslmode: Literal["disable", "prefer", "require"] = "prefer"

    @property
    def title(self) -> str:
        """The product's name."""
        return "MariaDB" if self.product == "mariadb" else "MySQL"

    @property
    def where(self) -> str:
        """The server, for messages."""
        return f"{self.title} {self.database + ' ' if self.database else ''}on {self.host}:{self.port}"


LiveSpec = PostgresSpec | MysqlSpec | KafkaSpec
