"""Tables whose sources have lost the history they need: the errors' advice works, and a rebuilt table equals a
recomputation from its sources."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lake_assets import Lake, Pipeline, cli
from lake_assets.errors import (
    DefinitionChangedError,
    MissingDataFileError,
    RebuildError,
    RecordsGoneError,
    SchemaConflictError,
    SnapshotExpiredError,
    TableReplacedError,
)
from lake_assets.lake.metadata.watermark import read_marks
from tests.support.debezium import TEXT, Event
from tests.support.oracle import final_rows, rows_of
from tests.support.people import AGES, CITIES, OLDEST, PEOPLE, RANKED, SPAN, People
from tests.support.pipeline_files import write_pipeline
from tests.support.seeds import seeds
from tests.support.upkeep import forget_history


@pytest.fixture
def command(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[People, str], str]:
    """Runs the command that an error advises, literally, over the declared pipeline."""
    monkeypatch.setattr(Lake, "load", lambda: lake)

    def follow(people: People, error: str | None) -> str:
        config = people.feed.pipeline.config.model_dump(exclude_defaults=True, mode="json")
        folder = tmp_path / "pipelines" / "people"
        folder.mkdir(parents=True, exist_ok=True)
        write_pipeline(folder / "defs.yaml", config)
        monkeypatch.setenv("LAKE_PIPELINES", str(folder.parent))
        advised = re.search(r"`lake-assets (rebuild [\w.]+)`", error or "")
        assert advised, error
        done = CliRunner().invoke(cli.application(), advised[1].split(), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    return follow


# --- lost history: the command, and the option ------------------------------------------------------------------


@pytest.mark.long  # as history that is lost
@pytest.mark.parametrize(
    ("behind", "source"),
    [
        ("final.people", "staging.people"),
        pytest.param("agg.cities", "final.people", marks=pytest.mark.long),
    ],
)
def test_a_gap_in_a_source_is_no_dead_end(
    lake: Lake, command: Callable[[People, str], str], behind: str, source: str
) -> None:
    people = People(lake, CITIES)
    people.land()
    people.run()
    people.land()
    people.run(*(t for t in ("raw.events", "staging.people", "final.people") if t != behind))
    forget_history(lake, source)
    before = read_marks(lake.table(behind))
    failed = people.run()[behind]
    assert isinstance(failed.exception, SnapshotExpiredError), (behind, failed)
    assert "`on_gap: rebuild`" in failed.error
    assert read_marks(lake.table(behind)) == before
    assert re.search(r"\d+ rows before, \d+ after", command(people, failed.error))
    people.check()
    people.land()
    people.run("raw.events", "staging.people")
    forget_history(lake, "staging.people", "final.people")
    people.declare({**CITIES, "on_gap": "rebuild"}, on_gap="rebuild")
    outcomes = people.run()
    assert (outcomes["final.people"].strategy, outcomes["agg.cities"].status) == ("rebuild", "absorbed"), outcomes
    people.check()


@pytest.mark.long
def test_a_source_that_was_dropped_and_made_again_is_no_dead_end(
    lake: Lake, command: Callable[[People, str], str]
) -> None:
    people = People(lake, CITIES)
    people.land()
    people.run()
    # Each error's advice leads to the next table.
    lake.catalog.drop_table("raw.events")
    people.land()
    for table in ("staging.people", "final.people", "agg.cities"):
        if table == "agg.cities":
            people.sql("DROP TABLE final.people")
        outcomes = people.run()
        if table == "final.people":  # staging is the same table, and was rebuilt: the final table follows
            assert outcomes[table].strategy == "rebuild", outcomes[table]
            people.check()
            continue
        assert isinstance(outcomes[table].exception, TableReplacedError), outcomes[table]
        command(people, outcomes[table].error)
    people.check()
    people.declare({**CITIES, "on_replaced": "rebuild"}, on_replaced="rebuild")
    people.sql("DROP TABLE staging.people")
    people.run("staging.people", "final.people")
    people.sql("DROP TABLE final.people")
    people.run("final.people")
    assert people.run("agg.cities")["agg.cities"].strategy == "rebuild"
    people.check()


@pytest.mark.long
def test_a_table_that_lost_its_own_watermark_is_no_dead_end(lake: Lake, command: Callable[[People, str], str]) -> None:
    people = People(lake, AGES)
    people.land()
    people.run()
    for table in ("staging.people", "final.people", "agg.ages"):
        people.land()
        # Upkeep creates a snapshot without the watermark and removes the snapshot that has it.
        people.sql(f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
        forget_history(lake, table)
        outcomes = people.run()
        assert outcomes["staging.people"].status == "absorbed"  # it identifies records by their positions
        for name in ("final.people", "agg.ages"):  # downstream tables have lost their absorbed snapshot, too
            if error := people.run(name)[name].error:
                assert "SnapshotExpiredError" in error
                command(people, error)
        assert table == "staging.people" or outcomes[table].error
        people.check()


@pytest.mark.long
def test_staging_needs_no_history_of_the_raw_table(lake: Lake) -> None:
    people = People(lake)
    people.land()
    people.run()
    people.land()
    people.run("raw.events")
    forget_history(lake, "raw.events")
    outcome = people.run("staging.people")["staging.people"]
    assert (outcome.inserted, outcome.status) == (8, "absorbed"), outcome
    people.check()
    people.land()
    people.check()
    # Another key is declared at the same time, so all events are read again.
    people.land()
    people.run("raw.events")
    forget_history(lake, "raw.events")
    people.declare(key="id")
    assert people.run("staging.people")["staging.people"].strategy == "rebuild"
    people.check()


@pytest.mark.long
def test_a_model_that_is_computed_in_full_asks_for_no_history(lake: Lake) -> None:
    people = People(lake, RANKED)
    people.land()
    people.run()
    people.land()
    people.run("raw.events", "staging.people", "final.people")
    forget_history(lake, "final.people")
    assert people.run("agg.ranked")["agg.ranked"].status == "absorbed"
    people.check()
    people.sql("DROP TABLE final.people")
    people.check()


@pytest.mark.long
def test_files_of_the_past_that_are_gone_are_no_dead_end(lake: Lake, command: Callable[[People, str], str]) -> None:
    people = People(lake, CITIES)
    people.land()
    people.run()
    for way in ("command", "option"):
        old = lake.table("final.people").inspect.data_files()["file_path"].to_pylist()
        people.sql("INSERT OVERWRITE lake.final.people VALUES (77, 'x', 7)")
        for file in old:
            Path(file.removeprefix("file:").replace("///", "/")).unlink()
        if way == "command":
            failed = people.run("agg.cities")["agg.cities"]
            assert isinstance(failed.exception, MissingDataFileError), failed
            assert failed.error.count("rebuild agg.cities`") == 1, failed.error
            assert "start=None" not in failed.error
            command(people, failed.error)
        else:
            people.declare({**CITIES, "on_gap": "rebuild"})
            assert people.run("agg.cities")["agg.cities"].strategy == "rebuild"
        assert people.rows("agg.cities") == Counter({("x", 1): 1})


# --- other definitions ------------------------------------------------------------------------------------------


def test_a_query_that_was_changed_is_no_dead_end(lake: Lake, command: Callable[[People, str], str]) -> None:
    people = People(lake, {**CITIES, "on_query_change": "stop"})
    people.land()
    people.run()
    other = {**OLDEST, "name": "agg.cities", "on_query_change": "stop"}
    people.declare(other)
    failed = people.run()["agg.cities"]
    assert isinstance(failed.exception, DefinitionChangedError)
    assert "`on_query_change: rebuild`" in failed.error
    command(people, failed.error)
    people.check()
    assert lake.spark().table("agg.cities").columns == ["city", "age"]


@pytest.mark.long
def test_staging_is_rebuilt_with_the_types_and_keys_that_are_declared_now(lake: Lake) -> None:
    people = People(lake, CITIES)
    people.land()
    people.run()
    # An age that is not a number: the record is rejected.
    text = PEOPLE.with_columns(age=TEXT)
    people.declare(CITIES, on_conflict="reject")
    strange = Event(text, "c", (900, 900), {"id": 900, "city": "a", "age": "old"})
    people.feed.land([strange])
    assert people.run()["staging.people"].details["rejected"] == 1
    people.declare(CITIES, types={"age": "string"})
    # Existing values are numbers and would have to become text.
    outcome = people.feed.pipeline.rebuild(lake, "staging.people")
    assert (outcome.details["rows_before"], outcome.details["rows_after"]) == (8, 9)
    assert dict(lake.spark().table("staging.people").dtypes)["age"] == "string"
    assert people.rows("raw.events_rejected") == Counter()
    outcomes = people.run()
    assert outcomes["final.people"].strategy == "rebuild"
    expected = final_rows(people.log, list(PEOPLE.columns))
    ages = Counter({(i, c, None if a is None else str(a)): n for (i, c, a), n in expected.items()})
    assert rows_of(people.feed.rows("final.people"), list(PEOPLE.columns)) == ages + Counter({(900, "a", "old"): 1})
    # A final table with another key and other columns.
    people.declare(CITIES, types={"age": "string"}, key=["id", "city"], columns="id, city, upper(age) AS age")
    people.declare(CITIES, types={"age": "string"}, columns="id, city, upper(age) AS age")
    outcome = people.feed.pipeline.rebuild(lake, "final.people")
    assert outcome.updated == 1, outcome
    assert not [o for o in people.run().values() if o.status == "failed"]
    assert (900, "a", "OLD") in people.rows("final.people")


# --- what a rebuild writes --------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    "declared",
    [
        pytest.param({}, id="scd1"),
        pytest.param({"mode": "scd2"}, id="scd2"),
        pytest.param({"mode": "append", "on_change": "ignore"}, id="append"),
    ],
)
def test_a_rebuild_writes_what_differs_in_one_commit(lake: Lake, declared: dict[str, Any]) -> None:
    people = People(lake, CITIES, AGES, inserts=declared.get("mode") == "append", **declared)
    people.land(16)
    people.run()
    for table in ("final.people", "agg.cities", "agg.ages"):
        good, size = people.rows(table), len(lake.table(table).history())
        outcome = people.feed.pipeline.rebuild(lake, table)
        assert (outcome.changed, people.rows(table)) == (0, good), outcome
        assert len(lake.table(table).history()) == size + 1
        # Changed, duplicated and missing rows.
        first = lake.sql_name(table)
        last = [c for c, _ in people.feed.rows(table).dtypes][1]
        people.sql(f"UPDATE {first} SET {last} = NULL WHERE {last} IS NOT NULL")
        if table != "final.people":
            people.sql(f"INSERT INTO {first} SELECT * FROM {first} LIMIT 1")
        assert people.rows(table) != good
        before = lake.table(table).metadata.current_snapshot_id
        bad, size = people.rows(table), len(lake.table(table).history())
        outcome = people.feed.pipeline.rebuild(lake, table)
        assert people.rows(table) == good, outcome
        assert len(lake.table(table).history()) == size + 1
        come, go = sum((good - bad).values()), sum((bad - good).values())
        assert (outcome.inserted + outcome.updated, outcome.deleted + outcome.updated) == (come, go), outcome
        assert (outcome.details["rows_before"], outcome.details["rows_after"]) == (bad.total(), good.total())
        with lake.capture(table, before) as captured:
            signed = Counter(r["_change_type"] for r in captured.feed(lake.spark()).collect())
        assert sum(signed.values()) == come + go, (signed, outcome)
    people.check()


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.long
def test_what_cannot_be_rebuilt_is_named_and_left_as_it_is(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    people = People(lake, CITIES)
    people.land()
    people.run()
    rebuild = people.feed.pipeline.rebuild
    with pytest.raises(RebuildError, match=r"raw\.events is a raw table.*`lake-assets rebuild` its staging") as refused:
        rebuild(lake, "raw.events")
    assert "drop" not in str(refused.value)  # it may be the only copy
    # Killed before the commit is published.
    people.land()
    people.run("raw.events", "staging.people")
    head = lake.table("final.people").metadata.current_snapshot_id
    with monkeypatch.context() as patch:
        patch.setattr("lake_assets.tables.writing.publication.refs.publish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            rebuild(lake, "final.people")
    assert lake.table("final.people").metadata.current_snapshot_id == head
    people.check()
    # Records that are no longer in the raw table.
    head = lake.table("staging.people").metadata.current_snapshot_id
    people.sql("DELETE FROM lake.raw.events WHERE position < 3")
    with pytest.raises(
        RecordsGoneError, match=r"holds 3 events whose records raw\.events no longer holds \(positions 0 to"
    ):
        rebuild(lake, "staging.people")
    # Another declared key does not make all events be read again, either.
    people.declare(CITIES, key="id")
    assert isinstance(people.run("staging.people")["staging.people"].exception, RecordsGoneError)
    assert lake.table("staging.people").metadata.current_snapshot_id == head
    (lost,) = lake.table("final.people").inspect.data_files()["file_path"].to_pylist()[:1]
    Path(lost.removeprefix("file:").replace("///", "/")).unlink()
    with pytest.raises(MissingDataFileError, match=Path(lost).name):
        rebuild(lake, "agg.cities")
    people.sql("DROP TABLE final.people")
    with pytest.raises(RebuildError, match=r"its source final\.people does not exist"):
        rebuild(lake, "agg.cities")


@pytest.mark.long
def test_a_type_that_conflicts_within_one_stream_is_named_by_a_rebuild_as_well(lake: Lake) -> None:
    people = People(lake)
    people.land()
    people.run()
    people.feed.land([Event(PEOPLE.with_columns(age=TEXT), "c", (900, 900), {"id": 900, "city": "a", "age": "old"})])
    failed = people.run()["staging.people"]
    assert isinstance(failed.exception, SchemaConflictError)
    with pytest.raises(SchemaConflictError):
        people.feed.pipeline.rebuild(lake, "staging.people")
    people.declare(types={"age": "string"})
    people.feed.pipeline.rebuild(lake, "staging.people")
    assert not [o for o in people.run().values() if o.status == "failed"]
    assert (900, "a", "old") in people.rows("final.people")


# --- any history ------------------------------------------------------------------------------------------------

DECLARED: dict[str, dict[str, Any]] = {
    "scd1": {},
    "scd2": {"mode": "scd2"},
    "soft": {"deletes": "soft"},
}


def lose(people: People, how: str) -> str:
    """Change a table as another user might; return a description."""
    choose, lake = people.choose, people.lake
    table = choose.choice(["staging.people", "final.people"])
    if how == "expire":
        forget_history(lake, table)
    elif how == "roll back":
        history = lake.table(table).history()
        to = choose.choice(history).snapshot_id
        if lake.table(table).snapshot_by_id(to) is None or to == history[-1].snapshot_id:
            return "nothing"
        people.sql(f"CALL lake.system.set_current_snapshot('{table}', {to})")
        if choose.random() < 0.5:
            forget_history(lake, table)
    elif how == "drop":
        people.sql(f"DROP TABLE {table}")
    elif how == "rebuild":
        rebuilt = choose.choice([table, *(str(m["name"]) for m in people.models)])
        source = {"staging.people": "raw.events", "final.people": "staging.people"}.get(rebuilt, "final.people")
        if not lake.exists(source):
            return "nothing"
        people.feed.pipeline.rebuild(lake, rebuilt)
        return f"rebuild {rebuilt}"
    return f"{how} {table}"


@pytest.mark.parametrize(
    ("mode", "seed"),
    [
        pytest.param(mode, seed, marks=() if (mode, seed) == ("scd1", 0) else pytest.mark.long)
        for mode in DECLARED
        for seed in (0, *seeds(1, 2))
    ],
)
def test_whatever_history_is_lost_every_table_equals_a_recompute(lake: Lake, mode: str, seed: int) -> None:
    on = {"on_gap": "rebuild", "on_replaced": "rebuild"}
    # A short version of the long histories.
    models = [{**m, **on} for m in ((CITIES, OLDEST, AGES, RANKED, SPAN) if seed else (CITIES,))]
    people = People(lake, *models, seed=seed, **on, **DECLARED[mode])
    done: list[str] = []
    tables = ["raw.events", "staging.people", "final.people", *(str(m["name"]) for m in models)]
    people.land()
    people.run()
    for _ in range(5 if seed else 2):
        people.land()
        stop = people.choose.randrange(1, len(tables) + 1)
        done.append(f"run {tables[:stop]}")
        outcomes = people.run(*tables[:stop])
        assert not (failed := {t: o.error for t, o in outcomes.items() if o.status == "failed"}), (done, failed)
        done.append(lose(people, people.choose.choice(["expire", "roll back", "drop", "rebuild"])))
    try:
        people.check()
    except AssertionError as e:
        raise AssertionError(f"after {done}: {e}") from e


def test_a_pipeline_names_its_tables_where_it_is_asked_for_another(lake: Lake) -> None:
    from lake_assets.errors import PipelineError

    pipeline: Pipeline = People(lake).feed.pipeline
    with pytest.raises(PipelineError, match=r"has no table final\.peple; it has raw\.events"):
        pipeline.rebuild(lake, "final.peple")
