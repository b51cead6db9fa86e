"""Rows deleted by deletion vectors are read by position, exactly and without comparing values."""

from __future__ import annotations

import itertools
import re
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlparse

import pytest
from pyiceberg.table.puffin import PuffinFile

from lake_assets import Lake
from lake_assets.capture import icdc, icdc_metadata
from lake_assets.errors import CorruptMetadataError
from lake_assets.lake import TableId
from lake_assets.runtime.processes import owner
from tests.support.capture_oracle import assert_exact, bag, snapshots

FORWARD = [
    "INSERT INTO {t} SELECT id, CAST(id % 3 AS INT), CAST(id AS STRING) FROM range(60)",
    "DELETE FROM {t} WHERE id IN (1, 2, 3)",
    "UPDATE {t} SET v = 'u' WHERE id IN (4, 5, 21)",
    "MERGE INTO {t} t USING (SELECT * FROM VALUES (3L, 0, 'again'), (6L, 2, 'moved'), (7L, 1, 'x') AS s(id, g, v)) s "
    "ON t.id = s.id WHEN MATCHED AND s.id = 7 THEN DELETE WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    "INSERT INTO {t} SELECT id, 1, NULL FROM range(100, 110)",
    "UPDATE {t} SET g = g + 1 WHERE id % 10 = 9",
    "UPDATE {t} SET v = 'twice' WHERE id IN (4, 9, 101)",
    "DELETE FROM {t} WHERE g = 2",
]
UPKEEP = [
    "CALL lake.system.rewrite_data_files(table => '{n}', options => map('rewrite-all','true'))",
    "CALL lake.system.rewrite_manifests('{n}')",
]


def make(lake: Lake, table: str, *, version: int = 3, partitioned: bool = False) -> None:
    part = "PARTITIONED BY (g)" if partitioned else ""
    modes = ",".join(f"'write.{w}.mode'='merge-on-read'" for w in ("merge", "update", "delete"))
    lake.spark().sql(
        f"CREATE TABLE {table} (id BIGINT, g INT, v STRING) USING iceberg {part} "
        f"TBLPROPERTIES ('format-version'='{version}', {modes})"
    )


def run(lake: Lake, table: str, *texts: str) -> None:
    for text in texts:
        lake.spark().sql(text.format(t=table, n=table))


def begun(lake: Lake, namespace: str, *texts: str) -> tuple[str, int]:
    """Create a table by these statements; return it and its snapshot."""
    table = f"{namespace}.t"
    make(lake, table)
    run(lake, table, *texts)
    return table, snapshots(lake, table)[-1]


def went(lake: Lake) -> TableId:
    """Return the ICDC table of rows deleted by vectors, for the only open capture."""
    (name,) = [t for t in lake.tables("icdc") if str(t).endswith("_went_before")]
    return name


@pytest.mark.long
@pytest.mark.parametrize(
    "partitioned", [pytest.param(False, marks=pytest.mark.long), True], ids=["whole", "partitioned"]
)
def test_every_window_is_exact(lake: Lake, namespace: str, *, partitioned: bool) -> None:
    table = f"{namespace}.t"
    make(lake, table, partitioned=partitioned)
    run(lake, table, *FORWARD[:6], *UPKEEP, *FORWARD[6:])
    points = snapshots(lake, table)
    for start, end in itertools.combinations(range(len(points)), 2):
        if (end - start) in (2, len(points) - 1):
            assert_exact(lake, table, points[start], points[end])


def test_deleted_rows_are_read_by_position(lake: Lake, namespace: str) -> None:
    table, start = begun(lake, namespace, *FORWARD[:3])
    run(lake, table, FORWARD[3])
    others = set(lake.tables("icdc"))
    with lake.capture(table, start) as capture:
        capture.signed(lake.spark())
        tables = set(lake.tables("icdc")) - others
        # Without the files on both sides.
        assert {re.sub(r".*_[0-9a-f]{12}", "", str(t)) for t in tables} == {"_went_before", "_newer_after"}
        assert bag(lake.spark().table(lake.sql_name(went(lake))).select("id").collect()) == bag([(6,), (7,)])


