"""How a session reads SQL, and where it writes files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake_assets import Lake
from lake_assets.lake import quote
from lake_assets.lake.foreign_errors import is_unreadable
from lake_assets.lake.names import literal
from tests.support.lakes import lake_on

TEXTS = ("${env:HOME}", "${spark.app.name}", "${system:user.name}", "${nothing}", "a\\${env:HOME}", "$", ":k0", "'--")


@pytest.mark.parametrize("text", TEXTS)
def test_literals_and_identifiers_keep_their_text(spark_lake: Lake, text: str) -> None:
    spark = spark_lake.spark()
    expression = f"{literal(text)} AS {quote(text)}"
    for rows in (spark.sql(f"SELECT {expression}"), spark.range(1).selectExpr(expression)):
        assert rows.columns == [text]
        assert [tuple(r) for r in rows.collect()] == [(text,)]


@pytest.mark.long  # pytest makes folders of many names for other tests
def test_a_lake_in_a_folder_of_any_name_has_its_tables_there(spark_lake: Lake, tmp_path: Path) -> None:
    home = tmp_path / "Größe 1+1 (ä&b)"
    lake = lake_on(spark_lake, home)
    lake.ensure_namespace(("final",))
    lake.spark().sql("CREATE TABLE final.t USING iceberg AS SELECT id FROM range(3)")
    lake.spark().sql("DELETE FROM final.t WHERE id = 1")
    assert sorted(lake.table("final.t").scan().to_arrow()["id"].to_pylist()) == [0, 2]
    for file in home.rglob("*.parquet"):
        file.unlink()
    with pytest.raises(Exception, match="parquet") as missing:
        lake.spark().table("final.t").collect()
    assert is_unreadable(missing.value, lake.table("final.t").location())
    assert [p.name for p in tmp_path.iterdir()] == [home.name]
