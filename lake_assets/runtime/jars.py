"""Spark's jars: resolved once by coordinates, cached per user, checked before every use.

Starting a session with `spark.jars.packages` queries the repository each time and takes seconds; a list of local files
does not.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import platformdirs

from lake_assets.errors import JarsError
from lake_assets.runtime.java import jvm_variables

# SHA-256 sums of the default jars when this version was tested. A jar that differs is not used.
SHA256 = {
    "org.apache.iceberg_iceberg-spark-runtime-4.1_2.13-1.12.0.jar": (
        "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82"
    ),
    "org.apache.iceberg_iceberg-aws-bundle-1.12.0.jar": (
        "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957"
    ),
    "org.xerial_sqlite-jdbc-3.50.3.0.jar": ("a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08"),
    "io.debezium_debezium-connector-mariadb-3.5.0.Final.jar": (
        "6ea239f23d74486a77e89cceae11120f208e9f832ccdff9d88cb629ce298e890"
    ),
    "org.mariadb.jdbc_mariadb-java-client-3.5.3.jar": (
        "85c4ba2f221d0dfd439c26affbb294f784960763544263c65aba9c2c76858706"
    ),
    "org.postgresql_postgresql-42.7.7.jar": ("157963d60ae66d607e09466e8c0cdf8087e9cb20d0159899ffca96bca2528460"),
}


def spark_home() -> Path:
    """Return pip's Spark folder without importing PySpark, which takes a second."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsError("PySpark is not installed beside this package: run `make setup`, or install lake-assets again")
    return Path(spec.origin).parent


def resolve(coordinates: Sequence[str], excluded: Sequence[str] = ()) -> list[Path]:
    """Return the local files of `coordinates` (group:artifact:version) and their dependencies.

    Dependencies that are `excluded` (group:artifact, with * in both) are left out, with what only they need.

    The first call for a set of coordinates lets Spark download them (from Spark's configured repositories);
    later calls read a list.

    Raises:
        JarsError: the download failed, or a cached jar is missing or has changed and could not be downloaded again.
        JavaNotFoundError: no Java for the download.
    """
    wanted = "\n".join([*sorted(coordinates), *(f"-{e}" for e in excluded)])
    folder = _cache() / hashlib.sha256(wanted.encode()).hexdigest()[:16]
    jars = _read(folder)
    if jars is None:
        _download(coordinates, excluded, folder)
        jars = _read(folder)
    if jars is None:
        raise JarsError(f"the jars of {', '.join(coordinates)} in {folder} changed after they were written")
    return jars


def _cache() -> Path:
    if folder := os.environ.get("LAKE_JARS"):
        return Path(folder).expanduser()
    return platformdirs.user_cache_path("lake-assets") / "jars"


def _read(folder: Path) -> list[Path] | None:
    """Return the jars listed in `folder`, or None if they have to be resolved (again)."""
    try:
        listed: Any = json.loads((folder / "jars.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(listed, dict) or not listed:
        return None
    files = [folder / name for name in listed]
    if any(not f.is_file() or _sha256(f) != SHA256.get(f.name, listed[f.name]) for f in files):
        return None
    return files


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _download(coordinates: Sequence[str], excluded: Sequence[str], folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise JarsError(f"cannot store jars in {folder.parent}: {e}. Set LAKE_JARS to a writable folder") from e
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".resolving-") as temp:
        script = Path(temp) / "nothing.py"
        script.write_text("")
        command = [
            str(spark_home() / "bin" / "spark-submit"),
            *("--packages", ",".join(coordinates)),
            *(("--exclude-packages", ",".join(excluded)) if excluded else ()),
            *("--conf", f"spark.jars.ivy={temp}/ivy"),
            str(script),
        ]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
        done = subprocess.run(command, env={**env, **jvm_variables()}, capture_output=True, text=True, check=False)
        jars = sorted((Path(temp) / "ivy" / "jars").glob("*.jar"))
        if done.returncode != 0 or not jars:
            errors = [line for line in done.stderr.splitlines() if re.search("unresolved|rror|^Caused by", line)]
            raise JarsError(
                f"could not resolve {', '.join(coordinates)} (network? a proxy that Java does not know?): "
                + " | ".join(errors[-4:] or done.stderr.splitlines()[-4:])
            )
        for jar in jars:
            expected = SHA256.get(jar.name)
            if expected and (actual := _sha256(jar)) != expected:
                raise JarsError(f"{jar.name} has SHA-256 {actual}, expected {expected}: it is not used")
        listing = {jar.name: _sha256(jar) for jar in jars}
        (jars[0].parent / "jars.json").write_text(json.dumps(listing), encoding="utf-8")
        # One rename makes the folder visible: neither a killed process nor a concurrent one leaves it half-written.
        if folder.exists():
            shutil.rmtree(folder)
        try:
            jars[0].parent.rename(folder)
        except OSError:
            if _read(folder) is None:
                raise
