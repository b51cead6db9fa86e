"""A model's step that is killed anywhere and run again ends in the same table, whatever its strategy.

First by an exception that nothing catches, at every point where something is made visible, on one warm session; then
by SIGKILL in processes of their own. A new strategy comes in by a query in `MODELS`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Transaction
from pyspark.sql import DataFrameWriterV2, SparkSession

from lake_assets import Lake, Pipeline
from lake_assets.pipeline import step_retries as runner
from tests.support.kills import Killed, Points, around_refs, verb
from tests.support.oracle import rows_of
from tests.support.pipeline_files import write_pipeline

pytestmark = [pytest.mark.system, pytest.mark.spark]

# By table its query, and the strategies that may absorb its changes.
MODELS: dict[str, tuple[str, set[str]]] = {
    "agg.counted": (
        "SELECT b.g, count(*) AS n, sum(a.v) AS s FROM final.a a JOIN final.b b ON a.b = b.id GROUP BY b.g",
        {"keys", "retract"},
    ),
    "agg.greatest": ("SELECT b, max(v) AS top, count(DISTINCT v) AS kinds FROM final.a GROUP BY b", {"keys"}),
    "agg.rows": ("SELECT a.v, b.g FROM final.a a JOIN final.b b ON a.b = b.id", {"retract", "full"}),
    "agg.outer": ("SELECT b.id, count(a.id) AS n FROM final.b b LEFT JOIN final.a a ON a.b = b.id GROUP BY b.id", {"keys", "full"}),
    "agg.total": ("SELECT count(*) AS n, sum(v) AS s FROM final.a", {"retract", "keys", "full"}),
    "agg.ranked": ("SELECT id, v, row_number() OVER (ORDER BY v, id, b) AS place FROM final.a", {"full"}),
    "agg.daily": (
        "SELECT day, sum(v) AS v, sum(sum(v)) OVER (ORDER BY day ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS two "
        "FROM final.a GROUP BY day",
        {"ranges", "full"},
    ),
    "agg.above": ("SELECT n, count(*) AS groups FROM agg.counted GROUP BY n", {"keys", "retract"}),
}  # fmt: skip
START = (
    "CREATE TABLE final.a (id INT, b INT, v INT, day DATE) USING iceberg TBLPROPERTIES ('format-version' = '3')",
    "CREATE TABLE final.b (id INT, g STRING) USING iceberg TBLPROPERTIES ('format-version' = '3')",
    "INSERT INTO final.a SELECT CAST(id AS INT), CAST(id % 4 AS INT), CAST(id % 3 AS INT), "
    "date_add(DATE '2024-01-01', CAST(id % 5 AS INT)) FROM range(1, 20)",
    "INSERT INTO final.b VALUES (0, 'x'), (1, 'x'), (2, NULL), (3, 'y'), (3, 'z')",
)
MOST_ROUNDS = 12
WRITES = ("create", "replace", "createOrReplace", "append", "overwrite", "overwritePartitions")


# One a way of writing: groups that are added to, copies that are counted, everything. The others take long.
FEW = ["agg.counted", "agg.rows", "agg.ranked"]


def pipeline_of(folder: Path, names: Collection[str] = tuple(MODELS)) -> Path:
    """The models' YAML."""
    models = [{"name": name, "sql": MODELS[name][0]} for name in names]
    return write_pipeline(folder / "defs.yaml", {"name": "p", "models": models})


def prepare(lake: Lake, *statements: str) -> None:
    lake.ensure_namespace(("final",))
    for text in statements:
        lake.spark().sql(text)


def changes(n: int) -> list[str]:
    """The nth change, which every model sees: rows that come, change and go, in both tables; groups that vanish."""
    return [
        f"DELETE FROM final.a WHERE id % 7 = {n % 7}",
        f"UPDATE final.a SET v = v + 1, day = date_add(day, 1) WHERE id % 3 = {n % 3}",
        f"INSERT INTO final.a VALUES ({30 + n}, 3, {n}, NULL), ({50 + n}, {n % 4}, NULL, DATE '2024-01-02')",
        f"UPDATE final.b SET g = 'w{n}' WHERE id = {n % 4}",
    ]


