"""SQL over changes in steps where little is known: its table goes on as before, and mistakes are told with their line."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.commands.run_and_status import table_status
from lake_assets.errors import LakeError
from lake_assets.lake import TableId
from tests.support.pipeline_files import yaml_of
from tests.support.pipeline_runs import run
from tests.support.python_models import insert, make


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
