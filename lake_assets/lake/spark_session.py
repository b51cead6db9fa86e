"""The Spark session of a lake: local or through Spark Connect, always with the lake's catalog."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Generator, Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlparse

from lake_assets.errors import ConfigError, SparkUnavailableError
from lake_assets.lake import caching_catalog
from lake_assets.lake.config import AWS_BUNDLE, ICEBERG_RUNTIME, POSTGRES_JDBC, SQLITE_JDBC, LakeConfig
from lake_assets.lake.connect_sessions import ends_with_process
from lake_assets.lake.redaction import hide_in
from lake_assets.runtime.class_archive import archive_options
from lake_assets.runtime.connect_tokens import with_token
from lake_assets.runtime.jars import resolve
from lake_assets.runtime.java import jvm_variables
from lake_assets.runtime.jvm_launch import start_jvm
from lake_assets.runtime.private_files import open_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"

# How queries of a JVM run that the product starts, unless a lake's configuration says otherwise.
DEFAULTS = {
    "spark.sql.shuffle.partitions": "8",
    # Shuffled rows are spread over all cores, but not so thinly that each task writes a tiny file.
    "spark.sql.adaptive.coalescePartitions.minPartitionSize": "4MB",
    # If each partition of one side of a join is small, it is hashed, and the other side not sorted.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16MB",
    "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "16MB",
    # What is broadcast, several times in each query, is mostly small, and Spark allocates a block of this size for it.
    "spark.broadcast.blockSize": "256k",
    # Otherwise PySpark looks up the caller of each of its functions, which takes longer than most of them.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Compiled queries: each table has several, and Spark's default keeps only 100.
    "spark.sql.codegen.cache.maxEntries": "2000",
}

_LOCAL_MASTER = re.compile(r"local(\[.*\])?")
# PySpark sets it in the programs that spark-submit runs.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"

# PyIceberg's catalog properties and their names in Iceberg's Java catalogs.
_JAVA_NAMES = {
    "s3.endpoint": "s3.endpoint",
    "s3.access-key-id": "s3.access-key-id",
    "s3.secret-access-key": "s3.secret-access-key",
    "s3.session-token": "s3.session-token",
    "s3.region": "client.region",
    "client.region": "client.region",
    "client.access-key-id": "s3.access-key-id",
    "client.secret-access-key": "s3.secret-access-key",
    "client.session-token": "s3.session-token",
}
# Chooses the class that reads and writes a file by the scheme of its location. REST and Glue catalogs do so by default.
_ANY_STORE = "org.apache.iceberg.io.ResolvingFileIO"
_S3 = ("s3", "s3a", "s3n")


def packages(config: LakeConfig) -> list[str]:
    """Return the Maven coordinates of the jars that a local session (or a Connect server) of this lake needs."""
    uri = config.catalog.get("uri", "")
    # Beside a server, backfills have a catalog of their own in a SQLite file.
    jdbc = [POSTGRES_JDBC] if uri.startswith("postgres") else [SQLITE_JDBC]
    in_s3 = config.scheme in _S3 or config.kind == "glue" or any(name.startswith("s3.") for name in config.catalog)
    return [ICEBERG_RUNTIME, *jdbc, *([AWS_BUNDLE] if in_s3 else []), *config.spark.packages]


def catalog_conf(config: LakeConfig) -> dict[str, str]:
    """Return the session settings that register the lake's catalog in Spark.

    All are runtime settings, so a session of any Spark Connect server with the Iceberg jar accepts them.

    Raises:
        ConfigError: Spark has no counterpart of PyIceberg's catalog type.
    """
    properties = config.catalog
    kind = config.kind
    conf = {"warehouse": config.warehouse} if config.warehouse else {}
    match kind:
        case "sql":
            conf |= {"type": "jdbc", "jdbc.schema-version": "V1", **_jdbc(properties.get("uri", ""))}
        case "rest" | "hive" | "glue":
            conf |= {
                "type": kind,
                **{name: value for name, value in properties.items() if name not in _JAVA_NAMES and name != "type"},
            }
        case _:
            raise ConfigError(
                f"catalog type {kind!r} is not supported by both PyIceberg and Spark: use sql, rest, hive or glue"
            )
    conf |= _store_conf(config, kind)
    # Otherwise Spark would keep a table's first version, and not see PyIceberg's commits.
    conf["cache-enabled"] = "false"
    prefix = f"spark.sql.catalog.{config.name}"
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{prefix}.{name}": value for name, value in conf.items()},
        "spark.sql.defaultCatalog": config.name,
        "spark.sql.session.timeZone": "UTC",
        # Otherwise Spark replaces ${...} anywhere in SQL, including names and values that come from data.
        "spark.sql.variable.substitute": "false",
        # Times in change streams range from 4713 BC to 294276 AD in the proleptic calendar, as in Postgres.
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    }


def _store_conf(config: LakeConfig, kind: str) -> dict[str, str]:
    """Return the settings of the object store that tables are in, as Iceberg's Java classes name them."""
    options = config.catalog_properties
    conf = {_JAVA_NAMES[name]: value for name, value in options.items() if name in _JAVA_NAMES}
    if kind in ("sql", "hive") and config.scheme not in ("", "file", "hdfs"):
        conf = {"io-impl": _ANY_STORE, **conf}
    # Names of buckets are part of the host at AWS only. PyIceberg has it so by default.
    if "s3.endpoint" in conf and options.get("s3.force-virtual-addressing", "false").lower() != "true":
        conf["s3.path-style-access"] = "true"
    return conf


