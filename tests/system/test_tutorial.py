"""`docs/tutorial.md`, word for word, by a reader with an empty home and an empty folder."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from lake_assets.runtime import jars
from tests.support.executed_page import Reader, blocks
from tests.support.processes import ROOT, SMALL_SPARK

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.long]

PAGE = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
INSTALLS = "pip install lake-assets\n"


@pytest.fixture
def reader() -> Generator[Reader]:
    folder = Path(tempfile.mkdtemp())
    for name in ("home", "work", "logs"):
        (folder / name).mkdir()
    env = {
        "HOME": str(folder / "home"),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "COLUMNS": "200",
        "PYTHONPATH": str(ROOT),
        "LAKE_JARS": str(jars._cache()),  # otherwise they were downloaded
        **SMALL_SPARK,
    }
    made = Reader(folder / "work", folder / "logs", env, {}, (r"/\S+",), (), {})
    with made.working():
        yield made
    shutil.rmtree(folder)


def test_a_reader_gets_from_an_empty_folder_to_own_tables(reader: Reader) -> None:
    for block in blocks(PAGE):
        if block.text != INSTALLS:
            reader.do(block)
