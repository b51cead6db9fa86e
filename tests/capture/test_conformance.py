"""Random tables, writers and windows against plain multisets: a feed leads from start to end with no other changes.

A round makes a table of random kind, commits random changes to it, and looks at random windows with and without keys.
What a snapshot holds is read when it is the current one, so that the oracle does not depend on captures.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import functions as F

from lake_assets import Lake
from lake_assets.capture import Capture
from tests.support.capture_oracle import assert_upserts, bag, changes, upserts_of
from tests.support.iceberg_java import Java
from tests.support.seeds import seeds

COLUMNS = ["id", "g", "v", "x"]
SPECS = ["", "", "g", "x", "bucket(2, id)", "truncate(1, v)", "g, x", "void"]
METRICS = ["default", "none", "counts", "mixed", "per column"]
TEXTS = ["'a'", "'b'", "'c'", "NULL"]
DOUBLES = ["CAST('NaN' AS DOUBLE)", "-0.0D", "0.0D", "1.5D", "NULL"]


class Round:
    """One table, what is done to it, and what its snapshots hold."""

    def __init__(self, lake: Lake, namespace: str, seed: int) -> None:
        self.lake, self.spark, self.seed = lake, lake.spark(), seed
        self.random = random.Random(seed)
        self.table = f"{namespace}.c{seed}"
        self.name = lake.sql_name(self.table)
        self.contents: dict[int | None, Counter[Any]] = {None: Counter()}
        self.done: list[str] = []
        self.make()

    # --- a table of some kind -------------------------------------------------------------------------------------

    def make(self) -> None:
        spec, mode = self.random.choice(SPECS), self.random.choice(["copy-on-write", "merge-on-read"])
        self.version = 2 if spec == "void" else self.random.choice([2, 3, 3])
        part = f"PARTITIONED BY ({'g' if spec == 'void' else spec})" if spec else ""
        properties = {f"write.{w}.mode": mode for w in ("merge", "update", "delete")}
        properties["format-version"] = "1" if spec == "void" else str(self.version)
        properties["write.delete.granularity"] = self.random.choice(["file", "partition"])
        listed = ", ".join(f"'{k}'='{v}'" for k, v in properties.items())
        columns = "id INT, g INT, v STRING, x DOUBLE"
        self.sql(f"CREATE TABLE {{t}} ({columns}) USING iceberg {part} TBLPROPERTIES ({listed})", commits=False)
        self.metrics()
        if spec == "void":
            self.insert()
            self.sql("ALTER TABLE {t} DROP PARTITION FIELD g", commits=False)
            self.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='2')", commits=False)
        self.insert()

    def metrics(self) -> None:
        how = self.random.choice(METRICS)
        modes = {"default": "none" if how in ("none", "mixed", "per column") else "truncate(16)"}
        modes["default"] = "counts" if how == "counts" else modes["default"]
        if how in ("mixed", "per column"):
            modes |= {f"column.{c}": "full" for c in (COLUMNS if how == "per column" else COLUMNS[:2])}
        listed = ", ".join(f"'write.metadata.metrics.{k}'='{v}'" for k, v in modes.items())
        self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({listed})", commits=False)

    # --- what is done to it ---------------------------------------------------------------------------------------

    def step(self) -> None:
        steps = [
            *(self.insert, self.update, self.update, self.same, self.move, self.delete, self.merge),
            *(self.overwrite, self.overwrite, self.overwrite_static, self.replace_where, self.compact),
            *(self.foreign, self.equality, self.roll_back, self.metrics, self.upgrade, self.repartition),
        ]
        self.random.choice(steps)()

    def insert(self) -> None:
        rows = [
            f"({self.random.randrange(9)}, {self.random.randrange(3)}, {self.pick(TEXTS)}, {self.pick(DOUBLES)})"
            for _ in range(self.random.randrange(1, 7))
        ]
        self.sql(f"INSERT INTO {{t}} VALUES {', '.join(rows + rows[:1] * self.random.randrange(2))}")

    def update(self) -> None:
        change = self.pick([f"v = {self.pick(TEXTS)}", "id = id + 1", f"x = {self.pick(DOUBLES)}"])
        self.sql(f"UPDATE {{t}} SET {change} WHERE id % 3 = {self.random.randrange(3)}")

    def same(self) -> None:
        self.sql(f"UPDATE {{t}} SET v = v, g = g WHERE id % 2 = {self.random.randrange(2)}")

    def move(self) -> None:
        self.sql(f"UPDATE {{t}} SET g = (g + 1) % 3 WHERE id % 4 = {self.random.randrange(4)}")

    def delete(self) -> None:
        where = self.pick(["id % 5 = 1", "g = 1", "v = 'a'", "isnan(x)", "x = 0", "x IS NULL", "id < 2"])
        self.sql(f"DELETE FROM {{t}} WHERE {where}")

    def merge(self) -> None:
        n = self.random.randrange(9)
        self.sql(
            f"MERGE INTO {{t}} t USING (SELECT explode(array({n}, {n + 3}, {n + 20})) AS id) s ON t.id = s.id "
            "WHEN MATCHED AND t.g = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET v = 'm' "
            "WHEN NOT MATCHED THEN INSERT (id, g, v) VALUES (s.id, s.id % 3, 'n')"
        )

    def rewritten(self) -> str:
        """Rewrite the table's rows, most of them unchanged."""
        less = self.pick(["true", "id <> 3", "id % 4 > 0", "g < 2"])
        more = f"SELECT {self.random.randrange(9)}, {self.random.randrange(3)}, {self.pick(TEXTS)}, 1.5D"
        v = self.pick(["v", "v", "CASE id % 5 WHEN 0 THEN 'o' ELSE v END"])
        return f"SELECT id, g, {v} AS v, x FROM {{t}} WHERE {less}" + self.pick(["", f" UNION ALL {more}"])

    def overwrite(self) -> None:
        self.overwritten(self.pick(["static", "dynamic"]), f"INSERT OVERWRITE {{t}} {self.rewritten()}")

    def overwrite_static(self) -> None:
        if [f.name for f in self.lake.table(self.table).spec().fields] == ["g"]:
            n = self.random.randrange(3)
            rows = f"SELECT id, v, x FROM ({self.rewritten()}) WHERE g = {n}"
            self.overwritten("static", f"INSERT OVERWRITE {{t}} PARTITION (g = {n}) (id, v, x) {rows}")

    def overwritten(self, mode: str, text: str) -> None:
        self.spark.conf.set("spark.sql.sources.partitionOverwriteMode", mode)
        try:
            self.sql(text)
        finally:
            self.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "static")

    def replace_where(self) -> None:
        """Delete and insert in one commit; only whole files can be deleted so."""
        self.done.append("overwrite(true)")
        rows = self.spark.sql(self.rewritten().replace("{t}", self.name)).localCheckpoint()
        rows.writeTo(self.name).overwrite(F.lit(True))
        self.commit()

    def compact(self) -> None:
        call = self.pick(
            ["rewrite_data_files", "rewrite_data_files", "rewrite_manifests", "rewrite_position_delete_files"]
        )
        options = ", options => map('rewrite-all', 'true')" if call == "rewrite_data_files" else ""
        self.sql(f"CALL lake.system.{call}(table => '{{n}}'{options})")

    def foreign(self) -> None:
        keeps = self.random.random() < 0.5
        if not self.lake.table(self.table).spec().fields and self.contents[self.current()]:
            self.done.append(f"rewritten without row ids, keeps_sequence_number={keeps}")
            Java(self.lake).rewrite_without_row_ids(self.table, keeps_sequence_number=keeps)
            self.commit()

    def equality(self) -> None:
        if not self.lake.table(self.table).spec().fields:
            ids = [{"id": self.random.randrange(9)}, {"id": 20}]
            rows = [{**i, "g": 1, "v": self.random.choice("ab")} for i in ids]
            self.done.append(f"equality deletes {ids}")
            Java(self.lake).delete_where_equal(self.table, ids, rows if self.random.random() < 0.7 else [])
            self.commit()

    def roll_back(self) -> None:
        meta = self.lake.table(self.table).metadata
        now = meta.current_snapshot()
        if self.random.random() < 0.4 and now and now.parent_snapshot_id:
            self.sql(f"CALL lake.system.rollback_to_snapshot('{{n}}', {now.parent_snapshot_id})", commits=False)

    def upgrade(self) -> None:
        if self.version == 2 and self.random.random() < 0.3:
            self.version = 3
            self.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')", commits=False)

    def repartition(self) -> None:
        if self.random.random() < 0.3:
            is_partitioned = "g" in [f.name for f in self.lake.table(self.table).spec().fields]
            self.sql(f"ALTER TABLE {{t}} {'DROP' if is_partitioned else 'ADD'} PARTITION FIELD g", commits=False)

    def pick(self, options: list[str]) -> str:
        return self.random.choice(options)

    def sql(self, text: str, *, commits: bool = True) -> None:
        self.done.append(text)
        self.spark.sql(text.replace("{t}", self.name).replace("{n}", self.table))
        if commits:
            self.commit()

    def commit(self) -> None:
        current = self.current()
        if current not in self.contents:
            self.contents[current] = bag(self.spark.table(self.name).select(*COLUMNS).collect())

    def current(self) -> int | None:
        snapshot = self.lake.table(self.table).current_snapshot()
        return snapshot.snapshot_id if snapshot else None

    # --- what must hold -------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Check the whole history, and a window within."""
        order = list(self.contents)
        at = sorted(self.random.sample(range(len(order)), 2))
        self.check(order[1], self.current())
        self.check(order[at[0]], order[at[1]] if self.random.random() < 0.7 else self.current())

    def check(self, start: int | None, end: int | None) -> None:
        keys = self.random.choice([None, None, ["id"], ["id", "g"], ["x"]])
        with self.lake.capture(self.table, start, end) as capture:
            before, after = self.contents[start], self.contents[end]
            rows = capture.feed(self.spark, keys)
            away, added = changes(rows)
            assert not away - before, "rows were taken away that are not there"
            assert before - away + added == after
            if capture.is_empty:
                assert before == after
            has_lineage = all(part.has_lineage for part in capture._parts)
            if keys or not has_lineage:
                # Without row lineage a row is its values: nothing but the difference can have changed.
                assert (away, added) == (before - after, after - before)
                self.check_pairs(rows.collect(), keys or [])
            else:
                updates = capture.events(self.spark).where("op = 'u'").collect()
                assert all(bag([u["before"]]) != bag([u["after"]]) for u in updates), "an update changed nothing"
            assert_upserts(capture, upserts_of(capture, self.spark), added, before & after)
            self.check_signed(capture, before, after)

    def check_pairs(self, rows: list[Any], keys: list[str]) -> None:
        """Each delete and insert of one key is an update, as long as there are both."""
        counts: dict[Any, Counter[str]] = {}
        for r in rows:
            (key,) = bag([[r[k] for k in keys]])
            counts.setdefault(key, Counter())[r["_change_type"]] += 1
        for n in counts.values():
            assert n["update_before"] == n["update_after"]
            assert not keys or min(n["delete"], n["insert"]) == 0
            assert keys or not n["update_before"]

    def check_signed(self, capture: Capture, before: Counter[Any], after: Counter[Any]) -> None:
        net = Counter(before)
        for *row, sign in capture.signed(self.spark).collect():
            (key,) = bag([row])
            net[key] += sign
        assert {k: n for k, n in net.items() if n} == {k: n for k, n in after.items() if n}


def run(lake: Lake, namespace: str, seed: int, steps: int) -> None:
    played = Round(lake, namespace, seed)
    try:
        for _ in range(steps):
            played.step()
        played.look()
    except AssertionError as e:
        raise AssertionError(f"seed {seed}:\n" + "\n".join(played.done)) from e


@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.long), 2])
def test_conformance(lake: Lake, namespace: str, seed: int) -> None:
    run(lake, namespace, seed, 4)


@pytest.mark.long
def test_long_conformance(lake: Lake, namespace: str) -> None:
    for seed in seeds(100, 4):
        run(lake, namespace, seed, 6)
        lake.spark().sql(f"DROP TABLE {lake.sql_name(f'{namespace}.c{seed}')}")
        print(f"round {seed} holds", flush=True)
