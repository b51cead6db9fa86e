"""A MERGE that is carried out by position gives the rows, the row ids and the changes that Spark's MERGE gives."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from lake_assets import Lake
from lake_assets.capture.changed_files import net
from lake_assets.capture.files.file_partitions import unpartitioned_specs
from lake_assets.capture.files.manifests import ManifestReader
from lake_assets.capture.files.row_ids import row_ids
from lake_assets.capture.windows import resolve
from lake_assets.errors import ConcurrentWriteError
from lake_assets.lake import TableId, quote, thresholds
from lake_assets.tables.writing import branch_writer
from lake_assets.tables.writing.merge_clauses import Clause, Delete, Insert, Match, Update, insert, source_values
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.row_differences import FOUND, incomparable
from lake_assets.tables.writing.table_ddl import columns_of
from lake_assets.tables.writing.table_writer import TableWriter
from tests.support.iceberg_java import Java
from tests.support.seeds import long_seeds

pytestmark = pytest.mark.spark

# --- values -----------------------------------------------------------------------------------------------------------

_DAY, _MOMENT = date(1969, 12, 25), datetime(1899, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
_FLOATS = (0.0, -0.0, float("nan"), float("inf"), 1.5, -2.25, None)


def _days(n: int) -> date:
    return _DAY + timedelta(days=n)


def _moment(n: int) -> datetime:
    return _MOMENT + timedelta(hours=7 * n, microseconds=n)


# By Spark's type: a distinct value for each number.
KEYS: Mapping[str, Any] = {
    "bigint": lambda n: n - 3,
    "int": lambda n: n * 1_000_003 % 2**31,
    "string": lambda n: ("", "a", "A", "ä", "a\u0000", "語", "a `b`", "'x'")[n] if n < 8 else f"key {n}",
    "date": _days,
    "timestamp": _moment,
    "timestamp_ntz": lambda n: _moment(n).replace(tzinfo=None),
    "decimal(20,4)": lambda n: Decimal(n - 5) / 4,
    "decimal(7,2)": lambda n: Decimal(n) / 100,
    "binary": lambda n: bytes([n % 256, 0, n // 256]),
}
VALUES: Mapping[str, Any] = {
    **{kind: (lambda n, f=f: None if n % 5 == 4 else f(n % 9)) for kind, f in KEYS.items()},
    "boolean": lambda n: (True, False, None)[n % 3],
    "double": lambda n: _FLOATS[n % 7],
    "float": lambda n: _FLOATS[n % 7],
    "array<int>": lambda n: (None, [], [1, None], [n])[n % 4],
    "struct<a:int,b:string>": lambda n: (None, {"a": None, "b": "x"}, {"a": n, "b": None})[n % 3],
    "map<string,decimal(5,1)>": lambda n: (None, [], [("k", Decimal("1.5"))], [("k", None), ("l", Decimal(n))])[n % 4],
}
STEPS = 4
PARTITIONS = ("", "bucket(4, {0})", "{0}", "truncate(2, {0})", "days({1})", "{1}", "months({1}), bucket(2, {0})")


@dataclass
class World:
    """Two tables with the same rows: of one, rows are merged by position, of the other by Spark."""

    lake: Lake
    chance: random.Random
    key: list[str]
    types: dict[str, str]
    monkeypatch: pytest.MonkeyPatch
    by_position: int = 0
    has_ids: bool = False
    last: dict[int, dict[str, Any]] = field(default_factory=dict)

    def sql(self, text: str) -> None:
        for name in ("position", "spark"):
            self.lake.spark().sql(text.format(t=f"lake.db.{name}"))

    def compact(self) -> None:
        for name in ("position", "spark"):
            self.lake.spark().sql(
                f"CALL lake.system.rewrite_data_files(table => 'db.{name}', "
                "options => map('min-input-files', '1', 'rewrite-all', 'true'))"
            )

    def row(self, n: int) -> dict[str, Any]:
        """A row with the key number `n`, and any other values; often the ones that it has already."""
        if n in self.last and self.last[n].keys() == self.types.keys() and self.chance.random() < 0.4:
            return self.last[n]
        self.last[n] = self._new_row(n)
        return self.last[n]

    def _new_row(self, n: int) -> dict[str, Any]:
        numbers = [n % 7, n // 7] if len(self.key) > 1 else [n]
        number_of = dict(zip(self.key, numbers, strict=True))

        def value(column: str, kind: str) -> Any:
            if column not in number_of:
                return VALUES[kind](self.chance.randrange(60))
            # Null is one of the values of a key.
            is_null = number_of[column] == 0 and column == self.key[-1]
            return None if is_null else KEYS[kind](number_of[column])

        return {c: value(c, kind) for c, kind in self.types.items()}

    def frame(self, rows: Sequence[dict[str, Any]], found: Sequence[bool | None]) -> DataFrame:
        spark = self.lake.spark()
        schema = ", ".join(f"{quote(c)} {kind}" for c, kind in self.types.items())
        listed = [
            (*(_for_spark(r[c], kind) for c, kind in self.types.items()), f) for r, f in zip(rows, found, strict=True)
        ]
        return spark.createDataFrame(listed, f"{schema}, {FOUND} boolean")

    def writer(self, name: str) -> TableWriter:
        table = self.lake.table(f"db.{name}")
        return TableWriter(
            Commit(self.lake, TableId.parse(f"db.{name}"), table), columns_of(self.lake, TableId.parse(f"db.{name}"))
        )

    def merge(self, rows: DataFrame, clauses: Sequence[Clause] | None = None) -> None:
        """Merge rows into both tables, and compare them."""
        for name, most in (("position", thresholds.POSITION_VALUES), ("spark", 0)):
            with self.monkeypatch.context() as patch:
                patch.setattr(thresholds, "POSITION_VALUES", most)
                before, since = self.ids(name), self._sequence_number(name)
                writer = self.writer(name)
                how = ""
                if clauses is None:
                    writer.replace(rows, self.key, at_most=1_000)
                else:
                    how = writer.merge(rows, Match(self.key), clauses, at_most=1_000)
                self.by_position += self.is_by_position(name)
                assert how == "" or name == "position", how
                self._check_changes(name, before)
                self._check_ids(name, before, since, only_changed=clauses is None and not incomparable(self.types))
        assert self.rows("position") == self.rows("spark")

    def _sequence_number(self, name: str) -> int:
        snapshot = self.lake.table(f"db.{name}").current_snapshot()
        return (snapshot.sequence_number or 0) if snapshot else 0

    def is_by_position(self, name: str) -> bool:
        snapshot = self.lake.table(f"db.{name}").current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        return any(k.startswith("lake-assets.merged-rows-") for k in snapshot.summary.additional_properties)

    def _check_ids(self, name: str, before: Mapping[Any, Any], since: int, *, only_changed: bool) -> None:
        """Rows keep their ids, and those that differ have a new version; with `only_changed`, no others."""
        for key, (row, id_, version) in self.ids(name).items():
            if key in before:
                old, old_id, old_version = before[key]
                assert id_ == old_id, (name, key)
                assert row == old or version > since, (name, key, old, row)
                assert row != old or version == old_version or not only_changed, (name, key, row)
            else:
                assert version > since

    def _check_changes(self, name: str, before: Mapping[Any, Any]) -> None:
        """Captures find the changed rows by their versions, if metadata allow it for Spark's files."""
        table = self.lake.table(f"db.{name}")
        if not before or len(table.history()) < 2:
            return
        window = resolve(table, TableId.parse(f"db.{name}"), start=table.history()[-2].snapshot_id)
        ids = row_ids(table, window, net(ManifestReader(table.io), window, unpartitioned_specs(table.specs())))
        if name == "position":
            self.has_ids = ids is not None
        else:
            assert self.has_ids or ids is None

    def ids(self, name: str) -> dict[Any, tuple[Any, int, int]]:
        """By key: the row, its id, and the sequence number of its last change."""
        columns = ", ".join(map(quote, self.types))
        rows = self.lake.spark().sql(f"SELECT {columns}, _row_id, _last_updated_sequence_number FROM lake.db.{name}")
        listed = [(repr([r[k] for k in self.key]), repr(list(r)[:-2]), r[-2], r[-1]) for r in rows.collect()]
        by_key = {key: (row, id_, version) for key, row, id_, version in listed}
        assert len(by_key) == len(listed)
        assert len({id_ for _, id_, _ in by_key.values()}) == len(listed)
        return by_key

    def rows(self, name: str) -> list[str]:
        rows = self.lake.spark().table(f"lake.db.{name}").collect()
        return sorted(map(repr, rows))


