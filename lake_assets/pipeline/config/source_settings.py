"""Where the records of a stream come from, if not from files: a table, or a server that is read live."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from pydantic import Field, field_validator

from lake_assets.lake import thresholds
from lake_assets.pipeline.config.kafka_settings import KafkaSettings
from lake_assets.pipeline.config.live_settings import Environment, LiveSettings
from lake_assets.pipeline.config.setting_types import ColumnName, Columns, Duration, Strict, TableName, combination

# Set by the product itself: another value would lose changes, or repeat them.
_RESERVED = re.compile(
    r"name|topic\.prefix|connector\.class|database\..*|offset\..*|slot\..*|publication\..*|table\.include\.list|"
    r"schema\.history\.(?!internal\.skip\.unparseable\.ddl$).*|snapshot\.mode|tombstones\.on\.delete|notification\..*|signal\..*|max\.batch\.size"
)


class DatabaseSettings(LiveSettings):
    """Settings of a database that Debezium reads."""

    host: str = Field(default="127.0.0.1", description="name or address of the server", min_length=1)
    database: str = Field(description="name of the database", min_length=1)
    user: str = Field(description="role that reads; `lake-assets doctor` says what it may lack", min_length=1)
    password: Environment | None = Field(
        default=None, description="{env: NAME}: the environment variable with the password"
    )
    snapshot: Literal["initial", "none"] = Field(
        default="initial", description="read all rows at the first start, or only what changes from then on"
    )
    on_gap: Literal["stop", "snapshot"] = Field(
        default="stop",
        description="if the server no longer has changes that were not read: stop, or read all rows again and go on",
    )
    heartbeat: Duration = Field(
        default=thresholds.LIVE_HEARTBEAT_SECONDS, description="time between two signs of life of a quiet database"
    )
    properties: dict[str, str] = Field(default_factory=dict, description="more settings for Debezium's connector")

    @field_validator("password", mode="before")
    @classmethod
    def _no_secret(cls, value: object) -> object:
        if isinstance(value, str):
            raise ValueError("a password does not belong in a file: write {env: NAME} and set the variable NAME")
        return value

    @field_validator("properties")
    @classmethod
    def _free(cls, value: dict[str, str]) -> dict[str, str]:
        if reserved := [n for n in value if _RESERVED.fullmatch(n)]:
            raise ValueError(f"{', '.join(reserved)}: set by lake_assets itself")
        return value


class PostgresSettings(DatabaseSettings):
    """A Postgres database, whose changes are read from its log."""

    port: int = Field(default=5432, description="port of the server", gt=0, lt=65536)
    slot: str | None = Field(
        default=None,
        description="name of the replication slot; default: lake_assets_<pipeline>_<stream>",
        pattern=r"^[a-z0-9_]{1,63}$",
    )
    publication: str | None = Field(
        default=None,
        description="name of the publication, which is created if it is missing; default: as the slot",
        pattern=r'^[^"]{1,63}$',
    )
    sslmode: Literal["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] = Field(
        default="prefer", description="as in libpq"
    )


class MysqlSettings(DatabaseSettings):
    """A MariaDB or MySQL server, whose changes are read from its binary log."""

    port: int = Field(default=3306, description="port of the server", gt=0, lt=65536)
    database: str = Field(
        default="", description="where the patterns of `tables` find tables; default: in all databases"
    )
    server_id: int | None = Field(
        default=None,
        description="number under which the server knows the reader, unlike those of its replicas; default: a large "
        "one, made from the names of pipeline and stream",
        gt=0,
        lt=2**32,
    )
    sslmode: Literal["disable", "prefer", "require"] = Field(
        default="prefer", description="whether the connection is encrypted"
    )


# By the names of the settings. Servers of MariaDB and MySQL need different connectors.
_SERVERS = ("postgres", "mariadb", "mysql", "kafka")


class StreamSource(Strict):
    """Where records come from, instead of a folder: exactly one of `table`, `postgres`, `mariadb`, `mysql`, `kafka`."""

    table: TableName | None = Field(
        default=None, description="an Iceberg table to which another system appends: namespace.table in the catalog"
    )
    value: ColumnName = Field(default="value", description="table: column with the record, as text or bytes")
    key: ColumnName | None = Field(default=None, description="table: column with the record's key, if it is separate")
    order: Columns = Field(
        default_factory=list,
        description="table: columns that order the records of one snapshot, for example [partition, offset]; default: "
        "as stored",
    )
    on_gap: Literal["stop", "append"] = Field(
        default="stop",
        description="table: if the snapshot that was landed last has expired or was rolled back: stop, or append the "
        "records that the raw table lacks and continue with the current snapshot",
    )
    on_replaced: Literal["stop", "append"] = Field(
        default="stop", description="table: like on_gap, if the table was dropped and created again"
    )
    postgres: PostgresSettings | None = Field(
        default=None, description="a Postgres database, whose changes `lake-assets serve` reads live"
    )
    kafka: KafkaSettings | None = Field(
        default=None, description="topics of Kafka, whose records `lake-assets serve` reads live"
    )

    mariadb: MysqlSettings | None = Field(
        default=None, description="a MariaDB server, whose changes `lake-assets serve` reads live"
    )
    mysql: MysqlSettings | None = Field(
        default=None, description="a MySQL server, whose changes `lake-assets serve` reads live"
    )

    @property
    def live(self) -> PostgresSettings | MysqlSettings | KafkaSettings | None:
        """The server that is read live; None: a table."""
        return self.postgres or self.mariadb or self.mysql or self.kafka

    @property
    def live_name(self) -> str:
        """The setting of the server that is read live; empty: a table."""
        return next((n for n in _SERVERS if getattr(self, n) is not None), "")

    @combination
    def _one(self) -> Iterator[str]:
        servers = [n for n in _SERVERS if getattr(self, n) is not None]
        named = [*(["table"] if self.table else []), *servers]
        if len(named) != 1:
            any_of = f"`table`, `{'`, `'.join(_SERVERS)}`"
            yield f"set exactly one of {any_of}; there is {' and '.join(named) or 'none'}"
        of_table = {"value", "key", "order", "on_gap", "on_replaced"} & self.model_fields_set
        if not self.table and servers and of_table:
            yield f"`{'`, `'.join(sorted(of_table))}` {'is' if len(of_table) == 1 else 'are'} for `table`"
