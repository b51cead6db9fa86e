"""Every kind of table, every way to write it, disturbed at each point of a step: whatever happens, no wrong row stays.

A step is run again and again, and before and after its writes, and before its looks into the catalog, something else
happens: another deployment runs another declaration of the table, the same step runs a second time, another program
compacts the table, the process ends. Then both declarations are run to their end in turn, and each time the table has
to hold the rows of the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from lake_assets import Changes, Lake, Pipeline, model
from lake_assets.errors import AuditFailedError, ConcurrentWriteError
from lake_assets.lake import TableId
from lake_assets.lake.caching_catalog import CachingSqlCatalog
from lake_assets.models.python.python_model import PythonModel
from lake_assets.pipeline import step_retries
from lake_assets.pipeline.verification import verify
from tests.support.kills import Killed, Points
from tests.support.people import AGES, CITIES, OLDEST, RANKED, SPAN, People
from tests.support.seeds import HISTORIES


@model("agg.merged", write="merge", key="id", inputs={"people": "final.people"})
def merged(people: Changes) -> Any:
    rows = people.feed(["id"]).where("_change_type <> 'update_before'")
    return rows.selectExpr("id", "city", "_change_type = 'delete' AS _deleted")


@model("agg.merged", write="merge", key="id", inputs={"people": "final.people"}, version="2")
def merged_otherwise(people: Changes) -> Any:
    rows = people.feed(["id"]).where("_change_type <> 'update_before'")
    return rows.selectExpr("id", "concat(city, '!') AS city", "_change_type = 'delete' AS _deleted")


@model("agg.by_city", write="replace-keys", key="city", replace="city", inputs={"people": "final.people"})
def by_city(people: Changes) -> Any:
    return people.affected().groupBy("city").count()


@model("agg.by_city", write="replace-keys", key="city", replace="city", inputs={"people": "final.people"}, version="2")
def by_city_otherwise(people: Changes) -> Any:
    return people.affected().groupBy("city").count().selectExpr("city", "count + 100 AS count")


@model("agg.total", write="overwrite", inputs={"people": "final.people"})
def total(people: Changes) -> Any:
    return people.table.selectExpr("count(*) AS n")


@model("agg.total", write="overwrite", inputs={"people": "final.people"}, version="2")
def total_otherwise(people: Changes) -> Any:
    return people.table.selectExpr("count(*) + 100 AS n")


@dataclass(frozen=True)
class Case:
    """A table and two declarations of it.

    Attributes:
        old, new: settings of `final.people`, or a model.
        on: settings that both have.
    """

    table: str
    old: Any
    new: Any
    on: Mapping[str, Any] = field(default_factory=dict)

    def declare(self, world: World, which: str, **more: Any) -> None:
        """Declare the table in one of the two ways."""
        declared = getattr(self, which)
        if isinstance(declared, PythonModel):
            world.declare(**self.on)
            world.python = declared
        elif "sql" in declared:
            world.declare({**declared, **more}, **self.on)
        else:
            world.declare(**self.on, **declared, **more)


def other(sql_model: Mapping[str, Any], old: str, new: str) -> Case:
    assert old in sql_model["sql"]
    return Case(sql_model["name"], dict(sql_model), {**sql_model, "sql": sql_model["sql"].replace(old, new)})


CASES = {
    "rows": Case("final.people", {}, {"deletes": "soft"}),
    "versions": Case("final.people", {"track": ["city"]}, {"track": ["age"]}, {"mode": "scd2"}),
    "partitions": Case(
        "final.people", {}, {"deletes": "soft"}, {"partition_by": "city", "write": "overwrite-partitions"}
    ),
    "inserts": Case("final.people", {}, {"columns": ["id", "city"]}, {"mode": "append", "on_change": "ignore"}),
    "events": Case("staging.people", {}, {"types": {"age": "int"}}),
    "groups": other(CITIES, "count(*)", "count(*) + 100"),
    "recomputed groups": other(OLDEST, "max(age)", "min(age)"),
    "copies": other(AGES, "city, age", "city, age + 100 AS age"),
    "ranges": other(SPAN, "count(*)", "count(*) + 100"),
    "everything": other(RANKED, "ORDER BY id", "ORDER BY id DESC"),
    "merged": Case("agg.merged", merged, merged_otherwise),
    "replaced": Case("agg.by_city", by_city, by_city_otherwise),
    "overwritten": Case("agg.total", total, total_otherwise),
}
WAYS = ("change", "rebuild")
# Of the points of a step, it happens at so many.
MOST = 4 * HISTORIES
OFTEN = {("copies", "rebuild")}


class World(People):
    """A stream of people, one table of them, and a step of it that something happens to."""

    def __init__(self, lake: Lake, case: Case, points: Points) -> None:
        self.python: PythonModel | None = None
        super().__init__(lake, inserts="mode" in case.on and case.on["mode"] == "append")
        self.case, self.points, self.other = case, points, Lake(lake.config)

    def declare(self, *models: Mapping[str, Any], **declared: Any) -> None:
        super().declare(*models, **declared)
        self.python = None

    @property
    def pipeline(self) -> Pipeline:
        config = self.feed.pipeline.config
        return Pipeline(config, models=[self.python] if self.python else ())

    def spec(self) -> Any:
        return next(s for s in self.pipeline.specs(self.lake) if str(s.table) == self.case.table)

    def arrive(self) -> None:
        """Something changes, and the tables upstream know it."""
        self.land()
        upstream = ["raw.events", "staging.people", "final.people"]
        if self.case.table in upstream:
            upstream = upstream[: upstream.index(self.case.table)]
        assert {o.error for o in self.pipeline.run(self.lake, set(upstream))} == {None}

    def step(self, way: str, lake: Lake | None = None) -> None:
        """One attempt of a step."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(step_retries, "ATTEMPTS", 1)
            step_retries.absorb(lake or self.lake, self.spec(), rebuild=way == "rebuild")

    def settle(self, which: str) -> None:
        """Run everything by a declaration, until nothing is left to do: the table equals it then."""
        self.case.declare(self, which)
        assert {o.error for o in self.pipeline.run(self.lake)} == {None}
        assert self.pipeline.pending(self.lake) == []
        if self.case.table.startswith("agg."):
            found = verify(self.lake, self.spec())
            assert found.equal, (which, found)
        else:
            self.check()


