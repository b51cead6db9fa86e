"""Errors of backfills, as users provoke them at the command line: whoever does what they say has what was asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.backfill import side_lake
from lake_assets.backfill.backfill_plan import plan
from lake_assets.backfill.backfill_record import BackfillRecord, Records, TableRecord
from lake_assets.backfill.backfills import Backfill
from lake_assets.backfill.row_selection import Selection
from lake_assets.backfill.side_lake import SideLake
from lake_assets.errors import BackfillError, PipelineError
from lake_assets.lake import SparkConfig, TableId
from lake_assets.lake.metadata.working_copies import COPIES, REVIEW_PROPERTY
from lake_assets.runtime.processes import identity, owner
from tests.support.backfilled_people import History, begin, declare
from tests.support.cli import User
from tests.support.daily_job import DAILY, PLAYS, SCHEMA, play, rows_of, rows_of_play
from tests.support.html_pages import check_accessible, check_alone, read_page
from tests.support.people import AGES, CITIES, OLDEST, People
from tests.support.pipeline_files import write_pipeline
from tests.support.upkeep import forget_history

# Processes that cannot exist: on this machine, and on one that is not visible from here.
GONE, ELSEWHERE = owner((2**22 + 1, 1.0)), "00000000_7_7"


# --- records and states: without Spark --------------------------------------------------------------------------------


@dataclass
class Shop(User):
    """A user with a lake without Spark, whose pipeline `own` declares `agg.daily`."""

    file: Path

    def declare(self, name: str = "own", file: Path | None = None) -> Path:
        models = [{"name": "agg.daily", "sql": f"SELECT account, day, seconds FROM {PLAYS}"}]
        return write_pipeline(file or self.file, {"name": name, "models": models})

    def begin(self) -> BackfillRecord:
        """Begin a backfill, and make its working copies."""
        pipeline = Pipeline.load(self.file)
        backfill = Backfill.begin(
            self.lake, pipeline, plan(self.lake, pipeline, TableId.parse("agg.daily"), Selection())
        )
        backfill._prepare()
        return backfill.record

    def becomes(self, record: BackfillRecord, **changed: Any) -> None:
        Records(self.lake).save(replace(record, **changed))


@pytest.fixture
def shop(plain_lake: Lake, at_the_shell: Callable[[Lake], User], tmp_path: Path) -> Shop:
    play(plain_lake, (1, 1, 10), (2, 2, 20))
    plain_lake.ensure_namespace(("agg",))
    plain_lake.catalog.create_table("agg.daily", SCHEMA).append(rows_of_play(1, 1, 10))
    shop = Shop(plain_lake, at_the_shell(plain_lake).call, tmp_path / "pipelines" / "defs.yaml")
    shop.declare()
    return shop


def test_who_mistypes_a_backfill_or_a_table_is_shown_what_there_is(shop: Shop) -> None:
    shop.is_told("publish b000000", "no backfill b000000: there is none yet")
    record = shop.begin()
    assert record.id in shop.follows(shop.is_told("publish b000000", f"the newest are {record.id}"))
    shop.gets(f"discard {record.id}")
    pipeline = Pipeline.load(shop.file)
    with pytest.raises(PipelineError, match=r"has no table agg\.x; it has agg\.daily"):
        plan(shop.lake, pipeline, TableId.parse("agg.x"), Selection())
    assert plan(shop.lake, pipeline, TableId.parse("agg.daily"), Selection()).tables


def test_a_backfill_of_a_process_that_runs_or_is_out_of_sight_is_freed_as_its_error_says(shop: Shop) -> None:
    record = shop.begin()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        shop.becomes(record, process=owner(identity(other.pid)))
        shop.is_told(f"discard {record.id}", f"end it (process {other.pid}; begun by {record.by})")
        shop.is_told("backfill agg.daily --all", f"{record.id} (agg.daily: everything)", f"process {other.pid};")
        other.kill()
    shop.gets(f"discard {record.id}")

    record = shop.begin()
    shop.becomes(record, process=ELSEWHERE)
    error = shop.is_told(f"discard {record.id}", "If its machine was restarted or no longer exists, empty `process` in")
    file = Path(error.split("`process` in ")[1].strip())
    file.write_text(json.dumps({**json.loads(file.read_text()), "process": ""}))
    shop.gets(f"discard {record.id}")


def test_a_backfill_of_another_pipeline_or_a_renamed_one(shop: Shop, tmp_path: Path) -> None:
    record, other = shop.begin(), shop.declare("other", tmp_path / "other.yaml")
    shop.is_told(f"discard {record.id} --pipeline {other}", "'own', not 'other': name the file of its own with --pip")
    shop.declare("renamed")
    shop.is_told(f"discard {record.id}", "'own', not 'renamed'", "If that was renamed, let it have its former name")
    shop.declare("own")
    shop.gets(f"discard {record.id} --pipeline {shop.file}")


@pytest.mark.parametrize("command", ["publish", *(pytest.param(c, marks=pytest.mark.long) for c in ("resume", "undo"))])
def test_a_discard_that_was_interrupted_is_completed_whatever_is_tried_next(shop: Shop, command: str) -> None:
    record = shop.begin()
    shop.becomes(record, state="discarding", process=GONE)
    shop.is_told(f"compare {record.id}", "its rows are deleted", "`lake-assets backfill` begins another one")
    error = shop.is_told(f"{command} {record.id}", "discarding" if command == "undo" else "was being discarded")
    assert "is discarded" in shop.follows(error)
    shop.is_told(f"{command} {record.id}", "is discarded: `lake-assets backfill` begins another one")
    assert shop.begin().id != record.id


@pytest.mark.parametrize(
    "content",
    [
        '{"id": "b',
        None,
        *(pytest.param(c, marks=pytest.mark.long) for c in ("", "null", '{"tables": [], "of_a_newer_version": 1}')),
    ],
)
def test_of_a_backfill_whose_record_is_damaged_or_lost_nothing_stays(shop: Shop, content: str | None) -> None:
    record, file = shop.begin(), Records(shop.lake).file_of(shop.newest)
    assert shop.lake.table("agg.daily").properties[REVIEW_PROPERTY] == record.id
    if content is None:
        file.unlink()
        assert "is discarded" in shop.follows(shop.is_told(f"discard {record.id}", "if another machine began it"))
    else:
        file.write_text(content)
        for command in ("backfills", f"publish {record.id}", "backfill agg.daily --all", "repair"):
            error = shop.is_told(command, str(file), "cannot be read", "If a newer version", "update this one")
        assert "is discarded" in shop.follows(error)
    table = shop.lake.table("agg.daily")
    assert (table.properties[REVIEW_PROPERTY], [*table.metadata.refs]) == ("", ["main"])
    assert [*shop.lake.table(PLAYS).metadata.refs] == ["main"]
    assert list(shop.lake.config.home.rglob(f"*{COPIES}{record.id}*")) == []
    assert SideLake(shop.lake, record).lake_tables() == []
    shop.is_told(f"discard {record.id}", "there is none yet")
    assert shop.begin().id != record.id


def test_the_side_catalog_of_a_rest_catalog_is_where_spark_can_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the classes say that a catalog is a REST one.
    monkeypatch.setattr(side_lake, "RestCatalog", side_lake.CachingSqlCatalog)
    monkeypatch.setattr(side_lake, "CachingSqlCatalog", type("Other", (), {}))
    record = BackfillRecord("b123456", "own", "agg.t: everything", (TableRecord("agg.t", "everything"),))

    def on(remote: str | None) -> SideLake:
        return SideLake(Lake(LakeConfig(home=tmp_path / "lake", spark=SparkConfig(remote=remote))), record)

    says = r"server sc://far:15002.* cannot read it: run this on the server's machine, with `localhost` as host in "
    with pytest.raises(BackfillError, match=says):
        on("sc://far:15002")
    for remote in ("sc://localhost:15002", None):
        assert on(remote).lake.config.name == "lake_b123456"


# --- tables and states ------------------------------------------------------------------------------------------------


def computed(people: People) -> Counter[tuple[Any, ...]]:
    """The rows of `agg.ages` as its query gives them."""
    return Counter((r[1], r[2]) for r in people.rows("final.people").elements())


@pytest.mark.long
def test_the_states_of_a_backfill_lead_from_one_to_the_next(
    history: History, at_the_shell: Callable[[Lake], User]
) -> None:
    people, _ = history
    user, right = at_the_shell(people.lake), computed(people)
    declare(people, CITIES, OLDEST, AGES)
    people.sql("UPDATE lake.agg.ages SET age = 50 WHERE age = 3")
    assert (wrong := people.rows("agg.ages")) != right
    backfill = begin(people, "agg.ages", publish="manual").record
    Records(people.lake).save(replace(backfill, process=GONE))
    first = backfill.id
    user.follows(user.is_told(f"compare {first}", f"nothing of the backfill {first} has been built yet"))
    assert "sum of age" in user.gets(f"compare {first}")
    user.follows(user.is_told(f"undo {first}", f"only a published backfill can be undone, and {first} is ready"))
    assert people.rows("agg.ages") == right
    user.follows(user.is_told(f"discard {first}", f"the backfill {first} is published"))
    assert people.rows("agg.ages") == wrong
    second = user.newest
    assert "sum of age" in user.follows(user.is_told(f"compare {first}", f"the backfill {first} is undone"))
    for command in ("publish", "undo"):
        error = user.is_told(f"{command} {first}", f"is undone: `lake-assets undo {second}` brings it into effect")
    user.follows(error)
    assert people.rows("agg.ages") == right
    third = user.newest
    assert third not in (first, second)

    forget_history(people.lake, "agg.ages")
    user.is_told(f"compare {third}", f"from before the backfill {third} are no longer kept: they were for 7 days")
    people.sql("UPDATE lake.agg.ages SET age = 50 WHERE age = 0")
    user.follows(user.is_told(f"undo {third}", "no longer has its rows from before, which were kept for 7 days"))
    assert people.rows("agg.ages") == right


def read(file: str) -> str:
    """Return the text of a page that a user has written to their folder."""
    html = Path(file).read_text("utf-8")
    check_alone(html)
    check_accessible(html)
    return read_page(html).text


@pytest.mark.long
def test_a_stale_backfill_is_discarded_and_begun_again(history: History, at_the_shell: Callable[[Lake], User]) -> None:
    people, _ = history
    user, right = at_the_shell(people.lake), computed(people)
    declare(people, CITIES, OLDEST, AGES)
    again = "backfill agg.ages --all --publish manual"
    user.gets(again)
    people.sql("ALTER TABLE lake.agg.ages WRITE ORDERED BY age")
    stale = f"compare {user.newest}"
    user.follows(user.is_told(stale, "agg.ages cannot be compared: the table's columns or partitioning have changed"))
    user.is_told(stale, "is discarded, so its rows are deleted", "`lake-assets backfill` begins another one")
    people.sql("UPDATE lake.agg.ages SET age = 50 WHERE age = 3")
    user.gets(f"{again} --html waits.html")
    assert "It waits for a decision: it would change" in read("waits.html")
    compared = user.gets(f"compare {user.newest} --html compared.html")
    assert ("sum of age" in compared, "wrote " in compared) == (True, True)
    assert "Sums over the rows of agg.ages that differ." in read("compared.html")
    user.is_told(f"{again} --dry-run --html no.html", "--dry-run computes none")
    people.sql("UPDATE lake.agg.ages SET age = 51 WHERE age = 50")
    user.follows(user.is_told(f"publish {user.newest}", "another program wrote to it. Discard it", "and begin again"))
    user.gets(again)
    user.gets(f"publish {user.newest}")
    assert people.rows("agg.ages") == right


@pytest.mark.long
def test_rows_of_a_former_declaration_are_redone_once_it_is_declared_again(
    history: History, at_the_shell: Callable[[Lake], User]
) -> None:
    people, _ = history
    user, before = at_the_shell(people.lake), people.rows("agg.cities")
    declare(people, {**CITIES, "sql": CITIES["sql"].replace("count(*)", "count(*) + 100")}, OLDEST, AGES)
    user.gets("backfill agg.cities --all")
    assert people.rows("agg.cities") == Counter((city, n + 100) for city, n in before.elements())
    error = user.is_told(f"undo {user.newest}", "the declaration of agg.cities changed with it", "Declare it as before")
    declare(people, CITIES, OLDEST, AGES)
    user.follows(error)
    assert people.rows("agg.cities") == before


def test_a_table_of_a_job_is_redone_by_its_job(
    lake: Lake, at_the_shell: Callable[[Lake], User], tmp_path: Path
) -> None:
    play(lake, (1, 1, 10), (2, 2, 20))
    user, folder = at_the_shell(lake), tmp_path / "pipelines"
    (folder / "daily.py").write_text(
        "def daily(step):\n"
        f"    rows = step.lake.table('{PLAYS}').scan().to_arrow()\n"
        "    step.lake.ensure_namespace(('agg',))\n"
        f"    step.lake.catalog.create_table_if_not_exists('{DAILY}', rows.schema).overwrite(rows)\n"
    )
    attributes = f"{{table: {DAILY}, inputs: [{PLAYS}], python: 'daily:daily'}}"
    (folder / "defs.yaml").write_text(f"type: lake_assets.CapturedJob\nattributes: {attributes}\n")
    user.gets(f"run {folder}")
    lake.table(DAILY).delete()
    user.follows(user.is_told(f"backfill {DAILY} --all", f"{DAILY} is written by a job"))
    assert rows_of(lake) == rows_of(lake, PLAYS) != Counter()


@pytest.mark.long
def test_what_cannot_be_built_aside_is_rebuilt(
    history: History, at_the_shell: Callable[[Lake], User], monkeypatch: pytest.MonkeyPatch
) -> None:
    people, _ = history
    user, right = at_the_shell(people.lake), computed(people)
    declare(people, CITIES, OLDEST, AGES)
    people.sql("UPDATE lake.agg.ages SET age = 50 WHERE age = 3")
    with monkeypatch.context() as patch:
        patch.setattr(side_lake, "can_build_aside", lambda _: False)
        error = user.is_told("backfill agg.ages --all", "backfills need a SQL catalog", "`lake-assets rebuild TABLE`")
        user.gets("rebuild agg.ages")
    assert people.rows("agg.ages") == right
    people.sql("UPDATE lake.staging.people SET age = 95 WHERE age = 3")
    user.is_told("backfill raw.events --all", "raw table", "To read its records again, `lake-assets rebuild` its stag")
    error = user.is_told("backfill staging.people --all", "the tables below follow with the next run")
    user.follows(error)
    user.gets("run pipelines")
    people.check()
