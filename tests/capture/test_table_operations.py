"""Each operation on a table as captured changes: overwrites, deletes of every kind, branches, evolution, upgrades."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from lake_assets import Lake
from lake_assets.capture.icdc_metadata import raw_metadata
from tests.support.capture_oracle import assert_exact, bag, changes, snapshots
from tests.support.changed_table import ROWS, History
from tests.support.iceberg_java import Java

KINDS = [
    pytest.param(2, "merge-on-read", id="v2-merge-on-read", marks=pytest.mark.long),
    pytest.param(3, "copy-on-write", id="v3-copy-on-write"),
]
every_kind = pytest.mark.parametrize(("version", "mode"), KINDS)


BY_GROUP = "PARTITIONED BY (g)"


@pytest.mark.long
@every_kind
def test_overwrite_static_and_dynamic(lake: Lake, namespace: str, version: int, mode: str) -> None:
    t = History(lake, f"{namespace}.t", version, mode, more=BY_GROUP)
    a = t.sql(ROWS)
    lake.spark().conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        b = t.sql("INSERT OVERWRITE {t} VALUES (100, 1, 'dynamic')")
    finally:
        lake.spark().conf.set("spark.sql.sources.partitionOverwriteMode", "static")
    c = t.sql("INSERT OVERWRITE {t} VALUES (200, 2, 'static')")
    t.exact((a, b), (b, c), (a, c))


@every_kind
def test_whole_files_and_partitions_deleted(lake: Lake, namespace: str, version: int, mode: str) -> None:
    t = History(lake, f"{namespace}.t", version, mode, more=BY_GROUP)
    a = t.sql(ROWS)
    b = t.sql("DELETE FROM {t} WHERE g = 1")
    with lake.capture(t.table, a, b) as capture:
        assert {(f.side, f.why) for f in capture.files} == {("before", "removed")}
        assert capture.files[0].partition == {"g": 1}
        with capture.icdc() as tables:
            assert tables.after is None
    c = t.sql("TRUNCATE TABLE {t}")
    t.exact((a, b), (b, c), (None, c))


@pytest.mark.long
@every_kind
def test_set_current_snapshot(lake: Lake, namespace: str, version: int, mode: str) -> None:
    t = History(lake, f"{namespace}.t", version, mode)
    a = t.sql(ROWS)
    b = t.sql("UPDATE {t} SET v = 'b' WHERE id < 4")
    t.sql(f"CALL lake.system.set_current_snapshot('{{n}}', {a})")
    t.exact((b, a))
    c = t.sql("DELETE FROM {t} WHERE id = 5")
    t.sql(f"CALL lake.system.set_current_snapshot('{{n}}', {b})")
    t.exact((c, b))


@pytest.mark.long
@every_kind
def test_cherry_pick_and_branch_publish(lake: Lake, namespace: str, version: int, mode: str) -> None:
    t = History(lake, f"{namespace}.t", version, mode)
    a = t.sql(ROWS)
    t.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.wap.enabled'='true')")
    lake.spark().conf.set("spark.wap.id", "picked")
    t.sql("INSERT INTO {t} VALUES (50, 0, 'picked')")
    lake.spark().conf.unset("spark.wap.id")
    staged = snapshots(lake, t.table)[-1]
    b = t.sql("UPDATE {t} SET v = 'b' WHERE id = 1")
    c = t.sql(f"CALL lake.system.cherrypick_snapshot('{{n}}', {staged})")
    lake.spark().conf.set("spark.wap.branch", "audit")
    try:
        t.sql(
            "ALTER TABLE {t} CREATE BRANCH audit",
            "DELETE FROM {t} WHERE id = 50",
            "INSERT INTO {t} VALUES (51, 0, 'x')",
        )
    finally:
        lake.spark().conf.unset("spark.wap.branch")
    assert_exact(lake, t.table, c, None)  # the branch is not published yet
    assert lake.capture(t.table, c).is_empty
    with lake.capture(t.table, c, "audit") as capture:
        away, added = changes(capture.feed(lake.spark()))
    assert away == bag([(50, 0, "picked")])
    assert added == bag([(51, 0, "x")])
    d = t.sql("CALL lake.system.fast_forward('{n}', 'main', 'audit')")
    t.exact((a, c), (b, c), (staged, c), (c, d), (staged, d))


@every_kind
def test_tags_and_times_name_snapshots(lake: Lake, namespace: str, version: int, mode: str) -> None:
    t = History(lake, f"{namespace}.t", version, mode)
    a = t.sql(ROWS, "ALTER TABLE {t} CREATE TAG `end of day`")
    t.sql("DELETE FROM {t} WHERE id = 3")
    capture = lake.capture(t.table, "end of day", "main")
    assert capture.window.start_snapshot_id == a
    assert capture.window.start is not None
    same = lake.capture(t.table, capture.window.start.timestamp)
    assert same.window == capture.window
    assert lake.capture(t.table, str(a)).window == capture.window


@pytest.mark.long
@pytest.mark.parametrize(
    "upgrade", [pytest.param(False, marks=pytest.mark.long), True], ids=["v1", "v1 upgraded to v2"]
)
def test_format_v1(lake: Lake, namespace: str, upgrade: bool) -> None:
    t = History(lake, f"{namespace}.t", 1, more=BY_GROUP)
    a = t.sql(ROWS)
    b = t.sql("INSERT INTO {t} VALUES (50, 0, 'x')")
    if upgrade:
        t.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')")
    c = t.sql("DELETE FROM {t} WHERE id IN (3, 50)")
    d = t.sql("UPDATE {t} SET v = 'y' WHERE id = 4")
    t.exact((None, b), (a, b), (b, c), (a, d), (c, d))


@pytest.mark.long
@pytest.mark.parametrize("granularity", ["file", pytest.param("partition", marks=pytest.mark.long)])
def test_v2_position_deletes(lake: Lake, namespace: str, granularity: str) -> None:
    t = History(lake, f"{namespace}.t", 2, "merge-on-read", more=BY_GROUP)
    t.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.delete.granularity'='{granularity}')")
    a = t.sql(ROWS)
    b = t.sql(ROWS)
    c = t.sql("DELETE FROM {t} WHERE id IN (1, 4)")
    d = t.sql("DELETE FROM {t} WHERE id IN (7, 2)")
    e = t.sql("CALL lake.system.rewrite_position_delete_files(table => '{n}', options => map('rewrite-all', 'true'))")
    assert e != d
    assert lake.capture(t.table, d, e).is_empty
    f = t.sql("UPDATE {t} SET v = NULL WHERE id = 10")
    t.exact((a, c), (b, c), (c, d), (c, f), (d, f))


@pytest.mark.long
@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.long), 3])
@pytest.mark.parametrize("more", [pytest.param("", marks=pytest.mark.long), BY_GROUP], ids=["whole", "partitioned"])
def test_equality_deletes(lake: Lake, namespace: str, version: int, more: str) -> None:
    t = History(lake, f"{namespace}.t", version, "merge-on-read", more=more)
    java = Java(lake)
    a = t.sql(ROWS)
    b = java.delete_where_equal(t.table, [{"id": 3, "g": 0}, {"id": 6, "g": 0}])
    c = java.delete_where_equal(t.table, [{"id": 9, "g": 0}], [{"id": 9, "g": 0, "v": "upserted"}])
    d = t.sql("DELETE FROM {t} WHERE id = 4")
    e = t.sql("CALL lake.system.rewrite_data_files(table => '{n}', options => map('rewrite-all', 'true'))")
    t.exact((None, b), (a, b), (b, c), (a, d), (c, e), (a, e))
    assert lake.capture(t.table, d, e).is_empty


@pytest.mark.long
def test_global_equality_deletes_reach_partitions(lake: Lake, namespace: str) -> None:
    t = History(lake, f"{namespace}.t", 2, "merge-on-read")
    a = t.sql(ROWS, "ALTER TABLE {t} ADD PARTITION FIELD g", ROWS, "ALTER TABLE {t} DROP PARTITION FIELD g")
    b = Java(lake).delete_where_equal(t.table, [{"id": 3}])
    t.exact((a, b), (None, b))


@pytest.mark.long  # as global equality deletes
def test_equality_deletes_under_a_spec_of_void_transforms_are_global(lake: Lake, namespace: str) -> None:
    t = History(lake, f"{namespace}.t", 1, more=BY_GROUP)
    t.sql(ROWS, "ALTER TABLE {t} DROP PARTITION FIELD g", ROWS)
    assert [str(f.transform) for f in lake.table(t.table).spec().fields] == ["void"]
    a = t.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='2')", "INSERT INTO {t} VALUES (3, 9, 'x')")
    b = Java(lake).delete_where_equal(t.table, [{"id": 3}])
    t.exact((a, b))


@pytest.mark.long
@pytest.mark.parametrize("kind", [pytest.param("FLOAT", marks=pytest.mark.long), "DOUBLE"])
def test_deletes_by_partition_reach_nan_and_negative_zero(lake: Lake, namespace: str, kind: str) -> None:
    t = History(lake, f"{namespace}.t", 2, "merge-on-read", columns=f"id INT, x {kind}", more="PARTITIONED BY (x)")
    t.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.granularity'='partition')")
    values = ", ".join(f"({{n}}{i}, CAST('{x}' AS {kind}))" for i, x in enumerate(["NaN", "NaN", "-0.0", "0.0", "0.0"]))
    a = t.sql(*(f"INSERT INTO {{t}} VALUES {values.replace('{n}', str(n))}" for n in (1, 2)))
    b = t.sql("DELETE FROM {t} WHERE id IN (10, 20)")
    c = t.sql("DELETE FROM {t} WHERE id IN (12, 13, 23)")
    t.exact((b, c), (a, c))


@every_kind
def test_the_column_of_a_former_partition_field_was_dropped(
    lake: Lake, namespace: str, version: int, mode: str
) -> None:
    t = History(lake, f"{namespace}.t", version, "copy-on-write", more=BY_GROUP)
    a = t.sql(ROWS)
    t.sql("ALTER TABLE {t} DROP PARTITION FIELD g", "ALTER TABLE {t} DROP COLUMN g", "INSERT INTO {t} VALUES (50, 'x')")
    b = t.sql("DELETE FROM {t} WHERE id = 3")
    with lake.capture(t.table, a, b) as capture:
        assert changes(capture.feed(lake.spark())) == (bag([(3, "3")]), bag([(50, "x")]))
        assert {f.partition.get("g") for f in capture.files} >= {0}
        assert capture.ranges["id"].covers(50)
        assert capture.pieces("id")


def test_an_equality_delete_by_a_column_that_was_dropped_later(lake: Lake, namespace: str) -> None:
    t = History(lake, f"{namespace}.t", 2, "merge-on-read")
    a = t.sql(ROWS)
    Java(lake).delete_where_equal(t.table, [{"g": 1}])
    b = t.sql("ALTER TABLE {t} DROP COLUMN g", "INSERT INTO {t} VALUES (50, 'x')")
    with lake.capture(t.table, a, b) as capture:
        away, added = changes(capture.feed(lake.spark()))
    assert away == bag([(i, str(i)) for i in (1, 4, 7, 10)])
    assert added == bag([(50, "x")])


def test_variant_columns(lake: Lake, namespace: str) -> None:
    t = History(lake, f"{namespace}.t", 3, "merge-on-read", columns="id INT, x VARIANT")
    a = t.sql("""INSERT INTO {t} SELECT 1, parse_json('{"a":1}')""")
    t.sql("""INSERT INTO {t} SELECT 2, parse_json('[1,null,"x"]')""")
    b = t.sql("""UPDATE {t} SET x = parse_json('"1"') WHERE id = 1""")
    c = t.sql("INSERT OVERWRITE {t} SELECT * FROM {t} UNION ALL SELECT 7, parse_json('1')")

    def feed(start: int | None, end: int | None) -> set[tuple[str, int, str]]:
        with lake.capture(t.table, start, end) as capture:
            rows = capture.feed(lake.spark()).collect()
            assert not capture.ranges["x"].is_bounded
        return {(r["_change_type"], r["id"], str(r["x"])) for r in rows}

    new = {("insert", 2, '[1,null,"x"]')}
    assert feed(a, b) == {*new, ("update_before", 1, '{"a":1}'), ("update_after", 1, '"1"')}
    # Unchanged rows are recognized, although the text "1" and the number 1 look alike.
    assert feed(b, c) == {("insert", 7, "1")}
    assert feed(a, c) == {*new, ("delete", 1, '{"a":1}'), ("insert", 1, '"1"'), ("insert", 7, "1")}


@pytest.mark.long
@pytest.mark.parametrize("mode", ["copy-on-write", pytest.param("merge-on-read", marks=pytest.mark.long)])
def test_v2_upgraded_to_v3(lake: Lake, namespace: str, mode: str) -> None:
    t = History(lake, f"{namespace}.t", 2, mode)
    a = t.sql(ROWS)
    b = t.sql("DELETE FROM {t} WHERE id = 3")
    t.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')")
    t.exact((a, b))
    c = t.sql("UPDATE {t} SET v = 'three' WHERE id IN (4, 5)")
    d = t.sql("UPDATE {t} SET v = 'more' WHERE id IN (5, 6)")
    t.exact((None, c), (a, c), (b, c), (b, d), (c, d))


def test_v3_without_row_lineage(lake: Lake, namespace: str) -> None:
    """As written by Iceberg 1.8, where row lineage was optional."""
    t = History(lake, f"{namespace}.t", 3, "merge-on-read")
    a = t.sql(ROWS)
    b = t.sql("DELETE FROM {t} WHERE id < 5", "INSERT INTO {t} VALUES (50, 0, 'x')")
    source = lake.table(t.table)
    raw = raw_metadata(source)
    for facts in (raw, *raw["snapshots"]):
        for name in ("next-row-id", "first-row-id", "added-rows"):
            facts.pop(name, None)
    path = f"{source.location()}/metadata/99999-without-row-ids.metadata.json"
    with source.io.new_output(path).create() as f:
        f.write(json.dumps(raw).encode())
    lake.catalog.register_table(f"{namespace}.older", path)
    with lake.capture(f"{namespace}.older", a, b) as capture:
        away, added = changes(capture.feed(lake.spark()))
    assert away == bag((i, i % 3, str(i)) for i in range(5))
    assert added == bag([(50, 0, "x")])


@every_kind
def test_schema_evolution(lake: Lake, namespace: str, version: int, mode: str) -> None:
    t = History(lake, f"{namespace}.t", version, mode, columns="id INT, a INT, b FLOAT, c STRING, s STRUCT<x: INT>")
    start = t.sql("INSERT INTO {t} VALUES (1, 1, 1.5F, 'c1', struct(1)), (2, 2, 2.5F, 'c2', NULL)")
    steps = [
        "ALTER TABLE {t} ADD COLUMN d DATE",
        "ALTER TABLE {t} ALTER COLUMN a TYPE BIGINT",
        "ALTER TABLE {t} ALTER COLUMN b TYPE DOUBLE",
        "ALTER TABLE {t} RENAME COLUMN c TO renamed",
        "ALTER TABLE {t} ALTER COLUMN b FIRST",
        "ALTER TABLE {t} ADD COLUMN s.y INT",
        "ALTER TABLE {t} DROP COLUMN a",
        "ALTER TABLE {t} ADD COLUMN a STRING",
    ]
    t.sql(*steps)
    end = t.sql("UPDATE {t} SET renamed = 'new', a = 'again' WHERE id = 2")
    with lake.capture(t.table, start) as capture:
        spark = lake.spark()
        assert capture.columns == [f.name for f in lake.table(t.table).schema().fields]
        away, added = changes(capture.feed(spark, keys=["id"]))
        order = ["b", "id", "renamed", "s", "d", "a"]
        assert capture.columns == order
        # The old image has end's columns, matched by field id: `a` is another column than the one that was dropped.
        assert away - added == bag([(2.5, 2, "c2", None, None, None)])
        assert added - away == bag([(2.5, 2, "new", None, None, "again")])
        assert spark.table(lake.sql_name(t.table)).schema == capture.upserts(spark).schema
    assert_exact(lake, t.table, None, end)


@every_kind
def test_rows_have_the_schema_of_the_end(lake: Lake, namespace: str, version: int, mode: str) -> None:
    t = History(lake, f"{namespace}.t", version, mode)
    a = t.sql(ROWS)
    b = t.sql("DELETE FROM {t} WHERE id = 3")
    t.sql("ALTER TABLE {t} DROP COLUMN v", "ALTER TABLE {t} ADD COLUMN w INT")
    assert lake.capture(t.table, a, b).columns == ["id", "g", "v"]
    assert lake.capture(t.table, a).columns == ["id", "g", "w"]
    assert lake.capture(t.table, a, "main").columns == ["id", "g", "w"]
    t.exact((a, b))


@pytest.mark.long
@every_kind
@pytest.mark.parametrize(
    "partitioned", [pytest.param("", marks=pytest.mark.long), "PARTITIONED BY (n)"], ids=["whole", "partitioned"]
)
def test_a_table_replaced_with_other_types(
    lake: Lake, namespace: str, version: int, mode: str, partitioned: str
) -> None:
    """Columns keep their field ids, but the start's files have values of other types."""
    t = History(lake, f"{namespace}.t", version, mode, more=partitioned,
                columns="id INT, n DECIMAL(10,2), k INT, st STRUCT<x: INT>, d DOUBLE")  # fmt: skip
    a = t.sql("INSERT INTO {t} VALUES (1, 1.25, 10, struct(7), 1.5), (2, -3.10, NULL, NULL, 2.5), (3, 99, 3, NULL, 0)")
    b = t.sql("DELETE FROM {t} WHERE id = 3")
    c = t.sql(
        f"CREATE OR REPLACE TABLE {{t}} USING iceberg {partitioned} "
        "TBLPROPERTIES ('write.delete.mode'='merge-on-read') AS SELECT CAST(id AS BIGINT) AS id, "
        "CAST(n AS DECIMAL(20,4)) AS n, CAST(k AS STRING) AS k, named_struct('x', CAST(st.x AS STRING)) AS st FROM {t}"
    )
    now = lake.table(t.table)
    was = next(s for i, s in now.schemas().items() if i == now.metadata.snapshots[0].schema_id)
    assert [was.find_field(f.name).field_id for f in now.schema().fields] == [
        f.field_id for f in now.schema().fields if was.find_field(f.name)
    ]
    with lake.capture(t.table, b, c) as capture:
        went, came = changes(capture.feed(lake.spark()))
        rows = [(1, Decimal("1.2500"), "10", ("7",)), (2, Decimal("-3.1000"), None, None)]
        # The unchanged row is no change, though it was rewritten.
        same = bag([rows[0]])
        assert came + same == bag([rows[0], (*rows[1][:3], (None,))])
        assert went + same == bag(rows)
        assert not capture.ranges["n"].is_bounded
        assert capture.ranges["id"].low == 1
        assert capture.ranges["id"].covers(2)
        assert set(bag(capture.keys(lake.spark(), ["k"]).collect())) == {r[2:3] for r in went | came}
    d = t.sql("UPDATE {t} SET n = n + 0.0001 WHERE id = 1")
    t.exact((c, d), (None, d))
    with lake.capture(t.table, a, d) as capture:
        went, _ = changes(capture.feed(lake.spark()))
        assert went == bag([*rows, (3, Decimal("99.0000"), "3", None)])
        assert capture.ranges["n"].covers(Decimal("99"))


