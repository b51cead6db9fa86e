"""Windows of a step whose source's history is lost, from metadata alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from lake_assets import Lake
from lake_assets.errors import HistoryError, SnapshotExpiredError, TableReplacedError
from lake_assets.final.declaration import pending_of as pending_of_final
from lake_assets.final.final_spec import FinalSpec
from lake_assets.formats import SourceTable
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.ingest.raw.source_tables import pending_of_table
from lake_assets.ingest.staging.due_records import pending_of as pending_of_staging
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, to_properties
from lake_assets.models.model_spec import ModelSpec
from lake_assets.models.steps.sql_model_step import SqlModelStep
from lake_assets.tables.batch_limits import cut
from lake_assets.tables.pending_windows import Window, head_of, window_of
from lake_assets.tables.specs import BatchSize

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
TARGET, SOURCE = TableId.parse("final.t"), TableId.parse("staging.t")
FINAL = FinalSpec(TARGET, SOURCE, "p")
MODEL = ModelSpec(TARGET, "SELECT id, count(*) AS n FROM staging.t GROUP BY id", (SOURCE,), "p")
# Recomputed in full with each change.
FULL = replace(MODEL, sql="SELECT id, row_number() OVER (ORDER BY id) AS n FROM staging.t")


def create_table(lake: Lake, name: TableId, properties: dict[str, str] | None = None) -> Table:
    lake.ensure_namespace(name.namespace)
    return lake.catalog.create_table(name.parts, ROWS.schema, properties={PIPELINE_PROPERTY: "p", **(properties or {})})


@pytest.fixture
def tables(plain_lake: Lake) -> tuple[Table, Table]:
    """Return a source with three snapshots, and a table that has absorbed the second."""
    source, target = create_table(plain_lake, SOURCE), create_table(plain_lake, TARGET)
    for n in range(3):
        source.append(ROWS)
        if n == 1:
            target.append(ROWS, snapshot_properties=to_properties({str(SOURCE): head_of(source)}))
    return source, target


def expired(lake: Lake, source: Table, target: Table) -> tuple[Table, Table]:
    source.maintenance.expire_snapshots().by_id(source.history()[1].snapshot_id).commit()
    return lake.table(SOURCE), target


def replaced(lake: Lake, source: Table, target: Table) -> tuple[Table, Table]:
    lake.catalog.drop_table(SOURCE.parts)
    create_table(lake, SOURCE).append(ROWS)
    return lake.table(SOURCE), target


def unmarked(lake: Lake, source: Table, target: Table) -> tuple[Table, Table]:
    marked = target.history()[0].snapshot_id
    target.append(ROWS)
    target.maintenance.expire_snapshots().by_id(marked).commit()
    return source, lake.table(TARGET)


LOST: list[tuple[Callable[[Lake, Table, Table], tuple[Table, Table]], str, type[HistoryError]]] = [
    (expired, "on_gap", SnapshotExpiredError),
    (unmarked, "on_gap", SnapshotExpiredError),
    (replaced, "on_replaced", TableReplacedError),
]


@pytest.mark.parametrize(("lose", "option", "error"), LOST)
def test_lost_history_stops_a_table_or_has_it_rebuilt_as_declared(
    plain_lake: Lake,
    tables: tuple[Table, Table],
    lose: Callable[[Lake, Table, Table], tuple[Table, Table]],
    option: str,
    error: type[HistoryError],
) -> None:
    assert window_of(TARGET, tables[1], SOURCE, tables[0]).lost is None
    source, target = lose(plain_lake, *tables)
    everything = Window(SOURCE, None, head_of(source))
    window = window_of(TARGET, target, SOURCE, source)
    assert (window.mark, window.head, window.lost and window.lost.option) == (None, everything.head, option)
    # A window whose new records or rows have to be separated from absorbed ones is not cut.
    assert cut(window, source, BatchSize(files=1)) == window
    advice = rf"`lake-assets rebuild final\.t`.*`{option}: rebuild`"
    with pytest.raises(error, match=advice):
        SqlModelStep(MODEL).windows_of(target, {SOURCE: source})
    for model in (replace(MODEL, **{option: "rebuild"}), FULL):
        assert SqlModelStep(model).windows_of(target, {SOURCE: source}) == {SOURCE: window}
    with plain_lake.table(TARGET).transaction() as change:
        declared = {"key": [], "mode": "scd1"}
        change.set_properties({"lake-assets.final": json.dumps(declared)})
    target = plain_lake.table(TARGET)
    with pytest.raises(error, match=advice):
        pending_of_final(plain_lake, FINAL, target, source)
    window, why = pending_of_final(plain_lake, replace(FINAL, **{option: "rebuild"}), target, source)
    assert (window.start, window.head, bool(why)) == (None, everything.head, True)


@pytest.mark.parametrize(("lose", "option", "error"), LOST)
def test_staging_goes_on_without_history_and_a_raw_table_does_not(
    plain_lake: Lake,
    tables: tuple[Table, Table],
    lose: Callable[[Lake, Table, Table], tuple[Table, Table]],
    option: str,
    error: type[HistoryError],
) -> None:
    source, target = lose(plain_lake, *tables)
    staging = StagingSpec(TARGET, SOURCE, SourceTable.parse("public.t"), "debezium", "p")
    if option == "on_replaced":
        with pytest.raises(error, match=r"`lake-assets rebuild final\.t`"):
            pending_of_staging(staging, target, source)
    else:
        window, rebuild_reason = pending_of_staging(staging, target, source)
        assert (bool(window.lost), rebuild_reason) == (True, None)
    raw = RawSpec(TARGET, None, "debezium", "p", source=SOURCE)
    with pytest.raises(error, match=rf"lost snapshots that were not landed\. With `{option}: append`.*Keep final\.t"):
        pending_of_table(raw, target, SOURCE, source)
    window = pending_of_table(replace(raw, **{option: "append"}), target, SOURCE, source)
    assert (window.mark, window.lost and window.lost.option) == (None, option)