# Parameters of libpq's URIs that Postgres's JDBC driver has too, by its names. Files are read by both.
_OF_LIBPQ = {
    **{name: name for name in ("sslmode", "sslrootcert", "sslcert", "sslkey", "options")},
    "application_name": "ApplicationName",
    "connect_timeout": "connectTimeout",
}


def _jdbc(uri: str) -> dict[str, str]:
    parsed = urlparse(uri)
    if parsed.scheme.startswith("sqlite"):
        path = uri.split(":///", 1)[1].split("?")[0]
        # PyIceberg and Spark wait for each other's locks. The journal mode is a property of the file.
        return {"uri": f"jdbc:sqlite:{path}", "jdbc.busy_timeout": f"{caching_catalog.LOCK_SECONDS * 1000:.0f}"}
    if parsed.scheme.startswith("postgresql"):
        conf = {"uri": f"jdbc:postgresql://{parsed.hostname}:{parsed.port or 5432}{parsed.path}"}
        if parsed.username:
            conf["jdbc.user"] = unquote(parsed.username)
        if parsed.password:
            conf["jdbc.password"] = unquote(parsed.password)
        parameters = dict(parse_qsl(parsed.query))
        return conf | {f"jdbc.{_OF_LIBPQ[name]}": value for name, value in parameters.items() if name in _OF_LIBPQ}
    raise ConfigError(f"catalog uri {hide_in(uri)!r}: Spark can share a sql catalog only in sqlite or postgresql")


def session_conf(config: LakeConfig) -> dict[str, str]:
    """Return all settings of a session of this lake, for SparkSession.builder or Dagster's PySparkResource.

    Resolves the jars if the session is local.
    """
    if config.spark.remote:
        return {"spark.remote": config.spark.remote, **catalog_conf(config), **config.spark.conf}
    return {
        "spark.app.name": "lake_assets",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(config.home / "spark-warehouse"),
        **jvm_conf(config),
        **catalog_conf(config),
        **config.spark.conf,
    }


def jvm_conf(config: LakeConfig) -> dict[str, str]:
    """Return the settings of a JVM that serves a lake, locally or as a Spark Connect server; resolves the jars."""
    jars = resolve(packages(config))
    return {
        "spark.master": config.spark.master,
        "spark.driver.memory": config.spark.driver_memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.defaultJavaOptions": " ".join(filter(None, [java_options(config), archive_options(jars)])),
        "spark.jars": ",".join(str(p) for p in jars),
        "spark.sql.extensions": EXTENSIONS,
        "spark.ui.enabled": "false",
        **DEFAULTS,
        **authentication(config),
    }


def authentication(config: LakeConfig) -> dict[str, str]:
    """Return the settings that protect the internal ports of a local JVM with a secret that Spark generates.

    Without them every user of the machine could send it Java objects and read its cached data. On a cluster, the secret
    has to be distributed, so setting it up is left to the cluster's administrator.
    """
    master = config.spark.conf.get("spark.master", config.spark.master)
    return {"spark.authenticate": "true"} if _LOCAL_MASTER.fullmatch(master) else {}


def java_options(config: LakeConfig) -> str:
    """Return the options of a JVM that serves a lake; a user's `extraJavaOptions` come later and override them."""
    options = [f"-Dlog4j2.configurationFile={log4j_file()}"]
    if urlparse(config.warehouse or "").scheme in ("", "file"):
        # Iceberg reads manifests in worker threads and polls every 10 ms for their end, several times per table. That
        # pays off if opening a file takes as long, but not on a local disk.
        options.append("-Diceberg.scan.plan-in-worker-pool=false")
    return " ".join(options)


def log4j_file() -> str:
    """Return the path of the logging settings: warnings and errors, to stderr."""
    with as_file(files("lake_assets.lake") / "log4j2.properties") as path:
        return str(path)


