"""Sparks that run elsewhere: a Spark Connect server, and a standalone cluster with a worker."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lake_assets import LakeConfig
from lake_assets.lake import SparkConfig, connect_server
from lake_assets.runtime.jars import spark_home
from lake_assets.runtime.java import find_java
from tests.support.lakes import SHORT_JVM, SMALL
from tests.support.processes import free_port, started


@contextlib.contextmanager
def connect_address(folder: Path, master: str = "local[2]") -> Generator[str]:
    """The address of a Spark Connect server that is up; it knows no lake of its own."""
    port, log = free_port(), folder / "server.log"
    spark = SparkConfig(master=master, driver_memory="1g", conf=SMALL | SHORT_JVM | {"spark.executor.memory": "1g"})
    command, env = connect_server.command(LakeConfig(home=folder, spark=spark), port)
    with started(command, log, env) as process:
        wait_for_port(process, port, log)
        yield f"sc://127.0.0.1:{port}"


@dataclass(frozen=True)
class Cluster:
    """A standalone cluster: the address of its master, and its workers."""

    address: str
    workers: Sequence[subprocess.Popen[bytes]]


@contextlib.contextmanager
def cluster(folder: Path, workers: int = 1, cores: int = 2) -> Generator[Cluster]:
    """A standalone cluster whose master is up."""
    port, log = free_port(), folder / "cluster.log"
    spark_class = str(spark_home() / "bin" / "spark-class")
    env = {"JAVA_HOME": str(find_java()), "SPARK_WORKER_DIR": str(folder / "work"), "SPARK_LOCAL_IP": "127.0.0.1"}
    master = [
        spark_class, "org.apache.spark.deploy.master.Master",
        "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port()),
    ]  # fmt: skip
    worker = [
        spark_class, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", str(cores),
        "--memory", "2g", f"spark://127.0.0.1:{port}",
    ]  # fmt: skip
    with started(master, log, env) as process, contextlib.ExitStack() as running:
        wait_for_port(process, port, log)
        ports = [["--webui-port", str(free_port())] for _ in range(workers)]
        found = [running.enter_context(started([*worker[:-1], *p, worker[-1]], log, env)) for p in ports]
        yield Cluster(f"spark://127.0.0.1:{port}", found)


@contextlib.contextmanager
def cluster_address(folder: Path) -> Generator[str]:
    """The address of a standalone cluster's master, with one worker of two cores."""
    with cluster(folder) as found:
        yield found.address


def wait_for_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until a process listens at a port."""
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise AssertionError(log.read_text())
