"""SQL that sqlglot reads and Spark's parser rejects is reported by `check`, in Spark's words."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lake_assets import Lake, Pipeline, cli
from lake_assets.errors import ModelError
from lake_assets.pipeline.spark_syntax import syntax_mistakes

HEAD = "type: lake_assets.LakePipeline\nattributes:\n  name: p\n  models:\n    - name: agg.m\n      sql: |\n"
REJECTED = {
    "SELECT a.id FROM final.a\n  ASOF JOIN final.b ON a.id = b.id": (8, "Syntax error at or near 'ASOF'"),
    "SELECT id FROM final.a\nWHERE id = ANY (SELECT id FROM final.b)": (8, "Syntax error at or near '('"),
}
ACCEPTED = [
    "SELECT id FROM final.a",
    "SELECT id, row_number() OVER (ORDER BY id) AS n FROM final.a QUALIFY n = 1",
    "SELECT final.a.id FROM final.a JOIN final.b ON final.a.id = final.b.id",
    "WITH t AS (SELECT id FROM final.a) SELECT id FROM t;",
    "(SELECT id FROM final.a) UNION ALL SELECT id FROM final.b ORDER BY 1",
    "FROM final.a SELECT id WHERE id > 1",
    "SELECT id FROM final.a WHERE '{x}' = '{{x}}'",
]


def pipeline(folder: Path, sql: str) -> Pipeline:
    file = folder / "defs.yaml"
    file.write_text(HEAD + "".join(f"        {line}\n" for line in sql.splitlines()))
    return Pipeline.load(file)


@pytest.mark.parametrize("sql", REJECTED)
def test_the_parsers_words_come_with_the_line(tmp_path: Path, lake: Lake, sql: str) -> None:
    line, words = REJECTED[sql]
    specs = pipeline(tmp_path, sql).specs(lake, alone=False)
    (mistake,) = syntax_mistakes(lake.spark(), specs)
    assert mistake.startswith(f"{tmp_path / 'defs.yaml'}, line {line}: model agg.m: Spark does not accept its SQL: [")
    assert words in mistake


@pytest.mark.parametrize("sql", ACCEPTED)
def test_what_a_step_can_run_is_accepted(tmp_path: Path, lake: Lake, sql: str) -> None:
    assert syntax_mistakes(lake.spark(), pipeline(tmp_path, sql).specs(lake, alone=False)) == []


def test_the_command_exits_with_one_and_the_step_says_the_same(
    tmp_path: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ensure_namespace(("final",))
    for table in "ab":
        lake.spark().sql(f"CREATE TABLE lake.final.{table} (id INT) USING iceberg")
        lake.spark().sql(f"INSERT INTO lake.final.{table} VALUES (1)")
    monkeypatch.setattr(Lake, "load", lambda: lake)
    monkeypatch.setattr(Lake, "is_there", True)
    sql = "SELECT id FROM final.a\nWHERE id = ANY (SELECT id FROM final.b)"
    loaded = pipeline(tmp_path, sql)
    words = "line 8: model agg.m: Spark does not accept its SQL: [PARSE_SYNTAX_ERROR] Syntax error at or near '('"
    result = CliRunner().invoke(cli.application(), ["check", str(tmp_path / "defs.yaml")])
    assert result.exit_code == 1
    assert words in result.stdout
    (outcome,) = loaded.run(lake)
    assert isinstance(outcome.exception, ModelError)
    assert words in str(outcome.exception)