def _for_spark(value: Any, kind: str) -> Any:
    return dict(value) if kind.startswith("map") and value is not None else value


def _world(lake: Lake, monkeypatch: pytest.MonkeyPatch, seed: int) -> World:
    chance = random.Random(seed)
    kinds = chance.sample(list(KEYS), 2)
    key = ["k", "at `1`"][: chance.choice((1, 1, 2))]
    types = dict(zip(["k", "at `1`"], kinds, strict=True)) | {
        f"v{n}": kind for n, kind in enumerate(chance.sample(list(VALUES), chance.randrange(1, 6)))
    }
    lake.ensure_namespace(("db",))
    world = World(lake, chance, key, types, monkeypatch)
    columns = ", ".join(f"{quote(c)} {kind}" for c, kind in types.items())
    order = chance.sample(PARTITIONS, len(PARTITIONS))
    for partition in (*order, ""):
        by = partition.format(*map(quote, ["k", "at `1`"]))
        try:
            world.sql(
                f"CREATE TABLE {{t}} ({columns}) USING iceberg {f'PARTITIONED BY ({by})' if by else ''} TBLPROPERTIES "
                "('format-version' = '3', 'write.merge.mode' = 'merge-on-read', 'write.delete.mode' = 'merge-on-read', "
                "'write.merge.distribution-mode' = 'none', 'write.parquet.row-group-size-bytes' = '20000')"
            )
            break
        except Exception as e:  # the type has no such partitioning
            if "transform" not in str(e).lower() and "bucket" not in str(e).lower():
                raise
    return world


