"""A Postgres of the tests' own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.processes import free_port

BIN = shutil.which("postgres")
needs_postgres = pytest.mark.skipif(BIN is None, reason="there is no Postgres: put the folder of its programs on PATH")


@contextlib.contextmanager
def database(**more: str) -> Generator[str]:
    """Run a server with an empty database on a port of 127.0.0.1, within the context; yields its URI.

    Args:
        more: settings of the server.
    """
    pytest.importorskip("psycopg2")
    folder, port = Path(tempfile.mkdtemp(prefix="postgres-")), free_port()
    # Postgres refuses to run as root.
    user = "postgres" if os.geteuid() == 0 else None
    if user:
        shutil.chown(folder, user)
    assert BIN is not None
    data, settings = folder / "data", {"port": port, "listen_addresses": "127.0.0.1", "fsync": "off"}
    settings |= {"unix_socket_directories": "", **more}
    initdb = [
        Path(BIN).resolve().with_name("initdb"),
        "-D",
        data,
        "-U",
        "lake",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
    ]
    subprocess.run(initdb, check=True, cwd=folder, user=user, stdout=subprocess.DEVNULL)
    flags = [f for name, value in settings.items() for f in ("-c", f"{name}={value}")]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([BIN, "-D", data, *flags], cwd=folder, user=user, stdout=log, stderr=log)
        try:
            ready = [Path(BIN).resolve().with_name("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
            while subprocess.run(ready, check=False).returncode:
                assert server.poll() is None, (folder / "log").read_text()
                time.sleep(0.1)
            yield f"postgresql+psycopg2://lake@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60)
            shutil.rmtree(folder)
