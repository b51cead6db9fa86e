"""The same code over a Spark Connect server: no JVM in the process, nothing reached but SQL and DataFrames."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.backfill.backfill_record import Records
from lake_assets.errors import SparkUnavailableError
from lake_assets.examples import playback, shop
from lake_assets.journal import step_journal
from lake_assets.lake import SparkConfig
from tests.support.debezium import BIGINT, INT, TEXT, Event, Table, to_lines, write_lines
from tests.support.oracle import rows_of
from tests.support.processes import free_port, python, started
from tests.support.spark_servers import connect_address

pytestmark = pytest.mark.system

QUERY = (
    "SELECT c.city, count(*) AS population, sum(u.balance) AS balance "
    "FROM final.users u JOIN final.user_city c ON u.id = c.user_id GROUP BY c.city"
)


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_address(tmp_path_factory.mktemp("server")) as address:
        yield address


def run_over(remote: str, home: Path, pipeline: Path, log: Path) -> int:
    """Run a pipeline in a process without Java or jars: nothing but the server can have done it.

    Returns:
        Its exit code: 1 where a table failed. What failed is in `log`.
    """
    none = log.with_name("none")
    nothing = {"LAKE_SPARK__REMOTE": remote, "JAVA_HOME": str(log.parent), "LAKE_JARS": str(none)}
    with started(python("tests.system.run_pipeline", home, pipeline), log, nothing) as run:
        code = run.wait(timeout=600)
    assert not none.exists()
    return code


@pytest.mark.long  # own code does the same over the same connection in every run
def test_the_shop_equals_postgres_over_spark_connect(
    remote: str, new_lake: Callable[[str], Lake], tmp_path: Path
) -> None:
    lake = new_lake("lake")
    for checkpoint in shop.checkpoints()[:2]:
        shop.feed(lake.config.home / "landing" / "shop_events", checkpoint)
        log = tmp_path / "run.log"
        assert run_over(remote, lake.config.home, Path(shop.PIPELINE), log) == 0, log.read_text()
        assert {c.table: c.differences[:3] for c in shop.compare(lake, checkpoint) if not c.equal} == {}
        assert rows_of(lake.spark().table("agg.city_population")) == rows_of(lake.spark().sql(QUERY))


@pytest.mark.long
def test_own_code_equals_its_events_over_spark_connect(
    remote: str, new_lake: Callable[[str], Lake], tmp_path: Path
) -> None:
    lake, arrivals = new_lake("lake"), list(islice(playback.days(60), 2))
    playback.prepare(lake)
    for n, day in enumerate(arrivals, 1):
        playback.arrive(lake, day)
        log = tmp_path / "run.log"
        assert run_over(remote, lake.config.home, playback.PIPELINE, log) == 0, log.read_text()
        for table, rows in playback.expected(playback.after(arrivals[:n])).items():
            assert Counter(map(tuple, lake.spark().table(table).collect())) == rows, table


@pytest.mark.long  # local backfills are in every run
def test_commands_about_backfills_over_spark_connect(remote: str, tmp_path: Path) -> None:
    """Each in a process without Java."""
    home, pipeline, log = tmp_path / "lake", tmp_path / "defs.yaml", tmp_path / "run.log"
    pipeline.write_text(AUDITED)
    users = [Event(USERS, "c", (n, n + 1), {"id": n, "name": f"{n}"}) for n in (1, 2)]
    notes = [Event(NOTES, "c", (9, 10), {"id": 1, "user_id": 1, "text": "a", "stars": 2})]
    write_lines(home / "landing" / "events" / "1.jsonl", to_lines([*users, *notes]))
    assert run_over(remote, home, pipeline, log) == 0, log.read_text()

    def call(*words: str) -> str:
        env = {"LAKE_HOME": str(home), "LAKE_SPARK__REMOTE": remote, "JAVA_HOME": str(tmp_path)}
        log.write_text("")
        with started([sys.executable, "-m", "lake_assets.cli", *words], log, env) as command:
            assert command.wait(timeout=300) == 0, log.read_text()
        return log.read_text()

    of = ("--pipeline", str(pipeline))
    call("backfill", "final.notes", "--all", "--publish", "manual", *of)
    (made,) = Records(Lake(LakeConfig(home=home))).all()
    assert made.state == "ready"
    for command in ("compare", "publish"):
        call(command, made.id, *of)
    call("rebuild", "final.notes", "--downstream", *of)
    assert [r.state for r in Records(Lake(LakeConfig(home=home))).all()] == ["published", "published"]
    call("verify", "agg.stars", *of)


@pytest.mark.long
@pytest.mark.parametrize("with_what", ["", "/;token=guessed"])
def test_a_client_without_the_token_is_turned_away(remote: str, tmp_path: Path, with_what: str) -> None:
    address = remote.replace("127.0.0.1", "localhost") + with_what
    log = tmp_path / "stranger.log"
    with started(
        [sys.executable, str(Path(__file__).with_name("unauthenticated_client.py")), address], log
    ) as stranger:
        assert stranger.wait(timeout=300) != 0
    assert "UNAUTHENTICATED" in log.read_text()


AUDITED = """\
type: lake_assets.LakePipeline
attributes:
  name: audited
  streams:
    - name: events
      tables:
        - public.users
        - table: public.notes
          audits:
            - unique
            - not_null: text
            - accepted_values: {stars: [1, 2, 3]}
            - relationships: {user_id: final.users.id}
            - {row_count_change: 90%, severity: warn}
            - {name: short, sql: "SELECT * FROM {table} WHERE length(text) > 20"}
  models:
    - name: agg.stars
      sql: SELECT user_id, sum(stars) AS stars FROM final.notes GROUP BY user_id
      audits:
        - unique
        - {name: no_more_than_five, sql: "SELECT * FROM {table} WHERE stars > 5"}
