"""A changed definition reaches readers by the backfill that was reviewed, and by nothing else while it is open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.backfill.backfill_plan import plan
from lake_assets.backfill.backfills import Backfill, undo
from lake_assets.backfill.comparison import compare
from lake_assets.backfill.row_selection import Selection
from lake_assets.backfill.side_lake import SideLake
from lake_assets.errors import BackfillError, DefinitionChangedError, TableReplacedError
from lake_assets.lake import TableId
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.working_copies import REVIEW_PROPERTY
from lake_assets.pipeline.redo import redo_partitions
from lake_assets.pipeline.table_graph import ComputedSpec
from lake_assets.pipeline.verification import verify
from tests.support.kills import Killed
from tests.support.people import CITIES, People
from tests.support.pipeline_files import yaml_of
from tests.support.pipeline_runs import run
from tests.support.python_models import insert, make, rows_in
from tests.support.upkeep import compact_and_expire

LONG = pytest.mark.long
FIRST = "SELECT g, sum(n) AS n FROM src.t GROUP BY g"
SECOND, THIRD = FIRST.replace("sum(n)", "max(n)"), FIRST.replace("sum(n)", "100 * max(n)")
BY_CODE = {"write": "replace-keys", "key": ["g"], "replace": {"g": "g"}, "sql": FIRST.replace("src.t", "{{ affected('src.t') }}")}  # fmt: skip
Declare = Callable[..., Pipeline]


@pytest.fixture
def declared(lake: Lake, tmp_path: Path) -> Declare:
    """Declares `agg.n` by a query, over a table of another program; the first declaration is run."""
    make(lake, "g INT, n INT", "(1, 1)", "(2, 2)")

    def declare(sql: str = FIRST, **more: Any) -> Pipeline:
        return Pipeline.load(yaml_of(tmp_path, [{"name": "agg.n", "sql": sql, **more}]))

    run(lake, declare())
    return declare


def begin(lake: Lake, p: Pipeline, table: str = "agg.n") -> Backfill:
    return Backfill.begin(lake, p, plan(lake, p, TableId.parse(table), Selection()), publish="manual")


def reviewed(lake: Lake, p: Pipeline) -> Backfill:
    """A backfill that waits for its review."""
    backfill = begin(lake, p)
    backfill.build()
    return backfill


def only(lake: Lake, p: Pipeline) -> ComputedSpec:
    (spec,) = p.specs(lake)
    assert isinstance(spec, ComputedSpec)
    return spec


@pytest.mark.parametrize("way", ["resume", pytest.param("restore", marks=LONG), pytest.param("discard", marks=LONG)])
def test_a_query_that_was_edited_after_its_review_is_not_published(lake: Lake, declared: Declare, way: str) -> None:
    backfill = reviewed(lake, declared(SECOND)).record.id
    insert(lake, "(1, 5)")
    third = declared(THIRD)
    run(lake, third)
    with pytest.raises(DefinitionChangedError, match=f"nobody has reviewed.*`lake-assets resume {backfill}`"):
        Backfill.load(lake, third, backfill).publish()
    assert rows_in(lake, "agg.n") == Counter({(1, 6): 1, (2, 2): 1}), "the former query"
    again = Backfill.load(lake, declared(SECOND) if way == "restore" else third, backfill)
    if way == "discard":
        again.discard()
        assert rows_in(lake, "agg.n") == Counter({(1, 6): 1, (2, 2): 1})
        return
    if way == "resume":
        again.build()
        (found,) = compare(lake, again.record, ())
        assert found.sums["n"] == (8, 700)
    again.publish()
    expected = {(1, 5): 1, (2, 2): 1} if way == "restore" else {(1, 500): 1, (2, 200): 1}
    assert rows_in(lake, "agg.n") == Counter(expected)


@LONG
def test_a_query_that_is_edited_in_a_backfill_of_rows_is_reviewed_as_well(lake: Lake, declared: Declare) -> None:
    lake.spark().sql("UPDATE agg.n SET n = 77 WHERE g = 1")
    backfill = reviewed(lake, declared()).record.id
    second = declared(SECOND)
    with pytest.raises(DefinitionChangedError, match="nobody has reviewed"):
        Backfill.load(lake, second, backfill).publish()
    Backfill.load(lake, second, backfill).build()
    insert(lake, "(1, 5)")
    run(lake, second)
    assert rows_in(lake, "agg.n").keys() >= {(2, 2)}, "the former query, until it is published"
    Backfill.load(lake, second, backfill).publish()
    assert rows_in(lake, "agg.n") == Counter({(1, 5): 1, (2, 2): 1})


@pytest.mark.long
def test_audits_of_columns_that_only_the_new_query_has_do_not_stop_the_former_one(
    lake: Lake, declared: Declare
) -> None:
    new = FIRST.replace("AS n", "AS n, max(n) AS most")
    audits = [
        {"not_null": ["most"]},
        {"name": "small", "sql": "SELECT * FROM {table} WHERE most > 1000"},
        {"name": "few", "sql": "SELECT * FROM {table} WHERE n > 1000"},
    ]
    p = declared(new, audits=audits)
    backfill = reviewed(lake, p)
    insert(lake, "(1, 5)")
    run(lake, p)
    assert rows_in(lake, "agg.n") == Counter({(1, 6): 1, (2, 2): 1})
    insert(lake, "(1, 2000)")
    (outcome,) = p.run(lake)
    assert "few: 1 row" in (outcome.error or ""), "audits of its own columns go on"
    lake.spark().sql("DELETE FROM src.t WHERE n = 2000")
    backfill.publish()
    assert rows_in(lake, "agg.n") == Counter({(1, 6, 5): 1, (2, 2, 2): 1})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"sql": FIRST}, {"sql": SECOND}),
        pytest.param(BY_CODE, {"sql": FIRST}, marks=LONG),
        pytest.param({"sql": FIRST}, BY_CODE, marks=LONG),
    ],
)
def test_what_is_refused_during_a_review_names_its_ends(
    lake: Lake, declared: Declare, first: dict[str, Any], second: dict[str, Any]
) -> None:
    declared(**first).rebuild(lake, "agg.n")
    p = declared(**second, partitions="g")
    backfill = reviewed(lake, p)
    before, ends = rows_in(lake, "agg.n"), f"`lake-assets publish {backfill.record.id}`"
    for refused in (
        lambda: verify(lake, only(lake, p)),
        lambda: redo_partitions(lake, only(lake, p), ["1"]),
        lambda: p.rebuild(lake, "agg.n"),
    ):
        with pytest.raises(DefinitionChangedError, match=ends):
            refused()
    insert(lake, "(1, 5)")
    (outcome,) = p.run(lake)
    if first["sql"] == FIRST and second["sql"] == SECOND:
        assert outcome.status == "absorbed"
    else:
        assert ends in (outcome.error or ""), "code is not kept with the table, so it cannot go on by it"
        assert rows_in(lake, "agg.n") == before
    backfill.publish()
    run(lake, p)
    assert verify(lake, only(lake, p)).equal


@pytest.mark.long
def test_partitions_are_not_recomputed_by_another_declaration_than_their_table(lake: Lake) -> None:
    people = People(lake, CITIES, deletes="ignore", partitions="city")
    people.land(40)
    people.run()
    before = people.rows("final.people")
    people.declare(CITIES, deletes="hard", partitions="city")
    (spec,) = (s for s in people.feed.pipeline.specs(lake) if str(s.table) == "final.people")
    assert isinstance(spec, ComputedSpec)
    with pytest.raises(DefinitionChangedError, match="the next run computes it again"):
        redo_partitions(lake, spec, ["a"])
    assert people.rows("final.people") == before
    people.run()
    redo_partitions(lake, spec, ["a"])
    people.check()


def test_an_undo_brings_no_other_declaration(lake: Lake, declared: Declare) -> None:
    lake.spark().sql("UPDATE agg.n SET n = 77 WHERE g = 1")
    made = reviewed(lake, declared())
    made.publish()
    with pytest.raises(BackfillError, match=r"while agg\.n is declared otherwise.*Declare it as before"):
        undo(lake, declared(SECOND), made.record.id)
    taken_back = undo(lake, declared(), made.record.id)
    taken_back.build()
    taken_back.publish()
    assert rows_in(lake, "agg.n") == Counter({(1, 77): 1, (2, 2): 1})


@LONG
def test_a_review_that_was_killed_while_it_began_hides_the_new_query_and_leaves_nothing(
    lake: Lake, declared: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: object) -> None:
        raise Killed

    p = declared(SECOND)
    backfill = begin(lake, p)
    tags = dict(lake.table("src.t").metadata.refs)
    for n in (5, 6):
        with monkeypatch.context() as patch:
            patch.setattr(SideLake, "copy_tables", kill)
            with pytest.raises(Killed):
                backfill.build()
        insert(lake, f"(2, {n})")
        run(lake, p)
        backfill = Backfill.load(lake, p, backfill.record.id)
    assert rows_in(lake, "agg.n") == Counter({(1, 1): 1, (2, 13): 1})
    backfill.discard()
    table = lake.table("agg.n")
    assert (table.properties[REVIEW_PROPERTY], [*table.metadata.refs]) == ("", ["main"])
    assert lake.table("src.t").metadata.refs.keys() == tags.keys()


@LONG
def test_the_former_query_keeps_the_snapshots_that_it_needs_of_sources_that_the_new_one_does_not_read(
    lake: Lake, declared: Declare
) -> None:
    make(lake, "g INT, n INT", "(7, 7)", name="src.other")
    p = declared(FIRST.replace("src.t", "src.other"))
    backfill = reviewed(lake, p)
    for n in (5, 6):
        insert(lake, f"(1, {n})")
        run(lake, p)
        insert(lake, f"(2, {n})")
        compact_and_expire(lake, "src.t")
    run(lake, p)
    assert rows_in(lake, "agg.n") == Counter({(1, 12): 1, (2, 13): 1})
    backfill.publish()
    assert rows_in(lake, "agg.n") == Counter({(7, 7): 1})


@LONG
def test_two_open_reviews_of_tables_that_read_each_other_are_published_in_any_order(lake: Lake, tmp_path: Path) -> None:
    make(lake, "g INT, n INT", "(1, 1)", "(2, 2)")

    def both(sql: str, total: str) -> Pipeline:
        more = {"name": "agg.total", "sql": f"SELECT {total}(n) AS n FROM agg.n"}
        return Pipeline.load(yaml_of(tmp_path, [{"name": "agg.n", "sql": sql}, more]))

    run(lake, both(FIRST, "sum"))
    p = both(THIRD, "max")
    planned = plan(lake, p, TableId.parse("agg.n"), Selection(), downstream=False)
    upstream = Backfill.begin(lake, p, planned, publish="manual")
    upstream.build()
    below = begin(lake, p, "agg.total")
    below.build()
    insert(lake, "(1, 5)")
    run(lake, p)
    assert (rows_in(lake, "agg.n"), rows_in(lake, "agg.total")) == (Counter([(1, 6), (2, 2)]), Counter([(8,)]))
    below.publish()
    run(lake, p)
    assert (rows_in(lake, "agg.n"), rows_in(lake, "agg.total")) == (Counter([(1, 6), (2, 2)]), Counter([(6,)]))
    upstream.publish()
    run(lake, p)
    assert (rows_in(lake, "agg.n"), rows_in(lake, "agg.total")) == (Counter([(1, 500), (2, 200)]), Counter([(500,)]))


@pytest.mark.long
def test_a_micro_batch_while_copies_are_made_does_not_take_their_history(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copies start where main was before, and need what main had absorbed then."""
    make(lake, "g INT, n INT", "(1, 1)", "(2, 2)")
    more = {"name": "agg.more", "sql": "SELECT t.g, t.n, s.n AS of_all FROM src.t t JOIN agg.n s ON t.g = s.g"}
    p = Pipeline.load(yaml_of(tmp_path, [{"name": "agg.n", "sql": FIRST}, more]))
    run(lake, p)
    lake.spark().sql("UPDATE agg.n SET n = 77 WHERE g = 1")
    run(lake, p)
    backfill, set_tag, left = begin(lake, p), refs.set_tag, ["agg.n", "agg.more"]

    def before_a_batch(*args: Any) -> None:
        set_tag(*args)
        left.pop()
        if not left:
            insert(lake, "(1, 5)")
            run(lake, p)

    with monkeypatch.context() as patch:
        patch.setattr(refs, "set_tag", before_a_batch)
        backfill._prepare()
    insert(lake, "(2, 5)")
    run(lake, p)
    compact_and_expire(lake, "src.t")
    backfill.build()
    backfill.publish()
    run(lake, p)
    for spec in p.specs(lake):
        assert verify(lake, spec).equal  # type: ignore[arg-type]


