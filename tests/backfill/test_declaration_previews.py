"""What an edited declaration changes, from metadata alone: `lake-assets plan`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType

from lake_assets import Lake, Pipeline
from lake_assets.backfill.changed_columns import ColumnChange, shared_columns
from lake_assets.backfill.declaration_preview import preview
from lake_assets.errors import TableClaimedError
from lake_assets.journal import step_journal
from lake_assets.lake import TableId, thresholds
from lake_assets.lake.metadata.working_copies import REVIEW_PROPERTY
from lake_assets.models.python.model_inputs import Changes
from lake_assets.models.python.python_model import model
from lake_assets.models.python.python_model_spec import changed_settings
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.pipeline_checks import check
from lake_assets.pipeline.table_steps import step_of
from lake_assets.report.table_differences import column_difference
from lake_assets.tables import standing_failures
from tests.support.cli import Done, caller
from tests.support.declared_tables import store, store_models
from tests.support.pipeline_files import write_pipeline
from tests.support.step_records import step

N = {"name": "agg.n", "sql": "SELECT g, sum(n) AS n\nFROM src.t\nGROUP BY g"}
TOTAL = {"name": "agg.total", "sql": "SELECT sum(n) AS n FROM agg.n"}
OTHER = {"name": "agg.other", "sql": "SELECT g FROM src.t"}
ELSEWHERE = {"name": "agg.elsewhere", "sql": "SELECT max(n) AS n FROM agg.n"}
COLUMNS = {"agg.n": ["g", "n"], "agg.total": ["n"], "agg.other": ["g"], "agg.elsewhere": ["n"]}


def files(lake: Lake) -> set[Path]:
    return {p for p in lake.config.home.rglob("*") if p.is_file() and p.suffix in (".json", ".avro", ".parquet")}


def declared(folder: Path, *models: dict[str, Any], name: str = "own") -> Path:
    folder.mkdir(exist_ok=True)
    return write_pipeline(folder / "defs.yaml", {"name": name, "models": [*models]})


@pytest.fixture
def computed(plain_lake: Lake, tmp_path: Path) -> Lake:
    """A lake in which `own` has computed three models, and another pipeline one that reads the first."""
    store(plain_lake, "src.t", ["g", "n"])
    own = Pipeline.load(declared(tmp_path / "own", N, TOTAL, OTHER))
    store_models(plain_lake, own, COLUMNS, seconds=5)
    store_models(plain_lake, Pipeline.load(declared(tmp_path / "other", ELSEWHERE, name="theirs")), COLUMNS)
    return plain_lake


@pytest.fixture
def call(computed: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Calls `lake-assets` about the lake."""
    monkeypatch.setenv("LAKE_HOME", str(computed.config.home))
    return caller(monkeypatch, capsys)


@pytest.fixture
def plan(call: Callable[..., Done], tmp_path: Path) -> Callable[..., Done]:
    """Calls `lake-assets plan` with models as an edited declaration."""
    return lambda *models, words=(): call("plan", declared(tmp_path / "edited", *models), *words)


def test_a_declaration_by_which_all_tables_were_computed_changes_nothing(
    computed: Lake, plan: Callable[..., Done]
) -> None:
    before = files(computed)
    laid_out = {**N, "sql": "select g, sum(n) as n -- by group\nfrom src.t group by g"}
    for models in ((N, TOTAL, OTHER), (laid_out, OTHER, TOTAL)):
        done = plan(*models)
        assert (done.code, done.out) == (0, "pipeline own: nothing changes\n")
    as_json = json.loads(plan(N, TOTAL, OTHER, words=["--json"]).out)
    assert (as_json["changes"], as_json["tables"]) == (False, [])
    assert files(computed) == before


def test_a_step_that_has_just_failed_has_no_forecast(computed: Lake, plan: Callable[..., Done]) -> None:
    edited = {**N, "sql": N["sql"].replace("sum(n) AS n", "max(n) AS n")}
    assert "from 3 rows of src.t, in about 5 s" in plan(edited, TOTAL, OTHER).out
    standing_failures.note(computed, TableId.parse("agg.n"), "own", None, TimeoutError("after 302 s"))
    done = plan(edited, TOTAL, OTHER)
    assert "from 3 rows of src.t" in done.out
    assert "in about" not in done.out