@pytest.mark.long
@every_kind
def test_partition_evolution(lake: Lake, namespace: str, version: int, mode: str) -> None:
    t = History(lake, f"{namespace}.t", version, mode, columns="id INT, g INT, v STRING, at TIMESTAMP")
    rows = "INSERT INTO {t} SELECT CAST(id AS INT), CAST(id % 3 AS INT), 'v', TIMESTAMP '2024-01-30' + make_dt_interval(id) FROM range(6)"
    points = [t.sql(rows)]
    for change in (
        "ADD PARTITION FIELD days(at)",
        "REPLACE PARTITION FIELD days(at) WITH months(at)",
        "ADD PARTITION FIELD bucket(4, id)",
        "DROP PARTITION FIELD months(at)",
    ):
        points.append(t.sql(f"ALTER TABLE {{t}} {change}", rows))
    points.append(t.sql("UPDATE {t} SET v = 'u' WHERE id IN (1, 5)"))
    points.append(t.sql("DELETE FROM {t} WHERE at < TIMESTAMP '2024-02-01'"))
    t.exact((points[0], points[-1]), (points[2], points[4]), (points[4], points[5]), (points[5], points[6]))


PRIMITIVES = """id INT, b BOOLEAN, l BIGINT, f FLOAT, d DOUBLE, e DECIMAL(30,4), dt DATE, ts TIMESTAMP, tn TIMESTAMP_NTZ,
s STRING, bin BINARY, arr ARRAY<DOUBLE>, st STRUCT<x: DOUBLE, y: ARRAY<STRING>>, mp MAP<STRING, DOUBLE>,
deep ARRAY<STRUCT<k: STRING, v: MAP<INT, STRING>>>"""
VALUES = """(1, true, 9223372036854775807, CAST('NaN' AS FLOAT), -0.0D, 1.5, DATE '0001-01-01', TIMESTAMP '1900-01-01 00:00:00',
TIMESTAMP_NTZ '9999-12-31 23:59:59.999999', 'é', X'00FF', array(0.0D, NULL), struct(CAST('NaN' AS DOUBLE), array('a')),
map('a', -0.0D), array(struct('k', map(1, 'x'))))"""


