"""Random work on a MariaDB while service and server are killed: in the end, final tables hold what the server holds."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from lake_assets import Lake, Pipeline
from tests.support.live_mariadb import Live
from tests.support.mariadb_server import needs_debezium, needs_mariadb, server
from tests.support.mariadb_workload import TABLES, Workload
from tests.support.pipeline_runs import run
from tests.support.seeds import seeds

# Minutes each; the same without kills of the service is in `test_mariadb_live`.
pytestmark = [
    pytest.mark.servers,
    pytest.mark.system,
    pytest.mark.spark,
    pytest.mark.long,
    needs_mariadb,
    needs_debezium,
]
DECLARED = [*(f"shop.{t}" for t in TABLES if t != "notes"), {"table": "shop.notes", "key": "*"}]


@pytest.mark.parametrize("seed", seeds(0, 3))
def test_final_tables_equal_the_database_after_random_work_and_kills(lake: Lake, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with server(**{"max-binlog-size": "64K"}) as mariadb:
        work = Workload(mariadb, seed)
        live = Live(lake.config.home, mariadb)
        live.declare(DECLARED)
        for turn in range(4):
            with live.serving() as process:
                # Killed wherever it is: in its start, its first snapshot, or before or after a commit.
                worker = threading.Thread(target=work.work, args=(chance.randint(10, 40),))
                worker.start()
                if chance.random() < 0.3:
                    worker.join()
                    live.wait(process, live.marked(work.mark()), 600)
                else:
                    time.sleep(chance.uniform(1, 20))
                process.kill()
                worker.join()
            if turn in (1, 2):
                mariadb.stop(kill=turn == 2)
                mariadb.start()
            if chance.random() < 0.5:
                run(lake, Pipeline.load(live.file))
        with live.serving() as process:
            live.wait(process, live.marked(work.mark()), 600)
        assert {r["problem"] for r in live.rows()} == {None}
        run(lake, Pipeline.load(live.file))
        for table in TABLES:
            columns, expected = work.rows(table)
            frame = lake.spark().table(lake.sql_name(f"final.{table}")).select(*columns)
            got = Counter(tuple(r) for r in frame.collect())
            assert got == Counter(map(tuple, expected)), table
