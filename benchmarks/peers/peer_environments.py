"""The peers, and an environment of its own for each: a virtual environment with pinned packages, and pinned jars.

Environments are made on demand in the user's cache folder, outside the repository; `make setup` knows nothing of them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from lake_assets.lake.config import ICEBERG_RUNTIME, SQLITE_JDBC
from lake_assets.runtime.jars import resolve
from lake_assets.runtime.java import find_java

HERE = Path(__file__).parent
UPSERTS, TOTALS = "upserts", "totals"


class PeerError(Exception):
    """A peer that could not be installed, or failed while it ran."""


@dataclass(frozen=True)
class Peer:
    """A tool: its driver, its environment (None: this one), its jars, and the workloads it takes part in."""

    driver: str
    requirements: str | None
    packages: tuple[str, ...]
    workloads: tuple[str, ...]
    settings: dict[str, int] = field(default_factory=dict)


_ICEBERG = (ICEBERG_RUNTIME, SQLITE_JDBC)
PEERS = {
    "lake_assets": Peer("lake", None, (), (UPSERTS, TOTALS)),
    "iceberg": Peer("iceberg", None, _ICEBERG, (UPSERTS,)),
    "delta": Peer("delta", "delta", ("io.delta:delta-spark_4.1_2.13:4.4.0",), (UPSERTS, TOTALS)),
    "hudi": Peer("hudi", "hudi", ("org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0",), (UPSERTS,)),
    "paimon": Peer("paimon", "paimon", ("org.apache.paimon:paimon-spark-3.5:0.9.0",), (UPSERTS,)),
    # Without a change feed, the last days are recomputed: three as people write, or all that events are late by.
    **{
        f"{name}-{days}-days": Peer(name, environment, _ICEBERG, (TOTALS,), {"lookback": days})
        for name, environment in (("iceberg", None), ("dbt", "dbt"), ("sqlmesh", "sqlmesh"))
        for days in (3, 14)
    },
}


def python_of(peer: Peer) -> Path:
    """Return the interpreter of a peer's environment; make the environment if its requirements are not installed."""
    if peer.requirements is None:
        return Path(sys.executable)
    wanted = (HERE / "requirements" / f"{peer.requirements}.txt").read_text()
    folder = _cache() / peer.requirements
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        uv = Path(sys.executable).parent / "uv"
        _run([str(uv), "venv", "-q", "--python", sys.executable, str(folder)])
        requirements = HERE / "requirements" / f"{peer.requirements}.txt"
        _run([str(uv), "pip", "install", "-q", "--python", str(python), "-r", str(requirements)])
        stamp.write_text(wanted)
    return python


def jars_of(peer: Peer, python: Path) -> list[str]:
    """Return the peer's jars; let its own Spark download them the first time."""
    if not peer.packages:
        return []
    if peer.packages == _ICEBERG:  # the ones that this project uses
        return [str(jar) for jar in resolve(peer.packages)]
    name = hashlib.sha256("\n".join(peer.packages).encode()).hexdigest()[:16]
    folder = _cache() / "jars" / name
    if not folder.exists():
        loading = folder.with_suffix(".loading")
        shutil.rmtree(loading, ignore_errors=True)
        loading.mkdir(parents=True)
        script = loading / "nothing.py"
        script.write_text("")
        submit = [str(python.parent / "spark-submit"), "--packages", ",".join(peer.packages)]
        _run([*submit, "--conf", f"spark.jars.ivy={loading}/ivy", str(script)], python)
        (loading / "ivy" / "jars").rename(folder)
        shutil.rmtree(loading)
    return sorted(str(jar) for jar in folder.glob("*.jar"))


def environment(python: Path) -> dict[str, str]:
    """Return the environment variables of a peer's process: its own Python, this machine's Java, no other Spark."""
    others = ("SPARK_", "PYSPARK_", *(() if python == Path(sys.executable) else ("PYTHONPATH",)))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(others)}
    return {**kept, "JAVA_HOME": str(find_java()), "PYSPARK_PYTHON": str(python), "PYTHONUNBUFFERED": "1"}


def _cache() -> Path:
    return platformdirs.user_cache_path("lake-assets") / "peers"


def _run(command: list[str], python: Path | None = None) -> None:
    env = environment(python) if python else None
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        failed = [line.strip() for line in said if "rror" in line or "UNRESOLVED" in line or "not found" in line]
        raise PeerError(f"{Path(command[0]).name} failed ({done.returncode}): " + " | ".join(failed[:4] or said[-4:]))
