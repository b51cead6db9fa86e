"""A class archive: the classes of Spark and Iceberg as one JVM has read and checked them, for those that start later.

A cold JVM spends much of its time until its first rows on classes. Java keeps them in a file that later JVMs map into
their memory (class data sharing). The file is specific to a Java and to Spark's jars: a JVM that it does not fit starts
without it, as if there were none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lake_assets.errors import JarsError
from lake_assets.runtime.jars import spark_home
from lake_assets.runtime.java import find_java, jvm_variables

_SECONDS = 600
# What it says of an archive that does not fit goes to standard output, where commands print their results.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
# What a run does with tables, so that the classes for it are loaded.
_STATEMENTS = (
    "CREATE NAMESPACE local.a",
    "CREATE TABLE local.a.t (id INT, day DATE, name STRING) USING iceberg PARTITIONED BY (day)",
    "INSERT INTO local.a.t SELECT id, DATE '2024-01-01', string(id) FROM range(9)",
    "MERGE INTO local.a.t AS t USING (SELECT int(id) AS id, 'x' AS name FROM range(3)) AS s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, s.name)",
    "DELETE FROM local.a.t WHERE id = 5",
    "SELECT t.day, count(*), max(s.name) FROM local.a.t AS t JOIN local.a.t AS s ON t.id = s.id GROUP BY t.day",
)


def class_archive(jars: Sequence[Path]) -> Path | None:
    """Return the archive for these jars, this Java and this Spark, or None if there is none.

    Raises:
        JavaNotFoundError: as `find_java`.
    """
    found = list(jars[0].parent.glob("classes-*.jsa")) if jars else []
    if not found:
        return None
    try:
        start = f"classes-{'-'.join(_identity())}-"
    except OSError:  # in a program of spark-submit, PySpark is a zip file, and its JVM has long started
        return None
    for file in [f for f in found if f.name.startswith(start)]:
        with contextlib.suppress(OSError):
            # A JVM would crash with a file that was cut off, and run the code of one that somebody else wrote.
            status = file.stat()
            is_whole = file.stem.rpartition("-")[2] == str(status.st_size)
            is_own = status.st_uid in (0, os.getuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if is_whole and is_own:
                return file
    return None


def archive_options(jars: Sequence[Path]) -> str:
    """Return the options of a JVM that uses the archive for these jars: none if there is no archive."""
    file = class_archive(jars)
    if file is None:
        return ""
    option = f"-XX:SharedArchiveFile={file}"
    return " ".join([f'"{option}"' if " " in option else option, "-Xshare:auto", _QUIET])


def write_class_archive(jars: Sequence[Path]) -> Path:
    """Write the archive for these jars beside them, which takes most of a minute, and return it.

    Raises:
        JarsError: it could not be written.
        JavaNotFoundError: as `find_java`.
    """
    place, state = _identity()
    folder = jars[0].parent
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".archiving-") as temp:
            written = Path(temp) / "classes.jsa"
            command = [sys.executable, "-m", __name__, temp, *map(str, jars)]
            env = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
            # The JVM outlives its Python and holds the other end of the pipe until it has written the file.
            done = subprocess.run(
                command, env={**env, **jvm_variables()}, capture_output=True, text=True, check=False, timeout=_SECONDS
            )
            if done.returncode != 0 or not written.is_file():
                raise JarsError(f"no class archive was written: {' | '.join(done.stderr.splitlines()[-4:])}")
            written.chmod(0o644)
            for old in folder.glob(f"classes-{place}-*.jsa"):
                old.unlink(missing_ok=True)
            return written.rename(folder / f"classes-{place}-{state}-{written.stat().st_size}.jsa")
    except (OSError, subprocess.TimeoutExpired) as e:
        raise JarsError(f"no class archive was written in {folder}: {e}") from e


def _identity() -> tuple[str, str]:
    """Return where Java and Spark are, and which ones these are, each as a short hash."""
    java, jars = find_java(), spark_home() / "jars"
    release = java / "release"
    version = release.read_bytes() if release.is_file() else b""
    parts = (f"{java}\n{jars}".encode(), version + str(jars.stat().st_mtime_ns).encode())
    return hashlib.sha256(parts[0]).hexdigest()[:8], hashlib.sha256(parts[1]).hexdigest()[:8]


def _load_classes(folder: Path, jars: Sequence[str]) -> None:
    """Run statements in a JVM that writes its classes into `folder` when it ends."""
    from pyspark.sql import SparkSession

    # For a JVM that ends soon.
    options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-XX:ArchiveClassesAtExit={folder / 'classes.jsa'}"]
    options.append(f"-Djava.io.tmpdir={folder}")
    conf = {
        "spark.master": "local[1]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": " ".join([*(f'"{o}"' for o in options), _QUIET]),
        "spark.ui.enabled": "false",
        "spark.jars": ",".join(jars),
        "spark.sql.catalog.local": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.local.type": "hadoop",
        "spark.sql.catalog.local.warehouse": str(folder / "tables"),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
    }
    builder = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    for statement in _STATEMENTS:
        session.sql(statement).collect()
    session.stop()


if __name__ == "__main__":
    _load_classes(Path(sys.argv[1]), sys.argv[2:])
