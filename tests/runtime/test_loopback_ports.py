"""A port that is taken is named before a server is started, with what to do."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ADVICE = "choose another port: make ui PORT=3001"


def check(port: str) -> subprocess.CompletedProcess[str]:
    script = REPOSITORY / "scripts" / "check_port.py"
    return subprocess.run(
        [sys.executable, script, port, ADVICE], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )


def test_a_port_in_use_is_named_with_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = check(str(port))
    assert done.returncode == 1
    assert f"ConfigError: port {port} on 127.0.0.1 is not available (Address already in use): {ADVICE}" in done.stderr
    assert "Traceback" not in done.stderr
    assert check(str(port)).returncode == 0


@pytest.mark.parametrize("port", ["0", "65536", "ui", "-1", ""])
def test_what_is_no_port_is_told(port: str) -> None:
    done = check(port)
    assert done.returncode == 1
    assert "is not a port: use a number from 1 to 65535" in done.stderr


def test_make_ui_looks_at_its_port_first() -> None:
    done = subprocess.run(["make", "-n", "ui", "PORT=3123"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    steps = done.stdout.splitlines()
    (checked,) = (n for n, line in enumerate(steps) if "check_port.py" in line and '"3123"' in line)
    (started,) = (n for n, line in enumerate(steps) if "dagster dev" in line and "-p 3123" in line)
    assert checked < started
