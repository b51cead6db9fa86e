"""Settings reach the JVM, and no command line."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lake_assets.runtime.jvm_launch import write_settings

pytestmark = pytest.mark.system

PLANTED = "planted=secret: #1 \\ ü"


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="command lines are read from /proc")
def test_a_secret_setting_is_on_no_command_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("secret_setting.py")), str(tmp_path / "lake")],
        capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "TMPDIR": str(tmp_path), "SECRET_FOR_TEST": PLANTED},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["value"] == PLANTED
    assert found["memory"] == "600m"
    assert found["jvms"] >= 1
    assert found["shown"] == []
    left = [p for p in tmp_path.rglob("*") if p.is_file() and b"planted" in p.read_bytes()]
    assert left == []


@pytest.mark.long
def test_spark_starts_where_the_name_of_the_machine_has_no_address(tmp_path: Path) -> None:
    asked = (
        "import sys, lake_assets as a; print(a.Lake(a.LakeConfig(home=sys.argv[1])).spark().sql('SELECT 7').first()[0])"
    )
    # A name of its own, as a container has it.
    alone = ["unshare", "--map-root-user", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', "has-no-address"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not give a process a machine's name of its own")
    done = subprocess.run(
        [*alone, sys.executable, "-c", asked, str(tmp_path / "lake")],
        capture_output=True, text=True, check=False, timeout=300,
        env={k: v for k, v in os.environ.items() if not k.startswith("SPARK_LOCAL")},
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "7"), done.stderr


def test_an_interrupt_while_a_jvm_starts_leaves_none_behind(tmp_path: Path) -> None:
    # The scripts of Spark start other programs, and at last the JVM; the interrupts meet some of each.
    delays = ["0", "0.001", "0.002", "0.003", "0.005", "0.01", "0.02", "0.03", "0.05", "0.1", "0.2", "0.4"]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("interrupted_start.py")), *delays],
        capture_output=True, text=True, check=False, timeout=100, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert (done.stdout.split(), done.returncode) == (["0"] * len(delays), 0), done.stderr


def test_the_file_of_settings_is_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "spark.conf"
    file.write_text("of somebody else")
    write_settings(file, {"a b": " c\nd", "e": True})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text(encoding="utf-8") == "a\\ b=\\ c\\nd\ne=true\n"
