"""A lake in a folder that was moved or copied is neither read nor written; under its former path it goes on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

from lake_assets import Lake, LakeConfig
from lake_assets.errors import LakeError, MovedLakeError
from lake_assets.lake.config import file_url

IDS = pa.table({"id": [1, 2]})


def lake_at(home: Path) -> Lake:
    return Lake(LakeConfig(home=home))


def count(home: Path) -> int:
    return lake_at(home).table("raw.x").scan().to_arrow().num_rows


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of a lake with one table; it has a space, as users' folders have."""
    lake = lake_at(tmp_path / "the lake")
    lake.ensure_namespace(("raw",))
    lake.catalog.create_table(("raw", "x"), IDS.schema).append(IDS)
    return lake.config.home


@pytest.mark.parametrize("is_in_project", [False, True])
def test_a_moved_lake_says_from_where_and_is_opened_by_the_link_that_it_advises(
    tmp_path: Path, is_in_project: bool
) -> None:
    place = "project/the lake" if is_in_project else "the lake"
    (tmp_path / place).parent.mkdir(exist_ok=True)
    lake = lake_at(tmp_path / place)
    lake.ensure_namespace(("raw",))
    lake.catalog.create_table(("raw", "x"), IDS.schema).append(IDS)
    home, moved = lake.config.home, tmp_path / "moved" / place
    (tmp_path / "moved").mkdir()
    first = tmp_path / place.split("/")[0]
    first.rename(tmp_path / "moved" / first.name)
    with pytest.raises(MovedLakeError, match=rf"the lake at {moved} was moved from {home}: .*`.*ln -s ") as raised:
        count(moved)
    subprocess.run(str(raised.value).split("`")[1], shell=True, check=True)
    assert count(home) == len(IDS)


def test_a_copy_is_not_opened_and_the_original_goes_on(home: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(home, tmp_path / "copy"))
    with pytest.raises(MovedLakeError, match=f"{copy} is a copy of {home}: .* Use the original, {home};") as raised:
        lake_at(copy).catalog  # noqa: B018
    assert "ln -s" not in str(raised.value)
    lake_at(home).table("raw.x").append(IDS)
    assert count(home) == 4


def test_a_copy_of_a_copy_that_lost_its_original_is_not_opened(home: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(home, tmp_path / "copy"))
    shutil.rmtree(home)
    with pytest.raises(MovedLakeError, match="was moved from"):
        count(copy)


def test_a_lake_works_through_a_link_at_its_former_path(home: Path, tmp_path: Path) -> None:
    moved = home.rename(tmp_path / "moved")
    home.symlink_to(moved)
    assert (count(home), count(moved)) == (2, 2)


def test_a_backup_is_restored_by_copying_it_back(home: Path, tmp_path: Path) -> None:
    backup = shutil.copytree(home, tmp_path / "backup")
    lake_at(home).table("raw.x").append(IDS)
    shutil.rmtree(home)
    shutil.copytree(backup, home)
    assert count(home) == 2


def test_a_table_registered_from_another_lake_is_no_copy(home: Path, tmp_path: Path) -> None:
    other = lake_at(tmp_path / "other")
    other.ensure_namespace(("raw",))
    other.catalog.register_table(("raw", "x"), lake_at(home).table("raw.x").metadata_location)
    assert count(other.config.home) == 2


def test_a_lost_metadata_file_is_no_move(home: Path) -> None:
    file = Path(lake_at(home).table("raw.x").metadata_location.removeprefix(file_url(Path("/")).rstrip("/")))
    file.unlink()
    with pytest.raises(LakeError, match="is gone, but the catalog still names it") as raised:
        count(home)
    assert not isinstance(raised.value, MovedLakeError)
