"""Every command about a lake works wherever Spark runs: behind a Spark Connect server, and on a standalone cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lake_assets import Lake, LakeConfig
from lake_assets.backfill.backfill_record import Records
from tests.support.debezium import BIGINT, TEXT, Event, Table, to_lines, write_lines
from tests.support.lakes import SHORT_JVM, SMALL
from tests.support.processes import python, started
from tests.support.spark_servers import cluster_address, connect_address

pytestmark = [pytest.mark.system, pytest.mark.long]

USERS = Table({"id": BIGINT, "name": TEXT}, name="public.users")
NOTES = Table({"id": BIGINT, "user_id": BIGINT, "stars": BIGINT}, name="public.notes")
PIPELINE = """\
type: lake_assets.LakePipeline
attributes:
  name: notes
  streams:
    - name: events
      tables:
        - public.users
        - table: public.notes
          audits: [unique, {relationships: {user_id: final.users.id}}]
  models:
    - name: agg.stars
      sql: SELECT user_id, sum(stars) AS stars FROM final.notes GROUP BY user_id
    - name: agg.seen
      sql: SELECT *, _change_type AS what FROM {{ feed('final.users', 'id') }}
      write: append
"""


@pytest.fixture(params=["connect", "cluster"])
def elsewhere(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a process whose Spark runs elsewhere."""
    folder = tmp_path_factory.mktemp("elsewhere")
    if request.param == "connect":
        with connect_address(folder) as address:
            yield {"LAKE_SPARK__REMOTE": address, "JAVA_HOME": str(folder), "LAKE_JARS": str(folder / "none")}
        return
    with cluster_address(folder) as address:
        conf = SMALL | SHORT_JVM | {"spark.executor.memory": "1g"}
        yield {"LAKE_SPARK__MASTER": address, "LAKE_SPARK__DRIVER_MEMORY": "1g", "LAKE_SPARK__CONF": json.dumps(conf)}


def test_every_command_about_a_lake(elsewhere: dict[str, str], tmp_path: Path) -> None:
    home, pipeline, log = tmp_path / "lake", tmp_path / "defs.yaml", tmp_path / "run.log"
    pipeline.write_text(PIPELINE)
    users = [Event(USERS, "c", (n, n + 1), {"id": n, "name": f"{n}"}) for n in (1, 2)]
    notes = [Event(NOTES, "c", (9 + n, 10 + n), {"id": n, "user_id": n, "stars": n}) for n in (1, 2)]
    lines = [*to_lines([*users, *notes]), b'{"no": "event"}']
    write_lines(home / "landing" / "events" / "1.jsonl", lines)

    def call(*commands: tuple[str, ...] | tuple[int, tuple[str, ...]]) -> str:
        listed = [c if isinstance(c[0], int) else (0, c) for c in commands]
        (tmp_path / "commands").write_text("".join(json.dumps([list(c[1]), c[0]]) + "\n" for c in listed))
        log.write_text("")
        env = {"LAKE_HOME": str(home), "COLUMNS": "200", **elsewhere}
        with started(python("tests.system.run_commands", tmp_path / "commands"), log, env) as process:
            assert process.wait(timeout=900) == 0, log.read_text()
        assert "--- all commands have run" in log.read_text()
        return log.read_text()

    name, of = str(pipeline), ("--pipeline", str(pipeline))
    call(
        ("check", name),
        (3, ("run", name)),  # a record was rejected
        ("status",),
        ("costs", "--by", "strategy"),
        ("report",),
        ("report", "--html", str(tmp_path / "lake.html")),
        ("verify", "final.notes", *of),
        ("verify", "agg.stars", "--html", str(tmp_path / "stars.html"), *of),
        ("explain", "agg.stars", *of),
        ("plan", name),
        ("capture", "final.notes"),
        ("changes", "final.notes", "--key", "id"),
        ("changes", "final.notes", "--key", "id", "--as", "agg.changes"),
        ("rejected", "list"),
        ("rejected", "summary"),
        (0, ("rejected", "replay", name)),
        ("rebuild", "agg.stars", *of),
        (1, ("rebuild", "agg.seen", *of)),  # it asks what becomes of the kept rows
        ("rebuild", "agg.seen", "--keep-rows", *of),
        ("rebuild", "final.notes", "--downstream", *of),
        ("backfill", "final.notes", "--all", "--dry-run", *of),
        ("backfill", "final.notes", "--by", "stars", "--from", "1", "--to", "1", "--publish", "manual", *of),
        ("backfills",),
        ("compare", "{backfill}", "--html", str(tmp_path / "backfill.html"), *of),
        ("publish", "{backfill}", *of),
        (1, ("undo", "{backfill}", *of)),  # it changed nothing
        ("backfill", "final.notes", "--all", "--publish", "manual", *of),
        ("discard", "{backfill}", *of),
        ("repair",),
        (0, ("run", name)),
    )
    lake = Lake(LakeConfig(home=home))
    assert not [r for r in Records(lake).all() if r.is_open]
    more = [Event(NOTES, "u", (20, 21), {"id": 1, "user_id": 2, "stars": 7})]
    write_lines(home / "landing" / "events" / "2.jsonl", to_lines(more))
    call(("run", name), ("verify", "agg.stars", *of), ("verify", "final.notes", *of))
