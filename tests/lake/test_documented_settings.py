"""The settings that the documentation shows: each file loads, and gives Spark a catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake_assets import LakeConfig
from lake_assets.lake.spark_session import catalog_conf, packages
from tests.support.executed_page import blocks
from tests.support.processes import ROOT

PAGES = ("lake.md", "clusters.md")
FILES = [
    pytest.param(block.text, id=f"{page}:{block.line}")
    for page in PAGES
    for block in blocks((ROOT / "docs" / page).read_text("utf-8"))
    if block.text.startswith("# lake.yaml\n")
]


@pytest.mark.parametrize("text", FILES)
def test_a_documented_file_loads_and_gives_spark_a_catalog(text: str, tmp_path: Path) -> None:
    file = tmp_path / "lake.yaml"
    file.write_text(text)
    config = LakeConfig.load(file)
    conf = catalog_conf(config)
    assert conf[f"spark.sql.catalog.{config.name}"] == "org.apache.iceberg.spark.SparkCatalog"
    assert packages(config)


def test_there_are_such_files() -> None:
    assert len(FILES) >= 7
