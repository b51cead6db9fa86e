"""Python and SQL of README.md, pipelines.md, capture.md, lake.md, own_code.md and own_code_jobs.md, executed as a reader would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.debezium import BIGINT, TEXT, Event, Table, to_lines, write_lines
from tests.support.documents import snippets
from tests.support.processes import ROOT

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.long]

USERS = Table({"id": BIGINT, "email": TEXT, "balance": BIGINT}, name="public.users")
CITIES = Table({"user_id": BIGINT, "city": TEXT}, key=("user_id",), name="public.user_city")
# What the pages take for granted.
PLAYBACK = """
from lake_assets import Lake
spark = Lake.load().spark()
spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.raw")
spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.agg")
spark.sql("CREATE TABLE lake.raw.playback (account BIGINT, started_at TIMESTAMP, seconds BIGINT, day DATE) USING iceberg")
spark.sql("INSERT INTO lake.raw.playback VALUES (1, TIMESTAMP '2026-01-01 10:00:00', 60, DATE '2026-01-01')")
"""


def snippet(page: str, first: str) -> str:
    """Return the block of a page that begins so."""
    (found,) = (s.text for s in snippets(ROOT / page) if s.first.startswith(first))
    return found


def run(folder: Path, code: str) -> str:
    """Execute a program in a folder, whose lake is in `.lake`; return what it prints."""
    (folder / "program.py").write_text(code)
    env = {k: v for k, v in os.environ.items() if not k.startswith("LAKE_") or k == "LAKE_JARS"}
    conf = '{"spark.ui.enabled": "false"}'
    env |= {"PYTHONPATH": str(ROOT), "LAKE_SPARK__MASTER": "local[1]", "LAKE_SPARK__CONF": conf}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The folder of the README's pipeline, to which files have been delivered."""
    (tmp_path / "pipeline.yaml").write_text(snippet("README.md", "type: lake_assets.LakePipeline"))
    events = [Event(USERS, "c", (n, n + 1), {"id": n, "email": f"{n}@x", "balance": n}) for n in (1, 2)]
    events += [Event(CITIES, "c", (9 + n, 10 + n), {"user_id": n, "city": "Köln"}) for n in (1, 2)]
    write_lines(tmp_path / ".lake" / "landing" / "shop_events" / "1.jsonl", to_lines(events))
    return tmp_path


def test_code_over_a_pipeline(shop: Path) -> None:
    printed = run(shop, snippet("docs/pipelines.md", "from lake_assets import Lake, Pipeline"))
    assert "agg.city_population absorbed 1 0 0" in printed
    assert "insert" in printed  # what capture.feed shows
    change = Event(USERS, "u", (50, 51), {"id": 1, "email": "1@y", "balance": 5})
    write_lines(shop / ".lake" / "landing" / "shop_events" / "2.jsonl", to_lines([change]))
    before = """
from lake_assets import Lake, Pipeline
lake = Lake.load()
watermark = lake.table("final.users").current_snapshot().snapshot_id
spark = lake.spark()
spark.sql("ALTER TABLE lake.final.users CREATE TAG yesterday")
assert not [o for o in Pipeline.load("pipeline.yaml").run(lake) if o.error]
spark.sql("CREATE TABLE lake.agg.orders AS SELECT CAST(1 AS BIGINT) AS user_id, 9 AS total")
"""
    journal = 'spark.sql("""' + snippet("docs/lake.md", "SELECT table, count(*) AS steps") + '""").show()\n'
    printed = run(
        shop,
        before
        + snippet("docs/capture.md", "from lake_assets import Lake")
        + "        print('upserts', capture.upserts(spark).count(), 'keys', capture.keys(spark, ['id']).count())\n"
        + snippet("docs/capture.md", "with lake.changes_view(")
        + journal,
    )
    assert "upserts 1 keys 1" in printed
    assert "update_after|    9|" in printed
    assert "final.users" in printed  # its step in the journal


def test_a_python_model(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(snippet("docs/own_code.md", "from lake_assets import Changes, Lookup, model"))
    (tmp_path / "pipeline.yaml").write_text("type: lake_assets.LakePipeline\nattributes: {name: plays}\n")
    after = """
from lake_assets import Pipeline
lake = Lake.load()
assert not [o for o in Pipeline.load("pipeline.yaml").run(lake) if o.error]
spark.sql("INSERT INTO lake.raw.playback VALUES (1, TIMESTAMP '2026-01-01 12:00:00', 40, DATE '2026-01-01')")
assert not [o for o in Pipeline.load("pipeline.yaml").run(lake) if o.error]
print(spark.sql("SELECT account, CAST(day AS STRING), seconds FROM lake.agg.playback_daily").collect())
"""
    assert "(account=1, day='2026-01-01', seconds=100)" in run(tmp_path, PLAYBACK + after).replace("Row(", "(")


def test_a_job(tmp_path: Path) -> None:
    job = snippet("docs/own_code_jobs.md", "from datetime import timedelta")
    before = """
from pyspark.sql.functions import expr
spark.sql("CREATE TABLE lake.agg.playback_daily (account BIGINT, day DATE, seconds BIGINT) USING iceberg")
"""
    after = """
with lake.step("agg.playback_daily", ["raw.playback"], ranges=["day"]) as step:
    print("empty:", step.is_empty, spark.sql("SELECT * FROM lake.agg.playback_daily").count())
"""
    assert "empty: True 1" in run(tmp_path, PLAYBACK + before + job + after)
