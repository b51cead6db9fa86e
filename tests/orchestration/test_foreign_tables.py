"""Tables of others that a pipeline reads are nodes of the graph: declared, observed, described. No test starts Spark."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster import AssetKey

from lake_assets import Lake, Pipeline
from lake_assets.errors import PipelineError
from lake_assets.orchestration import build_definitions, with_foreign_tables
from lake_assets.pipeline import PipelineConfig
from tests.support.dagster_harness import Harness

ROWS = pa.schema([pa.field("k", pa.int64()), pa.field("value", pa.string(), metadata={"PARQUET:field_id": "2"})])
FEED = {"name": "e", "source": {"table": "feeds.t", "value": "value"}, "tables": ["public.u"]}
STUB = "dagster/auto_created_stub_asset"


def definitions(lake: Lake, **declared: Any) -> dg.Definitions:
    return build_definitions(
        Pipeline(PipelineConfig.model_validate({"name": "p", "streams": [FEED], **declared})), lake
    )


def node(defs: dg.Definitions) -> Any:
    return defs.resolve_asset_graph().get(AssetKey(["feeds", "t"]))


def test_a_table_that_nobody_declares_is_a_stub_which_dagster_hides(plain_lake: Lake) -> None:
    assert node(definitions(plain_lake)).metadata[STUB]


def test_a_declared_table_of_others_is_shown_with_what_is_said_of_it(plain_lake: Lake) -> None:
    external = {"table": "feeds.t", "description": "From the crawler.", "owners": "team:web", "kinds": "kafka"}
    shown = node(definitions(plain_lake, external_tables=[external]))
    assert STUB not in shown.metadata
    assert (shown.description, shown.group_name, shown.owners) == ("From the crawler.", "feeds", ["team:web"])
    assert shown.metadata["dagster/table_name"] == "lake.feeds.t"
    assert not shown.is_executable


def test_a_code_location_declares_what_it_only_reads(plain_lake: Lake) -> None:
    shown = node(with_foreign_tables(definitions(plain_lake)))
    assert STUB not in shown.metadata
    assert shown.group_name == "feeds"

    @dg.asset(key=["feeds", "t"])
    def theirs() -> None: ...

    own = dg.Definitions.merge(definitions(plain_lake), dg.Definitions([theirs]))
    assert node(with_foreign_tables(own)).is_executable


def test_a_table_of_the_pipeline_is_not_external(plain_lake: Lake) -> None:
    with pytest.raises(PipelineError, match="`external_tables` names raw.e, a table of the same pipeline"):
        definitions(plain_lake, external_tables=["raw.e"])


def test_a_step_observes_the_table_that_it_has_read(plain_lake: Lake, instance: dg.DagsterInstance) -> None:
    plain_lake.ensure_namespace(("feeds",))
    table = plain_lake.catalog.create_table(("feeds", "t"), ROWS)
    table.append(pa.table({"k": [1], "value": ['{"op": "c"}']}, schema=ROWS))
    external = {"table": "feeds.t", "column_descriptions": {"value": "one event"}}
    config = {"name": "p", "streams": [{**FEED, "tables": []}], "external_tables": [external]}
    harness = Harness(Pipeline(PipelineConfig.model_validate(config)), plain_lake, instance)
    assert harness.run(harness.request()).success
    (record,) = instance.fetch_observations(AssetKey(["feeds", "t"]), limit=10).records
    assert record.asset_observation is not None
    metadata: dict[str, Any] = {n: v.value for n, v in record.asset_observation.metadata.items()}
    assert (metadata["dagster/row_count"], metadata["read_by"]) == (1, "raw.e")
    assert [c.description for c in metadata["dagster/column_schema"].columns] == [None, "one event"]