@pytest.mark.long
def test_versions_are_compared_only_if_files_contain_older_rows(
    lake: Lake, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table, start = begun(lake, namespace, FORWARD[0], FORWARD[4])
    results: list[bool] = []
    for more in (
        ["DELETE FROM {t} WHERE id = 10", "UPDATE {t} SET v = 'x' WHERE id = 11"],
        # The other nine rows of this file are carried over.
        [
            "ALTER TABLE {t} SET TBLPROPERTIES ('write.update.mode'='copy-on-write')",
            "UPDATE {t} SET v = 'y' WHERE id = 101",
        ],
    ):
        run(lake, table, *more)
        with lake.capture(table, start) as capture:
            capture.signed(lake.spark()).explain()
            results.append("_last_updated_sequence_number" in capsys.readouterr().out)
            assert {re.sub(r".*_[0-9a-f]{12}", "", str(t)) for t in lake.tables("icdc")} >= {
                "_went_before",
                "_newer_after",
            }
        assert_exact(lake, table, start, snapshots(lake, table)[-1])
    assert results == [False, True]


def test_other_readers_understand_the_vectors(lake: Lake, namespace: str) -> None:
    table, start = begun(lake, namespace, *FORWARD[:2])
    run(lake, table, "DELETE FROM {t} WHERE id IN (10, 11)", "INSERT INTO {t} VALUES (200, 0, 'new')")
    with lake.capture(table, start) as capture:
        capture.signed(lake.spark())
        name = went(lake)
        (file,) = [Path(urlparse(p).path) for p in _puffins(lake, str(name))]
        (positions,) = PuffinFile(file.read_bytes()).to_vector().values()
        (read,) = lake.spark().table(f"{lake.sql_name(name)}.files").where("content = 0").collect()
        assert len(positions) == read["record_count"] - 2
        assert sorted(r["id"] for r in lake.table(name).scan().to_arrow().to_pylist()) == [10, 11]
        assert [f.name for f in file.parent.glob("*.puffin")] == [file.name]
    assert not list(file.parent.glob("*"))


def test_a_killed_capture_leaves_no_vectors(lake: Lake, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(icdc_metadata, "owner", lambda: owner((2**22 + 1, 1.0)))
    table, start = begun(lake, namespace, *FORWARD[:1])
    run(lake, table, FORWARD[2])
    capture = lake.capture(table, start)
    capture.signed(lake.spark())
    folder = Path(urlparse(lake.table(table).location()).path) / "icdc"
    assert list(folder.glob("*.puffin"))
    icdc.sweep(lake, timedelta(0))
    assert not list(folder.glob("*"))
    capture.close()


@pytest.mark.long
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
def test_positions_of_older_formats_and_rollbacks_are_compared(lake: Lake, namespace: str, every: int) -> None:
    table = f"{namespace}.t"
    make(lake, table, version=2)
    run(lake, table, *FORWARD[:3], "ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')", *FORWARD[3:6])
    points = snapshots(lake, table)
    run(lake, table, "CALL lake.system.rollback_to_snapshot('{n}', " + str(points[3]) + ")")
    for start, end in ((points[1], points[3]), (points[2], points[4]), (points[-1], None), (points[1], points[-1]))[
        ::every
    ]:
        assert_exact(lake, table, start, end)
    run(lake, table, "DELETE FROM {t} WHERE id = 50")
    for start in points[::every]:
        assert_exact(lake, table, start)


def test_a_broken_vector_is_named(lake: Lake, namespace: str) -> None:
    table, start = begun(lake, namespace, *FORWARD[:1])
    run(lake, table, FORWARD[2])
    (file,) = [Path(urlparse(p).path) for p in _puffins(lake, table)]
    content = bytearray(file.read_bytes())
    content[20] ^= 0xFF
    file.write_bytes(content)
    with lake.capture(table, start) as capture, pytest.raises(CorruptMetadataError, match=re.escape(file.name)):
        capture.signed(lake.spark())


def _puffins(lake: Lake, table: str) -> list[str]:
    files = lake.spark().table(f"{lake.sql_name(table)}.delete_files").select("file_path").distinct().collect()
    return [r[0] for r in files if r[0].endswith(".puffin")]
