"""Settings reach the JVM, and no command line."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lake_assets.runtime.jvm_launch import write_settings

PLANTED = "planted=secret: #1 \\ ü"
PROGRAM = """
import json, os, sys
from pathlib import Path
from lake_assets.lake import LakeBase, LakeConfig, SparkConfig

conf = {"spark.hadoop.fs.s3a.secret.key": os.environ["SECRET_FOR_TEST"], "spark.ui.enabled": "false"}
config = LakeConfig(home=Path(sys.argv[1]), spark=SparkConfig(master="local[1]", driver_memory="600m", conf=conf))
spark = LakeBase(config).spark()
said = [p.read_bytes().decode(errors="replace") for p in Path("/proc").glob("[0-9]*/cmdline") if p.parent.name != "self"]
mine = [s for s in said if "deploy.SparkSubmit" in s and "java" in s and "\\nimport" not in s]
print(json.dumps({
    "value": spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key"),
    "memory": spark.conf.get("spark.driver.memory"),
    "jvms": len(mine),
    "shown": [s for s in said if os.environ["SECRET_FOR_TEST"] in s],
}))
"""


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="command lines are read from /proc")
def test_a_secret_setting_is_on_no_command_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "lake")],
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


INTERRUPTED = """
import os, signal, threading, time
import psutil
import pyspark
from lake_assets.runtime.jvm_launch import start_jvm

def interrupt():
    while not psutil.Process().children():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    start_jvm({"spark.master": "local[1]"})
except KeyboardInterrupt:
    print(len([c for c in psutil.Process().children(recursive=True) if c.status() != psutil.STATUS_ZOMBIE]))
"""


def test_an_interrupt_while_a_jvm_starts_leaves_none_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False, timeout=100,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert (done.stdout.strip(), done.returncode) == ("0", 0), done.stderr


def test_the_file_of_settings_is_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "spark.conf"
    file.write_text("of somebody else")
    write_settings(file, {"a b": " c\nd", "e": True})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text(encoding="utf-8") == "a\\ b=\\ c\\nd\ne=true\n"
