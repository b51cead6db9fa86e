"""Tables that a model names with the lake's catalog are the tables of the lake."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.sql.model_plan import parse
from lake_assets.models.sql.query_text import without_catalog
from lake_assets.pipeline import PipelineConfig


def spec(lake: Lake, sql: str) -> ModelSpec:
    config = PipelineConfig.model_validate({"name": "p", "models": [{"name": "agg.m", "sql": sql}]})
    (model,) = Pipeline(config).specs(lake, alone=False)
    assert isinstance(model, ModelSpec)
    return model


@pytest.mark.parametrize(
    ("sql", "plain"),
    [
        ("SELECT id FROM lake.final.users", "SELECT id FROM final.users"),
        ("SELECT id FROM `lake`.`final`.`users` u", "SELECT id FROM `final`.`users` u"),
        ("SELECT lake.final.a.id FROM lake.final.a, final.b", "SELECT final.a.id FROM final.a, final.b"),
        ("SELECT lake.final.a.* FROM lake.final.a", "SELECT final.a.* FROM final.a"),
        ("SELECT id FROM lake.\n  final.a", "SELECT id FROM \nfinal.a"),
        ("WITH q AS (SELECT 1 AS i FROM lake.final.a)\nSELECT i FROM q", "WITH q AS (SELECT 1 AS i FROM final.a)\nSELECT i FROM q"),
        ("SELECT lake.t.s.f FROM lake.t", "SELECT lake.t.s.f FROM lake.t"),
        ("SELECT 'lake.final.a' AS x FROM lake.final.a -- lake.final.a", "SELECT 'lake.final.a' AS x FROM final.a -- lake.final.a"),
    ],
)  # fmt: skip
def test_its_own_catalog_is_left_out(plain_lake: Lake, sql: str, plain: str) -> None:
    assert without_catalog(parse("agg.m", sql), sql, "lake") == plain
    assert (spec(plain_lake, sql).sql, spec(plain_lake, sql).refused) == (plain, "")


def test_another_catalog_is_refused(plain_lake: Lake) -> None:
    assert (
        "other.final.a names a catalog: write layer.table, a table of this lake (its catalog is lake)"
        in spec(plain_lake, "SELECT id FROM other.final.a").refused
    )
    assert "LAKE.final.a names a catalog" in spec(plain_lake, "SELECT id FROM LAKE.final.a").refused


def test_the_catalog_is_the_configured_one(tmp_path: Path) -> None:
    lake = Lake(LakeConfig(home=tmp_path, name="house"))
    assert [str(s) for s in spec(lake, "SELECT id FROM house.final.a").sources] == ["final.a"]
    assert "lake.final.a names a catalog" in spec(lake, "SELECT id FROM lake.final.a").refused


@pytest.mark.long
def test_its_changes_are_absorbed_and_leaving_it_out_changes_nothing(lake: Lake) -> None:
    lake.ensure_namespace(("final",))
    lake.spark().sql("CREATE TABLE lake.final.a (id INT, v INT) USING iceberg")
    lake.spark().sql("INSERT INTO lake.final.a VALUES (1, 2), (2, 3)")
    sql = "SELECT lake.final.a.v % 2 AS odd, count(*) AS n FROM lake.final.a GROUP BY lake.final.a.v % 2"

    def run(sql: str) -> list[tuple[str, str]]:
        config = PipelineConfig.model_validate({"name": "p", "models": [{"name": "agg.m", "sql": sql}]})
        return [(o.status, o.strategy) for o in Pipeline(config).run(lake)]

    assert run(sql) == [("absorbed", "full")]
    lake.spark().sql("INSERT INTO lake.final.a VALUES (3, 5)")
    assert run(sql) == [("absorbed", "retract")]
    assert run(sql.replace("lake.", "")) == [("nothing", "")]
    assert sorted(map(tuple, lake.spark().table("lake.agg.m").collect())) == [(0, 1), (1, 2)]
