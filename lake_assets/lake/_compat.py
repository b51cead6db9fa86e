"""Private APIs of PySpark and PyIceberg that nothing public replaces; `tests/lake/test_compat.py` checks them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Generator
from typing import Any

from py4j.java_gateway import JavaClass, JavaMember
from pyiceberg.catalog import rest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
from pyiceberg.typedef import Identifier
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from requests import HTTPError


@contextlib.contextmanager
def active_session(session: SparkSession) -> Generator[None]:
    """Make a Spark Connect session the active one of this thread within the context; do nothing for a local session.

    PySpark binds the frame that a checkpoint returns to the thread's active session, or else to the first session of
    the process, instead of the session that made the checkpoint. Reading the frame then fails with "No DataFrame with
    id", and its rows stay on the server, since the request to remove them goes to the wrong session too.
    """
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    if not isinstance(session, ConnectSession):
        yield
        return
    active = ConnectSession._active_session  # pyright: ignore[reportPrivateUsage]
    before = getattr(active, "session", None)
    active.session = session
    try:
        yield
    finally:
        active.session = before


def remember_java_functions(session: SparkSession) -> None:
    """Keep the Java classes and methods that PySpark calls for each column; do nothing for Spark Connect.

    With each call of `functions.col`, `select` and the like, PySpark asks the JVM for the class, which it looks for in
    all packages and jars, and for the method: both take longer than the call.
    """
    jvm = getattr(session, "_jvm", None)
    if jvm is None or isinstance(vars(jvm).get("functions"), _RememberedClass):
        return
    for name in ("functions", "PythonUtils", "org.apache.spark.sql.functions"):
        found = getattr(jvm, name)
        setattr(jvm, name, _RememberedClass(found._fqn, found._gateway_client))


def silence_query_errors() -> None:
    """Keep PySpark from printing each error of a query as JSON, with the stack of the JVM: it raises the error as well.

    Steps report it in a sentence, so that the one who mistyped a name need not look for it in 20 kB of JSON.
    """
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def write_no_checksums(session: SparkSession) -> None:
    """Keep the driver from writing a checksum file beside each local file; do nothing for Spark Connect.

    Nobody reads them: Parquet, Avro and Puffin have checksums, or lengths, of their own. Hadoop has no setting for it.
    """
    context = getattr(session, "_jsc", None)
    jvm = getattr(session, "_jvm", None)
    if context is not None and jvm is not None:
        jvm.org.apache.hadoop.fs.FileSystem.getLocal(context.hadoopConfiguration()).setWriteChecksum(False)


# Py4j computes `__doc__`.
class _RememberedClass(JavaClass):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A Java class that asks for each of its static methods once."""

    def __getattr__(self, name: str) -> Any:
        member = super().__getattr__(name)
        if isinstance(member, JavaMember):
            self.__dict__[name] = member
        return member


def has_local_spark() -> bool:
    """Whether this process has started a local Spark."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None  # pyright: ignore[reportPrivateUsage]


def has_connect_mode() -> bool:
    """Whether PySpark's functions build columns for Spark Connect, as they do after the first Connect session."""
    return "SPARK_CONNECT_MODE_ENABLED" in os.environ


def serves(catalog: rest.RestCatalog, method: str, path: str) -> bool:
    """Whether a REST catalog lists an endpoint (a path below its prefix) among the ones that it has."""
    endpoint = rest.Endpoint(http_method=rest.HttpMethod(method), path=f"{rest.API_PREFIX}/{path}")
    return endpoint in catalog._supported_endpoints  # pyright: ignore[reportPrivateUsage]


def post_commit(catalog: rest.RestCatalog, path: str, table: Identifier, body: dict[str, Any]) -> None:
    """Send a commit to a REST catalog, with the session and the login of PyIceberg.

    PyIceberg's own `commit_table` takes its own models of updates, which lack the fields of format version 3, and it
    has none for commits of several tables.

    Args:
        path: the endpoint's path below the catalog's prefix; `{namespace}` and `{table}` are filled in.
        table: the table that is filled in; empty: none.

    Raises:
        CommitFailedException: a requirement is not met.
        CommitStateUnknownException: the server does not know whether it made the commit.
        NoSuchTableError: the table, or one of the tables, does not exist.
        RESTError: the server refuses the request, or fails.
        requests.RequestException: no answer came.
    """
    parts = catalog._split_identifier_for_path(table) if table else {}  # pyright: ignore[reportPrivateUsage]
    session = catalog._session  # pyright: ignore[reportPrivateUsage]
    response = session.post(catalog.url(path, **parts), data=json.dumps(body).encode())
    named: dict[int, type[Exception]] = {404: NoSuchTableError, 409: CommitFailedException}
    named |= dict.fromkeys((500, 502, 503, 504), CommitStateUnknownException)
    try:
        response.raise_for_status()
    except HTTPError as error:
        rest._handle_non_200_response(error, named)  # pyright: ignore