@pytest.fixture
def points(points: Points, monkeypatch: pytest.MonkeyPatch) -> Points:
    """Points at looks into the catalog as well."""
    load = CachingSqlCatalog.load_table

    def looked(catalog: CachingSqlCatalog, identifier: Any) -> Any:
        points.cross("a look")
        return load(catalog, identifier)

    monkeypatch.setattr(CachingSqlCatalog, "load_table", looked)
    return points


def disturbed(world: World, way: str, meanwhile: Callable[[], None], most: int = MOST) -> int:
    """Disturb a step by the old declaration at its points, and look at the table after each time.

    Args:
        world: the tables.
        way: how the table is written.
        meanwhile: what happens.
        most: the number of points at which it happens, evenly spread over all.

    Returns:
        The number of points at which it happened.
    """
    for which in ("old", "new", "old"):
        world.arrive() if world.log else world.land()
        world.settle(which)
    total, happened = len(points_of(world, way)), 0
    world.settle("old")
    for index in sorted({n * total // most for n in range(most)}):
        seen = points_of(world, way, index, meanwhile)
        happened += len(seen) > index
        try:
            world.settle("new")
            world.settle("old")
        except AssertionError as e:
            raise AssertionError(f"{seen[index]}, point {index + 1} of {total}: {e}") from e
    return happened


def points_of(world: World, way: str, index: int = -1, meanwhile: Callable[[], None] | None = None) -> list[str]:
    """Run a step by the old declaration; at one of its points something happens. Return its points up to then."""
    world.case.declare(world, "old")
    if way == "change":
        world.arrive()
    seen: list[str] = []

    def at(point: str) -> None:
        if len(seen) <= index or meanwhile is None:
            seen.append(point)
            if meanwhile is not None and len(seen) == index + 1:
                meanwhile()

    world.points.hook = at
    try:
        world.step(way)
    except (ConcurrentWriteError, Killed):
        assert len(seen) == index + 1, "a step alone loses no race"
    finally:
        world.points.hook, world.points.armed, world.points.ended = None, False, False
    return seen


def cases(often: set[tuple[str, str]] | None = None) -> list[Any]:
    """All cases, `often` ones also in the default run; None: those of rebuilds that differ from each other."""
    return [
        pytest.param(name, way, marks=() if (name, way) in (often or ()) else pytest.mark.long)
        for name in CASES
        for way in WAYS
        if way == "change" or often or name in ("rows", "events", "copies", "merged")
    ]


@pytest.mark.parametrize(("name", "way"), cases(OFTEN))
def test_another_declaration_meanwhile(lake: Lake, points: Points, name: str, way: str) -> None:
    case = CASES[name]
    world = World(lake, case, points)

    def run_the_other() -> None:
        case.declare(world, "new")
        step_retries.absorb(world.other, world.spec())
        case.declare(world, "old")

    most = 4 if (name, way) in OFTEN else MOST
    assert disturbed(world, way, run_the_other, most) > 2


@pytest.mark.parametrize(("name", "way"), cases())
def test_the_same_step_meanwhile(lake: Lake, points: Points, name: str, way: str) -> None:
    world = World(lake, CASES[name], points)
    assert disturbed(world, way, lambda: world.step(way, world.other)) > 2


@pytest.mark.parametrize(("name", "way"), cases())
def test_a_compaction_meanwhile(lake: Lake, points: Points, name: str, way: str) -> None:
    world = World(lake, CASES[name], points)
    call = f"CALL lake.system.rewrite_data_files(table => '{CASES[name].table}', options => map('rewrite-all', 'true'))"
    assert disturbed(world, way, lambda: world.other.spark().sql(call) and None) > 2


@pytest.mark.parametrize(("name", "way"), cases())
def test_the_end_of_the_process(lake: Lake, points: Points, name: str, way: str) -> None:
    world = World(lake, CASES[name], points)

    def end() -> None:
        # What is killed does nothing any more.
        world.points.armed = world.points.ended = True
        raise Killed

    assert disturbed(world, way, end) > 2


@pytest.mark.parametrize(
    ("name", "way"), [p for p in cases() if p.values[0] not in ("events", "merged", "replaced", "overwritten")]
)
def test_an_audit_that_fails(lake: Lake, points: Points, name: str, way: str) -> None:
    case = CASES[name]
    world = World(lake, case, points)
    for which in ("old", "new", "old"):
        world.arrive() if world.log else world.land()
        world.settle(which)
    world.arrive()
    case.declare(world, "old", audits=[{"name": "never", "sql": "SELECT 1 AS one FROM {table}"}])
    table = TableId.parse(case.table)
    before = lake.table(table).metadata.current_snapshot_id, world.rows(case.table)
    with pytest.raises(AuditFailedError):
        world.step(way)
    assert (lake.table(table).metadata.current_snapshot_id, world.rows(case.table)) == before
    world.settle("new")
    world.settle("old")
