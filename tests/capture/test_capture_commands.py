"""`lake-assets capture` and `lake-assets changes`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner, Result

from lake_assets import Lake
from lake_assets.commands import capture as commands
from lake_assets.errors import ConfigError, InvalidNameError, KeyMissingError

app = typer.Typer()
app.command()(commands.capture)
app.command()(commands.changes)


@pytest.fixture
def table(lake: Lake, namespace: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(Lake, "load", classmethod(lambda cls: lake))
    name = f"{namespace}.t"
    spark = lake.spark()
    spark.sql(
        f"CREATE TABLE {name} (id INT NOT NULL, v STRING) USING iceberg TBLPROPERTIES ('format-version'='3', "
        "'write.update.mode'='merge-on-read')"
    )
    spark.sql(f"ALTER TABLE {name} SET IDENTIFIER FIELDS id")
    spark.sql(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')")
    spark.sql(f"ALTER TABLE {name} CREATE TAG before")
    spark.sql(f"UPDATE {name} SET v = 'c' WHERE id = 2")
    spark.sql(f"INSERT INTO {name} VALUES (3, NULL)")
    spark.sql(f"DELETE FROM {name} WHERE id = 1")
    return name


def run(*args: str) -> Result:
    done = CliRunner().invoke(app, args, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def lines(done: Result) -> list[dict[str, object]]:
    return sorted((json.loads(line) for line in done.stdout.splitlines()), key=str)


def test_capture_as_a_table_and_as_json(table: str) -> None:
    output = run("capture", table, "--from", "before").output
    assert "update" not in output
    assert "its deletes changed" in output
    assert "overwrite, append, delete" in output
    facts = json.loads(run("capture", table, "--from", "before", "--json").stdout)
    assert facts["ranges"]["id"] | {"nans": False} == facts["ranges"]["id"]
    assert (facts["ranges"]["id"]["low"], facts["ranges"]["id"]["high"]) == (1, 3)
    assert {f["side"] for f in facts["files"]} == {"after", "before"}
    assert "nothing changed" in run("capture", table, "--from", "main").output


def test_changes_as_rows(table: str, tmp_path: Path) -> None:
    whole = lines(run("changes", table, "--from", "before"))
    assert whole == [
        {"id": 1, "v": "a", "_change_type": "delete"},
        {"id": 2, "v": "b", "_change_type": "update_before"},
        {"id": 2, "v": "c", "_change_type": "update_after"},
        {"id": 3, "v": None, "_change_type": "insert"},
    ]
    assert lines(run("changes", table, "--from", "before", "--images", "before")) == [
        {"id": 1, "v": "a", "_change_type": "delete"},
        {"id": 2, "v": "b", "_change_type": "update_before"},
        {"id": 3, "v": None, "_change_type": "insert"},
    ]
    keys = lines(run("changes", table, "--from", "before", "--images", "key-only"))
    assert {(r["id"], r["_change_type"]) for r in keys} == {(r["id"], r["_change_type"]) for r in whole}
    assert all("v" not in r for r in keys)
    out = tmp_path / "changes.parquet"
    assert "4 rows written" in run("changes", table, "--from", "before", "--out", str(out)).output
    assert sorted(pq.read_table(out).to_pylist(), key=str) == whole
    assert [p.name for p in tmp_path.iterdir()] == ["changes.parquet"]
    stepwise = lines(run("changes", table, "--from", "before", "--by-snapshot"))
    assert len({r["_commit_snapshot_id"] for r in stepwise}) == 3


def test_changes_of_other_kinds(table: str) -> None:
    assert lines(run("changes", table, "--from", "before", "--kind", "rows")) == [
        {"id": 2, "v": "c"},
        {"id": 3, "v": None},
    ]
    assert lines(run("changes", table, "--from", "before", "--kind", "keys")) == [{"id": 1}, {"id": 2}, {"id": 3}]
    values = lines(run("changes", table, "--from", "before", "--kind", "keys", "--key", "v"))
    assert values == [{"v": "a"}, {"v": "b"}, {"v": "c"}, {"v": None}]
    assert len(lines(run("changes", table, "--from", "before", "--limit", "2"))) == 2


def test_changes_as_csv(lake: Lake, table: str, tmp_path: Path) -> None:
    name = table.rsplit(".", 1)[0] + ".nested"
    lake.spark().sql(f"CREATE TABLE {name} (id INT, s STRUCT<a: INT, b: ARRAY<STRING>>, raw BINARY) USING iceberg")
    lake.spark().sql(
        f"""INSERT INTO {name} VALUES (1, named_struct('a', NULL, 'b', array('x,"y')), X'00FF'), (2, NULL, NULL)"""
    )
    out = tmp_path / "changes.csv"
    assert "2 rows written" in run("changes", name, "--out", str(out)).output
    with out.open(newline="") as f:
        found = sorted(csv.reader(f))
    assert found == [
        ["1", '{"a":null,"b":["x,\\"y"]}', "AP8=", "insert"],
        ["2", "", "", "insert"],
        ["id", "s", "raw", "_change_type"],
    ]


def test_changes_as_a_table_that_other_sessions_read(lake: Lake, namespace: str, table: str) -> None:
    into = f"{namespace}.`what's changed`"
    assert "4 rows written" in run("changes", table, "--from", "before", "--as", into).output
    stored = lake.table(into)
    whole = lines(run("changes", table, "--from", "before"))
    assert sorted(stored.scan().to_arrow().to_pylist(), key=str) == whole
    start, end = (lake.table(table).metadata.refs[ref].snapshot_id for ref in ("before", "main"))
    assert {k: v for k, v in stored.properties.items() if k.startswith("lake-assets.changes.")} == {
        "lake-assets.changes.table": table,
        "lake-assets.changes.from-snapshot": str(start),
        "lake-assets.changes.to-snapshot": str(end),
    }
    # The next window replaces it; nothing else is ever replaced.
    assert "0 rows written" in run("changes", table, "--from", "main", "--as", into).output
    assert lake.table(into).scan().to_arrow().num_rows == 0
    with pytest.raises(ConfigError, match="was not written by `lake-assets changes`"):
        run("changes", table, "--as", table)
    assert lake.table(table).metadata.refs["main"].snapshot_id == end


def test_changes_as_events(table: str, tmp_path: Path) -> None:
    out = tmp_path / "changes.jsonl"
    run("changes", table, "--from", "before", "--format", "debezium", "--out", str(out))
    events = {e["op"]: e for e in map(json.loads, out.read_text().splitlines())}
    assert events["u"]["before"] == {"id": 2, "v": "b"}
    assert events["u"]["after"] == {"id": 2, "v": "c"}
    assert (events["c"]["before"], events["c"]["after"]) == (None, {"id": 3, "v": None})
    assert (events["d"]["before"], events["d"]["after"]) == ({"id": 1, "v": "a"}, None)
    assert events["c"]["source"] == {"connector": "iceberg", "table": table}
    least = lines(run("changes", table, "--from", "before", "--format", "debezium", "--images", "key-only"))
    assert {json.dumps([e["before"], e["after"]]) for e in least} == {
        '[{"id": 2}, {"id": 2}]',
        '[null, {"id": 3}]',
        '[{"id": 1}, null]',
    }


def test_a_changed_key_is_not_lost_if_after_images_are_omitted(lake: Lake, table: str) -> None:
    start = lake.table(table).current_snapshot()
    assert start is not None
    lake.spark().sql(f"UPDATE {table} SET id = 9 WHERE id = 3")
    assert lines(run("changes", table, "--from", str(start.snapshot_id), "--images", "before")) == [
        {"id": 3, "v": None, "_change_type": "delete"},
        {"id": 9, "v": None, "_change_type": "insert"},
    ]


def test_bad_requests_are_named(lake: Lake, namespace: str, table: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"write a \.parquet, \.csv or \.jsonl file"):
        run("changes", table, "--out", str(tmp_path / "x.xlsx"))
    with pytest.raises(ConfigError, match="choose a file or a table"):
        run("changes", table, "--out", str(tmp_path / "x.csv"), "--as", f"{namespace}.x")
    with pytest.raises(ConfigError, match="apply to a feed only"):
        run("changes", table, "--kind", "keys", "--format", "debezium")
    with pytest.raises(ConfigError, match="takes no keys"):
        run("changes", table, "--kind", "rows", "--key", "id")
    with pytest.raises(InvalidNameError):
        run("changes", table, "--as", "nowhere")
    lake.spark().sql(f"CREATE TABLE {namespace}.nokey (id INT) USING iceberg")
    with pytest.raises(KeyMissingError, match="--key"):
        run("changes", f"{namespace}.nokey", "--images", "key-only")
