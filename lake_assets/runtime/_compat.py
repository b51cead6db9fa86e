"""Private APIs of PySpark that start, adopt and give up a JVM; `tests/runtime/test_runtime_compat.py` checks them."""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

_context: Any = SparkContext
_sessions: Any = SparkSession


def gateway() -> Any:
    """Return the gateway to this process's JVM, or None."""
    return _context._gateway


def start_gateway() -> None:
    """Start a JVM as `PYSPARK_SUBMIT_ARGS` says, without a SparkContext."""
    _context._ensure_initialized()


def forget_gateway() -> None:
    """Let PySpark start or adopt another JVM: it keeps its first one, even if that has ended."""
    _context._gateway = _context._jvm = None


def make_default(session: Any) -> None:
    """Make a session the one that `SparkSession.builder.getOrCreate()` returns in this process."""
    gateway().jvm.org.apache.spark.sql.classic.SparkSession.setDefaultSession(session._jsparkSession)
    _sessions._instantiatedSession = session


def java_catalogs(session: Any) -> list[Any]:
    """Return the catalogs that a session has opened, as Java objects."""
    manager = session._jsparkSession.sessionState().catalogManager()
    names = manager.listCatalogs(gateway().jvm.scala.Option.empty())
    return [manager.catalog(names.apply(n)) for n in range(names.size())]


def bindings(of: Any) -> Any:
    """Return the server side of a gateway, whose bindings are the Java objects that Python references."""
    from py4j.java_gateway import JavaObject

    server: Any = JavaObject("GATEWAY_SERVER", of._gateway_client)
    return server.getGateway().getBindings().keySet()


def java_id(of: Any) -> str:
    """Return the name under which a Java object is bound."""
    return of._target_id
