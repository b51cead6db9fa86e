"""Runs of the shop in this process, with Spark."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.examples import shop
from lake_assets.lake.metadata.watermark import read_marks
from lake_assets.models.steps.snapshot_pins import SnapshotPins
from lake_assets.orchestration import LakePySparkResource, assets
from lake_assets.orchestration.asset_names import REBUILD_TAG
from lake_assets.orchestration.runs.resources import session_of
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.step_retries import absorb
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables.outcome import Outcome
from tests.support.dagster_harness import Harness, metadata_of, selected
from tests.support.dagster_shop import feed


@pytest.mark.long  # as what lands in a daemon's lake
def test_the_first_checkpoint_through_dagster_equals_postgres(wet: Harness) -> None:
    checkpoint = shop.checkpoints()[0]
    feed(wet)
    result = wet.run(wet.request())
    assert result.success
    assert all(c.equal for c in shop.compare(wet.lake, checkpoint))

    users = metadata_of(result, "final", "users")
    assert users["status"] == "absorbed"
    assert users["rows_inserted"] == users["dagster/row_count"] == 116
    assert users["files_captured"] == 1
    assert users["bytes_captured"]
    assert users["snapshot"] == str(wet.lake.table("final.users").metadata.current_snapshot_id)
    assert str(users["dagster/uri"]).startswith("file:")
    schema = users["dagster/column_schema"]
    assert isinstance(schema, dg.TableSchema)
    assert {"id", "email_address"} <= {c.name for c in schema.columns}
    lineage = metadata_of(result, "agg", "city_population")["dagster/column_lineage"]
    assert isinstance(lineage, dg.TableColumnLineage)
    assert lineage.deps_by_column["balance"] == [dg.TableColumnDep(dg.AssetKey(["final", "users"]), "balance")]
    # The table that only matches a pattern is in the same run, and reported as its future asset.
    assert metadata_of(result, "final", "checkpoint_marker")["rows_inserted"] == 1

    assert wet.skipped().startswith("nothing new")
    wet.reload()
    assert wet.skipped().startswith("nothing new")
    feed(wet, 1)
    assert "final.checkpoint_marker" in selected(wet.request())


class Forbidden:
    """A resource whose session must not be requested."""

    @property
    def spark_session(self) -> object:
        raise AssertionError("Spark was started")


def test_a_step_with_nothing_to_do_succeeds_without_spark(dry: Harness) -> None:
    assets = [a for a in dry.defs.assets or [] if isinstance(a, dg.AssetsDefinition)]
    result = dg.materialize(assets, resources={"pyspark": Forbidden()}, instance=dry.instance)
    assert result.success
    assert metadata_of(result, "raw", "shop_events")["status"] == "waiting"
    assert metadata_of(result, "final", "users")["status"] == "waiting"


def test_models_of_one_run_read_the_same_snapshot_despite_concurrent_writes(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ensure_namespace(("final",))
    lake.spark().sql("CREATE TABLE lake.final.t (k INT) USING iceberg TBLPROPERTIES ('format-version' = '3')")
    lake.spark().sql("INSERT INTO lake.final.t VALUES (1), (2)")
    models = [{"name": f"agg.{n}", "sql": "SELECT k, count(*) AS n FROM final.t GROUP BY k"} for n in ("a", "b")]
    harness = Harness(Pipeline(PipelineConfig.model_validate({"name": "p", "models": models})), lake, instance)

    def and_somebody_writes(of: Lake, spec: Spec, pins: SnapshotPins | None = None, **more: Any) -> Outcome:
        outcome = absorb(of, spec, pins, **more)
        lake.spark().sql("INSERT INTO lake.final.t VALUES (1)")
        return outcome

    monkeypatch.setattr(assets, "absorb", and_somebody_writes)
    for _ in range(2):
        assert harness.run(harness.request()).success
        read = {read_marks(lake.table(f"agg.{n}"))["final.t"].snapshot for n in ("a", "b")}
        assert len(read) == 1
        assert read != {lake.table("final.t").metadata.current_snapshot_id}


def test_a_run_with_the_tag_rebuilds_the_selected_tables(lake: Lake, instance: dg.DagsterInstance) -> None:
    lake.ensure_namespace(("final",))
    lake.spark().sql("CREATE TABLE lake.final.t (k INT) USING iceberg TBLPROPERTIES ('format-version' = '3')")
    lake.spark().sql("INSERT INTO lake.final.t VALUES (1), (2)")
    models = [{"name": "agg.a", "sql": "SELECT k, count(*) AS n FROM final.t GROUP BY k"}]
    harness = Harness(Pipeline(PipelineConfig.model_validate({"name": "p", "models": models})), lake, instance)
    request = harness.request()
    assert harness.run(request).success
    lake.spark().sql("DELETE FROM lake.agg.a WHERE k = 1")
    lake.spark().sql("DROP TABLE lake.final.t")
    lake.spark().sql("CREATE TABLE lake.final.t (k INT) USING iceberg TBLPROPERTIES ('format-version' = '3')")
    lake.spark().sql("INSERT INTO lake.final.t VALUES (1), (2), (3)")
    failed = harness.run(request)
    assert not failed.success
    metadata = metadata_of(harness.run(request.with_replaced_attrs(tags={REBUILD_TAG: "true"})), "agg", "a")
    assert metadata["strategy"] == "rebuild: a rebuild was requested"
    assert (metadata["rows_inserted"], metadata["rows_deleted"]) == (2, 0)
    assert harness.skipped().startswith("nothing new")


@pytest.mark.spark
def test_sessions_of_the_resource_have_the_lakes_catalog(lake: Lake, plain_lake: Lake) -> None:
    first, second = LakePySparkResource(), LakePySparkResource()
    for resource, one in ((first, lake), (second, plain_lake)):
        one.ensure_namespace(("final",))
        session = session_of(resource, one.config)
        assert session is session_of(resource, one.config)
        session.sql("CREATE TABLE lake.final.t (id INT) USING iceberg")
        assert one.exists("final.t")
