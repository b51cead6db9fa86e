"""A disk that is really full: every step that finds no room says so, publishes nothing, and goes on when there is some.

The disks are small ones in a mount namespace of their own, which root may make, and others where the system lets users
have namespaces.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import ROOT, SMALL_SPARK, python

pytestmark = [pytest.mark.system, pytest.mark.long]
NAMESPACE = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]


def can_mount(folder: Path) -> bool:
    """Whether this user may have disks of its own."""
    try:
        mount = [*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", str(folder)]
        return subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def test_a_full_disk_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    if not can_mount(tmp_path):
        pytest.skip("this user may not mount a small disk: run as root, or allow user namespaces")
    done = subprocess.run(
        [*NAMESPACE, *python("tests.system.full_disk", tmp_path)], cwd=ROOT, env={**os.environ, **SMALL_SPARK},
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    for run in runs:
        assert run["named"], run
        assert all(kind in ("StorageFullError", "CatalogUnavailableError") for kind, _ in run["failed"].values()), run
        assert all("room" in error for _, error in run["failed"].values()), run
        assert "disk" in run["told"], run
        assert not run["left"], run
        assert run["right"], run
    assert sum(bool(run["failed"]) for run in runs) >= 3, "a disk without room stops steps"