@LONG
def test_a_backfill_counts_what_a_changed_declaration_makes_of_a_table_further_down(lake: Lake) -> None:
    people = People(lake)
    people.declare(CITIES)
    people.land(20)
    people.run()
    people.declare({**CITIES, "sql": CITIES["sql"].replace("count(*)", "10 * count(*)")})
    backfill = begin(lake, people.feed.pipeline, "final.people")
    planned = plan(lake, people.feed.pipeline, TableId.parse("final.people"), Selection())
    assert [t.what for t in planned.tables] == ["everything", "changes of its sources, by a changed declaration"]
    backfill.build()
    (_, cities) = backfill.record.tables
    (differs,) = [c for c in compare(lake, backfill.record, ()) if c.table == "agg.cities"]
    assert differs.updated > 0
    assert cities.strategy == "full"
    assert cities.inserted + cities.updated >= differs.updated
    backfill.publish()
    people.check()


@LONG
def test_a_review_whose_source_has_a_replaced_column_is_discarded_first(lake: Lake, declared: Declare) -> None:
    p = declared(SECOND)
    backfill = reviewed(lake, p)
    for change in ("DROP COLUMN n", "ADD COLUMN n STRING"):
        lake.spark().sql(f"ALTER TABLE src.t {change}")
    insert(lake, "(1, '5')")
    assert isinstance(p.run(lake)[0].exception, TableReplacedError), "the former query"
    with pytest.raises(
        TableReplacedError, match=f"cannot go on: discard it first .`lake-assets discard {backfill.record.id}`"
    ):
        backfill.publish()
    backfill.discard()
    run(lake, p)
    assert rows_in(lake, "agg.n") == Counter({(1, "5"): 1, (2, None): 1})
