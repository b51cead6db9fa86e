"""Two runs at the same time on one lake: equal tables, nothing twice, nothing lost."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from lake_assets import Lake
from tests.support.debezium import BIGINT, INT, TEXT, Event, Table
from tests.support.oracle import final_rows, rows_of
from tests.support.processes import SMALL_SPARK, python, started
from tests.support.streams import Feed

pytestmark = [pytest.mark.system, pytest.mark.long]

USERS = Table({"id": BIGINT, "n": INT, "name": TEXT}, name="public.users")
CLICKS = Table({"url": TEXT}, key=(), name="public.clicks")
QUERY = "SELECT n, count(*) AS c FROM final.users GROUP BY n"
PIPELINE = f"""\
type: lake_assets.LakePipeline
attributes:
  name: made_up
  streams:
    - name: events
      tables: [public.users, public.clicks]
  models:
    - {{name: agg.m, sql: "{QUERY}"}}
"""


def batch(n: int) -> list[Event]:
    at = [100 * n]

    def event(table: Table, op: str, **row: object) -> Event:
        at[0] += 1
        return Event(table, op, (at[0], at[0]), row)  # type: ignore[arg-type]

    users = [event(USERS, "c" if n == 0 else "u", id=i, n=i % 3 + n, name=f"{n}") for i in range(6)]
    gone = [event(USERS, "d", id=n)] if n else []
    clicks = [event(CLICKS, "c", url=f"/{n}/{i % 2}") for i in range(5)]
    return [*users, *gone, *clicks]


def test_two_runs_at_the_same_time_end_in_the_same_tables(new_lake: Callable[[str], Lake], tmp_path: Path) -> None:
    lake = new_lake("lake")
    feed = Feed(lake, "public.users", "public.clicks", models=[{"name": "agg.m", "sql": QUERY}])
    yaml = tmp_path / "defs.yaml"
    yaml.write_text(PIPELINE)
    delivered: list[Event] = []
    for n in range(2):
        delivered += batch(n)
        feed.land(batch(n))
        at_once(lake, yaml, tmp_path, f"start{n}")
        users = [e for e in delivered if e.table is USERS]
        assert rows_of(feed.rows("final.users"), list(USERS.columns)) == final_rows(users, list(USERS.columns))
        clicks = Counter((e.row["url"],) for e in delivered if e.table is CLICKS)
        assert rows_of(feed.rows("final.clicks")) == clicks
        assert rows_of(feed.rows("agg.m")) == rows_of(lake.spark().sql(QUERY))
        for table in ("staging.users", "staging.clicks"):
            positions = rows_of(feed.rows(table), ["_position"])
            assert set(positions.values()) == {1}, table
        assert feed.rows("staging.users").count() == len(users)
        assert feed.rows("staging.clicks").count() == clicks.total()
        files = Counter(r[0] for r in feed.rows("raw.events").select("source_file", "source_line").distinct().collect())
        assert feed.rows("raw.events").count() == files.total()
        assert set(lake.table("final.clicks").refs()) == {"main"}
    before = feed.heads()
    feed.run()
    assert feed.heads() == before


def at_once(lake: Lake, yaml: Path, folder: Path, name: str) -> None:
    """Two runs, begun in the same moment; each may lose races, none may fail."""
    with contextlib.ExitStack() as stack:
        log, start = folder / f"{name}.log", folder / name
        command = python("tests.system.run_pipeline", lake.config.home, yaml, start)
        runs = [stack.enter_context(started(command, log, SMALL_SPARK)) for _ in range(2)]
        while len(list(folder.glob(f"{name}.ready*"))) < len(runs):
            assert all(run.poll() is None for run in runs), log.read_text()
            time.sleep(0.05)
        start.touch()
        codes = [run.wait(timeout=300) for run in runs]
    assert codes == [0, 0], log.read_text()
