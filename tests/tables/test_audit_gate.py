"""Audits: a failing batch is not published, however the table is written, and is absorbed again later."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from lake_assets import Lake
from lake_assets.errors import AuditFailedError, PipelineError
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import read_marks
from lake_assets.pipeline.step_retries import absorb
from lake_assets.tables.audits.audit_gate import AUDITED_PROPERTY, FAILED_BRANCH, Gate
from lake_assets.tables.audits.audit_kinds import (
    PLACEHOLDER,
    AcceptedValues,
    Assertion,
    NotNull,
    Relationship,
    RowCountChange,
    Unique,
)
from lake_assets.tables.outcome import Outcome
from lake_assets.tables.specs import Limit
from tests.support.debezium import INT, TEXT, Event, Table
from tests.support.kills import Points, killed_everywhere
from tests.support.oracle import rows_of
from tests.support.streams import Feed

T = Table({"id": INT, "city": TEXT})
CITIES = Table({"id": TEXT}, name="public.cities")
NOT_NULL: dict[str, Any] = {"not_null": "city"}
# By kind of table: its settings, the model over it, and which table is audited.
KINDS: dict[str, dict[str, Any]] = {
    "scd1": {},
    "overwrite": {"partition_by": "bucket(2, id)", "write": "overwrite-partitions"},
    "scd2": {"mode": "scd2"},
    "append": {"mode": "append", "on_change": "ignore"},
}
MODELS = {
    "retract": "SELECT city, count(*) AS n FROM final.t GROUP BY city",
    "keys": "SELECT city, max(id) AS n FROM final.t GROUP BY city",
    "copies": "SELECT city FROM final.t",
    "full": "SELECT id, city, row_number() OVER (ORDER BY id) AS place FROM final.t",
}
EVERY = [*KINDS, *MODELS]


class Audited:
    """A stream whose final table, or the model over it, is audited.

    Attributes:
        name: the audited table.
        at: the source's clock.
    """

    def __init__(self, lake: Lake, kind: str, *audits: Any) -> None:
        self.lake, self.kind, self.at = lake, kind, 0
        self.name = "final.t" if kind in KINDS else "agg.m"
        self.feed = Feed(lake)
        self.declare(*(audits or (NOT_NULL,)))

    def declare(self, *audits: Any, **more: Any) -> None:
        """Declare the same pipeline differently."""
        table: dict[str, Any] = {"table": "public.t", **KINDS.get(self.kind, {})}
        model: dict[str, Any] = {"name": "agg.m", "sql": MODELS.get(self.kind, "")}
        audited = table if self.kind in KINDS else model
        audited |= {"audits": list(audits), **more}
        landing, files = self.feed.landing, self.feed.files
        self.feed = Feed(self.lake, table, "public.cities", models=[] if self.kind in KINDS else [model])
        assert self.feed.landing == landing
        self.feed.files = files

    def event(self, op: Any, id: int, city: str | None = None) -> Event:
        self.at += 1
        return Event(T, op, (self.at, self.at), {"id": id, "city": city})

    def city(self, name: str, op: Any = "c") -> Event:
        self.at += 1
        return Event(CITIES, op, (self.at, self.at), {"id": name})

    def land(self, *events: Event) -> None:
        self.feed.land(events)

    def run(self) -> Outcome:
        """Run the pipeline; return the outcome of the audited table."""
        outcomes = self.feed.outcomes()
        for name, outcome in outcomes.items():
            assert name == self.name or not outcome.error, outcome.error
        return outcomes[self.name]

    def deliver(self, *events: Event) -> Outcome:
        self.land(*events)
        return self.run()

    def rows(self) -> Counter[Any]:
        return rows_of(self.feed.rows(self.name))

    def state(self) -> tuple[Any, ...]:
        """Return everything that readers and the next step see."""
        table = self.lake.table(self.name)
        return table.metadata.current_snapshot_id, read_marks(table), self.rows()

    def branches(self) -> set[str]:
        return {n for n, r in self.lake.table(self.name).metadata.refs.items() if r.snapshot_ref_type == "branch"}

    def spec(self) -> Any:
        (spec,) = [s for s in self.feed.pipeline.specs(self.lake) if str(s.table) == self.name]
        return spec


def failed(outcome: Outcome) -> AuditFailedError:
    assert isinstance(outcome.exception, AuditFailedError), outcome
    return outcome.exception


@pytest.mark.parametrize("kind", [k if k == "scd1" else pytest.param(k, marks=pytest.mark.long) for k in EVERY])
def test_what_does_not_pass_is_not_published_until_the_source_is_corrected(lake: Lake, kind: str) -> None:
    world = Audited(lake, kind)
    done = world.deliver(world.event("c", 1, "a"), world.event("c", 2, "b"))
    assert (done.status, [f.passed for f in done.audits]) == ("absorbed", [True])
    snapshots = len(lake.table(world.name).metadata.snapshots)
    before = world.state()

    error = failed(world.deliver(world.event("c", 3, None), world.event("c", 4, "c")))
    assert world.state() == before
    for text in (world.name, "not_null_city: 1 row", "city=NULL", "1 of 1 audits"):
        assert text in str(error), str(error)
    assert f"{world.name}.branch_{FAILED_BRANCH}" in str(error)
    held_back = rows_of(lake.spark().sql(f"SELECT city FROM {world.name}.branch_{FAILED_BRANCH}"))
    assert held_back[(None,)] == 1
    assert world.branches() == {"main", FAILED_BRANCH}

    # Run again without a correction: only one branch is kept.
    assert world.run().status == "failed"
    assert world.state() == before
    assert world.branches() == {"main", FAILED_BRANCH}

    if kind in ("scd2", "append"):
        # An append table keeps the null: the declaration has to change.
        world.declare({"not_null": "id"})
        done = world.run()
    else:
        done = world.deliver(world.event("u", 3, "c"))
    assert done.status == "absorbed", done.error
    assert done.snapshot == lake.table(world.name).metadata.current_snapshot_id
    assert world.branches() == {"main"}
    assert world.run().status == "nothing"
    published = [s for s in lake.table(world.name).metadata.snapshots[snapshots:] if s.snapshot_id == done.snapshot]
    assert [s.parent_snapshot_id for s in published] == [before[0]]


@pytest.mark.parametrize(
    "kind", ["scd1", pytest.param("append", marks=pytest.mark.long), pytest.param("retract", marks=pytest.mark.long)]
)
def test_the_first_batch_is_audited_too(lake: Lake, kind: str) -> None:
    world = Audited(lake, kind)
    failed(world.deliver(world.event("c", 1, None)))
    table = lake.find(world.name)
    assert table is None or table.metadata.current_snapshot_id is None
    world.declare("unique" if kind != "append" else {"unique": "id"})
    assert world.run().status == "absorbed"
    assert sum(world.rows().values()) == 1


@pytest.mark.long
@pytest.mark.parametrize("kind", ["scd1", pytest.param("retract", marks=pytest.mark.long)])
def test_a_table_that_is_made_again_is_audited_before_it_is(lake: Lake, kind: str) -> None:
    world = Audited(lake, kind, {"accepted_values": {"city": ["a", "b"]}})
    world.deliver(world.event("c", 1, "a"), world.event("c", 2, "b"))
    before = world.state()
    again: dict[str, Any] = {"deletes": "soft"} if kind == "scd1" else {"sql": MODELS["keys"] + " HAVING max(id) > 0"}
    world.declare({"accepted_values": {"city": ["a"]}}, **again)
    world.land(world.event("u", 2, "b"))
    assert "accepted_values_city: 1 row (all rows)" in str(failed(world.run()))
    assert world.state() == before
    world.declare({"accepted_values": {"city": ["a", "b"]}}, **again)
    done = world.run()
    assert (done.status, done.strategy) == ("absorbed", "rebuild" if kind == "scd1" else "full")
    assert len(world.rows()) == 2


# --- checked rows -----------------------------------------------------------------------------------------------


@pytest.mark.long  # as what another writer commits meanwhile
@pytest.mark.parametrize("kind", [pytest.param("scd1", marks=pytest.mark.long), "append"])
def test_a_batch_is_audited_by_what_it_wrote_as_long_as_nobody_else_wrote(lake: Lake, kind: str) -> None:
    audits = ({"not_null": "city"}, {"unique": "city"}, {"sql": "SELECT * FROM {table} WHERE id < 0", "name": "ids"})
    world = Audited(lake, kind, *audits)

    def checked(done: Outcome) -> list[str]:
        assert not done.error, done.error
        assert all(f.passed for f in done.audits)
        return [f.checked for f in done.audits]

    whole, narrow = ["all rows"] * 3, ["rows that the batch wrote"] * 2 + ["all rows"]
    assert checked(world.deliver(world.event("c", 1, "a"))) == whole
    assert checked(world.deliver(world.event("c", 2, "b"))) == narrow
    # Upkeep does not change rows.
    lake.spark().sql(
        f"CALL lake.system.rewrite_data_files(table => '{world.name}', options => map('rewrite-all', 'true'))"
    )
    assert checked(world.deliver(world.event("c", 3, "c"))) == narrow
    # A duplicate of an old row is found although only the new row was written.
    before = world.state()
    error = failed(world.deliver(world.event("c", 4, "a")))
    assert "unique_city: 2 rows (rows that the batch wrote): city=a, rows=2" in str(error)
    assert world.state() == before
    world.declare(*audits[:1], audits[2])
    assert world.run().status == "absorbed"
    # Rows of another writer were not audited.
    lake.spark().sql(f"UPDATE lake.{world.name} SET city = NULL WHERE id = 1")
    error = failed(world.deliver(world.event("c", 5, "e")))
    assert "not_null_city: 1 row (all rows)" in str(error)
    lake.spark().sql(f"UPDATE lake.{world.name} SET city = 'a' WHERE id = 1")
    assert checked(world.run()) == ["all rows"] * 2


def test_every_audit_counts_and_shows_the_rows_that_violate_it(lake: Lake) -> None:
    spark = lake.spark()
    lake.ensure_namespace(("final",))
    spark.sql("CREATE TABLE final.c (code STRING) USING iceberg")
    spark.sql("INSERT INTO final.c VALUES ('a'), ('b'), (NULL)")
    spark.sql("CREATE TABLE final.t (id INT, boss INT, city STRING, day DATE) USING iceberg")
    spark.sql("INSERT INTO final.t VALUES (0, NULL, 'a', NULL)")
    before = lake.table("final.t").metadata.current_snapshot_id
    spark.sql(
        "INSERT INTO final.t VALUES (1, 0, 'a', DATE'2024-01-01'), (1, 0, 'x', DATE'2024-01-02'), (2, 9, NULL, NULL)"
    )
    table = lake.find("final.t")
    assert table is not None
    other = Relationship(name="cities", column="city", table=TableId.parse("final.c"), other="code")
    gate = Gate(
        lake,
        TableId.parse("final.t"),
        [
            Unique(name="key"),
            Unique(name="pair", of=("id", "city")),
            NotNull(name="city", column="city"),
            AcceptedValues(name="days", column="day", values=("2024-01-01",)),
            AcceptedValues(name="ids", column="id", values=("0", "1", "2")),
            other,
            Relationship(name="bosses", column="boss", table=TableId.parse("final.t"), other="id"),
            RowCountChange(name="rows", limit=Limit(share=2.0)),
            RowCountChange(name="few", limit=Limit.parse(3)),
        ],
        ("id",),
    )
    gate.check({"id": "int", "boss": "int", "city": "string", "day": "date"})
    findings = gate.audit_published(table.metadata.current_snapshot_id, before)
    actual = {f.audit: (f.failing, [tuple(r.values()) for r in f.rows]) for f in findings}
    assert actual == {
        "key": (2, [("1", "2")]),
        "pair": (0, []),
        "city": (1, [("2", "9", None, None)]),
        "days": (1, [("1", "0", "x", "2024-01-02")]),
        "ids": (0, []),
        "cities": (1, [("1", "0", "x", "2024-01-02")]),
        "bosses": (1, [("2", "9", None, None)]),
        "rows": (3, [("1", "4", "200%")]),
        "few": (0, []),
    }


def test_a_violation_is_found_whatever_rows_its_file_has_besides(lake: Lake) -> None:
    """To Spark NaN is greater than any number, and zeros are equal; Iceberg skips files by bounds that differ."""
    lake.ensure_namespace(("final",))
    lake.spark().sql("CREATE TABLE final.t (id INT, x DOUBLE, s STRUCT<x: FLOAT>) USING iceberg")
    lake.spark().sql(
        "INSERT INTO final.t SELECT /*+ COALESCE(1) */ * FROM VALUES "
        "(1, 1D, named_struct('x', 1F)), (2, double('NaN'), named_struct('x', float('NaN'))), (3, -0D, null)"
    )
    gate = Gate(
        lake,
        TableId.parse("final.t"),
        [
            Assertion(name="large", sql=f"SELECT id FROM {PLACEHOLDER} WHERE x > 8"),
            Assertion(name="large_within", sql=f"SELECT id FROM {PLACEHOLDER} WHERE s.x > 8"),
            Assertion(name="zero", sql=f"SELECT id FROM {PLACEHOLDER} WHERE x = 0 AND id > 2"),
            AcceptedValues(name="listed", column="x", values=("0", "1")),
        ],
    )
    table = lake.find("final.t")
    assert table is not None
    findings = gate.audit_published(table.metadata.current_snapshot_id)
    assert {f.audit: (f.failing, [r["id"] for r in f.rows]) for f in findings} == {
        "large": (1, ["2"]),
        "large_within": (1, ["2"]),
        "zero": (1, ["3"]),
        "listed": (1, ["2"]),
    }


@pytest.mark.long
def test_audits_that_do_not_go_with_the_table_are_refused_before_anything_is_written(lake: Lake) -> None:
    world = Audited(lake, "scd1", {"unique": "id"})
    world.deliver(world.event("c", 1, "a"))
    before = world.state()
    world.land(world.event("c", 2, "b"))
    for audit, message in (
        ({"not_null": "town"}, "audit not_null_town names town, and the table has id, city"),
        ({"accepted_values": {"id": [1, "x"]}}, "audit accepted_values_id accepts x, but id is int"),
        ({"sql": "SELECT town FROM {table}", "name": "s"}, "audit s: Spark does not accept its SQL"),
    ):
        world.declare(audit)
        outcome = world.run()
        assert isinstance(outcome.exception, PipelineError)
        assert message in str(outcome.error)
        assert world.state() == before
    world.declare({"sql": "SELECT 1 / (id - 2) FROM {table}", "name": "s"})
    assert "s: cannot be evaluated: [DIVIDE_BY_ZERO]" in str(failed(world.run()))
    assert world.state() == before
    # Two tables have columns with the same name.
    world.declare({"sql": "SELECT * FROM {table} a JOIN {table} b ON a.id = b.id", "name": "s"})
    assert "s: 2 rows (all rows): id=" in str(failed(world.run()))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["scd1", pytest.param("retract", marks=pytest.mark.long)])
def test_a_warning_is_published_and_told_of(lake: Lake, kind: str) -> None:
    world = Audited(lake, kind, {**NOT_NULL, "severity": "warn"}, {"row_count_change": 1, "severity": "warn"})
    world.deliver(world.event("c", 1, "a"))
    world.land(world.event("c", 2, None), world.event("c", 3, "b"), world.event("c", 4, "c"))
    done = world.run()
    assert (done.status, [(f.failing, f.blocking) for f in done.audits]) == ("absorbed", [(1, False), (3, False)])
    world.declare({**NOT_NULL, "severity": "warn"}, {"accepted_values": {"city": ["a", "b", "c"]}})
    before = world.state()
    error = failed(world.deliver(world.event("c", 5, "z")))
    assert [(f.audit, f.passed) for f in error.findings] == [("not_null_city", False), ("accepted_values_city", False)]
    assert "not_null" not in str(error)
    assert world.state() == before


@pytest.mark.long  # the fault that it looks for is one of Spark Connect: tests/system/test_connect.py
def test_what_failed_and_warns_now_is_told_of(lake: Lake) -> None:
    audit = {"name": "no_gap", "sql": "SELECT * FROM {table} WHERE city IS NULL"}
    world = Audited(lake, "scd1", audit)
    world.deliver(*(world.event("c", n, "a") for n in range(100)))
    failed(world.deliver(world.event("c", 200, None), world.event("c", 201, "b")))
    world.declare({**audit, "severity": "warn"})
    done = world.run()
    assert (done.status, [(f.failing, f.blocking) for f in done.audits]) == ("absorbed", [(1, False)])


@pytest.mark.long
def test_what_an_audit_looks_at_comes_first(lake: Lake) -> None:
    world = Audited(lake, "scd1")
    world.declare({"relationships": {"city": "final.cities.id"}})
    assert world.deliver(world.event("c", 1, "a"), world.city("a")).status == "absorbed"
    before = world.state()
    error = failed(world.deliver(world.event("c", 2, "b")))
    assert "relationships_city: 1 row (all rows): id=2, city=b" in str(error)
    assert world.state() == before
    assert world.deliver(world.city("b")).status == "absorbed"


# --- killed steps, concurrent runs, other writers ---------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", ["scd1", pytest.param("append", marks=pytest.mark.long), pytest.param("keys", marks=pytest.mark.long)]
)
def test_a_step_that_is_killed_anywhere_is_done_again_and_audited_again(
    lake: Lake,
    points: Points,
    kind: str,
) -> None:
    world = Audited(lake, kind)
    world.deliver(world.event("c", 1, "a"))
    world.land(world.event("c", 2, "b"), world.event("c", 3, "b"))
    world.feed.pipeline.run(lake, ["raw.events", "staging.t", *(["final.t"] if kind in MODELS else [])])
    before, spec = world.state(), world.spec()
    seen: list[Any] = []

    def step() -> None:
        seen.append(world.state())
        absorb(lake, spec)

    at = killed_everywhere(points, step)
    assert {"after CREATE BRANCH", "after publishing"} <= set(at)
    published = world.rows()
    assert sum(published.values()) == {"scd1": 3, "append": 3, "keys": 2}[kind]
    # Readers saw the table only before and after the batch.
    assert before[2] in [s[2] for s in seen]
    assert all(s[2] in (before[2], published) for s in seen)
    world.land(world.event("c", 4, None))
    world.feed.pipeline.run(lake, ["raw.events", "staging.t", *(["final.t"] if kind in MODELS else [])])
    before = world.state()

    def failing() -> None:
        with pytest.raises(AuditFailedError):
            absorb(lake, spec)

    killed_everywhere(points, failing)
    assert world.state() == before
    assert FAILED_BRANCH in world.branches()


@pytest.mark.parametrize("kind", [pytest.param("scd1", marks=pytest.mark.long), "keys"])
def test_of_two_runs_at_once_one_publishes(lake: Lake, points: Points, kind: str) -> None:
    world, other = Audited(lake, kind), Lake(lake.config)
    world.deliver(world.event("c", 1, "a"))
    world.land(world.event("c", 2, "b"))
    world.feed.pipeline.run(lake, ["raw.events", "staging.t", *(["final.t"] if kind in MODELS else [])])
    spec, beside = world.spec(), list[Outcome]()

    def meanwhile(point: str) -> None:
        if point == "before publishing":
            points.hook = None
            beside.append(absorb(other, spec))

    points.hook = meanwhile
    assert absorb(lake, spec).status == "nothing"
    assert [o.status for o in beside] == ["absorbed"]
    assert sum(world.rows().values()) == 2


@pytest.mark.long  # as of two runs at once
@pytest.mark.parametrize("kind", ["scd1", "keys"])
def test_what_another_writer_commits_meanwhile_is_audited_as_well(
    lake: Lake,
    points: Points,
    kind: str,
) -> None:
    world, other = Audited(lake, kind), Lake(lake.config)
    world.deliver(world.event("c", 1, "a"))
    world.land(world.event("c", 2, "b"))
    world.feed.pipeline.run(lake, ["raw.events", "staging.t", *(["final.t"] if kind in MODELS else [])])
    spec = world.spec()

    def meanwhile(point: str) -> None:
        if point == "before publishing":
            points.hook = None
            other.spark().sql(f"UPDATE lake.{world.name} SET city = NULL WHERE city = 'a'")

    points.hook = meanwhile
    # The step loses the race; repeated, the batch passes, and the rows of the other writer do not.
    with pytest.raises(AuditFailedError, match=r"not_null_city: 1 row \(all rows\)"):
        absorb(lake, spec)
    assert (None,) in {r[1:] if kind == "scd1" else r[:1] for r in world.rows()}
    lake.spark().sql(f"UPDATE {world.name} SET city = 'a' WHERE city IS NULL")
    done = absorb(lake, spec)
    assert done.status == "absorbed"
    snapshot = lake.table(world.name).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.additional_properties[AUDITED_PROPERTY] != "[]"