@pytest.mark.parametrize("seed", [0, *long_seeds(1, 60)])
def test_a_merge_by_position_is_the_merge_of_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    world = _world(lake, monkeypatch, seed)
    chance = world.chance
    # Each of many partitions is compacted by a job of its own.
    count = 30 if seed == 0 else 200
    rows = [world.row(n) for n in range(count)]
    for name in ("position", "spark"):
        world.frame(rows, [True] * count).select(*map(quote, world.types)).coalesce(3).writeTo(
            f"lake.db.{name}"
        ).append()
    steps = 2 if seed == 0 else STEPS
    for step in range(steps):
        numbers = chance.sample(range(count + 60), chance.choice((0, 1, 5, 40)))
        changed = [world.row(n) for n in numbers]
        world.merge(world.frame(changed, [chance.choice((True, True, None)) for _ in changed]))
        match chance.randrange(6):
            case 0:
                world.compact()
            case 1:
                world.sql(f"ALTER TABLE {{t}} ADD COLUMN added{step} int")
                world.types[f"added{step}"] = "int"
            case 2 if any(c.startswith("v") for c in world.types):
                old = next(c for c in world.types if c.startswith("v"))
                world.sql(f"ALTER TABLE {{t}} RENAME COLUMN {old} TO re_{old}")
                world.types = {f"re_{c}" if c == old else c: kind for c, kind in world.types.items()}
            case 3:
                world.sql(f"DELETE FROM {{t}} WHERE hash(k) % 7 = {chance.randrange(7)}")
            case 4:
                world.sql(f"ALTER TABLE {{t}} WRITE ORDERED BY {quote('k')} DESC")
            case _:
                pass
    assert world.by_position == steps


