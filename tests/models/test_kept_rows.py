"""Rows that cannot be computed again, such as those of a log of changes: nothing but a command gives them up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Changes, Lake, Pipeline, model
from lake_assets.backfill.backfill_plan import plan
from lake_assets.backfill.row_selection import Selection
from lake_assets.errors import (
    BackfillError,
    DefinitionChangedError,
    KeyMissingError,
    LakeError,
    ModelError,
    PipelineError,
    RebuildError,
)
from lake_assets.lake import TableId
from lake_assets.pipeline.redo import redo_partitions
from lake_assets.pipeline.table_graph import ComputedSpec
from lake_assets.pipeline.verification import verify
from lake_assets.tables.writing.table_ddl import key_in
from tests.support.cli import invoke
from tests.support.pipeline_files import yaml_of
from tests.support.pipeline_runs import run
from tests.support.python_models import insert, make, pipeline, rows_in
from tests.support.seeds import long_seeds

LONG = pytest.mark.long
LOG: dict[str, Any] = {
    "name": "agg.log",
    "write": "append",
    "sql": "SELECT *, current_timestamp() AS seen FROM {{ feed('src.t', 'id') }}",
}
OTHERWISE = {**LOG, "sql": LOG["sql"].replace("SELECT *", "SELECT *, 1 AS more")}
REPEATABLE: dict[str, Any] = {
    "name": "agg.log",
    "write": "append",
    "sql": "SELECT id, n, _change_type FROM {{ feed('src.t', 'id') }}",
}
# One row was updated, one deleted, one inserted later: of six rows, the source still tells two.
CHANGES = Counter({("insert", 1): 1, ("insert", 2): 1, ("update_before", 1): 1, ("update_after", 1): 1,
                   ("delete", 2): 1, ("insert", 3): 1})  # fmt: skip


@pytest.fixture
def logged(lake: Lake, tmp_path: Path) -> Callable[..., Pipeline]:
    """Makes pipelines over a source; the first has logged `CHANGES`."""
    made: list[Pipeline] = []

    def declare(declared: dict[str, Any] = LOG, **more: Any) -> Pipeline:
        p = Pipeline.load(yaml_of(tmp_path, [{**declared, **more}]))
        if not made:
            make(lake, "id INT, n INT", "(1, 10)", "(2, 20)")
            run(lake, p)
            for change in ("UPDATE src.t SET n = 11 WHERE id = 1", "DELETE FROM src.t WHERE id = 2",
                           "INSERT INTO src.t VALUES (3, 30)"):  # fmt: skip
                lake.spark().sql(change)
            run(lake, p)
            assert changes_in(lake) == CHANGES
        made.append(p)
        return p

    return declare


def changes_in(lake: Lake) -> Counter[Any]:
    return Counter(tuple(r) for r in lake.spark().table("agg.log").select("_change_type", "id").collect())


def refused(lake: Lake, p: Pipeline) -> LakeError:
    """Run the log, which stops and stays as it is; return its error."""
    before = lake.table("agg.log").metadata.current_snapshot_id, rows_in(lake, "agg.log")
    (outcome,) = p.run(lake)
    assert isinstance(outcome.exception, LakeError), outcome
    assert (lake.table("agg.log").metadata.current_snapshot_id, rows_in(lake, "agg.log")) == before
    return outcome.exception


# --- columns of the source ----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "row", "columns"),
    [
        ("ADD COLUMN name STRING", "(4, 40, 'd')", {"name": "d"}),
        pytest.param("ALTER COLUMN n TYPE BIGINT", "(4, 3000000000)", {"n": 3_000_000_000}, marks=pytest.mark.long),
        pytest.param("DROP COLUMN n", "(4)", {"n": None}, marks=pytest.mark.long),
        pytest.param("RENAME COLUMN n TO m", "(4, 40)", {"n": None, "m": 40}, marks=pytest.mark.long),
    ],
)
def test_a_log_goes_on_over_changed_columns(
    lake: Lake, logged: Callable[..., Pipeline], change: str, row: str, columns: dict[str, Any]
) -> None:
    p = logged()
    lake.spark().sql(f"ALTER TABLE src.t {change}")
    insert(lake, row)
    outcome = run(lake, p)["agg.log"]
    assert (outcome.strategy, outcome.inserted, outcome.deleted) == ("append", 1, 0)
    assert changes_in(lake) == CHANGES + Counter({("insert", 4): 1})
    new = lake.spark().table("agg.log").where("id = 4").first()
    assert new is not None
    assert {c: new[c] for c in columns} == columns
    lake.spark().sql("DELETE FROM src.t WHERE id = 4")
    assert run(lake, p)["agg.log"].strategy == "append"
    assert changes_in(lake) == CHANGES + Counter({("insert", 4): 1, ("delete", 4): 1})


@pytest.mark.long
def test_a_column_that_swaps_its_name_is_no_reason_to_begin_again(lake: Lake, logged: Callable[..., Pipeline]) -> None:
    p = logged()
    for change in ("DROP COLUMN n", "ADD COLUMN n INT"):
        lake.spark().sql(f"ALTER TABLE src.t {change}")
    insert(lake, "(4, 40)")
    assert run(lake, p)["agg.log"].strategy == "append"
    assert changes_in(lake) >= CHANGES


@pytest.mark.long  # as changed columns
def test_a_type_that_does_not_fit_is_named_and_a_cast_helps(lake: Lake, logged: Callable[..., Pipeline]) -> None:
    p = logged(REPEATABLE)
    cast = {**REPEATABLE, "sql": REPEATABLE["sql"].replace(", n,", ", CAST(n AS STRING) AS n,")}
    insert(lake, "(4, 40)")
    error = refused(lake, logged(cast, on_query_change="keep"))
    assert "column n is now of type string" in str(error)
    assert "Cast the column to int" in str(error)
    run(lake, p)
    assert changes_in(lake) == CHANGES + Counter({("insert", 4): 1})


# --- the declaration ----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    "way", ["--keep-rows", *(pytest.param(w, marks=LONG) for w in ("restore", "keep", "--discard-rows", "rebuild"))]
)
def test_another_query_stops_a_log_and_each_way_on_works(
    lake: Lake, logged: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("LAKE_HOME", str(lake.config.home))
    p = logged()
    insert(lake, "(4, 40)")
    new = logged(OTHERWISE)
    text = str(refused(lake, new))
    assert isinstance(refused(lake, new), DefinitionChangedError)
    assert "stays as it is: its rows were appended" in text
    match way:
        case "restore":
            assert "Restore the former declaration" in text
            run(lake, p)
        case "keep" | "rebuild":
            assert way == "keep" or "declare `on_query_change: rebuild`" in text
            run(lake, logged(OTHERWISE, on_query_change=way))
        case _:
            assert f"lake-assets rebuild agg.log {way}`" in text
            assert invoke("rebuild", "agg.log", "--pipeline", str(new.path), way).exit_code == 0
    expected = CHANGES + Counter({("insert", 4): 1})
    if way in ("--discard-rows", "rebuild"):
        expected = Counter({("insert", i): 1 for i in (1, 3, 4)})
    assert changes_in(lake) == expected
    after = p if way == "restore" else new
    assert run(lake, after)["agg.log"].status == "nothing"
    insert(lake, "(5, 50)")
    assert run(lake, after)["agg.log"].strategy == "append"
    assert changes_in(lake) == expected + Counter({("insert", 5): 1})


@pytest.mark.long  # as another query
@pytest.mark.parametrize(
    "declared",
    [
        {"name": "agg.log", "write": "merge", "key": ["id"], "sql": "SELECT * FROM {{ changes('src.t') }}"},
        pytest.param(
            {"name": "agg.log", "write": "overwrite", "sql": "SELECT *, {{ low('src.t', 'n') }} AS l FROM src.t"},
            marks=LONG,
        ),
        pytest.param({"name": "agg.log", "sql": "SELECT id, n FROM src.t"}, marks=LONG),
    ],
)  # fmt: skip
def test_a_log_that_becomes_another_kind_of_table_stops(
    lake: Lake, logged: Callable[..., Pipeline], declared: dict[str, Any]
) -> None:
    logged()
    new = logged(declared)
    error = refused(lake, new)
    assert isinstance(error, DefinitionChangedError)
    assert "--keep-rows" not in str(error)
    new.rebuild(lake, "agg.log", past="discard")
    assert rows_in(lake, "agg.log").total() == 2
    # Now the table holds nothing but what its source tells.
    assert run(lake, logged({**declared, "sql": declared["sql"] + " WHERE id > 0"}))["agg.log"].status == "absorbed"


@pytest.mark.parametrize(
    ("declared", "is_kept"),
    [
        ({"write": "merge", "key": ["id"], "sql": "SELECT id, now() AS at FROM {{ changes('src.t') }}"}, True),
        (
            {"write": "merge", "key": ["id"], "sql": "SELECT id, _change_type FROM {{ feed('src.t', 'id') }} "
             "WHERE _change_type <> 'update_before'"}, True,
        ),
        (
            {"write": "merge", "key": ["id"], "sql": "SELECT id, _change_type = 'delete' AS _deleted "
             "FROM {{ feed('src.t', 'id') }} WHERE _change_type <> 'update_before'"}, False,
        ),
        ({"write": "replace-keys", "key": ["id"], "sql": "SELECT id, n FROM {{ affected('src.t') }}"}, False),
        ({"write": "replace-keys", "key": ["id"], "on_query_change": "stop",
          "sql": "SELECT id, n FROM {{ affected('src.t') }}"}, True),
        pytest.param(
            {"write": "overwrite", "sql": "SELECT {{ low('src.t', 'n') }} AS l, now() AS at"}, False, marks=LONG
        ),
    ],
)  # fmt: skip
def test_what_shows_the_past_is_kept(lake: Lake, tmp_path: Path, declared: dict[str, Any], is_kept: bool) -> None:
    make(lake, "id INT, n INT", "(1, 10)")
    run(lake, Pipeline.load(yaml_of(tmp_path, [{"name": "agg.log", **declared}])))
    insert(lake, "(2, 20)")
    changed = {**declared, "sql": declared["sql"].replace("SELECT ", "SELECT 7 AS seven, ", 1)}
    p = Pipeline.load(yaml_of(tmp_path, [{"name": "agg.log", **changed}]))
    (outcome,) = p.run(lake)
    assert (outcome.status == "failed") == is_kept, outcome
    if is_kept:
        assert "stays as it is" in (outcome.error or "")
        assert rows_in(lake, "agg.log").total() == 1


def test_a_python_function_that_appends_keeps_its_rows(lake: Lake) -> None:
    make(lake, "id INT", "(1)", "(2)")

    def declare(version: str, **more: Any) -> Pipeline:
        @model("agg.log", write="append", inputs={"t": "src.t"}, version=version, **more)
        def log(t: Changes) -> Any:
            return t.feed("id").selectExpr("id", "_change_type", f"'{version}' AS version")

        return pipeline(log)

    run(lake, declare("1"))
    lake.spark().sql("DELETE FROM src.t WHERE id = 2")
    assert "--keep-rows" in str(refused(lake, declare("2")))
    declare("2").rebuild(lake, "agg.log", past="keep")
    assert rows_in(lake, "agg.log") == Counter({(1, "insert", "1"): 1, (2, "insert", "1"): 1, (2, "delete", "2"): 1})
    assert run(lake, declare("2"))["agg.log"].status == "nothing"


@pytest.mark.long
@pytest.mark.parametrize("key", [["id", "n"], pytest.param([], marks=LONG), pytest.param(["n"], marks=LONG)])
def test_a_kept_table_has_the_key_that_its_rows_have(lake: Lake, tmp_path: Path, key: list[str]) -> None:
    """Readers join by it. Rows that share a declared key would become copies of one row with the next change."""
    make(lake, "id INT, n INT", "(1, 1)", "(2, 1)", "(3, 1)")
    sql = "SELECT id, n, now() AS at FROM {{ changes('src.t') }}"

    def declare(key: list[str]) -> Pipeline:
        how = {"write": "merge", "key": key} if key else {"write": "append"}
        return Pipeline.load(yaml_of(tmp_path, [{"name": "agg.k", "sql": sql, **how}]))

    run(lake, declare(["id"]))
    before = rows_in(lake, "agg.k")
    p = declare(key)
    insert(lake, "(1, 2)", "(4, 1)")
    if key == ["n"]:
        with pytest.raises(KeyMissingError, match=r"3 of the rows that it keeps share \(1,\).*the former one \(id\)"):
            p.rebuild(lake, "agg.k", past="keep")
        assert rows_in(lake, "agg.k") == before
        p = declare(["id"])
    else:
        p.rebuild(lake, "agg.k", past="keep")
        assert before <= rows_in(lake, "agg.k")
    run(lake, p)
    assert key_in(lake.table("agg.k")) == tuple(["id"] if key == ["n"] else key)
    assert {r[:2] for r in rows_in(lake, "agg.k")} >= {(1, 2), (2, 1), (3, 1), (4, 1)}


# --- lost history -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [pytest.param("expired", marks=LONG), pytest.param("replaced", marks=LONG), "file"])
def test_after_lost_history_a_log_stops_and_goes_on_with_its_rows(
    lake: Lake, logged: Callable[..., Pipeline], loss: str
) -> None:
    p, spark = logged(), lake.spark()
    insert(lake, "(4, 40)")
    if loss == "replaced":
        spark.sql("DROP TABLE src.t")
        make(lake, "id INT, n INT", "(4, 40)")
    elif loss == "expired":
        table = lake.table("src.t")
        for ref in [r for r in table.metadata.refs if r != "main"]:
            spark.sql(f"ALTER TABLE src.t DROP TAG `{ref}`")
        spark.sql("CALL lake.system.expire_snapshots(table => 'src.t', older_than => TIMESTAMP '2999-01-01', "
                  "retain_last => 1)")  # fmt: skip
    else:
        files = spark.sql("SELECT file_path FROM src.t.files").collect()
        lost = spark.sql("SELECT input_file_name() AS f FROM src.t WHERE id = 4").first()
        assert lost is not None
        assert len(files) > 1
        Path(lost["f"].removeprefix("file://").removeprefix("file:")).unlink()
        spark.sql("INSERT INTO src.t VALUES (5, 50)")
        spark.sql("REFRESH TABLE src.t")
    text = str(refused(lake, p))
    assert "lake-assets rebuild agg.log --keep-rows`" in text, text
    outcome = p.rebuild(lake, "agg.log", past="keep")
    assert "its rows are kept" in outcome.why
    assert changes_in(lake) == CHANGES
    insert(lake, "(6, 60)")
    assert run(lake, p)["agg.log"].strategy == "append"
    assert changes_in(lake) == CHANGES + Counter({("insert", 6): 1})


# --- commands and declarations that would compute it again --------------------------------------------------------


def test_only_a_command_that_says_so_gives_up_the_rows(
    lake: Lake, logged: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_HOME", str(lake.config.home))
    p = logged(LOG, partitions="id")
    (spec,) = p.specs(lake)
    assert isinstance(spec, ComputedSpec)
    with pytest.raises(RebuildError, match="cannot be computed again: its rows were appended .*--discard-rows"):
        p.rebuild(lake, "agg.log")
    with pytest.raises(RebuildError, match="cannot be computed again"):
        redo_partitions(lake, spec, ["1"])
    with pytest.raises(BackfillError, match="cannot be computed again"):
        plan(lake, p, TableId.parse("agg.log"), Selection())
    with pytest.raises(ModelError, match="cannot be compared with computed rows: its rows were appended"):
        verify(lake, spec)
    with pytest.raises(PipelineError, match="exclude each other"):
        invoke("rebuild", "agg.log", "--pipeline", str(p.path), "--keep-rows", "--discard-rows")
    assert changes_in(lake) == CHANGES
    p.rebuild(lake, "agg.log", past="discard")
    assert changes_in(lake) == Counter({("insert", 1): 1, ("insert", 3): 1})


@pytest.mark.long
def test_rows_that_can_be_computed_again_are_not_asked_about(lake: Lake, tmp_path: Path) -> None:
    make(lake, "id INT", "(1)")
    p = Pipeline.load(yaml_of(tmp_path, [{"name": "agg.ids", "sql": "SELECT id FROM src.t"}]))
    run(lake, p)
    with pytest.raises(RebuildError, match="no row of agg.ids is lost .*leave out --keep-rows"):
        p.rebuild(lake, "agg.ids", past="keep")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"on_gap": "rebuild"}, "`on_gap: rebuild` computes all rows again"),
        ({"on_replaced": "rebuild"}, "`on_replaced: rebuild` computes all rows again"),
        ({"on_lookup_change": "rebuild"}, "`on_lookup_change: rebuild` computes all rows again"),
    ],
)
def test_settings_that_would_compute_it_again_are_refused(
    plain_lake: Lake, tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    source = {"name": "src.t", "sql": "SELECT 1 AS id"}
    with pytest.raises(PipelineError, match=message):
        Pipeline.load(yaml_of(tmp_path, [source, {**LOG, **more}])).specs(plain_lake)
    p = Pipeline.load(yaml_of(tmp_path, [source, {**LOG, **more, "on_query_change": "rebuild"}]))
    assert [str(s.table) for s in p.specs(plain_lake)] == ["src.t", "agg.log"]


# --- any history --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, *long_seeds(1, 8)])
def test_a_log_has_every_change_once_whatever_happens(lake: Lake, tmp_path: Path, seed: int) -> None:
    """Rows, columns, declarations and files change between the runs, and rebuilds are asked for in vain."""
    choose = random.Random(seed)
    spark, rows, expected = lake.spark(), dict[int, int](), Counter[Any]()
    columns, version = ["id", "n"], 0
    make(lake, "id INT, n INT")

    def declared(**more: Any) -> Pipeline:
        sql = f"SELECT *, {version} AS version FROM {{{{ feed('src.t', 'id') }}}}"
        return Pipeline.load(yaml_of(tmp_path, [{"name": "agg.log", "write": "append", "sql": sql, **more}]))

    insert(lake, "(0, 0)")
    rows[0], expected = 0, Counter({("insert", 0, 0, 0): 1})
    run(lake, declared())
    for n in range(1, 3 if seed == 0 else 9):
        before = dict(rows)
        for _ in range(choose.randint(0, 3)):
            what, key = choose.choice(["insert", "update", "delete"]), choose.randint(0, 5)
            if what == "insert" and key not in rows:
                insert(lake, f"({', '.join(str(v) for v in [key, n, *[0] * (len(columns) - 2)])})")
                rows[key] = n
            elif what == "update" and key in rows:
                spark.sql(f"UPDATE src.t SET n = {n} WHERE id = {key}")
                rows[key] = n
            elif what == "delete" and key in rows:
                spark.sql(f"DELETE FROM src.t WHERE id = {key}")
                del rows[key]
        match choose.choice(["column", "query", "compaction", "rebuild", "nothing", "killed"]):
            case "column":
                columns.append(f"c{n}")
                spark.sql(f"ALTER TABLE src.t ADD COLUMN c{n} INT")
            case "query":
                version += 1
                (outcome,) = declared().run(lake)
                assert outcome.status in ("failed", "nothing"), outcome
                if choose.random() < 0.5:
                    declared().rebuild(lake, "agg.log", past="keep")
                else:
                    run(lake, declared(on_query_change="keep"))
            case "compaction":
                spark.sql(
                    "CALL lake.system.rewrite_data_files(table => 'src.t', options => map('rewrite-all', 'true'))"
                )
                spark.sql("CALL lake.system.rewrite_data_files(table => 'agg.log', "
                          "options => map('rewrite-all', 'true'))")  # fmt: skip
            case "rebuild":
                with pytest.raises(RebuildError):
                    declared().rebuild(lake, "agg.log")
            case _:
                pass
        run(lake, declared(on_query_change="keep") if version else declared())
        for key in before.keys() | rows.keys():
            old, new = before.get(key), rows.get(key)
            # Replaced within one window by an equal row is no change; within a window, only its ends count.
            if old is None and new is not None:
                expected["insert", key, new, version] += 1
            elif new is None and old is not None:
                expected["delete", key, old, version] += 1
            elif old is not None and new is not None and old != new:
                expected["update_before", key, old, version] += 1
                expected["update_after", key, new, version] += 1
        found = spark.table("agg.log").select("_change_type", "id", "n", "version").collect()
        assert Counter(map(tuple, found)) == expected, n