"""
USERS = Table({"id": BIGINT, "name": TEXT}, name="public.users")
NOTES = Table({"id": BIGINT, "user_id": BIGINT, "text": TEXT, "stars": INT}, name="public.notes")


@pytest.mark.long  # audits without it are in every run
def test_audits_hold_a_batch_back_until_it_is_corrected_over_spark_connect(remote: str, tmp_path: Path) -> None:
    lake, pipeline, log = Lake(LakeConfig(home=tmp_path / "lake")), tmp_path / "defs.yaml", tmp_path / "run.log"
    pipeline.write_text(AUDITED)
    at = [0]

    def land(*rows: tuple[Table, str, dict[str, Any]]) -> int:
        at[0] += 1
        events = [Event(table, op, (at[0], 100 * at[0] + n), row) for n, (table, op, row) in enumerate(rows)]  # type: ignore[arg-type]
        write_lines(lake.config.home / "landing" / "events" / f"{at[0]}.jsonl", to_lines(events))
        log.write_text("")
        return run_over(remote, lake.config.home, pipeline, log)

    def note(n: int, user: int, text: str | None, stars: int) -> dict[str, Any]:
        return {"id": n, "user_id": user, "text": text, "stars": stars}

    users = [(USERS, "c", {"id": n, "name": f"{n}"}) for n in (1, 2)]
    assert land(*users, (NOTES, "c", note(1, 1, "a", 2)), (NOTES, "c", note(2, 1, "b", 3))) == 0, log.read_text()
    good = [(1, 1, "a", 2), (2, 1, "b", 3)]
    assert rows(lake, "final.notes") == good
    assert rows(lake, "agg.stars") == [(1, 5)]
    published = lake.table("final.notes").metadata.current_snapshot_id

    # One row for each audit that a row can violate, and a new user, whose table has nothing to do with it.
    wrong = [note(3, 2, None, 1), note(4, 2, "x", 9), note(5, 7, "y", 1), note(6, 2, "long " * 9, 1)]
    assert land((USERS, "c", {"id": 3, "name": "3"}), *((NOTES, "c", row) for row in wrong)) == 1
    assert "AuditFailedError: final.notes: 4 of 6 audits do not pass" in (output := log.read_text()), output
    for audit in ("not_null_text", "accepted_values_stars", "relationships_user_id", "short"):
        assert f"\n- {audit}: 1 row" in output, output
    table = lake.table("final.notes")
    assert (table.metadata.current_snapshot_id, rows(lake, "final.notes")) == (published, good)
    assert rows(lake, "agg.stars") == [(1, 5)]
    assert len(rows(lake, "final.users")) == 3
    assert len(rows(lake, "final.notes", "failed_audit")) == 6

    # Corrected, it goes on; what it makes of the model does not pass the model's own audit.
    right = [note(3, 2, "c", 1), note(4, 2, "d", 3), note(5, 1, "e", 1), note(6, 2, "f", 1)]
    assert land(*((NOTES, "u", row) for row in right)) == 1
    assert "AuditFailedError: agg.stars: 1 of 2 audits do not pass" in (output := log.read_text()), output
    assert "AuditFailedError: final.notes" not in output
    notes = [(*g,) for g in good] + [(r["id"], r["user_id"], r["text"], r["stars"]) for r in right]
    assert rows(lake, "final.notes") == notes
    assert rows(lake, "agg.stars") == [(1, 5)]

    assert land((NOTES, "d", {"id": 5})) == 0, log.read_text()
    assert rows(lake, "final.notes") == [n for n in notes if n[0] != 5]
    assert rows(lake, "agg.stars") == [(1, 5), (2, 5)]
    for name in ("final.notes", "agg.stars"):
        assert "failed_audit" not in lake.table(name).metadata.refs
    assert Pipeline.load(pipeline).pending(lake) == []


def rows(lake: Lake, name: str, branch: str | None = None) -> list[tuple[Any, ...]]:
    """A table's rows, or those of a branch of it, read without Spark."""
    table = lake.table(name)
    snapshot = table.metadata.refs[branch].snapshot_id if branch else None
    columns = [f.name for f in table.schema().fields if not f.name.startswith("_")]
    found = table.scan(snapshot_id=snapshot, selected_fields=tuple(columns)).to_arrow()
    return sorted(tuple(row[c] for c in columns) for row in found.to_pylist())


