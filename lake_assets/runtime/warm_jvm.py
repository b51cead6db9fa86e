"""Local Spark that outlives the process that started it, so that the next one does not wait for a cold JVM.

A separate process, the keeper (`python -m lake_assets.runtime.warm_jvm`), keeps a JVM and lends it to one process at a
time, over a socket in a folder that only its user can enter. A process that ends without returning the JVM (it was
killed, interrupted, or failed half-way) may have left jobs running in it, so the JVM ends too. An idle JVM ends after a
while, after a number of loans, when other settings are requested, and when its owner has ended.

The state of a loan is dropped before the next one: cached tables, connections to catalogs, and objects referenced by
Python. Each loan has its own Spark sessions.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import select
import socket
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lake_assets.errors import SparkUnavailableError
from lake_assets.runtime.jvm_folders import remove_own
from lake_assets.runtime.jvm_launch import start_jvm
from lake_assets.runtime.private_files import open_log
from lake_assets.runtime.processes import is_there

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0
# A keeper answers at once; one that does not is ending.
_ANSWER_SECONDS = 10.0
_READ_BY_JVMS = ("AWS_", "AZURE_", "GOOGLE_", "HADOOP_", "JAVA_", "SPARK_")
_ICEBERG_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
_GIVEN_BACK = b"given back"


@dataclass(frozen=True)
class KeeperSettings:
    """How JVMs are kept.

    Attributes:
        folder: folder of the keepers' sockets, accessible to its owner only.
        owner: identity of the process for which they are kept (`lake_assets.runtime.processes.identity`).
        idle_seconds: seconds after which an unused JVM ends.
        loans: number of loans before a JVM is replaced.
    """

    folder: str
    owner: Sequence[float]
    idle_seconds: float
    loans: int


class _Loan:
    """The JVM that this process has borrowed, and how JVMs are kept."""

    settings: KeeperSettings | None = None
    connection: socket.socket | None = None
    sessions: ClassVar[list[SparkSession]] = []


def keep(settings: KeeperSettings) -> None:
    """Use borrowed JVMs for the local sessions of this process from now on."""
    _Loan.settings = settings
    # A fork has borrowed nothing: with the connection it would hold the JVM after this process has ended.
    os.register_at_fork(after_in_child=_drop)


def _drop() -> None:
    if _Loan.connection is not None:
        _Loan.connection.close()


def is_kept() -> bool:
    """Whether local sessions of this process use borrowed JVMs."""
    return _Loan.settings is not None


def session(conf: Mapping[str, str], log: Path) -> SparkSession:
    """Return a new session in a borrowed JVM. A process borrows one JVM for all of its sessions.

    Args:
        conf: all settings; only a JVM that was started with the same settings is borrowed.

    Raises:
        SparkUnavailableError: the JVM did not start.
    """
    from pyspark.sql import SparkSession

    assert _Loan.settings is not None
    if _Loan.connection is None:
        _borrow(_Loan.settings, conf, log)
    _Loan.sessions.append(SparkSession.builder.getOrCreate().newSession())
    return _Loan.sessions[-1]


def give_back() -> None:
    """Return the borrowed JVM, if any. Nothing of this process may be running in it any more."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if _Loan.connection is None:
        return
    with contextlib.suppress(OSError, Py4JError, PySparkException):  # a JVM that is not returned properly ends
        for spark in _Loan.sessions:
            _close_catalogs(spark)
            # Cached tables belong to the JVM, not to the session: the next borrower would read stale rows.
            spark.catalog.clearCache()
            for (view,) in spark.sql("SHOW VIEWS IN global_temp").where("isTemporary").select("viewName").collect():
                spark.catalog.dropGlobalTempView(view)
        _Loan.connection.sendall(_GIVEN_BACK)
    _Loan.connection.close()
    _Loan.connection = None
    _Loan.sessions.clear()


def _close_catalogs(session: Any) -> None:
    """Close a session's connections to catalogs, which Spark leaves open."""
    from py4j.java_gateway import is_instance_of

    from lake_assets.runtime import _compat

    gateway = _compat.gateway()
    for catalog in _compat.java_catalogs(session):
        if is_instance_of(gateway, catalog, _ICEBERG_CATALOG) and is_instance_of(
            gateway, inner := catalog.icebergCatalog(), "java.io.Closeable"
        ):
            inner.close()


def _borrow(settings: KeeperSettings, conf: Mapping[str, str], log: Path) -> None:
    # A JVM keeps the environment it was started with, so other credentials need another JVM.
    environment = {k: v for k, v in os.environ.items() if k.startswith(_READ_BY_JVMS)}
    name = hashlib.sha256(json.dumps([sorted(conf.items()), sorted(environment.items())]).encode()).hexdigest()[:12]
    folder = Path(settings.folder)
    for path in sorted(folder.glob("*.sock")):
        mine = path.name.startswith(name)
        # Borrowing an idle JVM with other settings without returning it ends it, so idle JVMs do not pile up.
        if (lent := _ask(path)) and mine and _attach(*lent):
            return
    path = folder / f"{name}-{uuid.uuid4().hex[:8]}.sock"
    _start_keeper(settings, conf, path, log)
    if not ((lent := _ask(path)) and _attach(*lent)):
        raise SparkUnavailableError(f"Spark started, and ended at once. Its log is {log}")


