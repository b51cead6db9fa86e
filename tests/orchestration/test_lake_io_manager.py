"""Assets of users read lake tables through the IO manager, whole or by partition. No test starts Spark."""

from __future__ import annotations

import importlib
import importlib.util
from datetime import UTC, date, datetime
from typing import Any

import dagster as dg
import duckdb
import pandas as pd
import pyarrow as pa
import pytest

from lake_assets import Lake
from lake_assets.orchestration import LakeIOManager
from tests.support.documents import snippets
from tests.support.processes import ROOT

FRAMES: list[Any] = []
if importlib.util.find_spec("polars"):  # `make test-versions` has it
    polars = importlib.import_module("polars")
    FRAMES = [polars.DataFrame, polars.LazyFrame]

DAYS = dg.DailyPartitionsDefinition("2024-03-30", timezone="Europe/Berlin", end_date="2024-04-03")
ROWS = {
    "id": [1, 2, 3, 4],
    # The last two are on both sides of Berlin's midnight.
    "at": [datetime(2024, 3, 30, 12, tzinfo=UTC), datetime(2024, 3, 31, 12, tzinfo=UTC),
           datetime(2024, 3, 31, 21, 59, tzinfo=UTC), datetime(2024, 3, 31, 22, 0, tzinfo=UTC)],
    "day": [date(2024, 3, 30), date(2024, 3, 31), date(2024, 3, 31), date(2024, 4, 1)],
    "city": ["Bonn", "Köln", None, "Ulm"],
    "n": [1, 2, 2, 3],
}  # fmt: skip


@pytest.fixture
def table(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_HOME", str(plain_lake.config.home))
    plain_lake.ensure_namespace(("final",))
    rows = pa.table(ROWS)
    plain_lake.catalog.create_table(("final", "t"), rows.schema).append(rows)


def load(annotation: Any, partitions: Any = None, by: str = "", *keys: str) -> Any:
    """Return what a downstream asset gets."""
    found: list[Any] = []

    def body(t: Any) -> None:
        found.append(t)

    if annotation is not None:
        body.__annotations__["t"] = annotation
    else:
        del body.__annotations__["t"]
    body.__annotations__["return"] = None
    below = dg.asset(
        name="below",
        ins={"t": dg.AssetIn(["final", "t"], input_manager_key="lake_io_manager")},
        partitions_def=partitions,
        backfill_policy=dg.BackfillPolicy.single_run(),
    )(body)
    metadata = {"partition_expr": by} if by else {}
    upstream = dg.AssetSpec(["final", "t"], partitions_def=partitions, metadata=metadata)
    tags = (
        {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]} if keys else {}
    )
    result = dg.materialize(
        [below, upstream], selection=[below], resources={"lake_io_manager": LakeIOManager()}, tags=tags
    )
    assert result.success
    return found[0]


@pytest.mark.parametrize("annotation", [None, pa.Table, pd.DataFrame, duckdb.DuckDBPyRelation, *FRAMES])
def test_the_annotation_says_as_what_a_table_is_given(table: None, annotation: Any) -> None:
    rows = load(annotation)
    assert isinstance(rows, annotation or pa.Table)
    assert len(rows.collect() if hasattr(rows, "collect") else rows) == 4


@pytest.mark.parametrize(
    ("partitions", "by", "keys", "expected"),
    [
        (DAYS, "at", ["2024-03-31"], [2, 3]),
        (DAYS, "at", ["2024-03-31", "2024-04-01"], [2, 3, 4]),
        (DAYS, "day", ["2024-04-01"], [4]),
        (dg.StaticPartitionsDefinition(["1", "2", "__other__"]), "n", ["2"], [2, 3]),
        (dg.StaticPartitionsDefinition(["1", "2", "__other__"]), "n", ["__other__"], [4]),
        (dg.StaticPartitionsDefinition(["Bonn", "__other__"]), "city", ["__other__"], [2, 3, 4]),
    ],
)
def test_a_run_of_partitions_gets_their_rows(
    table: None, partitions: Any, by: str, keys: list[str], expected: list[int]
) -> None:
    assert sorted(load(pa.Table, partitions, by, *keys).column("id").to_pylist()) == expected


def test_other_annotations_are_refused(table: None) -> None:
    with pytest.raises(
        Exception, match=r"lake tables are given as duckdb.DuckDBPyRelation, pandas.DataFrame, .* builtins.int;"
    ):
        load(int)


def test_a_lake_table_is_not_written(table: None) -> None:
    @dg.asset(io_manager_key="lake_io_manager")
    def mine() -> int:
        return 1

    with pytest.raises(Exception, match="reads tables and writes none"):
        dg.materialize([mine], resources={"lake_io_manager": LakeIOManager()})


def test_the_asset_of_the_documentation_reads_its_table(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_HOME", str(plain_lake.config.home))
    plain_lake.ensure_namespace(("final",))
    rows = pa.table({"id": [1, 2, 3], "city": ["Bonn", "Ulm", "Bonn"]})
    plain_lake.catalog.create_table(("final", "users"), rows.schema).append(rows)
    (block,) = (s.text for s in snippets(ROOT / "docs" / "dagster.md") if "lake_io_manager" in s.first)
    names: dict[str, Any] = {"dg": dg, "pd": pd}
    exec(block, names)
    users = dg.AssetSpec(["final", "users"])
    result = dg.materialize(
        [names["cities"], users], selection=[names["cities"]], resources={"lake_io_manager": LakeIOManager()}
    )
    (event,) = result.asset_materializations_for_node("cities")
    assert event.metadata["cities"].value == 2