def check(lake: Lake, names: Collection[str] = tuple(MODELS)) -> None:
    for name in names:
        assert rows_of(lake.spark().table(name)) == rows_of(lake.spark().sql(MODELS[name][0])), name


@pytest.mark.long
@pytest.mark.parametrize("names", [FEW, [m for m in MODELS if m not in FEW[1:]]])
def test_a_step_killed_at_any_point_and_run_again_ends_in_the_same_table(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    points = Points()
    monkeypatch.setattr(SparkSession, "sql", points.around(SparkSession.sql, verb))
    around_refs(points, monkeypatch)
    for name in WRITES:
        called = points.around(getattr(DataFrameWriterV2, name), lambda *_, what=name: f"write: {what}")
        monkeypatch.setattr(DataFrameWriterV2, name, called)
    for owner, name in (
        (Transaction, "commit_transaction"), (SqlCatalog, "register_table"), (SqlCatalog, "create_table"),
        (runner, "keep_own"), (runner, "keep_sources"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, points.around(getattr(owner, name), lambda *_, what=name: what))
    pipeline = Pipeline.load(pipeline_of(tmp_path, names))
    prepare(lake, *START)
    strategies: defaultdict[str, set[str]] = defaultdict(set)
    kills = 0
    # A step that was killed after its commit has nothing to do when it is run again: what comes later in a step is
    # reached by the next change. So changes go on until there is no point left to kill at.
    for n in range(MOST_ROUNDS):
        before = kills
        prepare(lake, *(changes(n) if n else ()))
        points.armed = True
        while True:
            try:
                outcomes = pipeline.run(lake, on_start=lambda table: setattr(points, "table", table))
            except Killed:
                kills += 1
                points.ended = False
                continue
            break
        points.armed = False
        assert [o.error for o in outcomes if o.error] == []
        check(lake, names)
        assert {o.status for o in pipeline.run(lake)} == {"nothing"}
        for outcome in outcomes if n else ():
            strategies[outcome.table].add(outcome.strategy or "none")
        if n and kills == before:
            break
    else:
        raise AssertionError(f"there was always one more point to kill at: {points.seen}")
    assert kills == len(points.seen)
    for table in names:
        killed_at = [p for p in points.seen if p.startswith(f"{table}: ")]
        assert len(killed_at) >= 6, f"a first run, a change and what follows a commit: {killed_at}"
    assert {t: s for t, s in strategies.items() if not s <= MODELS[t][1] | {"none"}} == {}
    assert all(s - {"none"} for s in strategies.values()), "each has absorbed a change without being killed"


@pytest.mark.parametrize(
    ("statement", "when"),
    [
        pytest.param("MERGE INTO", "during", marks=pytest.mark.long),
        pytest.param("MERGE INTO", "after", marks=pytest.mark.long),
        pytest.param("write overwrite", "before", marks=pytest.mark.long),
        pytest.param("write overwrite", "during", marks=pytest.mark.long),
        pytest.param("write overwrite", "after", marks=pytest.mark.long),
    ],
)
def test_sigkill_inside_a_models_step_loses_and_repeats_nothing(
    new_lake: Callable[[str], Lake], tmp_path: Path, statement: str, when: str
) -> None:
    lake, yaml_file = new_lake("killed"), pipeline_of(tmp_path)
    pipeline = Pipeline.load(yaml_file)
    prepare(lake, *START)
    assert [o.error for o in pipeline.run(lake) if o.error] == []
    prepare(lake, *changes(1))
    script = Path(__file__).with_name("killed_run.py")
    ended = subprocess.run(
        [sys.executable, str(script), str(lake.config.home), statement, when, "1", str(yaml_file)],
        cwd=lake.config.home, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGKILL, ended.stdout + ended.stderr

    assert [o.error for o in pipeline.run(lake) if o.error] == []
    check(lake)
    assert {o.status for o in pipeline.run(lake)} == {"nothing"}
