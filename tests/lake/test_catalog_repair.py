"""Catalogs that name old metadata, and missing or truncated metadata files, without Spark."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lake_assets import Lake
from lake_assets.errors import CatalogUnavailableError, CorruptMetadataError, RepairError
from lake_assets.lake import caching_catalog
from lake_assets.lake.metadata.catalog_repair import Examined, examine, forget, repair
from tests.support.cli import invoke

ROWS = pa.table({"n": pa.array([1], pa.int64())})
PROPERTIES = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "3"}


def make(lake: Lake, name: str = "raw.t", commits: int = 2) -> None:
    lake.ensure_namespace(("raw",))
    lake.catalog.create_table(name, ROWS.schema, properties=PROPERTIES)
    append(lake, name, commits)


def append(lake: Lake, name: str = "raw.t", commits: int = 1) -> None:
    for _ in range(commits):
        lake.table(name).append(ROWS)


def count(lake: Lake, name: str = "raw.t") -> int:
    return lake.table(name).scan().to_arrow().num_rows


def named(lake: Lake, name: str = "raw.t") -> Path:
    """Return the metadata file that the catalog names, whether or not it exists."""
    examined = next(e for e in examine(lake) if str(e.table) == name)
    return Path(examined.named.removeprefix("file://"))


def states(lake: Lake) -> dict[str, str]:
    return {str(e.table): e.state for e in examine(lake)}


def only(lake: Lake) -> Examined:
    (examined,) = examine(lake)
    return examined


@pytest.fixture
def backup(plain_lake: Lake, tmp_path: Path) -> Callable[[], Callable[[], Lake]]:
    """Copy the catalog; calling the result restores it and returns the lake as in a new process."""
    file = plain_lake.config.home / "catalog.db"

    def take() -> Callable[[], Lake]:
        copy = tmp_path / "backup.db"
        with closing(sqlite3.connect(file)) as a, closing(sqlite3.connect(copy)) as b:
            a.backup(b)

        def restore() -> Lake:
            plain_lake.catalog.close()  # type: ignore[attr-defined]
            for old in file.parent.glob("catalog.db*"):
                old.unlink()
            shutil.copy(copy, file)
            return Lake(plain_lake.config)

        return restore

    return take


@pytest.mark.parametrize("commits", [1, 2, 20])
def test_a_restored_catalog_is_repaired_to_the_newest_version(
    plain_lake: Lake, backup: Callable[[], Callable[[], Lake]], commits: int
) -> None:
    make(plain_lake)
    make(plain_lake, "raw.other")
    restore = backup()
    append(plain_lake, commits=commits)
    newest = named(plain_lake)
    lake = restore()
    assert states(lake) == {"raw.t": "unreadable" if commits == 20 else "behind", "raw.other": "current"}
    if commits == 20:
        with pytest.raises(CorruptMetadataError, match=r"raw\.t.*is gone.*`lake-assets repair`"):
            lake.table("raw.t")
    assert count(lake, "raw.other") == 2, "other tables are read as ever"
    for examined in examine(lake):
        if examined.can_be_repaired:
            repair(lake, examined)
    assert named(lake) == newest
    assert count(lake) == 2 + commits
    append(lake)
    assert count(lake) == 3 + commits
    assert set(states(lake).values()) == {"current"}


def test_diverged_versions_require_a_choice(plain_lake: Lake, backup: Callable[[], Callable[[], Lake]]) -> None:
    make(plain_lake)
    restore = backup()
    append(plain_lake, commits=3)
    other = named(plain_lake)
    lake = restore()
    append(lake)
    examined = only(lake)
    assert (examined.state, examined.can_be_repaired) == ("diverged", False)
    assert str(other) in examined.why
    with pytest.raises(RepairError, match="does not follow"):
        repair(lake, examined)
    repair(lake, examined, str(other))
    assert count(lake) == 5


BROKEN: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "empty": lambda f: f.write_bytes(b""),
    "cut": lambda f: f.write_bytes(f.read_bytes()[:-100]),
    "no JSON": lambda f: f.write_bytes(b"\x00" * 100),
    "other JSON": lambda f: f.write_text("[]"),
    "no snapshots": lambda f: f.write_text(json.dumps({"format-version": 2, "table-uuid": "x"})),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_the_newest_readable_version_replaces_an_unreadable_one(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    make(plain_lake, commits=3)
    BROKEN[broken](named(plain_lake))
    lake = Lake(plain_lake.config)
    monkeypatch.setattr(caching_catalog, "_cache", caching_catalog.MetadataCache())  # as in a new process
    for look in (lake.table, lake.find, lake.exists):
        with pytest.raises(CorruptMetadataError, match=r"(?s)raw\.t .*`lake-assets repair`"):
            look("raw.t")
    examined = only(lake)
    assert examined.state == "unreadable"
    assert "1 version older" in examined.why
    repair(lake, examined)
    assert count(lake) == 2, "one commit is lost, and said to be"


def test_a_lost_table_is_forgotten_only_on_request(plain_lake: Lake) -> None:
    make(plain_lake)
    folder = named(plain_lake).parent
    for file in folder.glob("*.metadata.json"):
        file.write_bytes(b"{")
    examined = only(plain_lake)
    assert (examined.state, examined.newest) == ("lost", None)
    with pytest.raises(RepairError, match="every other version"):
        repair(plain_lake, examined)
    forget(plain_lake, examined)
    assert examine(plain_lake) == []
    make(plain_lake)
    assert count(plain_lake) == 2
    with pytest.raises(RepairError, match="is current"):
        forget(plain_lake, only(plain_lake))


def test_a_table_created_again_in_its_folder_is_another_table(plain_lake: Lake) -> None:
    make(plain_lake, commits=9)
    before = named(plain_lake)
    plain_lake.catalog.drop_table("raw.t")
    make(plain_lake, commits=1)
    assert states(plain_lake) == {"raw.t": "current"}, "versions of the table before do not count"
    with pytest.raises(RepairError, match="another table"):
        repair(plain_lake, only(plain_lake), str(before))


def test_a_table_created_again_in_its_folder_is_repaired_from_its_own_versions(plain_lake: Lake) -> None:
    make(plain_lake, commits=9)
    plain_lake.catalog.drop_table("raw.t")
    make(plain_lake, commits=2)
    named(plain_lake).unlink()
    assert states(plain_lake) == {"raw.t": "unreadable"}
    repair(plain_lake, only(plain_lake))
    assert count(plain_lake) == 1


def test_a_concurrent_commit_is_not_undone(plain_lake: Lake) -> None:
    make(plain_lake)
    before = only(plain_lake)
    append(plain_lake)
    with pytest.raises(RepairError, match="meanwhile"):
        repair(plain_lake, before, str(named(plain_lake)))
    assert count(plain_lake) == 3


def test_the_command(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lake, "load_existing", lambda: plain_lake)

    def command(*args: str) -> tuple[int, str]:
        done = invoke("repair", *args)
        return done.exit_code, done.output

    make(plain_lake)
    make(plain_lake, "raw.other", commits=3)
    assert command() == (0, "2 of 2 tables are at their newest version; 0 repaired\n")
    broken = named(plain_lake, "raw.other")
    broken.write_bytes(b"{")
    code, output = command("--dry-run")
    assert code == 0
    assert "raw.other" in output
    assert "would name" in output.replace("\n", " ")
    assert named(plain_lake, "raw.other") == broken
    entries: list[dict[str, Any]] = json.loads(command("--dry-run", "--json")[1])
    assert [(e["table"], e["state"], e["repaired"]) for e in entries] == [
        ("raw.other", "unreadable", False),
        ("raw.t", "current", False),
    ]
    assert command("raw.t")[0] == 0, "other tables are left alone"
    assert named(plain_lake, "raw.other") == broken
    assert command()[0] == 0
    assert count(plain_lake, "raw.other") == 2
    for file in named(plain_lake).parent.glob("*.metadata.json"):
        file.unlink()
    code, output = command()
    assert code == 1
    assert "--forget" in output
    with pytest.raises(RepairError, match="names of the tables"):
        command("--forget")
    assert command("raw.t", "--forget")[0] == 0
    assert command()[0] == 0


def test_a_catalog_that_does_not_answer_is_named_without_its_statement(plain_lake: Lake) -> None:
    make(plain_lake)
    plain_lake.catalog.close()  # type: ignore[attr-defined]
    uri = plain_lake.config.catalog["uri"]
    lake = Lake(plain_lake.config.model_copy(update={"catalog": {**plain_lake.config.catalog, "uri": uri}}))
    lake.catalog  # noqa: B018 (opened)
    with closing(sqlite3.connect(plain_lake.config.home / "catalog.db", timeout=1)) as other:
        other.execute("DROP TABLE iceberg_tables")
        other.commit()
    with pytest.raises(CatalogUnavailableError, match=r"catalog\.db.* does not answer \(no such table") as caught:
        lake.table("raw.t")
    assert "SELECT" not in str(caught.value)
