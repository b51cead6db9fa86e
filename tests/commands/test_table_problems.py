"""What `status` says of a table that something stands in the way of, and for how long it says so."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType

from lake_assets import Lake, Pipeline
from lake_assets.facade import Lake as LakeOfCommands
from lake_assets.health.status_of_history import renamed_columns
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, Watermark, to_properties
from lake_assets.models.sql.model_plan import fingerprint, parse
from lake_assets.pipeline.pipeline_checks import check
from lake_assets.tables import standing_failures
from lake_assets.tables.pending_windows import head_of
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY
from tests.support.cli import Done
from tests.support.item_events import v2

Call = Callable[..., Done]


def event(at: int, **row: Any) -> str:
    """A simplified insert into public.items."""
    return json.dumps({
        "changeType": "insert", "timestamp": str(at), "schema": "public", "table": "items",
        "columnNames": list(row), "columnValues": list(row.values()),
    })  # fmt: skip


def declare(file: Path, tables: list[Any], models: list[Any] | None = None, **stream: Any) -> Path:
    declared = {"name": "events", "format": "simplified", "tables": tables, **stream}
    attributes = {"name": "p", "streams": [declared], "models": models or []}
    file.write_text(json.dumps({"type": "lake_assets.LakePipeline", "attributes": attributes}))
    return file


def status_of(call: Call) -> dict[str, dict[str, Any]]:
    return {s["table"]: s for s in json.loads(call("status", "--json").out)}


@pytest.fixture
def plain(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """The lake of the commands, without Spark."""
    monkeypatch.setattr(LakeOfCommands, "load", classmethod(lambda *_: plain_lake))
    return plain_lake


@pytest.mark.long
def test_a_failure_stands_until_a_step_of_the_table_succeeds(plain: Lake, tmp_path: Path, call: Call) -> None:
    file = declare(tmp_path / "p.yaml", [], [{"name": "agg.m", "sql": "SELECT a FROM final.t GROUP a"}])
    (folder := plain.config.home / "landing" / "events").mkdir(parents=True)
    (folder / "1.jsonl.gz").write_bytes(gzip.compress(event(1, id=1).encode())[:-9])
    assert call("run", file).code == 1
    found = status_of(call)
    assert "TruncatedInputError: " in found["raw.events"]["failure"]
    # A table that has never existed is listed too.
    assert (found["agg.m"]["rows"], found["agg.m"]["last_run"]) == (None, None)
    assert "ModelError: " in found["agg.m"]["failure"]
    assert "found `a`" in found["agg.m"]["failure"]
    assert found["agg.m"]["retry"] == f"lake-assets run {file}"
    out = call("status").out
    assert f"Then `lake-assets run {file}` tries again" in out
    assert ["failed; 1 file" in line for line in out.splitlines() if line.startswith("raw.events ")] == [True]

    # The command of the message, in another process, after the correction.
    (folder / "1.jsonl.gz").write_bytes(gzip.compress(event(1, id=1).encode()))
    code = "from lake_assets import cli; cli.main()"
    words = found["raw.events"]["retry"].split()[1:]
    environment = {"LAKE_HOME": str(plain.config.home), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True)
    # The other table's mistake is still there.
    assert (done.returncode, "agg.m" in done.stderr + done.stdout) == (1, True), done.stderr
    assert status_of(call)["raw.events"]["failure"] is None
    assert "raw.events: failed" not in call("status").out
    # What is not declared any more is not said for ever.
    assert call("run", declare(file, [])).code == 0
    assert "agg.m" not in status_of(call)


def test_a_failure_is_over_if_another_machine_has_absorbed_more(plain: Lake) -> None:
    table = create(plain, "agg.m", id=LongType())
    name = TableId.parse("agg.m")
    standing_failures.note(plain, name, "p", None, ValueError("full of secrets"))
    assert standing_failures.standing(plain)["agg.m"].error == "ValueError: full of secrets"
    append(table, {"id": [1]}, {"final.t": Watermark("u", 1)})
    assert standing_failures.standing(plain) == {}


def create(lake: Lake, table: str, /, **columns: Any) -> Table:
    namespace, name = table.split(".")
    lake.ensure_namespace((namespace,))
    fields = [NestedField(n, c, kind) for n, (c, kind) in enumerate(columns.items(), 1)]
    return lake.catalog.create_table((namespace, name), Schema(*fields), properties={PIPELINE_PROPERTY: "p"})


def append(table: Table, rows: dict[str, list[Any]], marks: dict[str, Watermark] | None = None) -> None:
    table.refresh()
    batch = pa.Table.from_pydict(rows, schema=table.schema().as_arrow())
    table.append(batch, snapshot_properties=to_properties(marks) if marks else {})


def mark(table: Table) -> Watermark:
    table.refresh()
    return Watermark(str(table.metadata.table_uuid), table.metadata.current_snapshot_id)


def test_lost_history_is_told_with_its_command_before_the_next_run(plain: Lake, call: Call) -> None:
    people, shops = (create(plain, f"other.{name}", id=LongType()) for name in ("people", "shops"))
    for source in (people, shops):
        append(source, {"id": [1]})
    append(create(plain, "agg.a", id=LongType()), {"id": [1]}, {"other.people": mark(people)})
    append(create(plain, "agg.b", id=LongType()), {"id": [1]}, {"other.shops": mark(shops)})
    append(create(plain, "agg.c", id=LongType()), {"id": [1]}, {"agg.a": mark(plain.table("agg.a"))})
    expired = mark(people).snapshot
    append(people, {"id": [2]})
    people.maintenance.expire_snapshots().by_id(expired or 0).commit()
    plain.catalog.drop_table("other.shops")
    append(create(plain, "other.shops", id=LongType()), {"id": [1]})
    plain.catalog.rename_table("agg.a", "agg.was_a")
    found, out = status_of(call), call("status").out
    for table, texts in (
        ("agg.was_a", [f"are unknown (snapshot {expired})", "`lake-assets rebuild agg.was_a`"]),
        (
            "agg.b",
            ["other.shops was dropped and created again", "`lake-assets rebuild agg.b`", "`on_replaced: rebuild`"],
        ),
        (
            "agg.c",
            ["agg.a, which was read before, no longer exists", "`lake-assets rebuild agg.c` computes agg.c"],
        ),
    ):
        for text in texts:
            assert text in found[table]["lost"][0]
            assert [line for line in out.splitlines() if line.startswith(f"{table}: ") and text in line]


def test_a_column_that_its_source_renames_is_told_before_another_row_arrives(
    plain: Lake, tmp_path: Path, call: Call
) -> None:
    people = create(plain, "other.people", id=LongType(), name=StringType(), value=StringType())
    append(people, {"id": [1], "name": ["a"], "value": ["{}"]})
    queries = {"agg.m": "SELECT id, name FROM other.people", "agg.n": "SELECT id FROM other.people"}
    for table, query in queries.items():
        target = create(plain, table, id=LongType())
        with target.transaction() as transaction:
            transaction.set_properties({FINGERPRINT_PROPERTY: fingerprint(parse(table, query), query)})
        append(target, {"id": [1]}, {"other.people": mark(people)})
    assert [s["renamed"] for s in status_of(call).values()] == [[], [], []]
    file = declare(
        tmp_path / "p.yaml",
        [],
        [{"name": name, "sql": query} for name, query in queries.items()],
        source={"table": "other.people"},
    )
    assert Pipeline.load(file).run(plain, ["raw.events"])[0].status == "absorbed"
    with people.update_schema() as update:
        update.rename_column("name", "nick")
        update.rename_column("value", "record")
    people.refresh()

    found = check(Pipeline.load(file), plain).mistakes
    assert any("model agg.m: no column name" in m for m in found)
    assert any("raw.events: other.people has no column value; it has id, nick, record" in m for m in found)
    assert len(found) == 2
    told = (
        "columns of other.people were renamed or dropped since it was absorbed: name is now nick, value is now record"
    )
    assert told in status_of(call)["agg.m"]["renamed"][0]
    (line,) = (at for at in call("status").out.splitlines() if told in at)
    assert {"agg.m", "agg.n"} <= set(line.partition(":")[0].split(", "))
    outcomes = {o.table: o for o in Pipeline.load(file).run(plain, ["raw.events", "agg.m", "agg.n"])}
    assert {t: o.status for t, o in outcomes.items()} == {
        "raw.events": "failed", "agg.m": "failed", "agg.n": "nothing"
    }  # fmt: skip
    assert "no column name" in (outcomes["agg.m"].error or "")
    assert "name is now nick" in outcomes["agg.n"].why
    assert "no column name" in status_of(call)["agg.m"]["failure"]


def test_a_column_that_was_added_again_is_told_with_what_it_means(plain: Lake) -> None:
    plain.ensure_namespace(("other",))
    rows = pa.table({"id": [1], "area": pa.array([2], pa.int32())})
    table = plain.catalog.create_table(("other", "regions"), rows.schema)
    table.append(rows)
    mark = head_of(table)
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("area")
    with table.update_schema() as update:
        update.add_column("area", StringType())
    (text,) = renamed_columns("agg.m", "p", {"other.regions": mark}, {"other.regions": table})
    assert "area was dropped and added again as string (it was int)" in text
    assert "`lake-assets check p` names the SQL" in text
    assert "If agg.m reads it, its next step stops; `lake-assets rebuild agg.m` computes the table with null" in text


def test_a_folder_that_nothing_arrives_in_is_named_with_its_path(plain: Lake, tmp_path: Path, call: Call) -> None:
    file = declare(tmp_path / "p.yaml", [], landing="in")
    folder = plain.config.home / "in"

    def why() -> str:
        return json.loads(call("run", file, "--json").out)[0]["why"]

    hint = " (a relative `landing` is below the home of the lake)"
    assert why() == f"the folder {folder} does not exist yet{hint}"
    assert f"{folder} does not exist" in call("status").out
    folder.mkdir()
    assert why() == f"no file has arrived in {folder} yet{hint}"
    assert f"no file yet in {folder}" in call("status").out
    (folder / "1.jsonl").write_text(event(1, id=1) + "\n")
    assert "1 file" in call("status").out
    assert call("run", file).code == 0
    assert status_of(call)["raw.events"]["landing"] is None
    declare(file, [], landing=str(tmp_path / "gone"))
    assert why() == f"the folder {tmp_path}/gone does not exist yet"


@pytest.mark.long  # as any failure
def test_an_audit_and_a_schema_conflict_are_told_until_the_declaration_settles_them(
    lake: Lake, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LakeOfCommands, "load", classmethod(lambda *_: lake))
    (folder := lake.config.home / "landing" / "events").mkdir(parents=True)
    lines = [v2(at, "I", id=("integer", at), n=("integer", n)) for at, n in ((1, None), (2, 2))]
    (folder / "1.jsonl").write_text("".join(f"{line}\n" for line in lines))
    items: dict[str, Any] = {"table": "public.items", "key": "id"}
    file = declare(tmp_path / "p.yaml", [{**items, "audits": [{"not_null": "n"}]}], format="wal2json-v2")
    assert call("run", file).code == 1
    held = status_of(call)["final.items"]
    assert (held["rows"], held["behind"]) == (0, {})
    assert "AuditFailedError: final.items: 1 of 1 audits do not pass, and the batch is not published" in held["failure"]
    assert call("run", declare(file, [items], format="wal2json-v2")).code == 0
    assert status_of(call)["final.items"]["failure"] is None

    (folder / "2.jsonl").write_text(v2(3, "I", id=("integer", 3), n=("text", "three")) + "\n")
    assert call("run", file).code == 1
    found = status_of(call)
    assert "SchemaConflictError: " in found["staging.items"]["failure"]
    assert found["final.items"]["upstream"] == ["staging.items"]
    assert call("run", declare(file, [{**items, "on_conflict": "reject"}], format="wal2json-v2")).code == 3
    assert [s["failure"] for s in status_of(call).values()] == [None, None, None]
