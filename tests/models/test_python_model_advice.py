"""Errors of Python models and of SQL over changes say where and what; a declaration mended as they say works."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake_assets import Affected, Changes, Lake, Lookup, Pipeline, model
from lake_assets.errors import DefinitionChangedError, KeyMissingError, LakeError, ModelError
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.python.python_model import PythonModel
from lake_assets.models.python.python_model_spec import PythonModelSpec
from lake_assets.pipeline import PipelineConfig
from tests.support.cli import invoke
from tests.support.pipeline_files import yaml_of
from tests.support.pipeline_runs import run
from tests.support.python_models import insert, make, pipeline, rows_in

# --- declarations --------------------------------------------------------------------------------------------------


def one(t: Changes) -> DataFrame:
    return t.rows


def two(t: Changes, names: Lookup) -> DataFrame:
    return t.rows.join(names.table, "id")


def both(t: Changes, names: Changes) -> DataFrame:
    return t.affected().join(names.affected(), "id")


def affected(t: Changes, which: Affected) -> DataFrame:
    return which.of(t.table)


def untriggered(t: Lookup) -> DataFrame:
    return t.table


def starred(*t: Changes) -> DataFrame:
    return t[0].rows


def unannotated(t):  # type: ignore[no-untyped-def]
    return t.rows


KEYS, RANGES = {"write": "replace-keys"}, {"write": "replace-ranges", "replace": "day"}
APPEND, MERGE = {"write": "append"}, {"write": "merge", "key": "id"}
# A function and its declaration, what is said of them, and one mended form for each way that the text names.
DECLARATIONS: list[tuple[Any, dict[str, Any], str, list[tuple[Any, dict[str, Any]]]]] = [
    (one, {**MERGE, "key": 5}, "`key`: 5 is not the name of a column: write one name, or a list of names",
     [(one, MERGE), (one, {**MERGE, "key": ["id", "g"]})]),
    (one, {**KEYS, "replace": {5: "g"}}, "`replace`: 5 is not the name of a column", [(one, {**KEYS, "replace": "g"})]),
    (one, {"write": "appendd"}, "`write` is 'appendd': write one of append, merge, replace-keys, replace-ranges, over",
     [(one, APPEND), (one, MERGE), (one, {**KEYS, "key": "g"}), (one, RANGES), (one, {"write": "overwrite"})]),
    (one, {"write": "merge"}, "`merge` replaces rows by their key: declare `key`", [(one, MERGE)]),
    (one, {**APPEND, "key": "id"}, "Leave it out, or declare `write: merge`", [(one, APPEND), (one, MERGE)]),
    (one, KEYS, "declare `replace`, or `key`", [(one, {**KEYS, "replace": "g"}), (one, {**KEYS, "key": "g"})]),
    (one, {"write": "replace-ranges"}, "are replaced: declare `replace`", [(one, RANGES)]),
    (one, {**RANGES, "replace": ["day", "g"]}, "`replace` has 2. Name one, or declare `write: replace-keys`",
     [(one, RANGES), (one, {**KEYS, "replace": ["day", "g"]})]),
    (one, {**MERGE, "replace": "g"}, "not for merge: leave it out, or declare one of these",
     [(one, MERGE), (one, {**MERGE, **KEYS, "replace": "g"}), (one, {**MERGE, **RANGES})]),
    (one, {**KEYS, "key": "day", "back": "2d"}, "leave them out, or declare `write: replace-ranges`",
     [(one, {**KEYS, "key": "day"}), (one, {"key": "day", **RANGES, "back": "2d"})]),
    (one, {**RANGES, "cumulative": "no"}, "`cumulative` is 'no': write True or False",
     [(one, {**RANGES, "cumulative": True}), (one, {**RANGES, "cumulative": False})]),
    (affected, APPEND, "`append` has no affected keys or range: remove the parameter of type Affected",
     [(one, APPEND)]),
    (untriggered, APPEND, "annotate the table whose changes it applies as Changes", [(one, APPEND)]),
    (two, {**MERGE, "inputs": {"name": "src.names"}}, "names name (did you mean names?); the function has t, names: na",
     [(two, {**MERGE, "inputs": {"names": "src.names"}})]),
    (one, {**APPEND, "inputs": "t"}, '{"parameter": "layer.name"}', [(one, {**APPEND, "inputs": {"t": "src.t"}})]),
    (one, {**APPEND, "inputs": {"t": "t"}}, "`inputs`: t: 't' is not a table name: write namespace.table",
     [(one, {**APPEND, "inputs": {"t": "src.t"}})]),
    (one, {**KEYS, "replace": {"g": 5}}, "5 is not the SQL expression of g: write a text such as to_date(at)",
     [(one, {**KEYS, "replace": {"g": "to_date(at)"}})]),
    (two, {**KEYS, "replace": {"g": {"t": "g", "names": "g"}}}, "the model does not read: write one for each of t",
     [(two, {**KEYS, "replace": {"g": {"t": "g"}}})]),
    (both, {**KEYS, "replace": {"g": {"t": "x"}}}, "no expression for names: add it, or write one expression for all",
     [(both, {**KEYS, "replace": {"g": {"t": "x", "names": "g"}}}), (both, {**KEYS, "replace": {"g": "x"}})]),
    (one, {**APPEND, "table": "raw.a"}, "tables in raw are written by lake_assets itself: use another layer",
     [(one, APPEND)]),
    (one, {**APPEND, "on_lookup_change": "never"}, "write ignore or rebuild",
     [(one, {**MERGE, "on_lookup_change": "ignore"}), (one, {**MERGE, "on_lookup_change": "rebuild"})]),
    (one, {**APPEND, "on_query_change": "go"}, "write rebuild, stop or keep",
     [(one, {**APPEND, "on_query_change": way}) for way in ("rebuild", "stop", "keep")]),
    (two, {**APPEND, "on_lookup_change": "rebuild"}, "Leave it out; or declare `on_query_change: rebuild`",
     [(two, APPEND), (two, {**APPEND, "on_lookup_change": "rebuild", "on_query_change": "rebuild"})]),
    (two, {**MERGE, "full": one}, "`full` has other parameters than the function: declare them as t: Changes, names: L",
     [(two, {**MERGE, "full": two})]),
    (one, {**APPEND, "full": "two"}, "`full`: str is not a function: declare one with `def`",
     [(one, {**APPEND, "full": one})]),
    (partial(one), APPEND, "partial is not a function: declare one with `def`, and annotate", [(one, APPEND)]),
    (lambda t: t.rows, APPEND, "lambda is not a function: declare one with `def`, and annotate", [(one, APPEND)]),
    (starred, APPEND, "inputs are passed by name: make 't' an ordinary parameter", [(one, APPEND)]),
    (unannotated, APPEND, "annotate the parameter 't' as Changes, Lookup or Affected",
     [(one, APPEND), (two, APPEND), (affected, {**KEYS, "key": "g"})]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "declared", "told", "mended"), DECLARATIONS, ids=[told[:50] for _, _, told, _ in DECLARATIONS]
)
def test_a_declaration_that_is_mended_as_its_error_says_is_accepted(
    plain_lake: Lake, function: Any, declared: dict[str, Any], told: str, mended: list[tuple[Any, dict[str, Any]]]
) -> None:
    with pytest.raises(ModelError) as caught:
        model(**{"table": "agg.a", **declared})(function)
    text = str(caught.value)
    assert told in text
    code = getattr(function, "__code__", None)
    assert text.startswith(f"{__file__}, line {code.co_firstlineno}: model " if code else repr(function)), text
    sources = [{"name": name, "sql": "SELECT 1 AS id"} for name in ("src.t", "src.names")]
    for other, declaration in mended:
        declared_model = model(**{"table": "agg.a", **declaration})(other)
        p = Pipeline(PipelineConfig.model_validate({"name": "own", "models": sources}), models=(declared_model,))
        assert [str(s.table) for s in p.specs(plain_lake)][-1] == "agg.a"


@pytest.mark.parametrize(
    ("wrong", "told", "mended"),
    [
        ("SELECT * FROM {{ changes(src.t) }}", "'src' is undefined: a template has changes, feed, keys, affected, low, "
         "high, and names in quotes", "SELECT * FROM {{ changes('src.t') }}"),
        ("SELECT * FROM {{ chnages('src.t') }}", "(did you mean changes?)", "SELECT * FROM {{ changes('src.t') }}"),
        ("SELECT * FROM {{ changes() }}", "the name of a table first, and no named arguments: write "
         "changes('layer.name')", "SELECT * FROM {{ changes('src.t') }}"),
        ("SELECT * FROM {{ feed('src.t', key='id') }}", "no named arguments: write feed('layer.name', 'id')",
         "SELECT * FROM {{ feed('src.t', 'id') }}"),
        ("SELECT * FROM {{ keys('src.t', 5) }}", "5 is not a text: write keys('layer.name', 'id')",
         "SELECT * FROM {{ keys('src.t', '5 AS five') }}"),
        ("SELECT * FROM {{ keys('src.t') }}", "takes at least one column or expression",
         "SELECT * FROM {{ keys('src.t', 'id') }}"),
        ("SELECT *, {{ low('src.t') }} AS l FROM src.t", "low('src.t', ...) takes one column",
         "SELECT *, {{ low('src.t', 'id') }} AS l FROM src.t"),
        ("SELECT * FROM {{ changes('src.t', 'id') }}", "changes('src.t') takes only a table",
         "SELECT * FROM {{ changes('src.t') }}"),
        ("SELECT * FROM src.t", "write {{ changes('layer.name') }} for the table whose changes it applies, or leave "
         "`write` out", "SELECT * FROM {{ changes('src.t') }}"),
    ],
)  # fmt: skip
def test_a_template_that_is_mended_as_its_error_says_is_accepted(
    plain_lake: Lake, tmp_path: Path, wrong: str, told: str, mended: str
) -> None:
    def spec(sql: str, **more: Any) -> Any:
        models = [{"name": "src.t", "sql": "SELECT 1 AS id"}, {"name": "agg.a", "sql": sql, **more}]
        return Pipeline.load(yaml_of(tmp_path, models)).specs(plain_lake)[-1]

    refused = spec(wrong, **APPEND).refused
    assert refused.startswith(f"{tmp_path / 'defs.yaml'}, line ")
    assert ": model agg.a: " in refused
    assert told in refused
    assert isinstance(spec(mended, **APPEND), PythonModelSpec)
    if "leave `write` out" in told:
        maintained = spec(wrong)
        assert isinstance(maintained, ModelSpec)
        assert not maintained.refused


# --- the first run ---------------------------------------------------------------------------------------------------


def rows(*columns: str) -> Callable[[Changes], Any]:
    return lambda t: t.rows.selectExpr(*columns)


def of_affected(*columns: str) -> Callable[[Changes], Any]:
    return lambda t: t.affected().selectExpr(*columns)


def low(column: str) -> Callable[[Changes], Any]:
    return lambda t: t.rows.select("id", F.lit(t.low(column)).alias("low"))


def declared_as(name: str, settings: dict[str, Any], body: Callable[[Changes], Any]) -> PythonModel:
    @model(name, inputs={"t": "src.t"}, **settings)
    def computed(t: Changes) -> Any:
        return body(t)

    return computed


def failures(lake: Lake, p: Pipeline) -> dict[str, LakeError]:
    """Run tables, which all fail; return their errors."""
    outcomes = p.run(lake)
    assert all(isinstance(o.exception, LakeError) for o in outcomes), outcomes
    return {o.table: o.exception for o in outcomes if isinstance(o.exception, LakeError)}


Form = tuple[dict[str, Any], Callable[[Changes], Any]]
BY_ID, DECIMAL = {**KEYS, "replace": "id"}, "CAST(d AS DECIMAL(9, 2))"
# What is said of a declaration and a function, and one mended form for each way that the text names.
FIRST_RUNS: list[tuple[str, Form, list[Form]]] = [
    ("`key` names nope; the rows of its function have id, g: name columns among them",
     ({**MERGE, "key": "nope"}, rows("id", "g")), [(MERGE, rows("id", "g"))]),
    ("`replace` names nope; the rows of its function have id, g: name columns among them",
     ({**KEYS, "replace": {"nope": "g"}}, of_affected("id", "g")), [({**KEYS, "replace": "g"}, of_affected("g"))]),
    ("two columns are called id: rename one", (APPEND, rows("id", "n AS ID")), [(APPEND, rows("id", "n AS id2"))]),
    ("_file: Iceberg has columns of this name itself: rename them", (APPEND, rows("n AS _file")),
     [(APPEND, rows("n AS file"))]),
    ("__sign: steps add columns of this name to the rows: rename them", (APPEND, rows("n AS __sign")),
     [(APPEND, rows("n AS sign"))]),
    ("columns of the type of wait, doc: cast them", (APPEND, rows("INTERVAL 1 DAY AS wait", "parse_json('1') AS doc")),
     [(APPEND, rows("CAST(INTERVAL 1 DAY AS STRING) AS wait", "CAST(parse_json('1') AS INT) AS doc"))]),
    ("`key` names m: values of MAP cannot be compared. Name other columns, or return the values as texts (to_json)",
     ({**MERGE, "key": "m"}, rows("id", "m")),
     [(MERGE, rows("id", "m")), ({**MERGE, "key": "m"}, rows("id", "to_json(m) AS m"))]),
    ("`replace: d` has type double, whose ranges cannot be replaced. Choose a column of integers, decimals, dates, "
     "times or texts, or declare `write: replace-keys`",
     ({**RANGES, "replace": "d"}, of_affected("d")),
     [({**KEYS, "replace": "d"}, of_affected("d")),
      ({**RANGES, "replace": {"d": DECIMAL}}, of_affected(f"{DECIMAL} AS d"))]),
    ("`back` is for dates, times and numbers, not for string: leave it out",
     ({**RANGES, "replace": "g", "back": 3}, of_affected("g")), [({**RANGES, "replace": "g"}, of_affected("g"))]),
    ("`back` is 6, and day of type date: write a duration, such as 6d or 12h",
     ({**RANGES, "back": 6}, of_affected("day")),
     [({**RANGES, "back": "6d"}, of_affected("day"))]),
    ("`forward` is 6d, and n of type int: write a num", ({**RANGES, "replace": "n", "forward": "6d"}, of_affected("n")),
     [({**RANGES, "replace": "n", "forward": 6}, of_affected("n"))]),
    ("k is declared as its key, and its function returned 2 rows for (1,): group them, or declare another key",
     ({**MERGE, "key": "k"}, rows("1 AS k", "id")),
     [({**MERGE, "key": "k"}, lambda t: t.rows.groupBy(F.col("id").alias("k")).count()), (MERGE, rows("id"))]),
    ("_deleted marks rows to delete, and is of type int: make it a BOOLEAN", (MERGE, rows("id", "0 AS _deleted")),
     [(MERGE, rows("id", "CAST(0 AS BOOLEAN) AS _deleted"))]),
    ("computed returned int: return a DataFrame of Spark", (APPEND, lambda t: t.rows.count()), [(APPEND, rows("id"))]),
    ("its `write` is append: declare one of them, or read the changed rows (`rows`;", (APPEND, of_affected("id")),
     [(BY_ID, of_affected("id")), (APPEND, rows("id"))]),
    ("src.t has no range of 'dya' (did you mean day?): it has ranges of id, g", (APPEND, low("dya")),
     [(APPEND, low("day"))]),
    ("`replace` over src.t: [UNRESOLVED_COLUMN.WITH_SUGGESTION]", ({**KEYS, "replace": {"g": "gg"}}, of_affected("g")),
     [({**KEYS, "replace": {"g": "g"}}, of_affected("g"))]),
    ("Spark does not accept computed: [UNRESOLVED_COLUMN.WITH_", (APPEND, rows("idd")), [(APPEND, rows("id"))]),
    ("computed raised ZeroDivisionError: ", (APPEND, lambda t: t.rows.limit(1 // 0)), [(APPEND, rows("id"))]),
]  # fmt: skip
# In `{{ }}` or not, a table under a condition is seen only where it is named outside of it as well.
IF_KNOWN = "{% if low('src.t', 'id') != 'NULL' %}"
CONDITIONS = {
    "agg.template": (
        f"SELECT t.id FROM {{{{ changes('src.t') }}}} t {IF_KNOWN}JOIN {{{{ keys('src.u', 'id') }}}} u USING (id)"
        "{% endif %}",
        f"{{% set u = keys('src.u', 'id') %}}SELECT t.id FROM {{{{ changes('src.t') }}}} t {IF_KNOWN}JOIN {{{{ u }}}} "
        "u USING (id){% endif %}",
    ),
    "agg.lookup": (
        f"SELECT t.id FROM {{{{ changes('src.t') }}}} t {IF_KNOWN}JOIN src.u USING (id){{% endif %}}",
        f"WITH u AS (SELECT * FROM src.u) SELECT t.id FROM {{{{ changes('src.t') }}}} t {IF_KNOWN}JOIN u USING (id)"
        "{% endif %}",
    ),
}


def source(lake: Lake) -> None:
    columns = "id INT, g STRING, n INT, d DOUBLE, day DATE, m MAP<STRING, INT>"
    values = [f"({i}, '{g}', {i}, {i}.5, DATE '2026-03-0{i}', map('a', {i}))" for i, g in ((1, "a"), (2, "b"))]
    make(lake, columns, *values)


@pytest.mark.long
def test_a_table_whose_first_run_failed_is_computed_once_it_is_mended_as_told(lake: Lake, tmp_path: Path) -> None:
    source(lake)
    make(lake, "id INT", "(1)", "(2)", name="src.u")
    cases = {f"agg.c{i}": case for i, case in enumerate(FIRST_RUNS)}
    errors = failures(lake, pipeline(*(declared_as(name, *wrong) for name, (_, wrong, _) in cases.items())))
    for name, (told, (_, body), _) in cases.items():
        text = str(errors[name])
        assert text.startswith(f"{__file__}, line {PLACE}: model {name}: ")
        assert told in text
        if told.startswith(("Spark does not accept", "computed raised")):
            assert text.endswith(f" (line {body.__code__.co_firstlineno})")
        assert not lake.exists(name)
    # The first way mends the table that failed.
    ways = [(f"{name}_{n}" if n else name, form) for name, (*_, forms) in cases.items() for n, form in enumerate(forms)]
    outcomes = run(lake, pipeline(*(declared_as(name, *form) for name, form in ways)))
    assert {t: o.inserted for t, o in outcomes.items()} == dict.fromkeys(outcomes, 2)

    def conditions(which: int) -> Pipeline:
        sqls = {name: forms[which] for name, forms in CONDITIONS.items()}
        return Pipeline.load(yaml_of(tmp_path, [{"name": n, "sql": sql, **APPEND} for n, sql in sqls.items()]))

    for name, error in failures(lake, conditions(0)).items():
        assert re.match(rf"{tmp_path / 'defs.yaml'}, line \d+: model {name}: ", str(error))
        assert "src.u is named only under a condition: name it outside of conditions as well" in str(error)
    assert {t: o.inserted for t, o in run(lake, conditions(1)).items()} == dict.fromkeys(CONDITIONS, 2)


PLACE = declared_as("agg.a", APPEND, rows()).function.__code__.co_firstlineno


# --- later runs ----------------------------------------------------------------------------------------------------

KEPT = {"on_query_change": "keep"}
KEPT_KEYS = {**KEYS, **KEPT}
# A declaration that has built its table, another one, what is said of it, and one mended form for each way.
LATER_RUNS: list[tuple[Form, Form, str, list[Form]]] = [
    (({**KEPT_KEYS, "replace": "g"}, of_affected("id", "g")),
     ({**KEPT_KEYS, "replace": {"h": "g"}}, of_affected("id", "g AS h")),
     "`replace` names h, and the table has id, g. Its rows are not computed again: it declares `on_query_change: keep`"
     ". Name columns that it has, or declare `on_query_change: rebuild` if the inputs tell all rows",
     [({**KEPT_KEYS, "replace": "id"}, of_affected("id", "g")),
      ({**KEYS, "replace": {"h": "g"}, "on_query_change": "rebuild"}, of_affected("id", "g AS h"))]),
    (({**RANGES, **KEPT}, of_affected("id", "day")), ({**RANGES, **KEPT, "back": 6}, of_affected("id", "day")),
     "`back` is 6, and day of type date: write a duration, such as 6d or 12h",
     [({**RANGES, **KEPT, "back": "6d"}, of_affected("id", "day"))]),
    (({**MERGE, **KEPT}, rows("id", "g")), ({**MERGE, **KEPT, "key": "nope"}, rows("id", "g")),
     "`key` names nope; the rows of its function have id, g: name columns", [({**MERGE, **KEPT}, rows("id", "g"))]),
    ((APPEND, rows("id", "n")), (APPEND, rows("id", "CAST(n AS STRING) AS n")),
     "Cast the column to int, or give it another name",
     [(APPEND, rows("id", "CAST(CAST(n AS STRING) AS INT) AS n")), (APPEND, rows("id", "CAST(n AS STRING) AS text"))]),
]  # fmt: skip


@pytest.mark.long  # as one whose first run failed
def test_a_table_that_another_declaration_stopped_goes_on_once_it_is_mended_as_its_error_says(lake: Lake) -> None:
    source(lake)
    tables = [
        (f"agg.l{i}_{way}", built, wrong, told, form)
        for i, (built, wrong, told, forms) in enumerate(LATER_RUNS)
        for way, form in enumerate(forms)
    ]
    run(lake, pipeline(*(declared_as(name, *built) for name, built, *_ in tables)))
    insert(lake, "(3, 'a', 3, 3.5, DATE '2026-03-03', NULL)")
    before = {name: lake.table(name).metadata.current_snapshot_id for name, *_ in tables}
    errors = failures(lake, pipeline(*(declared_as(name, *wrong) for name, _, wrong, *_ in tables)))
    for name, *_, told, _ in tables:
        assert str(errors[name]).startswith(f"{__file__}, line {PLACE}: model {name}: ")
        assert told in str(errors[name])
        assert lake.table(name).metadata.current_snapshot_id == before[name]
    outcomes = run(lake, pipeline(*(declared_as(name, *form) for name, *_, form in tables)))
    assert {o.status for o in outcomes.values()} == {"absorbed"}
    each = " UNION ALL ".join(f"SELECT '{name}' AS name, id FROM {name}" for name in outcomes)
    ids = Counter(map(tuple, lake.spark().sql(each).collect()))
    assert ids == Counter({(name, i): 1 for name in outcomes for i in (1, 2, 3)})


@pytest.mark.long
def test_rows_that_share_a_key_with_rows_of_other_groups_are_told_of_the_key(lake: Lake) -> None:
    """Given rows of one id in two groups; and, as a change from outside, a stored row that is doubled."""
    source(lake)
    by_id = {**KEYS, "key": "id", "replace": "g"}, of_affected("id", "g")
    by_both = {**by_id[0], "key": ["id", "g"]}, by_id[1]
    names = ("agg.mended", "agg.corrected", "agg.doubled")
    run(lake, pipeline(*(declared_as(name, *form) for name, form in zip(names, (by_id, by_id, by_both), strict=True))))
    insert(lake, "(2, 'b')", name="agg.doubled")
    insert(lake, "(1, 'c', 1, 1.5, NULL, NULL)", "(4, 'b', 4, 4.5, NULL, NULL)")
    for name, error in failures(lake, pipeline(*(declared_as(name, *by_id) for name in names[:2]))).items():
        assert isinstance(error, KeyMissingError)
        assert f"model {name}: id is declared as its key, and (1,) is the key of a returned row" in str(error)
        assert "other values of g: add g to the key, or correct the inputs" in str(error)
    run(lake, pipeline(*(declared_as(name, *by_both) for name in ("agg.mended", "agg.doubled"))))
    expected = Counter([(1, "a"), (1, "c"), (2, "b"), (4, "b")])
    assert rows_in(lake, "agg.mended") == rows_in(lake, "agg.doubled") == expected
    lake.spark().sql("DELETE FROM src.t WHERE g = 'c'")
    run(lake, pipeline(declared_as("agg.corrected", *by_id)))
    assert rows_in(lake, "agg.corrected") == expected - Counter([(1, "c")])
    # A replaced column that another program has dropped is a changed column like any other.
    lake.spark().sql("ALTER TABLE agg.corrected DROP COLUMN g")
    insert(lake, "(5, 'b', 5, 5.5, NULL, NULL)")
    outcome = run(lake, pipeline(declared_as("agg.corrected", *by_id)))["agg.corrected"]
    assert outcome.why == "its columns, or their types, changed"
    assert rows_in(lake, "agg.corrected") == Counter([(1, "a"), (2, "b"), (4, "b"), (5, "b")])


@pytest.mark.long
def test_an_overwritten_table_that_stops_goes_on_in_each_way_that_its_error_names(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_HOME", str(lake.config.home))
    source(lake)
    ways = ("agg.restored", "agg.rebuilt", "agg.declared")
    former = "SELECT count(*) AS n FROM src.t WHERE {{ low('src.t', 'id') }} IS NULL OR true"
    other = former.replace(" AS n", " + 100 AS n")

    def load(sqls: dict[str, str], on_query_change: str = "stop") -> Pipeline:
        settings = {"write": "overwrite", "on_query_change": on_query_change}
        return Pipeline.load(yaml_of(tmp_path, [{"name": n, "sql": sql, **settings} for n, sql in sqls.items()]))

    run(lake, load(dict.fromkeys(ways, former)))
    insert(lake, "(3, 'c', 3, 3.5, NULL, NULL)")
    for name, error in failures(lake, load(dict.fromkeys(ways, other))).items():
        assert isinstance(error, DefinitionChangedError)
        assert f"{name} was built by another declaration, and it declares `on_query_change: stop`" in str(error)
        assert f"Restore the former one, or run `lake-assets rebuild {name}`. With `on_query_change: reb" in str(error)
    assert invoke("rebuild", "agg.rebuilt", "--pipeline", str(tmp_path / "defs.yaml")).exit_code == 0
    run(lake, load({"agg.declared": other}, "rebuild"))
    run(lake, load({"agg.restored": former, "agg.rebuilt": other}))
    assert [rows_in(lake, name) for name in ways] == [Counter([(n,)]) for n in (3, 103, 103)]
    # A source with another history is no other declaration.
    lake.spark().sql("DROP TABLE src.t")
    source(lake)
    assert run(lake, load({"agg.restored": former}))["agg.restored"].status == "absorbed"
    assert rows_in(lake, "agg.restored") == Counter([(2,)])
