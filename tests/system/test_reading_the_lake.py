"""`docs/reading-the-lake.md`: each program of the page reads a lake as it is written there, without this package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from lake_assets import Lake, LakeConfig
from lake_assets.lake.config import ICEBERG_RUNTIME, SQLITE_JDBC
from lake_assets.lake.spark_session import packages
from lake_assets.runtime.jars import resolve
from tests.support.executed_page import blocks
from tests.support.processes import ROOT

PAGE = (ROOT / "docs" / "reading-the-lake.md").read_text("utf-8")
FOLDER = "/data/my-shop"


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., str]:
    """Runs a program of the page over a small lake; what it prints."""
    (tmp_path / "lake.yaml").write_text("home: .lake\n")
    lake = Lake(LakeConfig(home=tmp_path / ".lake"))
    lake.ensure_namespace(("agg",))
    rows = pa.table({"country": ["DE", "IE", "IE"], "cents": [100, 20, 3]})
    lake.catalog.create_table("agg.revenue", rows.schema).append(rows)

    def run(name: str, replaced: Mapping[str, str] | None = None) -> str:
        (block,) = (b for b in blocks(PAGE) if b.text.startswith(f"# {name}\n"))
        text = block.text.replace(FOLDER, str(tmp_path))
        for said, here in (replaced or {}).items():
            assert said in text
            text = text.replace(said, here)
        env = {k: v for k, v in os.environ.items() if not k.startswith("LAKE_")} | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_pyiceberg_and_duckdb_read_what_the_catalog_has(read: Callable[..., str]) -> None:
    assert read("read_with_pyiceberg.py") == "2\n"
    assert read("read_with_duckdb.py") == "[('DE', 100), ('IE', 23)]\n"


@pytest.mark.system
@pytest.mark.long
def test_this_package_reads_it_by_its_settings(read: Callable[..., str]) -> None:
    assert read("read_with_lake.py") == "3\n"


@pytest.mark.system
@pytest.mark.long  # a JVM of its own
def test_pyspark_reads_what_the_catalog_has(read: Callable[..., str]) -> None:
    jars = resolve(packages(LakeConfig.load()))
    named = f"{ICEBERG_RUNTIME},{SQLITE_JDBC}"
    assert json.dumps(named) in PAGE, "the page names the jars of this version"
    # The same jars, which are here: otherwise Spark downloaded them.
    text = read("read_with_pyspark.py", {"spark.jars.packages": "spark.jars", named: ",".join(map(str, jars))})
    assert [line.split("|")[1:3] for line in text.splitlines() if "DE" in line or "IE" in line] == [
        ["     DE", "  100"], ["     IE", "   23"],
    ]  # fmt: skip
