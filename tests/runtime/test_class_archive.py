"""Class archives: a JVM starts with the one that was written for it, and never with another or half of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lake_assets.lake import LakeConfig, SparkConfig
from lake_assets.lake.spark_session import packages
from lake_assets.runtime import class_archive as archives
from lake_assets.runtime.class_archive import archive_options, class_archive, write_class_archive
from lake_assets.runtime.jars import resolve


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    (tmp_path / "a.jar").touch()
    return tmp_path / "a.jar"


def put(jar: Path, *, size: int = 4, name_size: int = 4, state: str = "", mode: int = 0o644) -> Path:
    place, own = archives._identity()
    file = jar.parent / f"classes-{place}-{state or own}-{name_size}.jsa"
    file.write_bytes(b"x" * size)
    file.chmod(mode)
    return file


def test_the_archive_of_this_java_and_spark_is_used(jar: Path) -> None:
    assert archive_options([jar]) == ""
    file = put(jar)
    assert class_archive([jar]) == file
    assert archive_options([jar]).startswith(f"-XX:SharedArchiveFile={file} -Xshare:auto ")


@pytest.mark.parametrize("wrong", [{"size": 3}, {"state": "00000000"}, {"mode": 0o664}, {"mode": 0o646}])
def test_another_one_is_not(jar: Path, wrong: dict[str, int]) -> None:
    put(jar, **wrong)  # type: ignore[arg-type]
    assert class_archive([jar]) is None
    assert archive_options([jar]) == ""


def test_none_is_used_if_spark_is_in_a_zip_file(jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program of spark-submit."""
    put(jar)
    (jar.parent / "pyspark.zip").touch()
    monkeypatch.setattr(archives, "spark_home", lambda: jar.parent / "pyspark.zip" / "pyspark")
    assert class_archive([jar]) is None


def test_its_folder_may_have_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "my jars"
    folder.mkdir()
    file = put(folder / "a.jar")
    assert f'"-XX:SharedArchiveFile={file}"' in archive_options([folder / "a.jar"])


@pytest.mark.spark
@pytest.mark.long  # a minute of work
def test_a_jvm_takes_the_classes_of_spark_and_iceberg_from_it(tmp_path: Path) -> None:
    folder = tmp_path / "my jars"
    folder.mkdir()
    jars: list[Path] = []
    for jar in resolve(packages(LakeConfig(home=tmp_path / "lake"))):
        (folder / jar.name).symlink_to(jar)
        jars.append(folder / jar.name)
    file = write_class_archive(jars)
    assert class_archive(jars) == file
    assert [f.name for f in folder.iterdir() if f.suffix != ".jar"] == [file.name]
    assert write_class_archive(jars) == class_archive(jars)
    loaded = tmp_path / "loaded"
    log = f'{archive_options(jars)} -Xlog:class+load:file="{loaded}"'
    config = SparkConfig(master="local[1]", driver_memory="1g", conf={"spark.driver.extraJavaOptions": log})
    (tmp_path / "lake.yaml").write_text(
        f"home: {tmp_path / 'lake'}\nspark: {config.model_dump_json(include={'master', 'driver_memory', 'conf'})}\n"
    )
    code = "from lake_assets import Lake; print(Lake.load().spark().sql('SELECT 1').collect())"
    env = {**os.environ, "LAKE_CONFIG": str(tmp_path / "lake.yaml")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "[Row(1=1)]\n"
    shared = [line for line in loaded.read_text().splitlines() if "shared objects file (top)" in line]
    assert len(shared) > 5_000
    assert any(" org.apache.iceberg.spark." in line for line in shared)
