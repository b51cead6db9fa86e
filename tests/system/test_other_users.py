"""What another user of the machine reaches and reads while everything is at work, as root can try in a child process."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from lake_assets import LakeConfig
from lake_assets.lake import SparkConfig, connect_server
from lake_assets.lake.spark_session import session_conf
from lake_assets.runtime.processes import identity
from tests.support.dagster_process import Dagster, dagster_dev, wait_for
from tests.support.processes import free_port, started

pytestmark = [
    pytest.mark.system,
    pytest.mark.long,
    pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can become another user"),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are looked at in /proc"),
]

NOBODY = 65534
PLANTED = "pl4nted-secret"
SECRETS = {"s3.secret-access-key": PLANTED}
SETTINGS = {"spark.hadoop.fs.s3a.secret.key": PLANTED}


@dataclass
class Everything:
    """What was started: Dagster as `make ui` does, a run's warm JVM, a Spark Connect server.

    Attributes:
        folder: that everybody may enter, as the machine's temporary folder and a home may be; all files are in it.
        processes: all that belong to it.
    """

    folder: Path
    dagster: Dagster
    connect: int
    processes: list[psutil.Process]

    def listeners(self) -> Iterator[tuple[psutil.Process, Any]]:
        """Sockets at which somebody can connect."""
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                for c in process.net_connections("all"):
                    if c.status == psutil.CONN_LISTEN or (c.family == socket.AF_UNIX and c.laddr):
                        yield process, c


@pytest.fixture(scope="module")
def everything() -> Generator[Everything]:
    # Not the tests' own folder: nobody else may enter that.
    before = os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="others-", dir="/tmp") as name, contextlib.ExitStack() as scope:
        folder = Path(name)
        folder.chmod(0o755)
        for temp in ("tmp", "state"):
            (folder / temp).mkdir()
        (folder / "tmp").chmod(0o1777)
        env = {"TMPDIR": str(folder / "tmp"), "XDG_STATE_HOME": str(folder / "state"), "PYTHONUNBUFFERED": "1"}
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in env.items():
                patch.setenv(variable, value)
            yield _start(folder, scope)
    os.umask(before)


def _start(folder: Path, scope: contextlib.ExitStack) -> Everything:
    spark = SparkConfig(master="local[1]", driver_memory="600m", conf=SETTINGS)
    config = LakeConfig(
        home=folder / "lake",
        catalog={"type": "sql", "uri": f"sqlite:///{folder}/lake/catalog.db", **SECRETS},
        spark=spark,
    )
    connect = free_port()
    command, more = connect_server.command(config, connect)
    scope.enter_context(started(command, folder / "server.log", more))
    (folder / "tmp" / "sockets").mkdir(0o700)
    keeping = {"folder": str(folder / "tmp" / "sockets"), "owner": identity(), "idle_seconds": 60, "loans": 9}
    (conf := folder / "conf.json").touch(0o600)
    conf.write_text(json.dumps(session_conf(config)))
    given = {"keeping": keeping, "conf": str(conf), "log": str(config.home / "logs" / "spark.log")}
    borrower = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("table_maker.py")), json.dumps(given)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    scope.callback(_end, borrower)
    dagster = scope.enter_context(dagster_dev(folder, LAKE_HOME=str(config.home)))
    assert borrower.stdout is not None
    assert borrower.stdout.readline() == "at work\n"
    wait_for("the server's start", lambda: _is_open(connect), 120, folder / "server.log")
    return Everything(folder, dagster, connect, [p for p in psutil.process_iter() if _is_of(p, folder)])


def _is_of(process: psutil.Process, folder: Path) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
        return process.environ().get("TMPDIR") == str(folder / "tmp")
    return False


def _is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def as_nobody(what: Callable[[], Any]) -> Any:
    """What a function returns to a user who owns nothing here; it may return what JSON can hold."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            os.close(reading)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writing, json.dumps(what()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        seen = answer.read()
    os.waitpid(child, 0)
    return json.loads(seen)


@pytest.mark.long
def test_files_and_folders_are_their_owners(everything: Everything) -> None:
    """Those that the test made itself left out: it stands for users who have made theirs open."""
    assert (everything.folder / "lake" / "catalog.db").exists()
    assert list((everything.folder / "lake").rglob("*.metadata.json"))
    assert list(everything.folder.rglob("spark-connect-*.token"))
    assert [p for p in (everything.folder / "tmp").iterdir() if p.name.startswith("lake-assets-jvm")]

    def readable() -> list[str]:
        found: list[Path] = []
        for folder, folders, files in os.walk(everything.folder):
            inside = [Path(folder) / name for name in (*folders, *files)]
            # Whoever may read a socket cannot connect to it yet: another test tries that.
            found += [p for p in inside if not p.is_symlink() and not p.is_socket() and os.access(p, os.R_OK)]
            found += [p for p in inside if p.is_dir() and os.access(p, os.X_OK)]
        return [p.relative_to(everything.folder).as_posix() for p in found]

    own = {"tmp", "state", "dagster.log", "server.log"}
    assert {p for p in as_nobody(readable) if p not in own and not p.startswith("tmp/sockets")} == set()