def open_session(config: LakeConfig) -> SparkSession:
    """Open a session with this lake's own catalog settings.

    Sessions of one process share one JVM (or one Connect server): settings that are fixed at its start, such as
    `spark.driver.memory`, keep the values of the first session.

    Raises:
        SparkUnavailableError: the JVM did not start, or no server answers at `spark.remote`.
        JavaNotFoundError: a local session needs Java 17 or 21.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    conf = session_conf(config)
    remote = conf.pop("spark.remote", None)
    if remote:
        check_remote(remote)
        remote = with_token(remote)
    check_one_kind(remote)
    if not remote:
        check_spark_home()
        os.environ.update(jvm_variables())
    builder = SparkSession.builder
    builder = builder.remote(remote) if remote else builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    log = config.home / "logs" / "spark.log"
    try:
        if remote:
            session = ends_with_process(builder.create())
        else:
            with _stderr_to(log), _own_interrupts():
                start_jvm(conf)
                session = builder.getOrCreate().newSession()
    except (PySparkException, RuntimeError, OSError) as e:
        raise SparkUnavailableError(f"Spark did not start: {config.hidden(e)}. Its log is {log}") from e
    adopt_session(session, config, is_own=_SUBMITTED not in os.environ)
    if _SUBMITTED in os.environ and not remote:
        _check_jars(session, config, conf["spark.jars"])
    return session


def another_session(session: SparkSession, config: LakeConfig) -> SparkSession:
    """Open a second session on the Spark of a lake's session: on its JVM, or on its Connect server."""
    if not config.spark.remote:
        return session.newSession()
    from pyspark.sql import SparkSession

    # A client of Spark Connect cannot derive sessions: each is opened by its address.
    return ends_with_process(SparkSession.builder.remote(with_token(config.spark.remote)).create())


def _check_jars(session: SparkSession, config: LakeConfig, jars: str) -> None:
    """Raise SparkUnavailableError if spark-submit started the JVM without Iceberg: it is too late to add its jar."""
    try:
        session.sql(f"SHOW NAMESPACES IN {config.name}")
    except Exception as e:
        if "plugin class" not in str(e) and "ClassNotFound" not in str(e):
            raise
        raise SparkUnavailableError(
            f"spark-submit started this JVM without the jars of the lake: add `--jars {jars}` to its command"
        ) from e


@contextlib.contextmanager
def _own_interrupts() -> Generator[None]:
    """Restore this process's handler of Ctrl-C after the context.

    PySpark's handler calls the JVM while another call is in progress, which ends in a Py4JError.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def adopt_session(session: SparkSession, config: LakeConfig, *, is_own: bool = False) -> None:
    """Register the lake's catalog in a session with the Iceberg jar.

    Args:
        is_own: whether its JVM serves nobody else: then it writes no checksum files.
    """
    from lake_assets.lake._compat import remember_java_functions, silence_query_errors, write_no_checksums

    # Each step of a run does this, since other code may have changed, for example, the session's time zone.
    set_all(session, catalog_conf(config))
    remember_java_functions(session)
    silence_query_errors()
    if is_own:
        write_no_checksums(session)


# Before the name of a summary property that each commit of a session has.
SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."


def set_all(session: SparkSession, settings: Mapping[str, str]) -> None:
    """Apply settings to a session; over Spark Connect in one message instead of one per setting."""
    set_together = getattr(session.conf, "_set_all", None)
    if set_together and settings:
        set_together(dict(settings), silent=False)
        return
    for key, value in settings.items():
        session.conf.set(key, value)


def check_remote(remote: str) -> None:
    """Raise SparkUnavailableError if no server listens: Spark's own client would retry for ten minutes."""
    parsed = urlparse(remote)
    host, port = parsed.hostname or "", parsed.port or 15002
    if parsed.scheme != "sc" or not host:
        raise ConfigError(f"spark.remote {hide_in(remote)!r}: write sc://host:port, for example sc://127.0.0.1:15002")
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError as e:
        raise SparkUnavailableError(
            f"no Spark Connect server at {hide_in(remote)} ({e}): start one (`lake-assets spark-server`), "
            "or leave spark.remote out for a local session"
        ) from e


def check_spark_home() -> None:
    """Raise ConfigError if SPARK_HOME names a folder without Spark: a variable left over from another installation."""
    home = os.environ.get("SPARK_HOME")
    if home and not (Path(home) / "bin" / "spark-submit").is_file():
        raise ConfigError(
            f"the environment variable SPARK_HOME names {home}, which has no bin/spark-submit: unset it, since PySpark "
            "brings its own Spark"
        )


def check_one_kind(remote: str | None) -> None:
    """Raise ConfigError if this process already uses the other kind of Spark: PySpark supports one per process."""
    from lake_assets.lake import _compat

    if remote and _compat.has_local_spark():
        raise ConfigError(
            f"spark.remote is {hide_in(remote)}, and this process already runs a local Spark: PySpark cannot use "
            "both in one process. Open the two lakes in separate processes, or set spark.remote for both or for neither"
        )
    if not remote and _compat.has_connect_mode():
        raise ConfigError(
            "spark.remote is not set, and this process already uses Spark Connect (SPARK_CONNECT_MODE_ENABLED is set): "
            "PySpark cannot start a local Spark beside it. Open the two lakes in separate processes, or set "
            "spark.remote for both or for neither"
        )


@contextlib.contextmanager
def _stderr_to(log: Path) -> Generator[None]:
    """Redirect file descriptor 2 to `log` within the context: a JVM started there keeps it, away from the terminal."""
    sys.stderr.flush()
    saved = os.dup(2)
    file: IO[bytes]
    with open_log(log) as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
