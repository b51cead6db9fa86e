"""What `run` and `status` tell people: what was rejected, and what has still to come to a table."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.commands import status as status_command
from lake_assets.commands.run import pipeline_note, rejection_note
from lake_assets.commands.status import behind_column, failing_first, notes_of
from lake_assets.facade import Lake as LakeOfCommands
from lake_assets.health.lake_status import with_upstream
from lake_assets.health.table_status import TableStatus
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw.landing import land
from lake_assets.ingest.raw.landing_backlog import Backlog, backlog
from lake_assets.lake import TableId, caching_catalog
from lake_assets.tables.outcome import Outcome
from lake_assets.tables.pending_windows import rebuild_advice
from tests.support.cli import Done

Call = Callable[..., Done]


def event(table: str, at: int, **row: Any) -> str:
    """A simplified insert."""
    return json.dumps({
        "changeType": "insert", "timestamp": str(at), "schema": "public", "table": table,
        "columnNames": list(row), "columnValues": list(row.values()),
    })  # fmt: skip


def declare(file: Path, **stream: Any) -> Path:
    tables = [
        {"table": "public.items", "key": "id", "types": {"id": "int", "n": "int"}},
        {"table": "public.others", "key": "id", "types": {"id": "int"}},
    ]
    declared = {"name": "p", "streams": [{"name": "events", "format": "simplified", "tables": tables, **stream}]}
    file.write_text(json.dumps({"type": "lake_assets.LakePipeline", "attributes": declared}))
    return file


def statuses(call: Call) -> dict[str, dict[str, Any]]:
    done = call("status", "--json")
    assert done.code == 0, done.err
    return {s["table"]: s for s in json.loads(done.out)}


def behind(call: Call) -> dict[str, str]:
    """The column `behind` of `status`, by table."""
    lines = call("status").out.splitlines()
    at = lines[0].index("behind"), lines[0].index("upkeep")
    return {line.split()[0]: line[slice(*at)].strip() for line in lines[1:] if not line.split()[0].endswith((":", ","))}


def test_run_shows_rejected_records_of_each_table_and_of_all(
    plain_lake: Lake, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = [
        Outcome("raw.events", "absorbed", inserted=9, seconds=0.5, details={"rejected": 1}),
        Outcome("staging.items", "absorbed", inserted=6, seconds=1.0, details={"rejected": 2}),
        Outcome("final.items", "nothing"),
    ]

    def run(*_: Any, on_outcome: Callable[[Outcome], None], **__: Any) -> list[Outcome]:
        for outcome in outcomes:
            on_outcome(outcome)
        return outcomes

    monkeypatch.setattr(LakeOfCommands, "load", classmethod(lambda *_: plain_lake))
    monkeypatch.setattr(Pipeline, "run", run)
    done = call("run", declare(tmp_path / "p.yaml"), "--no-upkeep")
    assert done.code == 3
    head, *lines, last = done.out.splitlines()
    at = head.index("rejected"), head.index("rejected") + len("rejected")
    assert {line.split()[0]: line[slice(*at)].strip() for line in lines} == {
        "raw.events": "1", "staging.items": "2", "final.items": ""
    }  # fmt: skip
    assert last == "3 tables: 2 absorbed changes, 1 had none; 3 records rejected; 1.5 s"


def test_status_is_printed_again_until_it_is_interrupted(
    plain_lake: Lake, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) >= 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(LakeOfCommands, "load", classmethod(lambda *_: plain_lake))
    # Threads of earlier tests sleep too: only the command's own clock is another one.
    monkeypatch.setattr(status_command, "time", SimpleNamespace(time=time.time, sleep=sleep))
    plain_lake.ensure_namespace(("final",))
    done = call("status", "--watch", "--every", 7)
    assert (done.code, pauses) == (130, [7, 7])
    assert done.out.count("no pipeline has filled a table") == done.out.count("UTC, again every 7 s") == 2
    assert done.err.startswith("interrupted")
    refused = call("status", "--watch", "--json")
    assert (refused.code, refused.out) == (2, "")
    assert "leave out --watch" in refused.err


def test_tables_that_need_somebody_come_first_and_then_those_with_something_to_absorb() -> None:
    def status(table: str, pending: int = 0, **more: Any) -> TableStatus:
        return TableStatus(table, "p", 0, {"raw.a": 1}, {"raw.a": pending}, 0.0, None, **more)

    tables = [
        status("staging.current"),
        status("staging.behind", 2),
        status("staging.failed", failure="ModelError: wrong"),
        status("final.current"),
        status("final.unreadable", error="its metadata are gone"),
        status("final.waiting", waiting=Backlog(3)),
    ]
    assert [s.table.partition(".")[2] for s in failing_first(tables)] == [
        "failed", "unreadable", "behind", "waiting", "current", "current"
    ]  # fmt: skip


@pytest.mark.long
def test_run_tells_of_rejected_records_and_status_of_what_waits(
    lake: Lake, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LakeOfCommands, "load", classmethod(lambda *_: lake))
    (folder := lake.config.home / "landing" / "events").mkdir(parents=True)

    def deliver(*lines: str) -> None:
        (folder / f"{len(list(folder.iterdir()))}.jsonl").write_text("".join(f"{line}\n" for line in lines))

    good = [event("items", 1, id=1, n=1), event("others", 1, id=1)]
    deliver(*good, *(event("items", n, id=n, n="many") for n in (2, 3, 4)), "no json", "[]")
    pipeline = declare(tmp_path / "p.yaml")
    done = call("run", pipeline)
    assert done.code == 3
    assert "5 records were rejected" in done.err
    assert "(raw.events 2, staging.items 3)" in done.err
    assert f"lake-assets rejected replay {pipeline}" in done.err
    assert re.search(r"^staging\.items .* \+1 ~0 -0 +3 ", done.out, re.MULTILINE)
    assert re.search(r"^5 tables: 5 absorbed changes; 5 records rejected; [\d.]+ s$", done.out, re.MULTILINE)
    assert {t: s["upstream"] for t, s in statuses(call).items() if s["upstream"]} == {}
    assert set(behind(call).values()) == {"up to date"}
    out = call("status").out
    assert "staging.items, final.items: not exact: 3 records are rejected" in out
    # Two could be about any table.
    why = 'n does not fit int (3); not JSON (1); expected an object with "changeType" (1)'
    assert f"raw.events: 5 records of this stream are rejected: {why} (`lake-assets rejected`)" in out
    assert "raw.events: not exact: 2 rejected records do not say which table they are about" in out
    assert "1 of them has to be delivered again, corrected" in call("report").out
    assert "n does not fit int: declare `types: {n: string}` beside other settings" in call("rejected").out
    assert sum(r["records"] for r in json.loads(call("rejected", "summary", "--json").out)) == 5
    again = call("run", pipeline)
    assert (again.code, again.err) == (0, "")

    # What waits in the folder is counted, for everything that it will come to.
    deliver(*(event("items", 10 + n, id=10 + n, n=n) for n in range(7)))
    found = statuses(call)
    assert found["raw.events"]["waiting"]["files"] == 1
    assert found["raw.events"]["waiting"]["records"] in range(5, 15)
    assert {t: s["upstream"] for t, s in found.items()} == {
        "raw.events": [],
        **{f"{layer}.{name}": ["raw.events"] for layer in ("staging", "final") for name in ("items", "others")},
    }
    shown = behind(call)
    assert shown["raw.events"].startswith("1 file, about ")
    assert shown["final.items"] == "waits for raw.events"

    # Landed, it is pending for the one table that it is about, and for what is made of it.
    assert call("run", pipeline, "--table", "raw.events").code == 0
    found = statuses(call)
    assert (found["staging.items"]["rows_behind"], found["staging.items"]["behind"]) == (7, {"raw.events": 1})
    shown = behind(call)
    assert shown["staging.items"].startswith("1 snapshot, 7 rows, ")
    assert shown["final.items"] == "waits for staging.items"
    assert shown["staging.others"] == shown["final.others"] == "up to date"

    # Rejects that the stream declares as bearable are told of, and are no error.
    deliver(event("items", 30, id=30, n="many"))
    done = call("run", declare(tmp_path / "p.yaml", max_rejected=10), "--json")
    assert done.code == 0
    assert "1 record was rejected and is in no staging or final table (staging.items 1)" in done.err
    assert {o["table"]: o["rejected"] for o in json.loads(done.out)}["staging.items"] == 1


def test_files_that_wait_are_counted_before_any_was_taken_in(plain_lake: Lake, tmp_path: Path) -> None:
    spec = RawSpec(TableId.parse("raw.events"), tmp_path / "in", "simplified", "p")
    land(plain_lake, spec)
    assert backlog(plain_lake, spec.table) == Backlog()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text(event("items", 1, id=1) + "\n")
    size = (tmp_path / "in" / "1.jsonl").stat().st_size
    assert backlog(plain_lake, spec.table) == Backlog(1, size)
    land(plain_lake, spec)
    assert backlog(plain_lake, spec.table) == Backlog()


def test_a_broken_folder_is_told_of_in_status(
    plain_lake: Lake, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LakeOfCommands, "load", classmethod(lambda *_: plain_lake))
    land(plain_lake, RawSpec(TableId.parse("raw.events"), tmp_path / "in", "simplified", "p"))
    (tmp_path / "in").write_text("")
    assert "in cannot be read: it is a file" in statuses(call)["raw.events"]["error"]
    assert behind(call)["raw.events"] == "error, see below"
    assert "raw.events: the landing folder " in call("status").out


def test_a_table_whose_metadata_is_gone_is_told_of_beside_the_others(
    plain_lake: Lake, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LakeOfCommands, "load", classmethod(lambda *_: plain_lake))
    for name in ("events", "others"):
        file = tmp_path / name / "a.jsonl"
        file.parent.mkdir()
        file.write_text('{"changeType": "INSERT"}\n')
        land(plain_lake, RawSpec(TableId.parse(f"raw.{name}"), file.parent, "simplified", "p"))
    Path(plain_lake.table("raw.events").metadata_location.removeprefix("file://")).unlink()
    monkeypatch.setattr(caching_catalog, "_cache", caching_catalog.MetadataCache())
    found = statuses(call)
    assert "raw.events cannot be read: the metadata file" in found["raw.events"]["error"]
    assert "`lake-assets repair`" in found["raw.events"]["error"]
    assert found["raw.others"]["error"] is None
    assert found["raw.others"]["rows"] == 1
    page = tmp_path / "page.html"
    assert call("report", "--html", str(page)).code == 0
    assert "raw.<wbr>events" in page.read_text()


def test_everything_upstream_that_is_behind_is_named() -> None:
    def status(table: str, *sources: str, **more: Any) -> TableStatus:
        return TableStatus(table, "p", 0, dict.fromkeys(sources), dict.fromkeys(sources, 0), 0.0, None, **more)

    tables = [
        status("raw.a", waiting=Backlog(3)),
        status("staging.a", "raw.a"),
        status("final.a", "staging.a"),
        status("agg.b", "final.a", "agg.c", "other.x"),
        status("agg.c", "final.c", error="lost"),
        status("final.c"),
    ]
    assert {t.table: t.upstream for t in with_upstream(tables)} == {
        "raw.a": (),
        "staging.a": ("raw.a",),
        "final.a": ("raw.a",),
        "agg.b": ("raw.a", "agg.c"),
        "agg.c": (),
        "final.c": (),
    }


def test_the_lag_of_a_table_is_shown_against_its_target() -> None:
    def status(table: str, behind: float = 0.0, **more: Any) -> TableStatus:
        return TableStatus(table, "p", 0, {}, {"src.a": int(behind > 0)}, behind, None, **more)

    tables = [
        status("final.a", 180.0, target_lag=300.0),
        status("final.kept", target_lag=300.0),
        status("final.none", 180.0),
        status("agg.below", upstream=("final.none",), target_lag=600.0),
        status("agg.other", redeclared="another query", target_lag=600.0),
    ]
    others = {t.table: t for t in tables}
    assert [re.sub(r"\[.*?\]", "", behind_column(t, others)) for t in tables] == [
        "1 snapshot; 3 min of 5 min",
        "up to date, target 5 min",
        "1 snapshot, 180 s",
        "waits for final.none; 3 min of 10 min",
        "declared otherwise; target 10 min",
    ]


def test_a_cause_that_tables_share_is_told_once_with_all_of_them() -> None:
    def status(table: str, **more: Any) -> TableStatus:
        return TableStatus(table, "p", 0, {}, {}, 0.0, None, **more)

    away = "the catalog's database does not answer"
    found = notes_of([status("final.a", failure=away), status("final.b", failure=away, late="late"), status("final.c")])
    assert found == {("red", away): ["final.a", "final.b"], ("red", "late"): ["final.b"]}


def test_nothing_is_said_of_rejects_where_there_are_none() -> None:
    assert rejection_note([Outcome("staging.a", "absorbed", inserted=3)], "p") is None


def test_a_rebuild_that_an_error_advises_is_told_the_pipeline_that_it_needs(tmp_path: Path) -> None:
    file, advice = tmp_path / "p.yaml", rebuild_advice(TableId.parse("agg.m"), TableId.parse("final.t"))
    file.touch()
    failed, fine = Outcome("agg.m", "failed", error=advice), Outcome("agg.n", "absorbed")
    assert f"`--pipeline {file}`" in str(pipeline_note([fine, failed], str(file)))
    # A shipped pipeline is found by itself, and nothing is said where nothing is advised.
    assert pipeline_note([failed], "shop") is None
    assert pipeline_note([fine], str(file)) is None


@pytest.mark.long
def test_a_final_table_is_verified_against_all_events_of_staging(
    lake: Lake, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LakeOfCommands, "load", classmethod(lambda *_: lake))
    (folder := lake.config.home / "landing" / "events").mkdir(parents=True)
    pipeline = declare(tmp_path / "p.yaml")
    for at in (1, 2):
        lines = (event("items", 10 * at + n, id=n * at, n=at) for n in range(4))
        (folder / f"{at}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        assert (
            call("run", pipeline, "--table", "raw.events", "--table", "staging.items", "--table", "final.items").code
            == 0
        )
    done = call("verify", "final.items", "--pipeline", pipeline, "--json")
    assert (done.code, json.loads(done.out)["found"]) == (0, 6), done.err
    lake.spark().sql(f"UPDATE {lake.sql_name('final.items')} SET n = 77 WHERE id = 3")
    found = json.loads(call("verify", "final.items", "--pipeline", pipeline, "--json").out)
    assert not found["equal"]
    assert [(d["row"]["id"], d["row"]["n"], d["expected"], d["found"]) for d in found["differences"]] == [
        (3, 1, 1, 0), (3, 77, 0, 1),
    ]  # fmt: skip
    lake.catalog.drop_table("staging.items")
    done = call("verify", "final.items", "--pipeline", pipeline)
    assert done.code == 1
    assert "no table staging.items" in done.err
