"""A table that another program writes whole: what differs from its rows that were read last becomes change events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from lake_assets import Lake
from lake_assets.errors import DumpHeldBackError, KeyMissingError
from tests.support.dumps import DumpFeed
from tests.support.upkeep import expire

SOURCE = "erp.users"
ONE = {"id": [1, 2, 3, 4], "n": ["a", "b", "c", "d"]}
TWO = {"id": [1, 2, 3, 5], "n": ["a", "B", "c", "e"]}
FROM_ONE_TO_TWO = ["delete", "insert", "update_postimage", "update_preimage"]


class Copied:
    """A table that its program replaces, and the stream that reads it."""

    def __init__(self, lake: Lake, **settings: Any) -> None:
        self.lake = lake
        lake.ensure_namespace(("erp",))
        self.feed = DumpFeed(lake, source={"table": SOURCE}, **settings)

    def create(self, rows: dict[str, list[Any]]) -> None:
        self.lake.catalog.create_table(SOURCE, pa.table(rows).schema).append(pa.table(rows))

    def overwrite(self, rows: dict[str, list[Any]]) -> None:
        self.lake.table(SOURCE).overwrite(pa.table(rows, pa.table(ONE).schema))

    def replace(self, rows: dict[str, list[Any]]) -> None:
        self.lake.catalog.drop_table(SOURCE)
        self.create(rows)

    def kinds(self, act: Callable[[], object] | None = None) -> list[str]:
        """The kinds of the events that a step brings."""
        before = len(self.feed.events())
        (act or self.feed.land)()
        return sorted(kind for kind, _ in self.feed.events()[before:])


@pytest.fixture
def copied(plain_lake: Lake) -> Copied:
    copied = Copied(plain_lake)
    copied.create(ONE)
    assert copied.feed.is_due
    assert copied.kinds() == ["insert"] * 4
    return copied


@pytest.mark.parametrize("how", ["overwrite", "replace"])
def test_a_table_that_is_written_whole_brings_what_differs(copied: Copied, how: str) -> None:
    getattr(copied, how)(TWO)
    assert copied.feed.is_due
    assert copied.kinds() == FROM_ONE_TO_TWO
    assert not copied.feed.is_due
    assert copied.feed.land().status == "nothing"
    getattr(copied, how)(TWO)
    assert copied.kinds() == []
    assert not copied.feed.is_due


def test_its_history_does_not_matter(copied: Copied) -> None:
    first = copied.lake.table(SOURCE).metadata.current_snapshot_id
    assert first is not None
    copied.overwrite(ONE | {"n": ["x"] * 4})
    copied.overwrite(TWO)
    expire(copied.lake, SOURCE)
    assert copied.kinds() == FROM_ONE_TO_TWO


def test_a_table_without_a_snapshot_is_not_written_yet(copied: Copied) -> None:
    copied.lake.catalog.drop_table(SOURCE)
    copied.lake.catalog.create_table(SOURCE, pa.table(ONE).schema)
    assert not copied.feed.is_due
    assert copied.kinds() == []
    copied.overwrite(TWO)
    assert copied.kinds() == FROM_ONE_TO_TWO


def test_an_emptied_table_is_held_back_by_a_limit(copied: Copied) -> None:
    copied.feed.declare(source={"table": SOURCE}, max_deleted="50%")
    copied.overwrite({"id": [], "n": []})
    with pytest.raises(DumpHeldBackError, match=r"the dump erp.users@\d+ is held back: 4 of the 4 rows"):
        copied.kinds()
    copied.overwrite(TWO)
    assert copied.kinds() == FROM_ONE_TO_TWO


def test_a_key_that_the_table_does_not_have_is_named(copied: Copied) -> None:
    copied.feed.declare({"key": "nr"}, source={"table": SOURCE})
    copied.overwrite(TWO)
    with pytest.raises(KeyMissingError, match="erp.users has no column nr"):
        copied.kinds()


def test_a_compacted_table_is_not_due(lake: Lake) -> None:
    copied = Copied(lake)
    spark = lake.spark()
    spark.sql("CREATE TABLE lake.erp.users (id BIGINT, n STRING) TBLPROPERTIES ('format-version' = '3')")
    for n in (1, 2):
        spark.sql(f"INSERT INTO lake.erp.users VALUES ({n}, 'a')")
    spark.sql("UPDATE lake.erp.users SET n = 'b' WHERE id = 2")
    assert copied.kinds() == ["insert"] * 2
    spark.sql("CALL lake.system.rewrite_data_files(table => 'erp.users', options => map('rewrite-all', 'true'))")
    assert not copied.feed.is_due
    # Replaced with other columns, in place.
    spark.sql("CREATE OR REPLACE TABLE lake.erp.users AS SELECT 1 AS id, 'a' AS n, 2.5 AS m UNION ALL SELECT 3, 'c', 1")
    assert copied.kinds() == ["delete", "insert", "update_postimage", "update_preimage"]
    assert copied.feed.run()["final.t"].status == "absorbed"
    assert copied.feed.rows(columns=["id", "n"]) == {(1, "a"): 1, (3, "c"): 1}
    assert [r for r in lake.table(SOURCE).metadata.refs if r != "main"] == []