@pytest.mark.long
def test_every_socket_asks_who_is_there(everything: Everything) -> None:
    """Dagster's UI does not, which SECURITY.md says."""
    tcp = {c.laddr.port: (p, c.laddr.ip) for p, c in everything.listeners() if c.family != socket.AF_UNIX}
    assert {everything.dagster.port, everything.connect} < set(tcp)
    assert {ip.removeprefix("::ffff:") for _, ip in tcp.values()} <= {"127.0.0.1", "::1"}
    assert b"dagster" in as_nobody(lambda: _get(everything.dagster.port)).encode()
    others = {
        port: p.name() for port, (p, _) in tcp.items() if port not in (everything.dagster.port, everything.connect)
    }
    answers = {port: as_nobody(lambda port=port: _speak(port)) for port in others}
    assert {port: a for port, a in answers.items() if not _is_refusal(a)} == {}, others
    assert as_nobody(lambda: _connect_without_token(everything.connect)) == "UNAUTHENTICATED"


@pytest.mark.long
def test_sockets_in_the_file_system_are_their_owners(everything: Everything) -> None:
    paths = {c.laddr for _, c in everything.listeners() if c.family == socket.AF_UNIX}
    assert paths
    assert [p for p in paths if p.startswith(("\0", "@"))] == [], "everybody reaches sockets without a file"

    def reached() -> list[str]:
        found: list[str] = []
        for path in paths:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as s:
                s.connect(path)
                found.append(path)
        return found

    assert as_nobody(reached) == []


def test_processes_show_no_secret(everything: Everything) -> None:
    secrets = [PLANTED, *(f.read_text().strip() for f in everything.folder.rglob("spark-connect-*.token"))]
    assert len(secrets) == 2
    seen = {p.pid: Path(f"/proc/{p.pid}/cmdline").read_bytes().decode(errors="replace") for p in everything.processes}
    assert sum("java" in s for s in seen.values()) >= 2
    assert [s for s in seen.values() if any(secret in s for secret in secrets)] == []
    modes = {stat.S_IMODE(Path(f"/proc/{p.pid}/environ").stat().st_mode) for p in everything.processes}
    assert modes == {0o400}


def test_files_show_no_secret_but_those_that_are_to_hold_it(everything: Everything) -> None:
    tokens = list(everything.folder.rglob("spark-connect-*.token"))
    holds = {
        p.relative_to(everything.folder).as_posix(): stat.S_IMODE(p.stat().st_mode)
        for p in everything.folder.rglob("*")
        if p.is_file() and any(s.encode() in p.read_bytes() for s in (PLANTED, tokens[0].read_text().strip()))
    }
    settings = f"lake/spark-server-{everything.connect}.conf"
    assert holds == {"conf.json": 0o600, settings: 0o600, tokens[0].relative_to(everything.folder).as_posix(): 0o600}


def _get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info", timeout=20) as answer:
        return answer.read().decode()


def _connect_without_token(port: int) -> str:
    import grpc

    call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary("/spark.connect.SparkConnectService/Config")
    try:
        call(b"", timeout=30)
    except grpc.RpcError as e:
        return e.code().name  # pyright: ignore[reportAttributeAccessIssue]
    return "served"


# What a stranger says: to PySpark's gateway (a look at a class), and to the ports on which Spark's parts speak to each
# other (a message in Java's serialization, which may hold any class).
GATEWAY = b"r\nu\njava.lang.System\nrj\ne\n"
MESSAGE = b"\0\1\0\x09127.0.0.1\0\0\0\1\0\7unknown\xac\xed\0\5t\0\1x"
REQUEST = struct.pack(">bqi", 3, 42, len(MESSAGE)) + MESSAGE


def _speak(port: int) -> list[str]:
    seen: list[str] = []
    for message in (GATEWAY, struct.pack(">q", 8 + len(REQUEST)) + REQUEST):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as s:
            s.sendall(message)
            try:
                seen.append(s.recv(10_000).decode("latin-1"))
            except TimeoutError:
                seen.append("silence")
            except ConnectionError:
                seen.append("")
    return seen


def _is_refusal(seen: list[str]) -> bool:
    """Whether nothing was done: no answer, an error of the gateway's, or Spark's that a challenge is not met."""
    gateway, spark = seen
    return "!y" not in gateway and (
        spark in ("", "silence") or spark.startswith("!") or "Expected SaslMessage" in spark
    )
