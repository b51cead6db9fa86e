"""Columns of another program's table that are replaced at random: each model equals its query, or it has stopped."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from pyspark.sql import DataFrame

from lake_assets import Changes, Lake, model
from lake_assets.errors import TableReplacedError
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.models.python.python_model import PythonModel
from lake_assets.pipeline import Outcome, Pipeline, PipelineConfig
from lake_assets.pipeline.verification import verify
from tests.support.python_models import make, rows_in
from tests.support.seeds import long_seeds

# Whatever type a column has, the results have the same: so nothing but the history of columns tells that they differ.
QUERIES = {
    "agg.sums": ("SELECT g, count(v) AS n, max(CAST(v AS STRING)) AS v FROM src.t GROUP BY g", 1, "v"),
    "agg.rows": (
        "SELECT t.id, CAST(t.w AS STRING) AS w, CAST(u.s.a AS STRING) AS a FROM src.t t JOIN src.t u ON t.id = u.id",
        1,
        "w s.a",
    ),
    "agg.computed": ("SELECT g, max(CAST(s.a AS STRING)) AS a, count(w) AS n FROM src.t GROUP BY g", 0, "s.a w"),
    "agg.ids": ("SELECT id, g FROM src.t", 1, ""),
}
READS = {table: set(columns.split()) for table, (_, _, columns) in QUERIES.items()}
READS["agg.kept"] = {"v", "w", "s.a"}  # nobody knows what a function reads
TYPES = ("INT", "BIGINT", "STRING", "DOUBLE")
HOLDS = {("INT", "BIGINT"), *((t, t) for t in TYPES)}


def kept(on_replaced: str) -> PythonModel:
    @model("agg.kept", write="replace-keys", key="id", replace="id", on_replaced=on_replaced)
    def kept(t: Changes) -> DataFrame:
        return t.affected().selectExpr("id", "CAST(v AS STRING) AS v")

    return kept


def pipeline(on_replaced: str = "stop") -> Pipeline:
    models = [
        {"name": n, "sql": s, "full_above": share, "on_replaced": on_replaced} for n, (s, share, _) in QUERIES.items()
    ]
    config = PipelineConfig.model_validate({"name": "p", "models": models})
    return Pipeline(config, models=[kept(on_replaced)])


@dataclass(frozen=True)
class Column:
    """A column as Iceberg knows it: by a number of its own, whatever its name is."""

    number: int
    type: str
    # A column of another name that was renamed has its values.
    is_new: bool = True


Columns = dict[str, Column]


@dataclass
class History:
    """A table of another program, its columns, and those that each model has absorbed."""

    lake: Lake
    chance: random.Random
    columns: Columns = field(default_factory=lambda: {c: Column(n, "INT") for n, c in enumerate(("v", "w", "s.a"))})
    committed: Columns = field(default_factory=dict[str, Column])
    absorbed: dict[str, Columns] = field(default_factory=dict[str, Columns])
    # Those that the oldest rows were written with.
    oldest: Columns | None = None
    # Both, by snapshot.
    states: dict[int, tuple[Columns, Columns | None]] = field(default_factory=dict[int, tuple[Columns, Columns | None]])
    spelled: dict[str, str] = field(default_factory=lambda: {"v": "v", "w": "w", "s.a": "s.a"})
    # Of the struct, in their order.
    fields: list[str] = field(default_factory=lambda: ["b", "a"])
    rows: int = 0
    numbers: int = 10
    log: list[str] = field(default_factory=list[str])

    def sql(self, text: str) -> None:
        self.log.append(text)
        self.lake.spark().sql(text)

    def commit(self, text: str) -> None:
        self.sql(text)
        snapshot = self.lake.table("src.t").current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        if snapshot.snapshot_id in self.states:
            return  # the statement changed nothing
        self.committed = dict(self.columns)
        is_empty = snapshot.summary["total-records"] == "0"
        self.oldest = None if is_empty else self.oldest or self.committed
        self.states[snapshot.snapshot_id] = self.committed, self.oldest

    def alter(self, *changes: str) -> None:
        for change in changes:
            self.sql(f"ALTER TABLE src.t {change}")

    def insert(self) -> None:
        rows: list[str] = []
        for _ in range(self.chance.randint(1, 3)):
            self.rows += 1
            values = {c: f"CAST({self.chance.randint(1, 9)} AS {k.type})" for c, k in self.columns.items()}
            struct = self.struct({"a": values["s.a"], "b": "'x'"})
            rows.append(f"SELECT {self.rows}, '{self.chance.choice('ab')}', {values['v']}, {values['w']}, {struct}")
        named = f"(id, g, {self.spelled['v']}, {self.spelled['w']}, s)"
        self.commit(f"INSERT INTO src.t {named} {' UNION ALL '.join(rows)}")

    def struct(self, values: dict[str, str]) -> str:
        """A struct with its fields in the order of the table."""
        fields = (f"'{f}', {values[f]}" for f in self.fields)
        return f"named_struct({', '.join(fields)})"

    def reorder(self) -> None:
        self.alter(f"ALTER COLUMN s.{self.fields[-1]} FIRST")
        self.fields.reverse()

    def some(self) -> str:
        return f"id % {self.chance.randint(2, 3)} = 0"

    def update(self) -> None:
        column = self.chance.choice(["v", "w"])
        self.commit(f"UPDATE src.t SET {column} = CAST(7 AS {self.columns[column].type}) WHERE {self.some()}")

    def delete(self) -> None:
        self.commit(f"DELETE FROM src.t WHERE {self.some()}")

    def empty(self) -> None:
        self.commit("DELETE FROM src.t")

    def compact(self) -> None:
        self.commit("CALL lake.system.rewrite_data_files(table => 'src.t', options => map('rewrite-all', 'true'))")

    def expire(self) -> None:
        now = "TIMESTAMP '2999-01-01 00:00:00'"
        self.sql(f"CALL lake.system.expire_snapshots(table => 'src.t', older_than => {now}, retain_last => 1)")

    def roll_back(self) -> None:
        snapshot = self.chance.choice([s.snapshot_id for s in ancestors(self.lake.table("src.t"))])
        self.sql(f"CALL lake.system.rollback_to_snapshot('src.t', {snapshot})")
        self.committed, self.oldest = self.states[snapshot]

    def replace(self) -> None:
        self.add_again(self.chance.choice(list(self.columns)), self.chance.choice(TYPES))

    def add_again(self, column: str, kind: str) -> None:
        self.alter(f"DROP COLUMN {self.spelled[column]}")
        if column != "s.a" and self.chance.random() < 0.2:
            self.spelled[column] = self.spelled[column].swapcase()
        self.alter(f"ADD COLUMN {self.spelled[column]} {kind}")
        if column == "s.a":
            self.fields = ["b", "a"]
        self._put(column, kind)

    def _put(self, column: str, kind: str, *, is_new: bool = True) -> None:
        self.numbers += 1
        self.columns[column] = Column(self.numbers, kind, is_new)

    def widen(self) -> None:
        for column, known in self.columns.items():
            if known.type == "INT":
                self.alter(f"ALTER COLUMN {self.spelled[column]} TYPE BIGINT")
                self.columns[column] = replace(known, type="BIGINT")
                return

    def swap(self) -> None:
        v, w = self.spelled["v"], self.spelled["w"]
        self.alter(f"RENAME COLUMN {v} TO x", f"RENAME COLUMN {w} TO {v}", f"RENAME COLUMN x TO {w}")
        columns = self.columns
        columns["v"], columns["w"] = (replace(columns[c], is_new=False) for c in ("w", "v"))

    def convert(self) -> None:
        """Give a column another type, as an owner does who keeps its values."""
        column, kind = self.chance.choice([("v", "STRING"), ("w", "STRING"), ("s.a", "STRING")])
        name = self.spelled[column]
        self.alter(f"ADD COLUMN {name}2 {kind}")
        if column != "s.a":
            self.commit(f"UPDATE src.t SET {name}2 = CAST({name} AS {kind})")
        else:
            self.commit(
                f"UPDATE src.t SET s = {self.struct({f: f's.{f}' for f in 'ab'})[:-1]}, 'a2', CAST(s.a AS {kind}))"
            )
            self.fields = ["b", "a"]
        if self.chance.random() < 0.5:
            self.log.append("-- a run between")
            self.run()
        self.alter(f"DROP COLUMN {name}", f"RENAME COLUMN {name}2 TO {name.rpartition('.')[2]}")
        self._put(column, kind, is_new=False)

    def replaced(self, table: str) -> set[str]:
        """The columns that the next step of a table finds replaced."""
        then, now = self.absorbed.get(table, {}), self.committed
        numbers = {c.number for c in now.values()}
        complete = {c.number for c in (self.oldest or now).values()}
        return {
            name
            for name in READS[table] & then.keys()
            if then[name].number not in numbers and now[name].is_new and now[name].number not in complete
            if (then[name].type, now[name].type) not in HOLDS
        }

    def run(self, p: Pipeline | None = None, *, may_stop: bool = True) -> dict[str, Outcome]:
        """Run the models: each equals its query, or has stopped, and only for a column that was replaced."""
        p = p or pipeline()
        before = {t: rows_in(self.lake, t) for t in READS if self.lake.exists(t)}
        outcomes = {o.table: o for o in p.run(self.lake)}
        for spec in p.specs(self.lake):
            table, outcome = str(spec.table), outcomes[str(spec.table)]
            text = "\n".join([*self.log, f"{table}: {outcome}"])
            if outcome.exception:
                assert may_stop, text
                assert isinstance(outcome.exception, TableReplacedError), text
                assert self.replaced(table), text
                assert rows_in(self.lake, table) == before[table], text
                continue
            if outcome.status == "absorbed":
                assert not (may_stop and self.replaced(table)), text
                self.absorbed[table] = dict(self.committed)
                compared = verify(self.lake, spec)
                assert compared.equal, f"{text}\n{compared.differences}"
        return {t: o for t, o in outcomes.items() if o.exception}

    def go_on(self, stopped: dict[str, Outcome]) -> None:
        """Do what the error says."""
        way = self.chance.choice(["rebuild", "option", "again"])
        self.log.append(f"-- {way}: {', '.join(stopped)}")
        if way == "again":
            for column in {c: None for t in sorted(stopped) for c in sorted(self.replaced(t))}:
                kinds = {self.absorbed[t][column].type for t in stopped if column in self.replaced(t)}
                self.add_again(column, kinds.pop())
            self.insert()
            stopped = {t: o for t, o in self.run().items() if t in stopped}
        for table in stopped if way != "option" else ():
            pipeline().rebuild(self.lake, table)
            self.absorbed[table] = dict(self.committed)
            (spec,) = (s for s in pipeline().specs(self.lake) if str(s.table) == table)
            assert verify(self.lake, spec).equal, "\n".join(self.log)
        self.run(pipeline("rebuild") if way == "option" else None, may_stop=False)


ROWS: tuple[Callable[[History], None], ...] = (
    *[History.insert] * 3, History.update, History.delete, History.empty, History.compact, History.expire,
    History.roll_back,
)  # fmt: skip
COLUMNS: tuple[Callable[[History], None], ...] = (
    *[History.replace] * 4, History.widen, History.swap, History.convert,
    History.reorder,
)  # fmt: skip


@pytest.mark.parametrize("seed", long_seeds(0, 3))
def test_each_model_equals_its_query_or_has_stopped(lake: Lake, seed: int) -> None:
    chance = random.Random(seed)
    make(
        lake,
        "id INT, g STRING, v INT, w INT, s STRUCT<b: STRING, a: INT>",
        mode=chance.choice(["merge-on-read", "copy-on-write"]),
    )
    if chance.random() < 0.5:
        lake.spark().sql("ALTER TABLE src.t SET TBLPROPERTIES ('format-version' = '3')")
    history = History(lake, chance)
    history.insert()
    history.run()
    for _ in range(6):
        for change in chance.choices([*ROWS, *COLUMNS], k=chance.randint(1, 4)):
            change(history)
        if stopped := history.run():
            history.go_on(stopped)