def test_what_changes_what_follows_and_who_reads_it(computed: Lake, plan: Callable[..., Done]) -> None:
    computed.consumers.register("agg.n", "dashboard")
    before = files(computed)
    edited = {**N, "sql": N["sql"].replace("sum(n) AS n", "max(n) AS n, count(*) AS rows"), "key": ["g"]}
    new = {"name": "agg.new", "sql": "SELECT g FROM agg.n"}
    done = plan(edited, TOTAL, new)
    lines = [line.strip() for line in done.out.splitlines()]
    assert done.code == 2, done.err
    assert {"-SELECT g, sum(n) AS n", "+SELECT g, max(n) AS n, count(*) AS rows", "FROM src.t"} <= {*lines}
    assert "new columns: rows" in lines
    assert "key: none -> g" in lines
    assert "read by agg.elsewhere (pipeline theirs), agg.total (pipeline own), consumer dashboard" in lines
    (n,) = (line for line in lines if line.startswith("agg.n is declared otherwise"))
    assert "computes it again from 3 rows of src.t, in about 5 s" in n
    found = {t["table"]: t for t in json.loads(plan(edited, TOTAL, new, words=["--json"]).out)["tables"]}
    kinds = {name: (t["kind"], t["how"]) for name, t in found.items()}
    assert kinds == {
        "agg.n": ("changed", "rebuild"),
        "agg.new": ("new", "rebuild"),
        "agg.total": ("follows", "rows"),
        "agg.other": ("removed", "nothing"),
    }
    assert found["agg.n"]["cost"]["seconds"] == pytest.approx(5, abs=1)
    assert (found["agg.new"]["cost"]["seconds"], found["agg.total"]["cost"]["is_bound"]) == (None, True)
    assert found["agg.other"]["cost"] is None
    assert files(computed) == before


@pytest.mark.parametrize("strategy", ["full", "merge"])
def test_the_time_of_a_table_without_a_backfill_is_that_of_its_newest_step_over_all_rows(
    computed: Lake, call: Callable[..., Done], tmp_path: Path, strategy: str
) -> None:
    edited = declared(tmp_path / "edited", {**ELSEWHERE, "sql": "SELECT min(n) AS n FROM agg.n"}, name="theirs")
    before = call("plan", edited).out
    assert "time unknown" in before
    assert "in an unknown time: agg.elsewhere" in before
    # The first step of a table reads everything too, of its sources' size what `max_rows` leaves.
    big = thresholds.SMALL_INPUT_BYTES * 2
    start, size = (1, 10) if strategy == "full" else (None, big)
    window = {"source": "agg.n", "start_snapshot": start, "end_snapshot": 2, "files": 1, "bytes": size}
    complete = step("agg.elsewhere", strategy, cpu=16, of=big if start else 10 * big, ago=200)
    for record in (
        replace(complete, sources=[window]),
        replace(step("agg.elsewhere", "full", cpu=900, of=big, ago=300), sources=[window]),
        replace(step("agg.elsewhere", "keys", cpu=2, of=big), sources=[{**window, "start_snapshot": 1}]),
        replace(step("agg.other", "full", cpu=40, of=big), sources=[window]),
    ):
        step_journal.note(computed, record)
    done = call("plan", edited)
    day = datetime.fromtimestamp(complete.started_at, UTC).date()
    # A step of 8 s over 64 MiB: sources of up to 32 MiB take half as long.
    assert f"about 4.0 s, as its step over all rows of {day} (by the size of its sources) took" in done.out
    assert "estimated in all: 4 s\n" in done.out


def test_mistakes_are_those_that_check_finds(computed: Lake, plan: Callable[..., Done], tmp_path: Path) -> None:
    wrong = {**N, "sql": "SELECT g, sum(nn) AS n FROM src.t GROUP BY g"}
    done = plan(wrong, TOTAL)
    mistakes = check(Pipeline.load(tmp_path / "edited" / "defs.yaml"), computed).mistakes
    assert (done.code, done.out.splitlines()) == (1, [*mistakes])
    assert "no column nn" in done.out
    as_json = plan(wrong, TOTAL, words=["--json"])
    assert (as_json.code, json.loads(as_json.out)["mistakes"]) == (1, [*mistakes])


def test_what_cannot_be_previewed_is_refused(computed: Lake, call: Callable[..., Done], tmp_path: Path) -> None:
    with pytest.raises(TableClaimedError, match=r"agg\.elsewhere belongs to pipeline 'theirs'"):
        preview(computed, Pipeline.load(declared(tmp_path / "edited", ELSEWHERE)))
    for folder in ("a", "b"):
        (tmp_path / "several").mkdir(exist_ok=True)
        declared(tmp_path / "several" / folder, N)
    done = call("plan", tmp_path / "several")
    assert (done.code, "holds 2 pipelines" in done.err) == (1, True)


