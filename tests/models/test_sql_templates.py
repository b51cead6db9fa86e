"""SQL over changes in a pipeline's YAML, and Python models in the file beside it."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import LakeError, PipelineError
from lake_assets.health.table_status import table_status
from lake_assets.lake import TableId
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python.sql_template import sql_value
from lake_assets.pipeline.verification import verify
from tests.support.pipeline_files import yaml_of
from tests.support.pipeline_runs import run
from tests.support.plays import History, expected
from tests.support.python_models import insert, make, rows_in

DAILY = """SELECT account, to_date(started_at) AS day, sum(seconds) AS seconds, count(*) AS n
FROM {{ affected('src.playback') }} GROUP BY account, to_date(started_at)"""
# As a batch job has it, with a filter added.
BY_KEYS = """SELECT p.account, to_date(p.started_at) AS day, sum(p.seconds) AS seconds, count(*) AS n
FROM src.playback p
LEFT SEMI JOIN {{ keys('src.playback', 'account', 'to_date(started_at) AS day') }} k
  ON p.account <=> k.account AND to_date(p.started_at) <=> k.day
GROUP BY p.account, to_date(p.started_at)"""
MODELS: list[dict[str, Any]] = [
    {
        "name": "agg.log",
        "write": "append",
        "sql": "SELECT id, _change_type, seconds FROM {{ feed('src.playback', 'id') }}",
    },
    {
        "name": "agg.enriched",
        "write": "merge",
        "key": ["id"],
        "sql": "SELECT c.id, c.title, t.genre, c.seconds, c._change_type = 'delete' AS _deleted "
        "FROM {{ feed('src.playback', 'id') }} c LEFT JOIN src.titles t USING (title) "
        "WHERE c._change_type <> 'update_before'",
    },
    *(
        {
            "name": f"agg.{name}",
            "write": "replace-keys",
            "key": ["account", "day"],
            "replace": {"account": "account", "day": "to_date(started_at)"},
            "sql": sql,
        }
        for name, sql in (("daily", DAILY), ("by_keys", BY_KEYS))
    ),
    {
        "name": "agg.days",
        "write": "replace-ranges",
        "key": ["day"],
        "replace": {"day": "to_date(started_at)"},
        "sql": "SELECT to_date(started_at) AS day, sum(seconds) AS seconds FROM (SELECT started_at, seconds "
        "FROM {{ affected('src.playback') }} UNION ALL SELECT started_at, seconds "
        "FROM {{ affected('src.corrections') }}) GROUP BY to_date(started_at)",
    },
    {
        "name": "agg.total",
        "write": "overwrite",
        "sql": "SELECT count(*) AS n, sum(seconds) AS seconds FROM src.playback "
        "WHERE {{ low('src.playback', 'seconds') }} IS NULL OR true",
    },
]


@pytest.mark.long
def test_tables_equal_their_queries_over_everything(lake: Lake, tmp_path: Path) -> None:
    history, p = History(lake, 1, "merge-on-read"), Pipeline.load(yaml_of(tmp_path, MODELS))
    history.arrive()
    run(lake, p)
    for n in range(3):
        history.empty() if n == 1 else history.step()
        run(lake, p)
        expected_rows = expected(list(history.plays.values()), history.corrections, history.genres)
        expected_rows["agg.by_keys"] = expected_rows["agg.daily"]
        for spec in p.specs(lake):
            if spec.table.name != "log":
                assert rows_in(lake, str(spec.table)) == expected_rows[str(spec.table)], spec.table
    assert all(verify(lake, spec).equal for spec in p.specs(lake) if spec.table.name != "log")


def test_python_models_are_found_beside_the_yaml_and_sql_models_read_them(lake: Lake, tmp_path: Path) -> None:
    history = History(lake, 2, "merge-on-read")
    history.arrive()
    (tmp_path / "helpers_of_models.py").write_text("def doubled(n):\n    return None if n is None else 2 * n\n")
    (tmp_path / "models.py").write_text(
        "import lake_assets\n"
        "from helpers_of_models import doubled\n"
        "from pyspark.sql import functions as F\n\n\n"
        '@lake_assets.model("agg.twice", write="merge", key="id", audits=[{"not_null": "id"}], owners=["team:media"])\n'
        "def twice(playback: lake_assets.Changes):\n"
        '    """Twice the seconds."""\n'
        "    return playback.rows.select('id', F.udf(lambda n: doubled(n), 'bigint')('seconds').alias('seconds'))\n"
    )
    models = [{"name": "agg.sum", "sql": "SELECT count(*) AS n, sum(seconds) AS seconds FROM agg.twice"}]
    p = Pipeline.load(yaml_of(tmp_path, models))
    assert [str(s.table) for s in p.specs(lake)] == ["agg.twice", "agg.sum"]
    (spec, _) = p.specs(lake)
    assert spec.shown.owners == ("team:media",)
    assert "Twice the seconds." in spec.summary
    for _ in range(2):
        history.arrive()
        assert run(lake, p)["agg.twice"].audits
        assert rows_in(lake, "agg.sum") == {(len(history.plays), 2 * sum(p[4] for p in history.plays.values())): 1}


def test_ends_of_ranges_have_the_type_of_their_column(lake: Lake, tmp_path: Path) -> None:
    """Given a log of changes that notes ends; when one is unknown, or larger; then the log goes on."""
    make(lake, "id INT, n BIGINT, d DECIMAL(9, 2)", "(1, 5, 1.5)")
    make(lake, "id INT, v INT", "(1, 1)", name="src.u")
    ends = ", ".join(f"{{{{ {end}('{t}', '{c}') }}}} AS {c}_{end}" for end in ("low", "high")
                     for t, c in (("src.t", "n"), ("src.t", "d"), ("src.u", "v")))  # fmt: skip
    sql = f"SELECT id, _change_type, {ends} FROM {{{{ feed('src.t', 'id') }}}}"
    p = Pipeline.load(yaml_of(tmp_path, [{"name": "agg.log", "write": "append", "sql": sql}]))
    run(lake, p)
    changes = ("INSERT INTO src.t VALUES (2, 3000000000, 22.25), (3, NULL, NULL)", "DELETE FROM src.t WHERE id > 1")
    for change in changes:
        lake.spark().sql(change)
        assert run(lake, p)["agg.log"].strategy == "append"
    kinds = [(r["id"], r["_change_type"], r["v_low"]) for r in lake.spark().table("agg.log").collect()]
    assert Counter(kinds) == Counter(
        [(1, "insert", 1), *((i, kind, None) for i in (2, 3) for kind in ("insert", "delete"))]
    )


def test_a_lookup_whose_changes_trigger_nothing_leaves_a_table_up_to_date(lake: Lake, tmp_path: Path) -> None:
    make(lake, "id INT", "(1)")
    make(lake, "id INT, name STRING", "(1, 'a')", name="src.names")
    sql = "SELECT t.id, n.name FROM {{ changes('src.t') }} t LEFT JOIN src.names n USING (id)"
    models = [
        {"name": f"agg.{on}", "write": "merge", "key": ["id"], "sql": sql, "on_lookup_change": on}
        for on in ("ignore", "rebuild")
    ]
    p = Pipeline.load(yaml_of(tmp_path, models))
    run(lake, p)
    insert(lake, "(2, 'b')", name="src.names")
    found = {on: table_status(lake, TableId.parse(f"agg.{on}")) for on in ("ignore", "rebuild")}
    assert found["ignore"].behind == {"src.t": 0}
    assert not found["ignore"].is_behind
    assert set(found["ignore"].watermark) == {"src.names", "src.t"}
    assert found["rebuild"].behind == {"src.names": 1, "src.t": 0}


# --- mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT *\nFROM {{ chnages('src.playback') }}", "line 2: .*'chnages' is undefined.*did you mean changes"),
        ("SELECT *\n\nFROM {{ changes('src.playback') }", "line 3: .*its template is malformed"),
        ("SELECT * FROM {{ changes('playback') }}", "'playback'"),
        ("SELECT * FROM {{ keys('src.playback') }}", "takes at least one column"),
        ("SELECT {{ low('src.playback') }} FROM {{ changes('src.playback') }}", "takes one column"),
        ("SELECT * FROM src.playback", "it reads no changes"),
        ("SELECT *\nFROM playback, {{ changes('src.playback') }}", "line 2: .*playback is named without its layer"),
        ("SELECT * FRM {{ changes('src.playback') }}", "line 1: "),
        ("SELECT {{ 1 / 0 }} FROM {{ changes('src.t') }}", "line 1: .*ZeroDivisionError"),
        ("SELECT {{ range(10 ** 9) }} FROM {{ changes('src.t') }}", "The sandbox blocks ranges"),
        ("SELECT * FROM {{ changes(5) }}", r"changes\(\) takes texts, and 5 is not a text"),
    ],
)
def test_a_mistake_in_a_template_is_told_with_its_line(tmp_path: Path, plain_lake: Lake, sql: str, told: str) -> None:
    (tmp_path / "a.sql").write_text(sql)
    models = [{"name": "agg.a", "write": "append", "sql_file": "a.sql"}]
    (spec,) = Pipeline.load(yaml_of(tmp_path, models)).specs(plain_lake)
    assert isinstance(spec, ModelSpec)
    assert re.search(f"a.sql, .*{told}", spec.refused)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"write": "merge"}, "declare `key`"),
        ({"write": "append", "key": ["id"]}, "appended rows have no `key`"),
        ({"write": "replace-keys"}, "declare `replace`"),
        ({"write": "replace-ranges", "replace": ["a", "b"]}, "replaces the range of one column"),
        ({"write": "overwrite", "replace": ["a"]}, "`replace` is for"),
        ({"write": "append", "full_above": 0.5}, "full_above: for models without `write`"),
        ({"replace": ["a"]}, "replace: for models with `write`"),
        ({"write": "appendd"}, "write"),
    ],
)
def test_settings_that_contradict_each_other_are_told(tmp_path: Path, settings: dict[str, Any], told: str) -> None:
    sql = "SELECT id FROM {{ changes('src.playback') }}" if "write" in settings else "SELECT id FROM src.playback"
    with pytest.raises(PipelineError, match=told):
        Pipeline.load(yaml_of(tmp_path, [{"name": "agg.a", "sql": sql, **settings}]))


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def f(:\n    pass", "cannot be imported: SyntaxError.*line 1"),
        ("\nimport lake_assets\n1 / 0", r"cannot be imported: ZeroDivisionError.*\(line 3\)"),
        ("import lake_assets\n\n@lake_assets.model('agg.a', write='append')\ndef a(x): ...", "line 3: .*parameter 'x'"),
        (
            "import lake_assets\n@lake_assets.model('agg.a', write='append')\ndef a(nowhere: lake_assets.Changes): ...",
            "no table is called 'nowhere'",
        ),
        (
            "import lake_assets\n@lake_assets.model('agg.a', write='append', owner='x')\n"
            "def a(t: lake_assets.Changes): ...",
            "owner.*unknown setting.*owners",
        ),
        ("import lake_assets\n@lake_assets.model('a', write='append')\ndef a(t: lake_assets.Changes): ...", "'a'"),
        (
            "import lake_assets\n@lake_assets.model('agg.a', write='append')\ndef a(t: lake_assets.Lookup): ...",
            "Changes",
        ),
    ],
)
def test_a_mistake_in_a_python_file_is_told_with_its_place(
    plain_lake: Lake, tmp_path: Path, code: str, told: str
) -> None:
    (tmp_path / "models.py").write_text(code)
    with pytest.raises(PipelineError, match=told):
        Pipeline.load(yaml_of(tmp_path, [])).specs(plain_lake)


def test_a_file_that_is_named_has_to_exist(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no such Python file"):
        Pipeline.load(yaml_of(tmp_path, [], python=["other.py"]))


def test_a_template_in_a_model_without_write_is_told_of_it(plain_lake: Lake, tmp_path: Path) -> None:
    models = [{"name": "agg.a", "sql": "SELECT * FROM {{ changes('src.t') }}"}]
    (spec,) = Pipeline.load(yaml_of(tmp_path, models)).specs(plain_lake)
    assert isinstance(spec, ModelSpec)
    assert re.search("templates are for models that declare .*`write`", spec.refused)


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT id,\n  nope\nFROM {{ changes('src.t') }}", "line 2: .*Spark does not accept it: .*`nope`[^;]*$"),
        ("SELECT *\nFROM\n{{ keys('src.t', 'nope') }}", "line 3: .*template: Spark does not accept it: [^\n]*$"),
        ("SELECT *\nFROM\n{{ keys('src.t', 'id +') }}", "line 3: .*PARSE_SYNTAX_ERROR[^\n]*$"),
        ("SELECT *\nFROM {{ affected('src.t') }}", "line 2: model agg.a: its template: only `replace-keys`"),
        ("SELECT *\nFROM {{ changes('src.t') }}\nJOIN src.u USING (id)", "line 3: .*agg.a reads src.u"),
        ("SELECT *\nFROM {{ changes('src.u') }}", "line 2: .*agg.a reads src.u"),
    ],
)
def test_a_mistake_that_only_the_lake_shows_is_told_with_its_line(
    lake: Lake, tmp_path: Path, sql: str, told: str
) -> None:
    make(lake, "id INT", "(1)")
    (tmp_path / "a.sql").write_text(sql)
    p = Pipeline.load(yaml_of(tmp_path, [{"name": "agg.a", "write": "append", "sql_file": "a.sql"}]))
    with pytest.raises(LakeError, match=f"a.sql, {told}"):
        run(lake, p)


# --- literals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None, True, 7, -(2**40), Decimal("-1.50"), 2.5, float("inf"), date(2026, 3, 29), "it's \\ \n 'x'", b"\x00'",
        datetime(2026, 3, 29, 2, 30, 0, 1, UTC), datetime(2026, 10, 25, 2, 30, tzinfo=timezone(timedelta(hours=2))),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    ],
)  # fmt: skip
def test_values_of_metadata_are_the_same_in_sql(spark_lake: Lake, value: Any) -> None:
    ((result,),) = spark_lake.spark().sql(f"SELECT {sql_value(value)}").collect()
    if isinstance(value, datetime):
        ((result,),) = spark_lake.spark().sql(f"SELECT unix_micros({sql_value(value)})").collect()
        value = (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert result == value