COUNTED = """\
type: lake_assets.LakePipeline
attributes:
  name: counted
  streams:
    - {name: events, tables: [public.notes]}
  models:
    - {name: agg.stars, sql: "SELECT user_id, sum(stars) AS stars FROM final.notes GROUP BY user_id"}
"""


@pytest.mark.long
def test_two_lakes_share_a_process_and_a_server(remote: str, tmp_path: Path) -> None:
    (pipeline := tmp_path / "defs.yaml").write_text(COUNTED)
    lakes = {name: Lake(LakeConfig(home=tmp_path / name)) for name in ("a", "b")}
    for n, lake in enumerate(lakes.values()):
        events = [
            Event(NOTES, "c", (1, 100 + i), {"id": i, "user_id": n, "text": "x", "stars": i + n}) for i in range(3)
        ]
        write_lines(lake.config.home / "landing" / "events" / "1.jsonl", to_lines(events))
    log = tmp_path / "run.log"
    nothing = {"LAKE_SPARK__REMOTE": remote, "JAVA_HOME": str(tmp_path), "LAKE_JARS": str(tmp_path / "none")}
    with started(python("tests.system.two_lakes", tmp_path, pipeline), log, nothing) as run:
        assert run.wait(timeout=600) == 0, log.read_text()
    assert "RemoveRemoteCachedRelation failed" not in log.read_text()
    assert rows(lakes["a"], "agg.stars") == [(0, 3)]
    assert rows(lakes["b"], "agg.stars") == [(1, 6)]


@pytest.mark.long
def test_an_audit_that_warns_sees_the_batch_over_spark_connect(remote: str, tmp_path: Path) -> None:
    audit = 'audits: [{name: no_stars, sql: "SELECT * FROM {table} WHERE stars < 0", severity: warn}]'
    declared = COUNTED.replace("[public.notes]", f"[{{table: public.notes, {audit}}}]")
    (pipeline := tmp_path / "defs.yaml").write_text(declared)
    lake, log = Lake(LakeConfig(home=tmp_path / "lake")), tmp_path / "run.log"
    for n, stars in enumerate((1, -1)):
        write_lines(
            lake.config.home / "landing" / "events" / f"{n}.jsonl",
            to_lines([Event(NOTES, "c", (1, 100 + n), {"id": n, "user_id": 1, "text": "x", "stars": stars})]),
        )
        assert run_over(remote, lake.config.home, pipeline, log) == 0, log.read_text()
        last = step_journal.read(lake, datetime.now(UTC) - timedelta(hours=1), table="final.notes")[-1]
        assert last.failed_audits == (["no_stars"] if stars < 0 else [])


@pytest.mark.long
def test_views_of_changes_are_read_over_spark_connect_by_other_sessions_too(remote: str, tmp_path: Path) -> None:
    log, none = tmp_path / "views.log", tmp_path / "none"
    nothing = {"LAKE_SPARK__REMOTE": remote, "LAKE_HOME": str(tmp_path / "lake"), "JAVA_HOME": str(none)}
    with started(python("tests.system.views_over_connect"), log, nothing) as run:
        assert run.wait(timeout=300) == 0, log.read_text()
    changed = [[1, "a", "delete"], [2, "b", "update_before"], [2, "c", "update_after"]]
    assert json.loads(log.read_text().splitlines()[-1]) == {
        "own": changed,
        "shared": changed,
        "stranger": changed,
        "left": [],
    }


def test_a_server_that_is_away_is_named_at_once(tmp_path: Path) -> None:
    lake = Lake(LakeConfig(home=tmp_path, spark=SparkConfig(remote=f"sc://127.0.0.1:{free_port()}")))
    with pytest.raises(SparkUnavailableError, match=r"no Spark Connect server at sc://127\.0\.0\.1"):
        lake.spark()


def test_a_run_without_its_server_leaves_everything_as_it_was(tmp_path: Path) -> None:
    lake = Lake(LakeConfig(home=tmp_path / "lake"))
    shop.feed(lake.config.home / "landing" / "shop_events", shop.checkpoints()[0])
    command = python("tests.system.run_pipeline", lake.config.home, shop.PIPELINE)
    env = {"LAKE_SPARK__REMOTE": f"sc://127.0.0.1:{free_port()}"}
    log = tmp_path / "run.log"
    with started(command, log, env) as run:
        assert run.wait(timeout=60) != 0
    assert "SparkUnavailableError" in log.read_text()
    assert lake.tables("raw") == []