def test_a_table_that_waits_for_a_review_is_not_planned_again(computed: Lake, plan: Callable[..., Done]) -> None:
    with computed.table("agg.n").transaction() as change:
        change.set_properties({REVIEW_PROPERTY: "b123456"})
    edited = {**N, "sql": "SELECT g, max(n) AS n FROM src.t GROUP BY g"}
    done = plan(edited, TOTAL, OTHER, words=["--json"])
    (found,) = json.loads(done.out)["tables"]
    assert (found["table"], found["how"]) == ("agg.n", "waits")
    assert "`lake-assets publish b123456`" in found["why"]


def test_a_query_that_declares_to_stop_when_it_changes_stops(computed: Lake, plan: Callable[..., Done]) -> None:
    edited = {"name": "agg.n", "sql": "SELECT g, max(n) AS n FROM src.t GROUP BY g", "on_query_change": "stop"}
    (found,) = json.loads(plan(edited, TOTAL, OTHER, words=["--json"]).out)["tables"]
    assert (found["how"], found["cost"]) == ("stops", None)


def test_what_differs_in_a_model_of_code(plain_lake: Lake) -> None:
    def of(**settings: Any) -> Any:
        @model("agg.n", write="replace-keys", inputs={"rows": "src.t"}, **settings)
        def n(rows: Changes) -> Any:
            return rows

        pipeline = Pipeline(PipelineConfig(name="own"), models=[n])
        (spec,) = pipeline.specs(plain_lake)
        return spec

    store(plain_lake, "src.t", ["g", "n"])
    first, second = of(key="g", version=1), of(key=["g", "n"], version=2)
    assert changed_settings(first, first.definition) == ()
    found = {s.name: (s.before, s.after) for s in changed_settings(second, first.definition)}
    assert found["key"] == ('["g"]', '["g", "n"]')
    assert found["version"] == ("1", "2")
    (setting,) = changed_settings(second, "0123abcd")
    assert (setting.name, setting.before, setting.after) == ("computed by", "a query", "code")
    assert changed_settings(second, "python:[1]") == (), "of another version of the package"


def test_a_stored_query_that_did_not_build_the_table_is_not_compared(computed: Lake, tmp_path: Path) -> None:
    with computed.table("agg.n").transaction() as change:
        change.set_properties({"lake-assets.model": "of another version"})
    found = preview(computed, Pipeline.load(declared(tmp_path / "edited", N, TOTAL, OTHER)))
    (changed,) = found.changed
    assert (changed.table, changed.settings) == ("agg.n", ())
    step = step_of(
        next(
            s
            for s in Pipeline.load(tmp_path / "edited" / "defs.yaml").specs(computed)
            if s.table == TableId.parse("agg.n")
        )
    )
    assert step.changed_settings(computed, computed.table("agg.n"), {}) == ()


def test_columns_are_paired_by_name_and_then_by_id() -> None:
    text, number = StringType(), LongType()
    before = Schema(
        NestedField(1, "a", number), NestedField(2, "b", text), NestedField(3, "c", ListType(9, number)), NestedField(4, "d", number)
    )  # fmt: skip
    after = Schema(
        NestedField(1, "a", text), NestedField(2, "bb", text), NestedField(3, "c", number), NestedField(5, "e", number)
    )  # fmt: skip
    shared = shared_columns(before, after)
    assert (shared.common, shared.renamed) == ({"a": "a", "bb": "b"}, {"bb": "b"})
    assert (shared.retyped["a"], shared.incomparable) == (("BIGINT", "STRING"), {"c"})
    assert (shared.added, shared.dropped, shared.is_read_alike) == ({"e": "BIGINT"}, {"d": "BIGINT"}, False)
    assert shared_columns(before, before).is_read_alike
    assert not shared_columns(before, Schema(NestedField(7, "a", number))).is_read_alike, "another column of the name"
    widened = shared_columns(Schema(NestedField(1, "a", IntegerType())), Schema(NestedField(1, "a", number)))
    assert (widened.is_read_alike, widened.retyped) == (True, {"a": ("INT", "BIGINT")})
    change = ColumnChange("c", "retyped", None, before="ARRAY<BIGINT>", after="BIGINT")
    assert (
        column_difference("agg.n", change).text
        == "column c was ARRAY<BIGINT> and is BIGINT; its values cannot be compared"
    )