def _ask(path: Path) -> tuple[socket.socket, int, str] | None:
    """Return the connection of a loan with the JVM's port and secret; None if it is lent, or its keeper has ended."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_ANSWER_SECONDS)
    try:
        connection.connect(str(path))
        with connection.makefile() as answers:
            answer = answers.readline()
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)  # its keeper was killed
        answer = ""
    except OSError:
        answer = ""
    if not answer:
        connection.close()
        return None
    loan = json.loads(answer)
    return connection, loan["port"], loan["secret"]


def _attach(connection: socket.socket, port: int, secret: str) -> bool:
    """Attach this process to the JVM; return False if it does not answer, which ends the loan."""
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    from lake_assets.runtime import _compat

    # PySpark reads these if a JVM exists before Python (`spark-submit` of a Python program).
    variables = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(variables)
    try:
        gateway = launch_gateway()
        jvm: Any = gateway.jvm
        context = jvm.JavaSparkContext.fromSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate())
        SparkContext(conf=SparkConf(_jvm=jvm, _jconf=context.sc().conf()), gateway=gateway, jsc=context)
        # `getOrCreate` must return this process's session too.
        own: Any = SparkSession.builder.getOrCreate().newSession()
        _compat.make_default(own)
    except (Py4JError, OSError):
        _log.warning("a borrowed JVM does not answer", exc_info=True)
        connection.close()
        _compat.forget_gateway()
        return False
    finally:
        for setting in variables:
            del os.environ[setting]
    _Loan.connection = connection
    return True


def _start_keeper(settings: KeeperSettings, conf: Mapping[str, str], path: Path, log: Path) -> None:
    """Start a keeper and wait until its JVM is up."""
    # It may have been removed meanwhile: by the last keeper of an ended owner, or by a cleanup of /tmp.
    path.parent.mkdir(0o700, exist_ok=True)
    if (stat := path.parent.stat()).st_uid != os.getuid() or stat.st_mode & 0o077:
        raise SparkUnavailableError(
            f"other users can access {path.parent}: JVMs are not kept there. Make it private (chmod 700), or remove it"
        )
    with open_log(log) as output:
        # Its own process group: Ctrl-C for the borrower must not reach a JVM that others will use.
        keeper = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, start_new_session=True,
        )  # fmt: skip
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    with keeper.stdin, keeper.stdout, contextlib.suppress(BrokenPipeError):
        keeper.stdin.write(json.dumps({"settings": asdict(settings), "conf": dict(conf), "path": str(path)}).encode())
        keeper.stdin.close()
        if keeper.stdout.read():
            return
    raise SparkUnavailableError(f"Spark did not start. Its log is {log}")


def main() -> None:
    """Keep one JVM. Reads settings as JSON from stdin, and writes to stdout once the JVM is up."""
    request = json.load(sys.stdin)
    # The parent reads to the end of stdout, so the JVM must not inherit it: its output goes to stderr.
    parent = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    settings, path = KeeperSettings(**request["settings"]), Path(request["path"])
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    from lake_assets.runtime import _compat

    logging.getLogger("py4j").setLevel(logging.ERROR)
    # Python workers would live on with old versions of the user's modules.
    conf = {"spark.python.worker.reuse": "false", **request["conf"]}
    gateway: Any = None
    server = socket.socket(socket.AF_UNIX)
    try:
        start_jvm(conf)
        # A session too, so that the first loan does not wait for one.
        SparkSession(SparkContext(conf=SparkConf().setAll(list(conf.items()))))
        gateway = _compat.gateway()
        server.bind(str(path))
        server.listen()
        with contextlib.suppress(BrokenPipeError), parent:  # the parent was killed: keep the JVM for the next
            parent.write("ready")
        _lend(server, gateway, settings)
    except Exception:
        # Write it to the log: os._exit below skips everything else.
        traceback.print_exc()
    finally:
        path.unlink(missing_ok=True)
        server.close()
        if gateway is not None:
            gateway.proc.kill()
            gateway.proc.wait()
        # The killed JVM cannot remove its own files.
        remove_own()
        if not is_there(settings.owner):
            with contextlib.suppress(OSError):  # other keepers still use it
                path.parent.rmdir()
        os._exit(0)


def _lend(server: socket.socket, gateway: Any, settings: KeeperSettings) -> None:
    """Lend the JVM until it has to end."""
    parameters = gateway.gateway_parameters
    lent = (json.dumps({"port": parameters.port, "secret": parameters.auth_token}) + "\n").encode()
    borrower: socket.socket | None = None
    loans, idle_since = 0, time.monotonic()
    own = _bound(gateway)
    while gateway.proc.poll() is None:
        ready, _, _ = select.select([server, *([borrower] if borrower else [])], [], [], _LOOK_SECONDS)
        if borrower is not None and borrower in ready:
            if _received(borrower) != _GIVEN_BACK or loans >= settings.loans:
                return
            borrower.close()
            borrower, idle_since = None, time.monotonic()
            # A Python process does not release its Java objects when it ends.
            _bound(gateway, keep=own)
        if server in ready:
            peer, _ = server.accept()
            if borrower is None and _sent(peer, lent):
                borrower, loans = peer, loans + 1
            else:
                peer.close()
        idle = time.monotonic() - idle_since
        if borrower is None and (idle > settings.idle_seconds or not is_there(settings.owner)):
            return


def _received(peer: socket.socket) -> bytes:
    try:
        return peer.recv(len(_GIVEN_BACK))
    except OSError:
        return b""


def _sent(peer: socket.socket, what: bytes) -> bool:
    try:
        peer.sendall(what)
    except OSError:
        return False
    return True


def _bound(gateway: Any, keep: Any = None) -> Any:
    """Return the names of the Java objects that Python references, as a Java set.

    Args:
        keep: the objects to keep; all others are dropped.
    """
    from lake_assets.runtime import _compat

    names = _compat.bindings(gateway)
    if keep is not None:
        names.retainAll(keep)
        return keep
    objects = gateway.jvm.java.util.HashSet(names)
    objects.add(_compat.java_id(objects))
    return objects


if __name__ == "__main__":
    main()
