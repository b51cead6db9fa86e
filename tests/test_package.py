"""What users install: the wheel has the package as it is here and nothing else, the sdist what a clone needs to run, and their
page has no link that leads nowhere."""

from __future__ import annotations

import re
import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from tests.support.processes import ROOT

PACKAGE = ROOT / "lake_assets"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("dist")), versions=["standard"])
    return zipfile.ZipFile(built)


def test_the_wheel_has_the_files_of_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    here = {f.relative_to(ROOT).as_posix() for f in PACKAGE.rglob("*") if f.is_file() and "__pycache__" not in f.parts}
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == here
    assert {"lake_assets/py.typed", "lake_assets/examples/project/env.txt"} <= packed
    assert {Path(name).name for name in wheel.namelist()} >= {"LICENSE", "METADATA", "entry_points.txt"}


def test_the_page_of_the_package_links_to_nothing_that_an_index_lacks(wheel: zipfile.ZipFile) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    page = wheel.read(name).decode()
    assert "# lake_assets\n" in page
    assert "how it works, its limits, decisions, benchmarks" in page
    assert re.findall(r"\]\((?!https?:)", page) == []


def test_the_sdist_has_what_a_clone_needs_to_run_and_no_data_of_its_own(tmp_path: Path) -> None:
    (built,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(built) as packed:
        names = {n.partition("/")[2] for n in packed.getnames()}
    needed = {"LICENSE", "README.md", "Makefile", "requirements.lock", "pyproject.toml", "dagster_home/dagster.yaml"}
    assert needed | {"scripts/setup.sh", "scripts/package_page.py", "docs/index.md", "docs/images/demo.svg"} <= names
    assert {n for n in names if n.startswith("lake_assets/")} >= {
        f.relative_to(ROOT).as_posix() for f in PACKAGE.rglob("*.py")
    }
    folders = {n.partition("/")[0] for n in names if "/" in n}
    assert folders == {"lake_assets", "docs", "scripts", "dagster_home"}, "no tests, benchmarks or tables"
    assert {n for n in names if n.startswith("dagster_home/")} == {"dagster_home/dagster.yaml"}, (
        "no runs of this machine"
    )
    assert [n for n in names if ".lake/" in n or "__pycache__" in n] == []
