"""A changed declaration that is computed beside production: what it shows, publishes, and leaves behind."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from lake_assets import Lake, Pipeline
from lake_assets.backfill import comparison
from lake_assets.backfill.backfill_record import Records
from lake_assets.backfill.backfills import Backfill
from lake_assets.backfill.changed_columns import changed_rows, count
from lake_assets.backfill.comparison import TableComparison, compare
from lake_assets.backfill.declaration_preview import preview
from lake_assets.backfill.preview_aside import Aside, compute_aside, discard_left, plan_aside
from lake_assets.capture.rows.value_differences import SIGN
from lake_assets.errors import AuditFailedError, BackfillError
from lake_assets.lake.metadata.metadata_commits import now_ms
from lake_assets.lake.metadata.working_copies import COPIES, REVIEW_PROPERTY
from tests.support.cli import User
from tests.support.declared_tables import plain_differences
from tests.support.killed_backfills import around_backfills
from tests.support.kills import Points, killed_everywhere
from tests.support.people import CITIES, People
from tests.support.pipeline_files import yaml_of
from tests.support.pipeline_runs import run
from tests.support.python_models import insert, make, rows_in
from tests.support.streams import heads

LONG = pytest.mark.long
ROWS = (
    "(1, 1, 0.5D, 'a', named_struct('x', 1, 'y', array(1, NULL)))",
    "(1, 2, NULL, 'b', named_struct('x', 2, 'y', array(2)))",
    "(2, 3, double('NaN'), NULL, NULL)",
    "(2, 3, -0.0D, NULL, named_struct('x', CAST(NULL AS INT), 'y', array()))",
    "(NULL, 4, 7D, 'c', named_struct('x', 4, 'y', NULL))",
    "(3, NULL, double('NaN'), 'd', named_struct('x', 5, 'y', array(5)))",
)
TYPES = "g INT, n INT, d DOUBLE, t STRING, s STRUCT<x: INT, y: ARRAY<INT>>"
# Declarations before and after, with the key that the rows have on both sides.
KEYED = "SELECT g, sum(n) AS n, max(d) AS d, max(t) AS t FROM src.t GROUP BY g"
PLAIN = "SELECT g, n, d, s FROM src.t"
CHANGES: dict[str, tuple[str, str, list[str]]] = {
    "values, with NaN and null": (KEYED, KEYED.replace("max(d)", "min(d)").replace("FROM src.t", "FROM src.t WHERE g IS NULL OR n < 3"), ["g"]),
    "a column added": (KEYED, KEYED.replace("max(t) AS t", "max(t) AS t, count(*) AS rows"), ["g"]),
    "a column dropped": (KEYED, KEYED.replace(", max(t) AS t", "").replace("sum(n)", "max(n)"), ["g"]),
    "a column renamed": (KEYED, KEYED.replace("AS t", "AS text"), ["g"]),
    "a column of another type": (KEYED, KEYED.replace("sum(n) AS n", "CAST(sum(n) AS STRING) AS n"), ["g"]),
    "copies of rows without a key": (PLAIN, f"{PLAIN} UNION ALL {PLAIN} WHERE n = 3", []),
    "nested values without a key": (PLAIN, PLAIN.replace("d, s", "d, named_struct('x', s.x + 1, 'y', s.y) AS s"), []),
    "other columns altogether": ("SELECT g, n FROM src.t", "SELECT t, d FROM src.t", []),
    "another key": (KEYED, "SELECT t, sum(n) AS n FROM src.t GROUP BY t", []),
}  # fmt: skip


def of(folder: Path, sql: str, *more: dict[str, Any], **settings: Any) -> Pipeline:
    return Pipeline.load(yaml_of(folder, [{"name": "agg.n", "sql": sql, **settings}, *more]))


def aside(lake: Lake, pipeline: Pipeline, samples: int = 5) -> Aside:
    discard_left(lake, pipeline)
    return compute_aside(lake, pipeline, plan_aside(lake, pipeline, preview(lake, pipeline)), samples)


def texts(rows: DataFrame) -> list[str]:
    """Rows as texts, in which NaN equals NaN."""
    return sorted(map(str, rows.collect()))


def plainly(lake: Lake, sql: str) -> DataFrame:
    return lake.spark().sql(sql.replace("src.t", lake.sql_name("src.t")))


def check(found: TableComparison, lake: Lake, before: str, after: str, key: list[str]) -> None:
    """A comparison agrees with the two queries, computed plainly; values of another type are converted to it."""
    old, new = plainly(lake, before), plainly(lake, after)
    kinds, common = dict(new.dtypes), [c for c in old.columns if c in new.columns]
    cast = old.selectExpr(*(f"CAST({c} AS {kinds[c]}) AS {c}" for c in common)) if common else old
    numbers, by_column = (new.count(), 0, old.count()), dict[str, int]()
    if common:
        numbers, by_column = plain_differences(*([r.asDict() for r in f.collect()] for f in (cast, new)), common, key)
    changes = {c.column: c for c in found.columns}
    assert (found.inserted, found.updated, found.deleted) == numbers
    assert {c: x.rows for c, x in changes.items() if x.change in ("values", "retyped") and x.rows} == by_column
    assert {c for c, x in changes.items() if x.change == "retyped"} == {
        c for c in common if dict(old.dtypes)[c] != kinds[c]
    }
    assert {c for c, x in changes.items() if x.change == "added"} == {*new.columns} - {*old.columns}
    assert {c for c, x in changes.items() if x.change == "dropped"} == {*old.columns} - {*new.columns}
    for column, change in changes.items():
        if change.change in ("added", "dropped"):
            values = (new if change.change == "added" else old).where(f"`{column}` IS NOT NULL").count()
            assert change.rows == values
    assert found.rows == (old.count(), new.count())


@pytest.mark.parametrize("change", [n if n == "a column dropped" else pytest.param(n, marks=LONG) for n in CHANGES])
def test_what_is_shown_is_what_both_declarations_give_and_what_is_published(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    before, after, key = CHANGES[change]
    make(lake, TYPES, *ROWS)
    run(lake, of(tmp_path, before))
    edited = of(tmp_path, after)
    production, rows = heads(lake), texts(lake.spark().table(lake.sql_name("agg.n")))
    shown = aside(lake, edited)
    assert (heads(lake), texts(lake.spark().table(lake.sql_name("agg.n")))) == (production, rows)
    (found,) = shown.tables
    check(found, lake, before, after, key)
    shares_columns = change != "other columns altogether"
    samples = [s for s in found.samples if s["_change_type"] != "update_before"]
    assert len(samples) == (min(5, found.changed) if shares_columns else 0)
    record = Records(lake).get(shown.record.id)
    assert (record.of("agg.n").compared or {})["inserted"] == found.inserted
    # Long after the last commit to production.
    monkeypatch.setattr(comparison, "now_ms", lambda: now_ms() + 600_000)
    (again,) = compare(lake, record, (), 0)
    assert (again.changed, len(again.columns), again.samples) == (found.changed, len(found.columns), ())
    Backfill.load(lake, edited, shown.record.id).publish()
    expected, stored = plainly(lake, after), lake.spark().table(lake.sql_name("agg.n"))
    assert (stored.columns, texts(stored)) == (expected.columns, texts(expected))
    assert not preview(lake, edited).is_changed


def nothing_is_left(lake: Lake, refs: dict[str, list[str]]) -> None:
    assert not [r for r in Records(lake).all() if r.is_open]
    for name, names in refs.items():
        table = lake.table(name)
        assert (sorted(table.metadata.refs), table.properties.get(REVIEW_PROPERTY, "")) == (names, ""), name
    assert [p for p in lake.config.home.rglob(f"{COPIES}*") if p.is_dir()] == []


@pytest.mark.parametrize("end", ["audits", pytest.param("discard", marks=LONG)])
def test_a_preview_that_fails_or_is_discarded_leaves_nothing(lake: Lake, tmp_path: Path, end: str) -> None:
    make(lake, TYPES, *ROWS)
    run(lake, of(tmp_path, KEYED))
    refs = {name: sorted(lake.table(name).metadata.refs) for name in ("src.t", "agg.n")}
    production = heads(lake)
    edited = of(tmp_path, KEYED.replace("max(d)", "min(d)"), audits=[{"not_null": ["t"]}] if end == "audits" else [])
    if end == "audits":
        with pytest.raises(AuditFailedError):
            aside(lake, edited)
    else:
        shown = aside(lake, edited)
        with pytest.raises(BackfillError, match=f"lake-assets discard {shown.record.id}"):
            aside(lake, edited)
        Backfill.load(lake, edited, shown.record.id).discard()
    nothing_is_left(lake, refs)
    assert heads(lake) == production


@LONG
def test_a_preview_that_is_killed_anywhere_does_not_stop_the_next_one(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(lake, TYPES, *ROWS)
    run(lake, of(tmp_path, KEYED))
    refs = {name: sorted(lake.table(name).metadata.refs) for name in ("src.t", "agg.n")}
    production, edited = heads(lake), of(tmp_path, KEYED.replace("max(d)", "min(d)"))
    points = around_backfills(Points(only_after=True), monkeypatch)
    shown: list[Aside] = []

    def step() -> None:
        shipped = [r for r in Records(lake).all() if r.state == "ready" and not r.is_unseen]
        if not shipped:
            shown.append(aside(lake, edited))

    killed = killed_everywhere(points, step)
    assert {"after copy_tables", "after save"} <= {*killed}
    (record,) = (r for r in Records(lake).all() if r.is_open)
    assert heads(lake) == production
    Backfill.load(lake, edited, record.id).discard()
    nothing_is_left(lake, refs)


@LONG
def test_downstream_tables_are_computed_and_others_are_said_to_be_left_out(lake: Lake, tmp_path: Path) -> None:
    make(lake, TYPES, *ROWS)
    below = {"name": "agg.below", "sql": "SELECT t, count(*) AS n FROM agg.n GROUP BY t"}
    log = {"name": "agg.log", "sql": "SELECT *, _change_type AS what FROM {{ feed('agg.n', 'g') }}", "write": "append"}
    run(lake, of(tmp_path, KEYED, below, log))
    edited = of(tmp_path, KEYED.replace("max(t)", "min(t)"), below, log)
    found = {t.table: (t.kind, t.how) for t in preview(lake, edited).tables}
    assert found == {"agg.n": ("changed", "rebuild"), "agg.below": ("follows", "rows"), "agg.log": ("follows", "rows")}
    insert(lake, "(9, 9, 9D, 'z', NULL)")
    shown = aside(lake, edited)
    assert shown.behind == {"agg.n": ("src.t",)}
    assert [t.table for t in shown.tables] == ["agg.n", "agg.below"]
    assert [*shown.left_out] == ["agg.log"]
    Backfill.load(lake, edited, shown.record.id).publish()
    run(lake, edited)
    assert rows_in(lake, "agg.below") == Counter(
        tuple(r) for r in lake.spark().sql(f"SELECT t, count(*) FROM {lake.sql_name('agg.n')} GROUP BY t").collect()
    )


@LONG
def test_a_final_table_with_other_deletes(lake: Lake) -> None:
    people = People(lake, CITIES)
    people.land(30)
    people.run()
    people.declare(CITIES, deletes="soft")
    pipeline = people.feed.pipeline
    (final, cities) = preview(lake, pipeline).tables
    assert [(s.name, s.before, s.after) for s in final.settings] == [("deletes", "hard", "soft")]
    assert (final.how, cities.kind, cities.how) == ("rebuild", "follows", "rows")
    shown = aside(lake, pipeline)
    found = {t.table: t for t in shown.tables}["final.people"]
    deleted = {e.row["id"] for e in people.log} - people.there
    assert (found.inserted, found.updated, found.deleted) == (len(deleted), 0, 0)
    assert [c.column for c in found.columns if c.change == "added"]
    Backfill.load(lake, pipeline, shown.record.id).publish()
    people.check()


@LONG
def test_a_table_that_cannot_be_computed_aside_is_refused(lake: Lake, tmp_path: Path) -> None:
    make(lake, TYPES, *ROWS)
    new = {"name": "agg.new", "sql": "SELECT g FROM src.t"}
    run(lake, of(tmp_path, KEYED))
    edited = of(tmp_path, "SELECT g, count(*) AS n FROM agg.new GROUP BY g", new)
    with pytest.raises(BackfillError, match=r"agg\.n reads agg\.new, which does not exist yet: .*--table agg\.new"):
        aside(lake, edited)
    added = of(tmp_path, KEYED, new)
    assert plan_aside(lake, added, preview(lake, added)).tables == ()
    log = {"write": "append"}
    run(lake, of(tmp_path, "SELECT g FROM {{ feed('src.t') }}", name="agg.log", **log))
    with pytest.raises(BackfillError, match=r"agg\.log cannot be computed again"):
        aside(lake, of(tmp_path, "SELECT g, n FROM {{ feed('src.t') }}", name="agg.log", **log))
    assert Records(lake).all() == []


@pytest.mark.parametrize("keyed", [True, pytest.param(False, marks=LONG)])
def test_rows_differ_by_column_as_a_plain_comparison_says(spark_lake: Lake, keyed: bool) -> None:
    spark = spark_lake.spark()
    types = "k INT, d DOUBLE, s STRUCT<x: INT>, m MAP<STRING, DOUBLE>, f FLOAT"
    nan, tiny = float("nan"), 0.1 + 0.2
    before = [
        (1, nan, (1,), {"a": 1.0}, 1.0),
        (2, 0.3, (2,), {"a": nan}, None),
        (3, 0.0, None, None, 3.0),
        (4, 4.0, (None,), {}, 4.0),
        (None, 5.0, (5,), {"a": 5.0, "b": 6.0}, 5.0),
    ]
    after = [
        (1, nan, (1,), {"a": 1.0}, 1.0),
        (2, tiny, (3,), {"a": nan}, None),
        (3, -0.0, (None,), None, nan),
        (6, 4.0, (None,), {}, 4.0),
        (None, 5.0, (5,), {"b": 6.0, "a": 5.0}, 5.0),
    ]
    if not keyed:
        before, after = before + before[:2] * 2, after + after[:1] * 3
    frames = [spark.createDataFrame(rows, types) for rows in (before, after)]
    signed = frames[0].selectExpr("*", f"-1 AS {SIGN}").unionAll(frames[1].selectExpr("*", f"1 AS {SIGN}"))
    columns, key = frames[0].columns, ["k"] if keyed else []
    counts = count(changed_rows(signed, columns, key), key)
    numbers, by_column = plain_differences(*([r.asDict() for r in f.collect()] for f in frames), columns, key)
    assert (counts.inserted, counts.updated, counts.deleted) == numbers
    assert {c: n for c, (n, _) in counts.columns.items() if n} == by_column
    if keyed:
        assert counts.columns["d"] == (2, 2), "0.3 and 0.1 + 0.2, 0.0 and -0.0"
        assert counts.columns["m"] == (0, 0)


@LONG
def test_staging_that_is_read_otherwise_rebuilds_what_is_below_and_is_not_computed_aside(lake: Lake) -> None:
    people = People(lake, CITIES)
    people.land(20)
    people.run()
    people.declare(CITIES, types={"age": "string"})
    pipeline = people.feed.pipeline
    found = {t.table: (t.kind, t.how) for t in preview(lake, pipeline).tables}
    assert found == {
        "staging.people": ("changed", "rebuild"),
        "final.people": ("follows", "rebuild"),
        "agg.cities": ("follows", "rows"),
    }
    with pytest.raises(BackfillError, match=r"`lake-assets rebuild staging\.people`"):
        aside(lake, pipeline)
    assert Records(lake).all() == []


@LONG
def test_somebody_at_the_shell_reads_a_preview_and_publishes_it(
    lake: Lake, tmp_path: Path, at_the_shell: Callable[[Lake], User]
) -> None:
    user = at_the_shell(lake)
    make(lake, TYPES, *ROWS)
    run(lake, of(tmp_path / "pipelines", KEYED))
    (tmp_path / "edited").mkdir()
    of(tmp_path / "edited", KEYED.replace("max(t) AS t", "upper(max(t)) AS t, count(*) AS rows"))
    done = user.call("plan", tmp_path / "edited", "--aside", "--samples", "1")
    assert done.code == 2, done.err
    lines = [line.strip() for line in done.out.splitlines()]
    assert "column t: 3 rows differ" in lines
    assert "column rows (BIGINT) is new: 4 values, such as 1" in [line.partition(", 1")[0] for line in lines]
    assert [line for line in lines if "->" in line and line.startswith("~")]
    user.follows(done.out)
    assert user.call("plan", tmp_path / "edited").code == 0
    as_json = json.loads(user.call("plan", tmp_path / "pipelines", "--aside", "--json").out)
    (table,) = as_json["aside"]["tables"]
    assert {c["column"]: c["change"] for c in table["columns"]} == {"t": "values", "rows": "dropped"}
    assert as_json["aside"]["backfill"]["tables"][0]["compared"]["updated"] == table["updated"] == 3
    user.gets(f"discard {user.newest}")
