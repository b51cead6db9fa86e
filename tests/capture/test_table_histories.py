"""Random histories of tables of every kind: start and the feed always give the end."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from lake_assets import Lake
from tests.support.capture_oracle import assert_upserts, bag, changes, fields, upserts_of
from tests.support.iceberg_java import Java
from tests.support.seeds import histories

STEPS = int(os.environ.get("CAPTURE_STEPS", "0"))


class Histories(RuleBasedStateMachine):
    """One table; every rule commits a change or checks a random window.

    What each snapshot holds is kept by field id, as it was read when it was the current one: so it does not depend on
    what is tested here.
    """

    lake: ClassVar[Lake]
    version: ClassVar[int] = 3
    mode: ClassVar[str] = "copy-on-write"
    partitioned: ClassVar[bool] = False
    keyed: ClassVar[bool] = False
    made: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.contents: dict[int | None, list[dict[int, Any]]] = {None: []}
        self.order: list[int | None] = [None]
        self.next_id = 0
        self.columns = 0

    @initialize()
    def make(self) -> None:
        Histories.made += 1  # the tests share a lake
        self.table = f"h{self.version}{self.mode[0]}{int(self.partitioned)}{int(self.keyed)}.t{Histories.made}"
        self.lake.ensure_namespace((self.table.split(".")[0],))
        part = "PARTITIONED BY (g)" if self.partitioned else ""
        modes = ",".join(f"'write.{w}.mode'='{self.mode}'" for w in ("merge", "update", "delete"))
        self.sql(
            f"CREATE TABLE {{t}} (id INT NOT NULL, g INT, v STRING, x FLOAT, m MAP<STRING, INT>) USING iceberg {part} "
            f"TBLPROPERTIES ('format-version'='{self.version}', {modes})"
        )
        if self.keyed:
            self.sql("ALTER TABLE {t} SET IDENTIFIER FIELDS id")
        self.insert([(1, "a"), (2, "b"), (3, None)])

    # --- what happens to a table --------------------------------------------------------------------------------

    groups = st.integers(0, 2)
    texts = st.sampled_from(["a", "b", "c", None])

    @rule(rows=st.lists(st.tuples(groups, texts), min_size=1, max_size=4))
    def insert(self, rows: list[tuple[int, str | None]]) -> None:
        values = []
        for g, v in rows:
            self.next_id += 1
            x = ["CAST('NaN' AS FLOAT)", "-0.0F", "0.0F", "NULL"][self.next_id % 4]
            values.append(f"({self.next_id}, {g}, {_text(v)}, {x}, map('k', {self.next_id % 2}))")
        self.sql(f"INSERT INTO {{t}} (id, g, v, x, m) VALUES {', '.join(values)}")
        self.commit()

    @precondition(lambda self: not self.keyed)
    @rule()
    def insert_duplicates(self) -> None:
        self.sql("INSERT INTO {t} SELECT * FROM {t} WHERE id % 2 = 0")
        self.commit()

    @rule(n=st.integers(0, 4), v=texts)
    def update(self, n: int, v: str | None) -> None:
        self.sql(f"UPDATE {{t}} SET v = {_text(v)} WHERE id % 5 = {n}")
        self.commit()

    @rule(n=st.integers(0, 4))
    def move(self, n: int) -> None:
        self.sql(f"UPDATE {{t}} SET g = (g + 1) % 3 WHERE id % 5 = {n}")
        self.commit()

    @rule(n=st.integers(0, 6))
    def delete(self, n: int) -> None:
        self.sql(f"DELETE FROM {{t}} WHERE id % 7 = {n}")
        self.commit()

    @rule(g=groups)
    def delete_group(self, g: int) -> None:
        self.sql(f"DELETE FROM {{t}} WHERE g = {g}")
        self.commit()

    @precondition(lambda self: self.keyed)
    @rule(n=st.integers(0, 3))
    def merge(self, n: int) -> None:
        self.next_id += 1
        self.sql(
            f"MERGE INTO {{t}} t USING (SELECT explode(array_distinct(array({n + 1}, {n + 5}, {self.next_id}))) AS id) s ON t.id = s.id "
            "WHEN MATCHED AND t.g = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET v = 'merged' "
            "WHEN NOT MATCHED THEN INSERT (id, g, v) VALUES (s.id, s.id % 3, 'new')"
        )
        self.commit()

    @rule(dynamic=st.booleans(), g=groups)
    def overwrite(self, dynamic: bool, g: int) -> None:
        self.next_id += 1
        self.lake.spark().conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic" if dynamic else "static")
        self.sql(f"INSERT OVERWRITE {{t}} (id, g, v) VALUES ({self.next_id}, {g}, 'over')")
        self.lake.spark().conf.set("spark.sql.sources.partitionOverwriteMode", "static")
        self.commit()

    @rule()
    def compact(self) -> None:
        self.sql("CALL lake.system.rewrite_data_files(table => '{n}', options => map('rewrite-all', 'true'))")
        self.commit()

    @rule(deletes=st.booleans())
    def tidy(self, deletes: bool) -> None:
        what = "rewrite_position_delete_files" if deletes else "rewrite_manifests"
        self.sql(f"CALL lake.system.{what}('{{n}}')")
        self.commit()

    @rule(back=st.integers(1, 3))
    def roll_back(self, back: int) -> None:
        ids = [s.snapshot_id for s in self.ancestors()]
        if back < len(ids):
            self.sql(f"CALL lake.system.rollback_to_snapshot('{{n}}', {ids[back]})")

    @rule(data=st.data())
    def set_current(self, data: st.DataObject) -> None:
        existing = [s for s in self.order if s is not None]
        self.sql(f"CALL lake.system.set_current_snapshot('{{n}}', {data.draw(st.sampled_from(existing))})")

    @rule()
    def cherry_pick(self) -> None:
        spark = self.lake.spark()
        self.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.wap.enabled'='true')")
        self.next_id += 1
        spark.conf.set("spark.wap.id", f"w{self.next_id}")
        try:
            self.sql(f"INSERT INTO {{t}} (id, g, v) VALUES ({self.next_id}, 1, 'picked')")
        finally:
            spark.conf.unset("spark.wap.id")
            self.sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('write.wap.enabled')")
        staged = self.lake.table(self.table).metadata.snapshots[-1].snapshot_id
        self.sql(f"CALL lake.system.cherrypick_snapshot('{{n}}', {staged})")
        self.commit()

    @rule(g=groups)
    def publish_branch(self, g: int) -> None:
        self.next_id += 1
        branch = f"b{self.next_id}"
        self.sql(f"ALTER TABLE {{t}} CREATE BRANCH {branch}")
        name = f"{self.lake.sql_name(self.table)}.branch_{branch}"
        self.lake.spark().sql(f"INSERT INTO {name} (id, g, v) VALUES ({self.next_id}, {g}, 'branch')")
        self.lake.spark().sql(f"DELETE FROM {name} WHERE id % 6 = {g}")
        self.sql(f"CALL lake.system.fast_forward('{{n}}', 'main', '{branch}')")
        self.sql(f"ALTER TABLE {{t}} DROP BRANCH {branch}")
        self.commit()

    @rule(what=st.sampled_from(["add", "drop", "rename", "widen", "first"]))
    def evolve(self, what: str) -> None:
        own = [f.name for f in self.lake.table(self.table).schema().fields if f.name.startswith("c")]
        if what == "add" or not own:
            # The same name is added again with another id.
            name = f"c{self.columns % 2}"
            if name not in own:
                self.columns += 1
                self.sql(f"ALTER TABLE {{t}} ADD COLUMN {name} INT")
                self.sql(f"UPDATE {{t}} SET {name} = id WHERE id % 2 = 0")
        elif what == "drop":
            self.sql(f"ALTER TABLE {{t}} DROP COLUMN {own[0]}")
        elif what == "rename":
            self.columns += 1
            self.sql(f"ALTER TABLE {{t}} RENAME COLUMN {own[0]} TO cr{self.columns}")
        elif what == "widen":
            self.sql(f"ALTER TABLE {{t}} ALTER COLUMN {own[0]} TYPE BIGINT")
        else:
            self.sql(f"ALTER TABLE {{t}} ALTER COLUMN {own[0]} FIRST")
        self.insert([(1, "evolved")])

    @rule(field=st.sampled_from(["bucket(2, id)", "truncate(1, v)", "g"]))
    def repartition(self, field: str) -> None:
        table = self.lake.table(self.table)
        fields = [(p.name, str(p.transform)) for p in table.spec().fields]
        name = {"bucket(2, id)": "id_bucket_2", "truncate(1, v)": "v_trunc_1", "g": "g"}[field]
        verb = "DROP" if any(p == name for p, _ in fields) else "ADD"
        self.sql(f"ALTER TABLE {{t}} {verb} PARTITION FIELD {field if verb == 'ADD' else name}")
        self.insert([(2, "moved")])

    @precondition(lambda self: self.version >= 2)
    @rule(n=st.integers(1, 9), upsert=st.booleans())
    def delete_by_equality(self, n: int, upsert: bool) -> None:
        if self.lake.table(self.table).spec().fields:
            return  # a delete file belongs to one partition; see test_equality_deletes
        row = {"id": n, "g": 1, "v": "equal"}
        Java(self.lake).delete_where_equal(self.table, [{"id": n}], [row] if upsert else [])
        self.commit()

    @precondition(lambda self: self.version == 2)
    @rule()
    def upgrade(self) -> None:
        if self.lake.table(self.table).format_version == 2:
            self.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')")

    # --- what must hold -----------------------------------------------------------------------------------------

    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        current = self.lake.table(self.table).current_snapshot()
        assert current is not None
        start = data.draw(st.sampled_from(self.order))
        self.check(start, current.snapshot_id)

    @rule(data=st.data())
    def look_into_the_past(self, data: st.DataObject) -> None:
        a, b = sorted(data.draw(st.tuples(st.integers(0, len(self.order) - 1), st.integers(1, len(self.order) - 1))))
        if self.order[b] is not None:
            self.check(self.order[a], self.order[b])

    def check(self, start: int | None, end: int | None) -> None:
        spark = self.lake.spark()
        with self.lake.capture(self.table, start, end) as capture:
            ids = [f.field_id for f in capture.schema.fields]
            before, after = (bag([r.get(i) for i in ids] for r in self.contents[s]) for s in (start, end))
            away, added = changes(capture.feed(spark))
            assert not away - before, "rows were taken away that are not there"
            assert before - away + added == after
            assert_upserts(capture, upserts_of(capture, spark), added, before & after)
            if capture.is_empty:
                assert before == after

    def teardown(self) -> None:
        if len(self.order) > 1:
            self.check(self.order[1], self.order[-1])

    def sql(self, text: str) -> None:
        self.lake.spark().sql(text.format(t=self.lake.sql_name(self.table), n=self.table))

    def ancestors(self) -> list[Any]:
        meta = self.lake.table(self.table).metadata
        out, at = [], meta.current_snapshot()
        while at is not None:
            out.append(at)
            at = meta.snapshot_by_id(at.parent_snapshot_id) if at.parent_snapshot_id else None
        return out

    def commit(self) -> None:
        """Record the contents of the current snapshot, if it is new."""
        current = self.lake.table(self.table).current_snapshot()
        if current is not None and current.snapshot_id not in self.contents:
            self.contents[current.snapshot_id] = fields(self.lake, self.table)
            self.order.append(current.snapshot_id)


def _text(v: str | None) -> str:
    return "NULL" if v is None else f"'{v}'"


KINDS = [
    pytest.param(version, mode, partitioned, keyed, id=f"v{version}-{mode}-{'partitioned' if partitioned else 'whole'}")
    for version, mode, partitioned, keyed in (
        (2, "copy-on-write", False, True),
        (2, "merge-on-read", True, False),
        (3, "copy-on-write", True, True),
        (3, "merge-on-read", False, False),
        (1, "copy-on-write", False, False),
        (2, "copy-on-write", True, False),
        (2, "merge-on-read", False, True),
        (3, "copy-on-write", False, False),
        (3, "merge-on-read", True, True),
    )
]


def run(lake: Lake, kind: tuple[int, str, bool, bool], examples: int, steps: int) -> None:
    version, mode, partitioned, keyed = kind
    facts = {"lake": lake, "version": version, "mode": mode, "partitioned": partitioned, "keyed": keyed}
    machine = type("Machine", (Histories,), facts)
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=checks,
            print_blob=True,
            derandomize=not STEPS,
            database=None,
        ),
    )


@pytest.mark.parametrize(
    ("version", "mode", "partitioned", "keyed"),
    [pytest.param(*KINDS[1].values, id=KINDS[1].id, marks=pytest.mark.long), KINDS[2]],
)
def test_short_histories(lake: Lake, version: int, mode: str, partitioned: bool, keyed: bool) -> None:
    run(lake, (version, mode, partitioned, keyed), 1, 8)


@pytest.mark.long
@pytest.mark.parametrize(("version", "mode", "partitioned", "keyed"), KINDS)
def test_long_histories(lake: Lake, version: int, mode: str, partitioned: bool, keyed: bool) -> None:
    run(lake, (version, mode, partitioned, keyed), histories(4), STEPS or 30)
