"""Few changed rows: grouped in one partition, and absorbed by queries that are planned and compiled once."""

from __future__ import annotations

from typing import Any

import pytest
from sqlglot import exp

from lake_assets import Lake
from lake_assets.lake import thresholds
from lake_assets.models.operators.kept_frames import Frames
from lake_assets.models.operators.maintenance import is_linear
from lake_assets.models.operators.operator_types import certain_type
from lake_assets.models.operators.query_tree import Aggregate, Node
from lake_assets.models.sql.model_plan import plan
from lake_assets.models.steps import model_sources
from lake_assets.tables.spark_tuning import planned_once
from tests.support.model_world import World
from tests.support.schemas import SCHEMAS


def grouped(sql: str) -> tuple[Node, exp.Expr]:
    """Return the input of the query's topmost GROUP BY, and the argument of its first aggregate."""
    tree = plan("agg.m", sql, SCHEMAS).tree
    assert tree is not None
    node = tree.root
    while not isinstance(node, Aggregate):
        (node,) = node.inputs
    return node.input, node.calls[0][1].this


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("SELECT user_id, sum(price) AS s FROM final.orders GROUP BY 1", "decimal(10,2)"),
        ("SELECT u.name, sum(o.price) AS s FROM final.users u JOIN final.orders o ON u.id = o.user_id GROUP BY 1", "decimal(10,2)"),
        ("SELECT n, sum(p) AS s FROM (SELECT user_id AS n, price AS p FROM final.orders WHERE id > 1) GROUP BY 1", "decimal(10,2)"),
        ("SELECT n, sum(p) AS s FROM (SELECT user_id AS n, price + 1 AS p FROM final.orders) GROUP BY 1", ""),
        ("SELECT n, sum(p) AS s FROM (SELECT id AS n, id AS p FROM final.users UNION ALL SELECT id, price FROM final.orders) GROUP BY 1", ""),
        ("SELECT u.id, sum(o.price) AS s FROM final.users u LEFT JOIN final.orders o ON u.id = o.user_id GROUP BY 1", "decimal(10,2)"),
    ],
)  # fmt: skip
def test_the_type_of_an_unchanged_column_is_that_of_its_table(sql: str, kind: str) -> None:
    node, of = grouped(sql)
    assert certain_type(node, of) == kind


def test_operators_over_groups_or_other_rows_are_not_linear() -> None:
    assert is_linear(
        grouped("SELECT n, sum(p) AS s FROM (SELECT user_id AS n, price AS p FROM final.orders) GROUP BY 1")[0]
    )
    assert not is_linear(
        grouped(
            "SELECT n, sum(c) AS s FROM (SELECT user_id AS n, count(*) AS c FROM final.orders GROUP BY 1) GROUP BY 1"
        )[0]
    )
    assert not is_linear(grouped("SELECT u.id, sum(o.price) AS s FROM final.users u LEFT JOIN final.orders o ON u.id = o.user_id GROUP BY 1")[0])  # fmt: skip


def test_settings_are_restored_afterwards(lake: Lake) -> None:
    conf, once = lake.spark().conf, "spark.sql.constraintPropagation.enabled"
    declared = {k: conf.get(k) for k in lake.config.spark.conf}
    assert conf.get(once) == "true"
    with planned_once(lake, when=False):
        assert conf.get(once) == "true"
    with planned_once(lake):
        assert conf.get(once) == "false"
        assert {k: conf.get(k) for k in declared} == declared  # what the lake's configuration says wins
    assert conf.get(once) == "true"


def files(lake: Lake) -> set[str]:
    """The data files of the model's table."""
    rows = lake.spark().sql("SELECT file_path FROM agg.by_city.files WHERE content = 0").collect()
    return {row["file_path"] for row in rows}


@pytest.mark.long
@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.long)], ids=["few", "many"])
def test_changes_equal_the_query_however_many_are_grouped_at_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, *, few: bool
) -> None:
    if not few:
        monkeypatch.setattr(thresholds, "ONE_TASK_ROWS", 0)
    # Settings of the test's own configuration would win.
    for setting, value in (("spark.sql.shuffle.partitions", "4"), ("spark.sql.adaptive.enabled", "true")):
        monkeypatch.delitem(lake.config.spark.conf, setting, raising=False)
        lake.spark().conf.set(setting, value)
    world = World(lake, "u (id BIGINT, seen INT, v BIGINT)", "c (id BIGINT, city STRING)")
    for table in ("u", "c"):
        world.sql(
            f"ALTER TABLE final.{table} SET TBLPROPERTIES ('write.update.mode'='merge-on-read', 'write.delete.mode'='merge-on-read')"
        )
    world.sql("INSERT INTO final.u SELECT id, 0, id FROM range(2000)")
    world.sql("INSERT INTO final.c SELECT id, concat('c', id % 5) FROM range(2000)")
    by_city: dict[str, Any] = {
        "name": "agg.by_city",
        "sql": "SELECT c.city, count(*) AS n, sum(u.v) AS v FROM final.u u JOIN final.c c ON u.id = c.id GROUP BY c.city",
    }
    world.run(by_city)
    world.sql("UPDATE final.u SET seen = 1 WHERE id % 3 = 0")
    assert world.run(by_city)["agg.by_city"].strategy == "none"
    # Equal rows, rows that move and move back, keys without a row on the other side.
    world.sql("INSERT INTO final.u SELECT 7, 0, 7 FROM range(3)")
    world.sql("UPDATE final.c SET city = 'c9' WHERE id IN (1, 7, 1999)")
    world.sql("DELETE FROM final.u WHERE id IN (2, 1999)")
    world.sql("INSERT INTO final.c VALUES (5000, 'c0'), (NULL, 'c1')")
    before = files(lake)
    assert world.run(by_city)["agg.by_city"].strategy == "retract"
    assert not few or len(files(lake) - before) == 1
    world.sql("DELETE FROM final.c WHERE city = 'c9'")
    world.sql("UPDATE final.u SET v = v + 1 WHERE id = 3")
    world.sql("UPDATE final.u SET v = v - 1 WHERE id = 3")
    assert world.run(by_city)["agg.by_city"].strategy == "retract"


