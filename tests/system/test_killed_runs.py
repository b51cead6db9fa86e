"""A run that is killed anywhere and run again ends in the same tables.

Between the steps and inside them: first by an exception that nothing catches, at every point where something is made
visible, on one warm session; then by SIGKILL in processes of their own, at the points where it matters that no
`finally` is reached.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Transaction
from pyspark.sql import SparkSession

from lake_assets import Lake, Pipeline
from lake_assets.examples import shop
from lake_assets.ingest.raw import file_ledger
from lake_assets.pipeline import step_retries as runner
from tests.support.kills import Killed, Points, around_refs, verb

pytestmark = [pytest.mark.system, pytest.mark.spark]

SELECT = [
    "raw.shop_events",
    *(f"{layer}.{table}" for layer in ("staging", "final") for table in ("users", "user_city", "clicks")),
    "agg.city_population",
]
CITY = """SELECT c.city, count(*) AS population, sum(u.balance) AS balance
          FROM final.users u JOIN final.user_city c ON u.id = c.user_id GROUP BY c.city"""


def _equal_to_postgres(lake: Lake, checkpoint: shop.Checkpoint) -> None:
    found = {c.table: c for c in shop.compare(lake, checkpoint)}
    for table in ("users", "user_city", "clicks"):
        assert found[table].equal, found[table].differences[:3]
    spark = lake.spark()
    agg, fresh = spark.table("agg.city_population"), spark.sql(CITY)
    assert agg.exceptAll(fresh).count() == fresh.exceptAll(agg).count() == 0
    staged = spark.sql("SELECT count(*), count(DISTINCT _position) FROM staging.users").collect()[0]
    assert staged[0] == staged[1]


@pytest.mark.long  # steps of each layer are killed everywhere in every run
def test_a_run_killed_at_any_point_and_run_again_ends_in_the_same_tables(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = Points()
    points.armed = True
    monkeypatch.setattr(SparkSession, "sql", points.around(SparkSession.sql, verb))
    around_refs(points, monkeypatch)
    monkeypatch.setattr(
        Transaction,
        "commit_transaction",
        points.around(Transaction.commit_transaction, lambda *_: "a PyIceberg commit"),
    )
    monkeypatch.setattr(
        SqlCatalog, "register_table", points.around(SqlCatalog.register_table, lambda *_: "registering an ICDC table")
    )
    monkeypatch.setattr(file_ledger, "catch_up", points.around(file_ledger.catch_up, lambda *_: "the ledger"))
    monkeypatch.setattr(runner, "keep_own", points.around(runner.keep_own, lambda *_: "retention"))
    pipeline, landing = Pipeline.load(shop.PIPELINE), lake.config.home / "landing" / "shop_events"
    kills = 0
    for checkpoint in shop.checkpoints()[:2]:
        shop.feed(landing, checkpoint)
        while True:
            try:
                outcomes = pipeline.run(lake, SELECT, on_start=lambda table: setattr(points, "table", table))
            except Killed:
                kills += 1
                points.ended = False
                continue
            assert [o.error for o in outcomes if o.status == "failed"] == []
            break
        points.armed = False
        _equal_to_postgres(lake, checkpoint)
        points.armed = True
    assert kills == len(points.seen)
    assert len({p.split(":")[0] for p in points.seen}) == len(SELECT), "some table was never killed at"
    assert any("MERGE" in p for p in points.seen)
    assert any("publishing" in p for p in points.seen), "of a table without a key"


@pytest.mark.long
@pytest.mark.parametrize(
    ("batch", "statement", "when", "nth"),
    [
        (0, "land", "after", 1),
        (0, "MERGE INTO", "during", 2),
        (0, "MERGE INTO", "after", 3),
        (0, "`agg`.`city_population` USING iceberg", "during", 1),
        (1, "publish", "before", 1),
        (1, "publish", "after", 3),
        # A table of few rows that no table reads is overwritten.
        (1, "write overwrite", "during", 1),
        (1, "write overwrite", "after", 1),
    ],
)
def test_sigkill_inside_a_step_loses_and_repeats_nothing(
    new_lake: Callable[[str], Lake], batch: int, statement: str, when: str, nth: int
) -> None:
    lake = new_lake("killed")
    home = lake.config.home
    pipeline = shop.PIPELINE
    if statement == "write overwrite":
        pipeline = home / "shop.yaml"
        lines = shop.PIPELINE.read_text().splitlines()
        pipeline.write_text("\n".join(line for line in lines if "full_above" not in line))
    for absorbed in shop.checkpoints()[:batch]:
        shop.feed(home / "landing" / "shop_events", absorbed)
        Pipeline.load(pipeline).run(lake)
    checkpoint = shop.checkpoints()[batch]
    shop.feed(home / "landing" / "shop_events", checkpoint)
    script = Path(__file__).with_name("killed_run.py")
    ended = subprocess.run(
        [sys.executable, str(script), str(home), statement, when, str(nth), str(pipeline)],
        cwd=home, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGKILL, ended.stdout + ended.stderr

    outcomes = Pipeline.load(pipeline).run(lake)

    assert [o.error for o in outcomes if o.status == "failed"] == []
    assert [c.differences[:2] for c in shop.compare(lake, checkpoint) if not c.equal] == []
    _equal_to_postgres(lake, checkpoint)
    left = [r for n, r in lake.table("final.clicks").metadata.refs.items() if n.startswith("lake_assets_")]
    assert all(r.max_ref_age_ms for r in left), "the branch of a killed run goes with the next expiry of snapshots"
