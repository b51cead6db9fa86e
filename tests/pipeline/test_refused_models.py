"""A mistake in the SQL of one model fails the step of its table; all other tables of the pipeline run."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lake_assets import Lake, Pipeline, cli
from lake_assets.errors import ModelError, PipelineError
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline.pipeline_checks import check
from tests.support.refused_model import create_users, rows, yaml

GOOD = "SELECT id, name FROM final.users"
# By mistake: the model, on line 6, and what is said of it.
MISTAKES = {
    "SELECT id, FROM WHERE": "line 6: model agg.bad: ",
    "SELECT id, now() AS name FROM final.users": "line 6: model agg.bad: NOW() gives another value each time",
    "SELECT id, name FROM users": "line 6: model agg.bad: table users is named without its layer",
    "SELECT id, name FROM agg.bad": "line 6: models depend on each other in a circle: agg.bad -> agg.bad",
    "SELECT id, name FROM final.user": "line 6: pipeline 'p': agg.bad reads final.user, which neither exists",
}


@pytest.fixture
def users(lake: Lake) -> Lake:
    """A lake with one user in final.users."""
    create_users(lake)
    return lake


@pytest.mark.parametrize(
    "bad", [pytest.param(sql, marks=pytest.mark.long if n % 4 else ()) for n, sql in enumerate(MISTAKES)]
)
def test_the_other_tables_run_and_those_above_keep_what_the_bad_one_holds(
    tmp_path: Path, users: Lake, bad: str
) -> None:
    assert [o.status for o in Pipeline.load(yaml(tmp_path, GOOD)).run(users)] == ["absorbed"] * 3
    users.spark().sql("INSERT INTO lake.final.users VALUES (2, 'b')")
    outcomes = {o.table: o for o in Pipeline.load(yaml(tmp_path, bad)).run(users)}
    assert {t: o.status for t, o in outcomes.items()} == {
        "agg.bad": "failed",
        "agg.above": "nothing",
        "agg.other": "absorbed",
    }
    assert isinstance(outcomes["agg.bad"].exception, ModelError)
    assert f"{tmp_path / 'defs.yaml'}, {MISTAKES[bad]}" in str(outcomes["agg.bad"].exception)
    assert rows(users, "agg.bad") == [(1, "a")]
    assert (rows(users, "agg.above"), rows(users, "agg.other")) == ([(1,)], [(2,)])
    # Once the text is corrected, the table continues where it stopped.
    outcomes = {o.table: o for o in Pipeline.load(yaml(tmp_path, GOOD)).run(users)}
    assert (outcomes["agg.bad"].status, outcomes["agg.bad"].inserted) == ("absorbed", 1)
    assert rows(users, "agg.above") == [(2,)]


def test_before_its_first_run_the_tables_above_wait_for_it(tmp_path: Path, users: Lake) -> None:
    outcomes = {o.table: o for o in Pipeline.load(yaml(tmp_path, "SELEC 1")).run(users)}
    assert {t: o.status for t, o in outcomes.items()} == {
        "agg.bad": "failed",
        "agg.above": "waiting",
        "agg.other": "absorbed",
    }


def test_a_template_that_cannot_be_read_concerns_its_table_only(tmp_path: Path, users: Lake) -> None:
    file = yaml(tmp_path, "SELECT id FROM {{ chnages('final.users') }}")
    file.write_text(file.read_text().replace("agg.bad\n", "agg.bad\n      write: append\n", 1))
    outcomes = {o.table: o for o in Pipeline.load(file).run(users)}
    assert {t: o.status for t, o in outcomes.items() if t != "agg.above"} == {
        "agg.bad": "failed",
        "agg.other": "absorbed",
    }
    assert f"{file}, line 7: model agg.bad: its template: 'chnages' is undefined" in str(outcomes["agg.bad"].error)


def test_all_models_of_a_circle_are_refused_for_one_mistake(tmp_path: Path, plain_lake: Lake) -> None:
    file = yaml(tmp_path, "SELECT n FROM agg.above")
    specs = {str(s.table): s for s in Pipeline.load(file).specs(plain_lake, alone=False) if isinstance(s, ModelSpec)}
    assert [t for t, s in specs.items() if s.refused] == ["agg.bad", "agg.above"]
    found = check(Pipeline.load(file), plain_lake).mistakes
    assert len([m for m in found if "agg.bad -> agg.above -> agg.bad" in m]) == 1


def test_settings_that_are_wrong_stop_the_pipeline_and_are_told_with_its_sql(tmp_path: Path) -> None:
    file = yaml(tmp_path, "SELEC 1")
    file.write_text(file.read_text().replace("agg.other, ", "agg.other, kye: n, "))
    with pytest.raises(PipelineError) as caught:
        Pipeline.load(file)
    setting, sql = str(caught.value).splitlines()
    assert "line 8: models[agg.other].kye: unknown setting" in setting
    assert "line 6: model agg.bad: " in sql


@pytest.mark.usefixtures("spark_lake")
def test_the_command_reports_every_mistake_and_exits_with_one(
    tmp_path: Path, plain_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lake, "load", lambda: plain_lake)
    file = yaml(tmp_path, "SELEC 1")
    result = CliRunner().invoke(cli.application(), ["check", str(file)])
    assert result.exit_code == 1
    assert f"{file}, line 6: model agg.bad: " in result.stdout
    assert "agg.other reads final.users, which neither exists in the lake nor is declared" in result.stdout