def test_rows_with_maps_are_replaced(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.ensure_namespace(("db",))
    world = World(lake, random.Random(0), ["id"], {"id": "bigint", "m": "map<string,decimal(5,1)>"}, monkeypatch)
    world.sql("CREATE TABLE {t} (id bigint, m map<string,decimal(5,1)>) USING iceberg TBLPROPERTIES ('format-version' = '3', "
              "'write.merge.mode' = 'merge-on-read', 'write.delete.mode' = 'merge-on-read')")  # fmt: skip
    world.sql("INSERT INTO {t} SELECT id, map('a', CAST(id AS decimal(5,1))) FROM range(20)")
    rows = [{"id": n, "m": [("a", Decimal(value))]} for n, value in ((3, 3), (4, 5), (5, 0), (30, 1))]
    world.merge(world.frame(rows, [True, True, None, True]))
    found = {r["id"]: r["m"]["a"] for r in lake.spark().table("lake.db.position").collect()}
    assert found == {**{n: n for n in range(20) if n != 5}, 4: 5, 30: 1}
    assert world.by_position == 1


# --- clauses ----------------------------------------------------------------------------------------------------------


def _simple(lake: Lake, monkeypatch: pytest.MonkeyPatch, properties: str = "") -> World:
    lake.ensure_namespace(("db",))
    world = World(lake, random.Random(0), ["id"], {"id": "bigint", "n": "int", "name": "string"}, monkeypatch)
    world.sql(
        "CREATE TABLE {t} (id bigint, n int, name string) USING iceberg TBLPROPERTIES ('format-version' = '3', "
        f"'write.merge.mode' = 'merge-on-read', 'write.delete.mode' = 'merge-on-read'{properties})"
    )
    world.sql("INSERT INTO {t} SELECT id, CAST(id % 10 AS INT), 'name ' || id FROM range(0, 100, 1, 2)")
    return world


def _source(lake: Lake, *ids: int) -> DataFrame:
    listed = ", ".join(f"({i}L)" for i in ids)
    rows = (
        f"SELECT id, CAST(id % 7 AS INT) AS n, 'new ' || id AS name, id % 3 = 0 AS goes FROM VALUES {listed} AS v(id)"
    )
    return lake.spark().sql(rows)


CLAUSES: Mapping[str, Sequence[Clause]] = {
    "values of both rows": [Update(values={"n": "t.`n` + s.`n`", "name": "concat(t.`name`, s.`name`)"})],
    "one column": [Update("s.`goes`", {"n": "s.`n`"}), insert(["id", "n", "name"])],
    "conditions on both rows": [Delete("t.`n` > s.`n`"), Update("t.`n` < 5", {"n": "-1"}), Insert("s.`goes`", {"id": "s.`id`"})],
    "deletes alone": [Delete("s.`goes`")],
    "the first clause counts": [Delete("s.`goes`"), Delete(), insert(["id", "n", "name"])],
    "inserts alone": [insert(["id", "n", "name"])],
    "only what differs": [Update(values={"n": "s.`n`", "name": "t.`name`"}, compared={"n": "int"})],
    "a value that fails if it is not needed": [
        Update("t.`id` < 0", {"n": "CAST(raise_error('not needed') AS INT)"}),
        Update(values={"n": "0"}),
        Insert("s.`id` < 0", {"id": "s.`id`", "n": "CAST(raise_error('not needed') AS INT)", "name": "''"}),
        insert(["id", "n", "name"]),
    ],
}  # fmt: skip


@pytest.mark.long
def test_clauses_mean_what_they_mean_to_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    world = _simple(lake, monkeypatch)
    for what, clauses in CLAUSES.items():
        world.merge(_source(lake, 3, 5, 9, 33, 98, 101, 102), clauses)
        assert world.by_position, what
    # No row is found: there is nothing to do, or there are rows to insert.
    for what in ("deletes alone", "a value that fails if it is not needed"):
        world.merge(_source(lake, 500, 501), CLAUSES[what])
    assert world.by_position == len(CLAUSES) + 2


def test_an_error_of_a_clause_ends_the_merge_and_leaves_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    world = _simple(lake, monkeypatch)
    before, files = world.rows("position"), _files(lake)
    failing = [Update(values={"n": "CAST(raise_error('in doubt') AS INT)"})]
    with pytest.raises(Exception, match="in doubt"):
        world.writer("position").merge(_source(lake, 3), Match(["id"]), failing)
    assert world.rows("position") == before
    assert _files(lake) == files


# --- what is left to Spark --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            "ALTER TABLE {t} SET TBLPROPERTIES ('write.merge.mode' = 'copy-on-write')", marks=pytest.mark.long
        ),
        "ALTER TABLE {t} SET TBLPROPERTIES ('write.format.default' = 'orc')",
    ],
)
def test_tables_that_it_cannot_write_are_left_to_spark(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    world = _simple(lake, monkeypatch)
    world.sql(change)
    clauses = [Delete("s.`goes`"), Update(values={"n": "s.`n`"})]
    for name in ("position", "spark"):
        world.writer(name).merge(_source(lake, 3, 5), Match(["id"]), clauses)
    assert not world.is_by_position("position")
    assert world.rows("position") == world.rows("spark")


class _Pair(World):
    """A pair of tables with a key `id`, and any other columns."""

    def __init__(self, lake: Lake, monkeypatch: pytest.MonkeyPatch, columns: str, partition: str = "") -> None:
        lake.ensure_namespace(("db",))
        types = dict(c.strip().split(" ", 1) for c in columns.split(";"))
        super().__init__(lake, random.Random(0), ["id"], types, monkeypatch)
        self.sql(
            f"CREATE TABLE {{t}} ({columns.replace(';', ',')}) USING iceberg {partition} TBLPROPERTIES "
            "('format-version' = '3', 'write.merge.mode' = 'merge-on-read', 'write.delete.mode' = 'merge-on-read')"
        )

    def merged(self, rows: str, clauses: Sequence[Clause] = ()) -> bool:
        """Merge rows into both tables; return whether it was done by position, and with the same result."""
        source = self.lake.spark().sql(rows)
        clauses = clauses or [Update(values=source_values(list(self.types))), insert(list(self.types))]
        for name, most in (("position", thresholds.POSITION_VALUES), ("spark", 0)):
            with self.monkeypatch.context() as patch:
                patch.setattr(thresholds, "POSITION_VALUES", most)
                self.writer(name).merge(source, Match(self.key), clauses, at_most=100)
        one, other = (
            self.lake.spark().sql(f"SELECT to_json(struct(*)) FROM lake.db.{name}").collect()
            for name in ("position", "spark")
        )
        assert sorted(one) == sorted(other)
        return self.is_by_position("position")


# By what is special: the columns, the partitioning or order, the first rows, and the rows that are merged.
ODD_TABLES: Mapping[str, tuple[str, str, str, str]] = {
    "partitions of a field within a column, of the name of another": (
        "id bigint; s struct<v:int>; v int", "PARTITIONED BY (s.v)",
        "SELECT id, named_struct('v', int(id % 3)) AS s, 7 AS v FROM range(9)",
        "SELECT id, named_struct('v', int(id % 4)) AS s, 9 AS v FROM range(5, 12)",
    ),
    "partitions after the year 9999": (
        "id bigint; at timestamp", "PARTITIONED BY (days(at))",
        "SELECT id, timestamp '2020-01-01' AS at FROM range(9)",
        "SELECT id, timestamp '+12000-01-01' AS at FROM range(5, 12)",
    ),
    "values of other types": (
        "id bigint; n int; d decimal(7,2)", "",
        "SELECT id, int(id) AS n, 1.5 AS d FROM range(9)",
        "SELECT id, 1.5D AS n, 2.555 AS d FROM range(5, 12)",
    ),
    "keys of other types": (
        "id int; n int", "",
        "SELECT int(id) AS id, int(id) AS n FROM range(9)",
        "SELECT id + 0.5D AS id, 0 AS n FROM range(3)",
    ),
    "names of another case": (
        "id bigint; V int", "",
        "SELECT id, int(id) AS V FROM range(9)",
        "SELECT id, int(-id) AS v FROM range(5, 12)",
    ),
    "null structs with a field that is never null, in a list": (
        "id bigint; l array<struct<x:int>>", "",
        "SELECT id, array(named_struct('x', 1)) AS l FROM range(9)",
        "SELECT id, array(named_struct('x', 1), null) AS l FROM range(5, 12)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ODD_TABLES)
def test_odd_tables_and_sources_are_left_to_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    columns, partition, first, merged = ODD_TABLES[what]
    world = _Pair(lake, monkeypatch, columns, partition)
    world.sql(f"INSERT INTO {{t}} {first}")
    assert not world.merged(merged)


def test_defaults_of_new_rows_are_left_to_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    world = _Pair(lake, monkeypatch, "id bigint; n int")
    world.sql("INSERT INTO {t} SELECT id, int(id) FROM range(9)")
    iceberg: Any = lake.spark()._jvm.org.apache.iceberg  # type: ignore[union-attr]
    for name in ("position", "spark"):
        change = Java(lake).table(f"db.{name}").updateSchema()
        change.addColumn("d", iceberg.types.Types.IntegerType.get(), iceberg.expressions.Literal.of(7)).commit()
    assert not world.merged("SELECT id FROM range(20, 22)", [Insert(values={"id": "s.`id`"})])
    assert lake.spark().sql("SELECT * FROM lake.db.position WHERE d = 7").count() == 11


@pytest.mark.parametrize(
    "setting", [pytest.param("'write.metadata.metrics.default' = 'rubbish'", marks=pytest.mark.long), ""]
)
def test_values_that_python_cannot_represent_are_written_without_bounds(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    world = _Pair(lake, monkeypatch, "id bigint; text string; at timestamp")
    if setting:
        world.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({setting})")
    world.sql("INSERT INTO {t} SELECT id, 'x', timestamp '2020-01-01' FROM range(9)")
    # The upper bound of the first text would end with half of a surrogate pair; the second one is no UTF-8.
    for text, at in (
        ("concat(repeat('a', 15), decode(X'ED9FBF', 'UTF-8'), 'z')", "2020-01-01"),
        ("CAST(X'61FF62' AS STRING)", "2020-01-01"),
        ("'x'", "+20000-01-01"),
        ("repeat('long', 3000)", "-0100-01-01"),
    ):
        assert world.merged(f"SELECT id, {text} AS text, timestamp '{at}' AS at FROM range(5, 12)")
        found = f"SELECT * FROM lake.db.position WHERE text = {text} AND at = timestamp '{at}'"
        assert lake.spark().sql(found).count() == 7


def test_filters_of_readers_find_nan(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    world = _Pair(lake, monkeypatch, "id bigint; x double; f float; l array<float>")
    world.sql("INSERT INTO {t} SELECT id, 1.0D, float(1), array(float(1)) FROM range(9)")
    assert world.merged(
        "SELECT id, if(id = 25, double('nan'), 1.0D) AS x, if(id > 25, float('nan'), float(1)) AS f, "
        "array(float('nan'), float(id)) AS l FROM range(20, 30)"
    )
    paths = lake.table("db.position").inspect.data_files()["file_path"].to_pylist()
    files = [path.removeprefix("file:").removeprefix("//") for path in paths]
    for where, count in (("x > 5", 1), ("x = double('nan')", 1), ("f > 5", 4), ("isnan(f)", 4), ("id = 7", 1)):
        assert lake.spark().sql(f"SELECT * FROM lake.db.position WHERE {where}").count() == count, where
        in_duckdb = where.replace("double('nan')", "'nan'::double")
        found = duckdb.connect().execute(f"SELECT count(*) FROM read_parquet({files}) WHERE {in_duckdb}").fetchone()
        assert found == (count,), where


def test_rows_are_written_in_the_order_of_a_field_within_a_column(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    world = _Pair(lake, monkeypatch, "id bigint; s struct<a:int>")
    world.sql("ALTER TABLE {t} WRITE ORDERED BY s.a")
    world.sql("INSERT INTO {t} SELECT id, named_struct('a', int(id)) FROM range(9)")
    assert world.merged("SELECT id, named_struct('a', int(-id)) AS s FROM range(5, 12)")


def test_rows_that_share_a_key_are_left_to_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    world = _simple(lake, monkeypatch)
    twice = _source(lake, 3).unionAll(_source(lake, 3))
    with pytest.raises(Exception, match="MERGE_CARDINALITY_VIOLATION"):
        world.writer("position").merge(twice, Match(["id"]), [Update(values={"n": "s.`n`"})])
    # Rows that are inserted may share one.
    new = _source(lake, 777)
    world.writer("position").merge(new.unionAll(new), Match(["id"]), [insert(["id", "n", "name"])])
    assert lake.spark().sql("SELECT * FROM lake.db.position WHERE id = 777").count() == 2


def test_a_lost_file_is_reported_as_by_spark(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    world = _simple(lake, monkeypatch)
    for path in world.writer("position").commit.existing.inspect.data_files()["file_path"].to_pylist():
        lake.table("db.position").io.delete(path)
    with pytest.raises(Exception, match=r"(?i)file.*(not exist|not found)|FileNotFound"):
        world.writer("position").merge(_source(lake, 3), Match(["id"]), [Update(values={"n": "s.`n`"})])


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unknown", [False, True])
def test_files_of_a_failed_commit_are_deleted_unless_it_may_have_been_made(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, unknown: bool
) -> None:
    world = _simple(lake, monkeypatch)
    files, text = _files(lake), "CommitStateUnknownException" if unknown else "CommitFailedException"

    def fails(*_: Any) -> None:
        raise PySparkException(f"org.apache.iceberg.exceptions.{text}: no")

    monkeypatch.setattr(branch_writer, "commit_files", fails)
    with pytest.raises(ConcurrentWriteError):
        world.writer("position").merge(_source(lake, 3), Match(["id"]), [Update(values={"n": "s.`n`"})])
    assert len(_files(lake) - files) == (2 if unknown else 0)
    assert "branch" not in " ".join(lake.table("db.position").metadata.refs.keys() - {"main"})


def test_a_writer_that_comes_between_is_noticed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    world = _simple(lake, monkeypatch)
    writer, commit = world.writer("position"), branch_writer.commit_files

    def late(*args: Any) -> None:
        world.sql("DELETE FROM {t} WHERE id = 3")
        commit(*args)

    monkeypatch.setattr(branch_writer, "commit_files", late)
    with pytest.raises(ConcurrentWriteError):
        writer.merge(_source(lake, 3), Match(["id"]), [Update(values={"n": "s.`n`"})])
    assert lake.spark().sql("SELECT * FROM lake.db.position WHERE id = 3").collect() == []


def _files(lake: Lake) -> set[Path]:
    return {
        p
        for p in Path(lake.config.home).rglob("*")
        if p.suffix in (".parquet", ".puffin") and "position" in p.parts and not p.name.startswith(".")
    }
