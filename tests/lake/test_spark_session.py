"""How a session reads SQL, and writes files."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, LakeConfig
from lake_assets.lake import SparkConfig, quote
from lake_assets.lake.names import literal
from lake_assets.lake.spark_session import session_conf, with_local_files
from tests.conftest import lake_on

TEXTS = ("${env:HOME}", "${spark.app.name}", "${system:user.name}", "${nothing}", "a\\${env:HOME}", "$", ":k0", "'--")


@pytest.mark.parametrize("text", TEXTS)
def test_literals_and_identifiers_keep_their_text(spark_lake: Lake, text: str) -> None:
    spark = spark_lake.spark()
    expression = f"{literal(text)} AS {quote(text)}"
    for rows in (spark.sql(f"SELECT {expression}"), spark.range(1).selectExpr(expression)):
        assert rows.columns == [text]
        assert [tuple(r) for r in rows.collect()] == [(text,)]


def file_system(lake: Lake, table: str) -> str:
    """The class through which Iceberg accesses the files of a table."""
    jvm: Any = lake.spark()._jvm
    session: Any = lake.spark()
    loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, lake.sql_name(table))
    return loaded.io().newInputFile(loaded.location()).getFileSystem().getClass().getSimpleName()


def test_local_files_are_written_without_a_program_for_each(lake: Lake) -> None:
    lake.ensure_namespace(("final",))
    lake.spark().sql("CREATE TABLE lake.final.t USING iceberg AS SELECT id FROM range(3)")
    lake.spark().sql("DELETE FROM lake.final.t WHERE id = 1")
    assert file_system(lake, "final.t") == "BareLocalFileSystem"
    folder = Path(lake.table("final.t").location().removeprefix("file://"))
    modes = {stat.S_IMODE(p.stat().st_mode) for p in folder.rglob("*") if p.is_file()}
    assert modes == {0o644}  # as Hadoop's own class leaves them, whatever the umask


def test_a_lake_in_a_linked_folder_is_written_and_read(spark_lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk", target_is_directory=True)
    lake = lake_on(spark_lake, tmp_path / "home")
    lake.ensure_namespace(("final",))
    lake.spark().sql("CREATE TABLE lake.final.t USING iceberg AS SELECT id FROM range(3)")
    lake.spark().sql("DELETE FROM lake.final.t WHERE id = 1")
    assert sorted(r.id for r in lake.spark().table("lake.final.t").collect()) == [0, 2]
    assert list((tmp_path / "disk").rglob("*.parquet"))


def test_a_class_of_the_user_s_own_writes_local_files(spark_lake: Lake, tmp_path: Path) -> None:
    key = "spark.sql.catalog.lake.hadoop.fs.file.impl"
    config = LakeConfig(home=tmp_path, spark=SparkConfig(conf={key: "org.apache.hadoop.fs.LocalFileSystem"}))

    def session() -> Any:
        made = spark_lake.spark().newSession()
        made.conf.set(key, config.spark.conf[key])
        made.conf.set(f"{key}.disable.cache", "true")
        return made

    lake = Lake(config, session=session)
    lake.ensure_namespace(("final",))
    lake.spark().sql("CREATE TABLE lake.final.t USING iceberg AS SELECT id FROM range(3)")
    assert file_system(lake, "final.t") == "LocalFileSystem"


def test_a_jvm_with_other_jars_writes_local_files_as_hadoop_does(tmp_path: Path) -> None:
    default = session_conf(LakeConfig(home=tmp_path))
    own = session_conf(LakeConfig(home=tmp_path, spark=SparkConfig(conf={"spark.jars": "/opt/iceberg.jar"})))
    assert len(with_local_files(default)) == len(default) + 1
    assert with_local_files(own) == own