def measured_frames(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the rows that `Frames.measure` is called with."""
    frames: list[str] = []
    real = Frames.measure

    def recorded(self: Frames, rows: Any, *more: Any) -> Any:
        frames.append(str(rows))
        return real(self, rows, *more)

    monkeypatch.setattr(Frames, "measure", recorded)
    return frames


@pytest.mark.long
def test_few_rows_of_one_table_are_absorbed_by_one_query(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(lake, "u (id BIGINT, seen INT, v INT, s STRING)")
    world.sql("INSERT INTO final.u SELECT id, 0, id, if(id % 2 = 0, '{x}', 'y') FROM range(200)")
    model: dict[str, Any] = {
        "name": "agg.m",
        # Braces in texts are no placeholders; a sum that becomes 0 may be a sum of no values.
        "sql": "SELECT id % 7 AS k, concat(s, '{{}}') AS s, count(*) AS n, sum(v) AS v, count(*) + 1 AS more "
        "FROM final.u WHERE v IS NULL OR v <> 3 GROUP BY 1, 2",
    }
    total: dict[str, Any] = {"name": "agg.total", "sql": "SELECT count(*) AS n, sum(v) AS v FROM final.u"}
    monkeypatch.setattr(thresholds, "SMALL_TARGET_ROWS", 1_000)
    world.run(model, total)
    looks = measured_frames(monkeypatch)
    strategies: list[str] = []
    for change in (
        "INSERT INTO final.u VALUES (1000, 0, 5, '{x}'), (1001, 0, NULL, 'z'), (1002, 0, NULL, 'z')",
        "UPDATE final.u SET seen = 1 WHERE id < 50",
        "UPDATE final.u SET v = v + 1, seen = 2 WHERE id % 5 = 1",
        "DELETE FROM final.u WHERE id % 7 = 3 AND id < 150",
        "INSERT INTO final.u VALUES (2000, 0, 3, '{x}')",  # no row of the first model's
    ):
        world.sql(change)
        # Each in a run of its own: they do not share the change.
        done = world.run(model) | world.run(total)
        strategies += [done["agg.m"].strategy, done["agg.total"].strategy]
        assert world.run(model, total)["agg.m"].status == "nothing"
    assert strategies == ["retract"] * 2 + ["none"] * 2 + ["retract"] * 4 + ["none", "retract"]
    assert looks == []
    # Groups in doubt are recomputed from the rows.
    world.sql("UPDATE final.u SET v = NULL WHERE s = '{x}'")
    world.sql("UPDATE final.u SET v = 0 WHERE s = 'y'")
    assert "recomputed" in world.run(model, total)["agg.m"].why
    world.sql("DELETE FROM final.u")
    world.run(model, total)
    assert world.rows("agg.m").total() == 0
    # Rewritten files hold many unchanged rows, so changed rows must be counted first.
    for first in range(0, 40_000, 5_000):
        world.sql(f"INSERT INTO final.u SELECT id, 0, id, 'y' FROM range({first}, {first + 5_000})")
    world.run(model, total)
    looks.clear()
    monkeypatch.setattr(thresholds, "ONE_TASK_ROWS", 0)
    world.sql("UPDATE final.u SET v = 7 WHERE id = 4")
    assert world.run(model)["agg.m"].strategy == "retract"
    assert looks


@pytest.mark.long
@pytest.mark.parametrize(
    "small", [pytest.param(True, marks=pytest.mark.long), False], ids=["small files", "large files"]
)
def test_few_changes_in_small_and_large_files_are_netted(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, *, small: bool
) -> None:
    monkeypatch.setattr(model_sources, "is_small", lambda _: small)
    world = World(lake, "u (id BIGINT, seen INT, v INT)")
    world.sql("ALTER TABLE final.u SET TBLPROPERTIES ('write.update.mode'='merge-on-read')")
    model: dict[str, Any] = {"name": "agg.m", "sql": "SELECT id % 3 AS k, sum(v) AS v FROM final.u GROUP BY 1"}
    for n in range(4):
        world.sql(f"INSERT INTO final.u SELECT /*+ REPARTITION(3) */ id + {n * 50}, 0, id % 11 FROM range(50)")
    world.run(model)
    world.sql("UPDATE final.u SET v = v + 1 WHERE id % 5 = 0")
    world.sql("UPDATE final.u SET v = v - 1 WHERE id % 10 = 0")
    world.sql("INSERT INTO final.u VALUES (7, 0, 1), (7, 0, 1)")
    assert world.run(model)["agg.m"].strategy == "retract"
