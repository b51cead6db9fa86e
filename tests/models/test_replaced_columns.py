"""A column of another program's table that is dropped and added again with another type: the models that read it stop."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import DoubleType, IntegerType, LongType, PrimitiveType, StringType
from pyspark.sql import DataFrame

from lake_assets import Changes, Lake, model
from lake_assets.errors import TableReplacedError
from lake_assets.health.lake_status import quick_status
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, to_properties
from lake_assets.models.explanation import explain
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.model_spec import declared as declaration
from lake_assets.models.python.python_model import PythonModel
from lake_assets.pipeline import Outcome, Pipeline, PipelineConfig
from lake_assets.tables.pending_windows import head_of
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY
from tests.support.kills import Points, killed_everywhere
from tests.support.pipeline_runs import succeeded
from tests.support.python_models import insert, make, rows_in

SQL = "SELECT g, sum(v) AS v FROM src.t GROUP BY g"


def declared(**more: Any) -> PipelineConfig:
    """A model of each way to compute it, and one that does not read the column."""
    sql = {"agg.changed": (SQL, 1), "agg.computed": (SQL, 0), "agg.others": ("SELECT id, g FROM src.t", 1)}
    models = [{"name": n, "sql": s, "full_above": share, **more} for n, (s, share) in sql.items()]
    return PipelineConfig.model_validate({"name": "p", "models": models})


def kept() -> PythonModel:
    @model("agg.kept", write="merge", key="id")
    def kept(t: Changes) -> DataFrame:
        return t.rows.select("id", "v")

    return kept


def run(lake: Lake, config: PipelineConfig) -> dict[str, Outcome]:
    return {o.table: o for o in Pipeline(config, models=[kept()]).run(lake)}


def replace_column(lake: Lake, kind: str, row: int) -> None:
    """Drop a column of the source and add it again, as its owner does."""
    for change in ("DROP COLUMN v", f"ADD COLUMN v {kind}"):
        lake.spark().sql(f"ALTER TABLE {lake.sql_name('src.t')} {change}")
    insert(lake, f"({row}, 'b', 7)")


def is_right(lake: Lake) -> bool:
    expected = Counter(map(tuple, lake.spark().sql(SQL).collect()))
    return rows_in(lake, "agg.changed") == rows_in(lake, "agg.computed") == expected


@pytest.mark.parametrize(
    "way",
    [
        "added again",
        pytest.param("rebuild", marks=pytest.mark.long),
        pytest.param("on_replaced", marks=pytest.mark.long),
    ],
)
def test_models_that_read_it_stop_and_each_way_on_works(lake: Lake, points: Points, way: str) -> None:
    make(lake, "id INT, g STRING, v INT", "(1, 'a', 1)", "(2, 'a', 2)", "(3, 'b', 3)")
    assert [o.error for o in run(lake, declared()).values() if o.error] == []
    before = {t: rows_in(lake, t) for t in ("agg.changed", "agg.computed", "agg.kept")}
    replace_column(lake, "STRING", 4)

    renamed = {t.table: t.renamed for t in quick_status(lake)}["agg.changed"]
    assert "v was dropped and added again as string (it was int)" in renamed[0]
    outcomes = run(lake, declared())
    assert outcomes["agg.others"].status == "absorbed"
    for table, rows in before.items():
        assert isinstance(outcomes[table].exception, TableReplacedError), outcomes[table]
        assert f"`lake-assets rebuild {table}`" in str(outcomes[table].error)
        assert rows_in(lake, table) == rows

    if way == "added again":
        replace_column(lake, "BIGINT", 5)
        outcomes = run(lake, declared())
    elif way == "rebuild":
        for table in before:
            killed_everywhere(points, lambda t=table: Pipeline(declared(), models=[kept()]).rebuild(lake, t))
        outcomes = run(lake, declared())
    else:
        outcomes = run(lake, declared(on_replaced="rebuild"))
        assert isinstance(outcomes.pop("agg.kept").exception, TableReplacedError)
    assert [o.error for o in outcomes.values() if o.error] == []
    assert is_right(lake)


@pytest.mark.long
@pytest.mark.parametrize("is_pending", [True, False])
@pytest.mark.parametrize(
    ("changes", "struct"),
    [
        (["ALTER COLUMN s.b FIRST"], "'b', 30, 'a', 3"),
        (["DROP COLUMN s.a", "ADD COLUMN s.c INT"], "'b', 30, 'c', 3"),
        (["ADD COLUMN s.c INT"], "'a', 3, 'b', 30, 'c', 3"),
        (["DROP COLUMN s.a"], "'b', 30"),
    ],
)
def test_fields_of_structs_have_their_values_wherever_they_are(
    lake: Lake, changes: list[str], struct: str, is_pending: bool
) -> None:
    make(
        lake,
        "id INT, s STRUCT<a: INT, b: INT>",
        "(1, named_struct('a', 1, 'b', 10))",
        "(2, named_struct('a', 2, 'b', 20))",
    )
    make(lake, "id INT", "(1)", "(3)", name="src.u")
    joined = "FROM src.u u LEFT JOIN src.t t ON t.id = u.id"
    queries = {
        "agg.rows": "SELECT id, s.b AS b FROM src.t",
        "agg.joined": f"SELECT u.id, t.s.b AS b {joined}",
        "agg.most": f"SELECT u.id, max(t.s.b) AS b {joined} GROUP BY u.id",
    }
    models = [{"name": n, "sql": sql, "full_above": 1} for n, sql in queries.items()]
    p = Pipeline(PipelineConfig.model_validate({"name": "p", "models": models}))
    succeeded(p.run(lake))
    if is_pending:
        insert(lake, "(3, named_struct('a', 3, 'b', 30))")
    for change in changes:
        lake.spark().sql(f"ALTER TABLE src.t {change}")
    if not is_pending:
        insert(lake, f"(3, named_struct({struct}))")
    insert(lake, "(2)", name="src.u")
    lake.spark().sql("DELETE FROM src.u WHERE id = 1")
    for change in ("DELETE FROM src.t WHERE id = 3", "DELETE FROM src.t WHERE id = 2"):
        succeeded(p.run(lake))
        for table, sql in queries.items():
            assert rows_in(lake, table) == Counter(map(tuple, lake.spark().sql(sql).collect())), table
        lake.spark().sql(change)


# --- what stops, by metadata alone ----------------------------------------------------------------------------------

T, U = "src.t", "src.u"
READ = "SELECT id, CAST(v AS STRING) AS v FROM src.t"
BOTH = "SELECT t.id, CAST(t.s.a AS STRING) AS a, CAST(u.v AS STRING) AS v FROM src.t t JOIN src.u u ON t.id = u.id"


class World:
    """Tables of another program, and a model that is declared over them, and has absorbed them."""

    def __init__(self, lake: Lake, sql: str = READ) -> None:
        self.lake = lake
        for namespace in ("src", "agg"):
            lake.ensure_namespace((namespace,))
        struct = pa.struct([("a", pa.int32()), ("b", pa.int32())])
        schema = pa.schema([("id", pa.int32()), ("v", pa.int32()), ("w", pa.int32()), ("s", struct)])
        for name in (T, U):
            lake.catalog.create_table(name, schema)
            self.add(name)
        sources = tuple(TableId.parse(name) for name in (T, U) if name in sql)
        self.model = ModelSpec(TableId.parse("agg.m"), sql, sources, "p", full_above=1.0)
        properties = {FINGERPRINT_PROPERTY: self.model.definition, PIPELINE_PROPERTY: "p", **declaration(self.model)}
        columns = pa.schema([(c, pa.int32() if c == "id" else pa.string()) for c in ("id", "a", "v")])
        table = lake.catalog.create_table("agg.m", columns, properties=properties)
        marks = to_properties({str(s): head_of(lake.table(s)) for s in sources})
        table.append(pa.table({c: [None] for c in columns.names}, columns), snapshot_properties=marks)

    def add(self, name: str = T) -> None:
        table = self.lake.table(name)
        table.append(pa.Table.from_pylist([{}], table.schema().as_arrow()))

    def alter(self, *change: tuple[Any, ...], table: str = T) -> None:
        """Each change is a commit of its own, as a statement is."""
        for name, *arguments in change:
            with self.lake.table(table).update_schema(allow_incompatible_changes=True) as schema:
                getattr(schema, name)(*arguments)

    def replace(self, column: str, kind: PrimitiveType, table: str = T) -> None:
        parts = tuple(column.split("."))
        path = parts if len(parts) > 1 else column
        self.alter(("delete_column", path), ("add_column", path, kind), table=table)

    def empty(self) -> None:
        self.lake.table(T).delete()

    @property
    def stopped(self) -> str:
        """Why the next step stops; empty: it does not."""
        found = explain(self.lake, self.model)
        return found.now_why if found.now == "stop" else ""


def test_it_stops_once_a_commit_has_the_new_column(plain_lake: Lake) -> None:
    world = World(plain_lake)
    world.add()
    world.replace("v", StringType())
    found = explain(plain_lake, world.model)
    assert [s.name for s in found.stages] == ["read", "changes", "publish"], "the rows have the former one"
    world.add()
    assert "src.t: the column v was dropped and added again as string (it was int), so rows" in world.stopped
    world.replace("v", LongType())
    world.add()
    assert not world.stopped
    assert explain(plain_lake, world.model).now_why == "the name src.t.v now belongs to another column"


def test_all_columns_of_all_sources_are_named(plain_lake: Lake) -> None:
    world = World(plain_lake, BOTH)
    world.replace("s.a", StringType())
    world.replace("w", StringType())
    world.replace("v", DoubleType(), U)
    for name in (T, U):
        world.add(name)
    assert (
        "src.t: the column s.a was dropped and added again as string (it was int); src.u: the column v" in world.stopped
    )


@pytest.mark.parametrize("kind", [IntegerType(), StringType()])
def test_fields_of_structs_that_are_replaced_compute_everything_or_stop(plain_lake: Lake, kind: PrimitiveType) -> None:
    world = World(plain_lake, READ.replace("v AS STRING", "s.a AS STRING"))
    world.replace("s.a", kind)
    world.add()
    found = explain(plain_lake, world.model)
    expected = ("stop", "src.t: the column s.a was") if kind == StringType() else ("full", "the name src.t.s.a now")
    assert (found.now, found.now_why[: len(expected[1])]) == expected


def test_a_column_of_a_table_that_was_empty_meanwhile_has_no_earlier_rows(plain_lake: Lake) -> None:
    world = World(plain_lake)
    world.empty()
    world.replace("v", StringType())
    world.add()
    assert not world.stopped
    world.replace("v", DoubleType())
    world.add()
    assert world.stopped, "the row that was added in between"
    world.empty()
    world.add()
    assert not world.stopped


def test_a_column_that_took_the_name_with_converted_values_does_not_stop_it(plain_lake: Lake) -> None:
    world = World(plain_lake)
    world.alter(("add_column", "v2", StringType()))
    world.add()  # values are converted
    world.alter(("delete_column", "v"), ("rename_column", "v2", "v"))
    world.add()
    assert not world.stopped


def test_tables_of_pipelines_convert_values(plain_lake: Lake) -> None:
    world = World(plain_lake)
    world.replace("v", StringType())
    world.add()
    assert world.stopped
    with world.lake.table(T).transaction() as change:
        change.set_properties({PIPELINE_PROPERTY: "other"})
    assert not world.stopped
