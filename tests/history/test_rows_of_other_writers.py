"""Rows of snapshots that PyIceberg, Spark and Java have written, in all formats: as they were read when they were current."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow

from lake_assets import Lake
from lake_assets.history.row_history import HistoryRequest, row_history
from lake_assets.history.snapshot_rows import SnapshotRows
from lake_assets.history.wanted_rows import Wanted, wanted
from lake_assets.lake import TableId
from tests.support.capture_oracle import bag
from tests.support.changed_table import ROWS, History
from tests.support.iceberg_java import Java
from tests.support.mixed_history import MixedHistory
from tests.support.seeds import long_seeds


@pytest.mark.parametrize("seed", [7, *long_seeds(8, 12)])
def test_each_snapshot_gives_the_rows_that_it_held(lake: Lake, seed: int) -> None:
    lake.ensure_namespace(("t",))
    history = MixedHistory(lake, f"t.m{seed}", seed)
    history.steps(6 if seed == 7 else 15)
    table = lake.table(history.table)
    ids = {f.name: f.field_id for f in table.schema().fields}
    kept = {s.snapshot_id for s in table.metadata.snapshots}
    try:
        for number in (0, 1, 5, 9):
            rows = SnapshotRows(lake, TableId.parse(history.table), table, _of_id(table, number))
            for snapshot, contents in history.contents.items():
                if snapshot in kept:
                    columns = sorted(rows.columns_at(snapshot))  # type: ignore[arg-type]
                    found = bag([r.get(i) for i in columns] for r in rows.at(snapshot).values())
                    assert found == bag([r.get(i) for i in columns] for r in contents if r.get(ids["id"]) == number)
    except Exception as e:
        raise AssertionError(f"seed {seed}:\n" + "\n".join(history.done)) from e


def _of_id(table: Any, number: int) -> Wanted:
    return wanted(schema_to_pyarrow(table.schema()), {"id": [number]})


@pytest.mark.long
@pytest.mark.parametrize("version", [2, 3])
def test_deletes_by_value_and_by_position_are_applied(lake: Lake, version: int) -> None:
    lake.ensure_namespace(("t",))
    t = History(lake, "t.deleted", version, "merge-on-read")
    t.sql(ROWS)
    java = Java(lake)
    java.delete_where_equal(t.table, [{"id": 3}, {"id": 6}])
    java.delete_where_equal(t.table, [{"id": 9}], [{"id": 9, "g": 0, "v": "upserted"}])
    t.sql("DELETE FROM {t} WHERE id = 4", "UPDATE {t} SET v = 'new' WHERE id = 9")

    def of(number: int) -> list[tuple[str, Any]]:
        found = row_history(lake, [], HistoryRequest(TableId.parse(t.table), [f"id={number}"]))
        assert found.notes[:-1] == ()  # no note about Spark
        return [(c.what, (c.after or {}).get("v")) for v in found.versions for c in v.changes]

    assert of(3) == [("inserted", "3"), ("deleted", None)]
    assert of(4) == [("inserted", "4"), ("deleted", None)]
    assert of(9) == [("inserted", "9"), ("updated", "upserted"), ("updated", "new")]
    assert of(5) == [("inserted", "5")]


@pytest.mark.long
def test_spark_reads_what_this_process_cannot(lake: Lake) -> None:
    lake.ensure_namespace(("t",))
    t = History(lake, "t.orc", 2, "merge-on-read")
    t.sql(
        "ALTER TABLE {t} SET TBLPROPERTIES ('write.format.default'='orc')",
        ROWS,
        "UPDATE {t} SET v = 'new' WHERE id = 9",
    )
    found = row_history(lake, [], HistoryRequest(TableId.parse(t.table), ["id=9"]))
    assert [(c.what, (c.after or {}).get("v")) for v in found.versions for c in v.changes] == [
        ("inserted", "9"), ("updated", "new")
    ]  # fmt: skip
    assert any("read by Spark" in n for n in found.notes)
