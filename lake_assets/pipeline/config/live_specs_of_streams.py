"""Declared live sources as plain values."""

from __future__ import annotations

import zlib

from lake_assets.pipeline.config.kafka_settings import KafkaSettings
from lake_assets.pipeline.config.pipeline_config import Stream
from lake_assets.pipeline.config.setting_types import seconds_of
from lake_assets.pipeline.config.source_settings import MysqlSettings, PostgresSettings
from lake_assets.pipeline.config.stream_tables import StreamTable
from lake_assets.sources.live_specs import DatabaseSpec, LiveSpec, MysqlSpec, PostgresSpec, SourceTableSpec


def live_spec(pipeline: str, stream: Stream) -> LiveSpec | None:
    """Return the live source of a stream; None if it has none."""
    settings = stream.source.live if stream.source else None
    match settings:
        case PostgresSettings():
            slot = settings.slot or f"lake_assets_{pipeline}_{stream.name}".lower()[:63]
            return PostgresSpec(
                **vars(_database(stream, settings, "PGPASSWORD")),
                slot=slot,
                publication=settings.publication or slot,
                sslmode=settings.sslmode,
            )
        case MysqlSettings():
            # Replicas are usually given small numbers.
            own = 1 << 30 | zlib.crc32(f"{pipeline}.{stream.name}".encode()) >> 2
            return MysqlSpec(
                **vars(_database(stream, settings, "MYSQL_PWD")),
                product="mariadb" if stream.source and stream.source.mariadb else "mysql",
                server_id=settings.server_id or own,
                sslmode=settings.sslmode,
            )
        case KafkaSettings():
            return settings.spec(f"lake_assets.{pipeline}.{stream.name}", stream.format, stream.max_rows)
        case None:
            return None


def _database(stream: Stream, settings: PostgresSettings | MysqlSettings, password: str) -> DatabaseSpec:
    """Return what every database is declared with; `password`: the usual environment variable of its password."""
    return DatabaseSpec(
        host=settings.host,
        port=settings.port,
        database=settings.database,
        user=settings.user,
        password_from=settings.password.env if settings.password else password,
        tables=tuple(_table(t) for t in stream.tables),
        exclude=tuple(stream.exclude),
        snapshot=settings.snapshot,
        on_gap=settings.on_gap,
        rows=stream.max_rows,
        wait=seconds_of(settings.max_wait),
        heartbeat=seconds_of(settings.heartbeat),
        properties=tuple(sorted(settings.properties.items())),
    )


def _table(table: StreamTable) -> SourceTableSpec:
    names = table.key
    by_row = names == ["*"]
    keys = [k if isinstance(k, list) else [k] for k in names] if names and isinstance(names[0], list) else [names]
    # Names in the source, not in the lake.
    old = {new: name for name, new in table.rename.items()}
    declared = tuple(tuple(old.get(str(c), str(c)) for c in k) for k in keys if k)
    return SourceTableSpec(table.table, () if by_row else declared, by_row, table.mode == "append")