@pytest.mark.parametrize(
    ("version", "mode"),
    [
        pytest.param(2, "copy-on-write", marks=pytest.mark.long),
        pytest.param(2, "merge-on-read", marks=pytest.mark.long),
        (3, "merge-on-read"),
    ],
)
def test_every_type(lake: Lake, namespace: str, version: int, mode: str) -> None:
    t = History(lake, f"{namespace}.t", version, mode, columns=PRIMITIVES)
    nulls = "(2" + ", NULL" * 14 + ")"
    a = t.sql(f"INSERT INTO {{t}} VALUES {VALUES}, {nulls}, {nulls}, {VALUES}, {VALUES.replace('(1,', '(3,')}")
    # The only difference is the sign of a zero, in a column and nested in others.
    b = t.sql("UPDATE {t} SET d = 0.0D WHERE id = 3")
    c = t.sql("UPDATE {t} SET mp = map('a', 0.0D), st = NULL WHERE id = 3")
    d = t.sql("DELETE FROM {t} WHERE id = 2")
    t.exact((None, a), (a, b), (b, c), (a, d), (c, d))


@pytest.mark.long
@pytest.mark.parametrize("form", ["orc", pytest.param("avro", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("version", "mode"),
    [
        (2, "merge-on-read"),
        pytest.param(3, "copy-on-write", marks=pytest.mark.long),
        pytest.param(3, "merge-on-read", marks=pytest.mark.long),
    ],
)
def test_other_file_formats(lake: Lake, namespace: str, form: str, version: int, mode: str) -> None:
    t = History(lake, f"{namespace}.t", version, mode)
    t.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.format.default'='{form}')")
    a = t.sql(ROWS)
    b = t.sql("UPDATE {t} SET v = 'x' WHERE id = 3")
    c = t.sql("DELETE FROM {t} WHERE id = 4")
    t.exact((None, a), (a, b), (b, c), (a, c))


@pytest.mark.long
def test_identical_rows_are_counted(lake: Lake, namespace: str) -> None:
    t = History(lake, f"{namespace}.t", 2)
    a = t.sql("INSERT INTO {t} SELECT 1, 1, 'same' FROM range(5)")
    b = t.sql("INSERT INTO {t} SELECT 1, 1, 'same' FROM range(3)")
    c = t.sql("INSERT OVERWRITE {t} SELECT 1, 1, 'same' FROM range(6)")
    with lake.capture(t.table, a, c) as capture:
        assert [r["_change_type"] for r in capture.feed(lake.spark()).collect()] == ["insert"]
    t.exact((a, c), (b, c), (None, c))


def test_no_rows(lake: Lake, namespace: str) -> None:
    t = History(lake, f"{namespace}.t", 3)
    a = t.sql("INSERT INTO {t} SELECT 1, 1, 'x' WHERE false")
    b = t.sql("INSERT OVERWRITE {t} SELECT 1, 1, 'x' WHERE false")
    t.exact((None, a), (a, b), (None, b))


@pytest.mark.parametrize(("version", "keys"), [(2, None), (2, ["g"]), (3, ["g"])])
def test_updates_are_paired_by_key(lake: Lake, namespace: str, version: int, keys: list[str] | None) -> None:
    t = History(lake, f"{namespace}.t", version, columns="id INT NOT NULL, g INT, v STRING")
    t.sql("ALTER TABLE {t} SET IDENTIFIER FIELDS id")
    a = t.sql("INSERT INTO {t} VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 30, 'c')")
    t.sql("INSERT OVERWRITE {t} VALUES (1, 10, 'A'), (2, 20, 'b'), (4, 40, 'd')")
    with lake.capture(t.table, a) as capture:
        rows = {(r["_change_type"], r["id"], r["v"]) for r in capture.feed(lake.spark(), keys).collect()}
    expected = {("update_before", 1, "a"), ("update_after", 1, "A"), ("delete", 3, "c"), ("insert", 4, "d")}
    assert rows == expected


@every_kind
def test_compaction_beside_an_append_reads_the_append_only(lake: Lake, namespace: str, version: int, mode: str) -> None:
    t = History(lake, f"{namespace}.t", version, mode)
    a = t.sql(ROWS, ROWS)
    t.sql("CALL lake.system.rewrite_data_files(table => '{n}', options => map('rewrite-all', 'true'))")
    b = t.sql("INSERT INTO {t} VALUES (99, 0, 'new')")
    with lake.capture(t.table, a, b) as capture:
        assert [(f.records, f.side) for f in capture.files] == [(1, "after")]
    t.exact((a, b))


def test_a_file_that_is_listed_twice(lake: Lake, namespace: str) -> None:
    t = History(lake, f"{namespace}.t", 2)
    a = t.sql("INSERT INTO {t} VALUES (1, 1, 'x')")
    b = Java(lake).append_again(t.table)
    c = t.sql("DELETE FROM {t} WHERE true")
    t.exact((a, b), (None, b), (b, c), (a, c))


@pytest.mark.parametrize("version", [2, pytest.param(3, marks=pytest.mark.long)])
def test_captures_of_adjacent_windows_compose(lake: Lake, namespace: str, version: int) -> None:
    t = History(lake, f"{namespace}.t", version, "merge-on-read")
    a = t.sql(ROWS)
    b = t.sql("UPDATE {t} SET v = 'b' WHERE id < 5", "DELETE FROM {t} WHERE id = 6")
    c = t.sql("UPDATE {t} SET v = '1' WHERE id = 1", "INSERT INTO {t} VALUES (6, 0, '6')")

    def effect(start: int | None, end: int | None) -> dict[object, int]:
        with lake.capture(t.table, start, end) as capture:
            away, added = changes(capture.feed(lake.spark()))
        added.subtract(away)
        return dict(added)

    first, second, both = effect(a, b), effect(b, c), effect(a, c)
    summed = {row: first.get(row, 0) + second.get(row, 0) for row in first.keys() | second.keys()}
    assert {k: n for k, n in summed.items() if n} == {k: n for k, n in both.items() if n}
