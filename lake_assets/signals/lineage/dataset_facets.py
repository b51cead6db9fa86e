"""Facets of datasets: columns, version, place in the catalog, and what the columns are computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache

from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    DatasetFacet,
    InputDatasetFacet,
    catalog_dataset,
    column_lineage_dataset,
    data_quality_assertions_dataset,
    dataset_type_dataset,
    dataset_version_dataset,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
    schema_dataset,
    storage_dataset,
    symlinks_dataset,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import ListType, MapType, NestedField, StructType

from lake_assets.capture.renamed_columns import schema_at
from lake_assets.journal.step_records import StepRecord
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.counts import plural
from lake_assets.lake.limited_cache import LimitedCache
from lake_assets.lake.redaction import hide_in
from lake_assets.pipeline.column_sources import column_sources
from lake_assets.pipeline.table_graph import Spec
from lake_assets.signals.lineage.dataset_names import DatasetName, at_location, in_catalog
from lake_assets.signals.lineage.producer import ours
from lake_assets.tables.audits.audit_evaluation import Finding
from lake_assets.tables.outcome import Absorbed

# Column lineage by table, query and schemas: analyzing a query takes longer than the rest of an event.
_Lineage = column_lineage_dataset.ColumnLineageDatasetFacet
_lineage: LimitedCache[tuple[object, ...], tuple[_Lineage | None]] = LimitedCache(500, lambda _: 1)
# Columns by table and schema: each field is checked as it is made.
_schemas: LimitedCache[tuple[str, int], schema_dataset.SchemaDatasetFacet] = LimitedCache(
    10_000, lambda facet: 1 + len(facet.fields or ())
)

# The names of tables that events had last, by lake and table: a step that begins is told without loading its tables.
_names: dict[tuple[str, TableId], DatasetName] = {}


def _known_name(lake: LakeBase, table: TableId) -> DatasetName:
    return _names.get((str(lake.config.home), table)) or name_of(lake, table, lake.find(table))


def name_of(lake: LakeBase, table: TableId, loaded: Table | None) -> DatasetName:
    """Return the name of a table; of one that does not exist yet, by where it will be."""
    if loaded is not None:
        name = _names[str(lake.config.home), table] = at_location(loaded.location())
        return name
    location = lake.location_of(table) or "/".join([(lake.config.warehouse or "").rstrip("/"), *table.parts])
    return at_location(location)


def named_input(lake: LakeBase, table: TableId) -> InputDataset:
    """Return a table as input, by its name alone."""
    name = _known_name(lake, table)
    return InputDataset(name.namespace, name.name)


def input_of(
    lake: LakeBase,
    table: TableId,
    snapshot: int | None = None,
    assertions: Sequence[Finding] = (),
    window: Absorbed | None = None,
) -> InputDataset:
    """Return a table as input.

    Args:
        snapshot: the snapshot that was read; None: unknown.
        assertions: the results of its audits.
        window: what the step has absorbed of it; None: nothing.
    """
    loaded = lake.find(table)
    name = name_of(lake, table, loaded)
    read = _read(window)
    if assertions:
        read["dataQualityAssertions"] = ours(
            data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet([_assertion(f) for f in assertions])
        )
    return InputDataset(name.namespace, name.name, facets=_facets(lake, table, loaded, snapshot), inputFacets=read)


def other_input(name: DatasetName, kind: str, window: Absorbed | None = None) -> InputDataset:
    """Return a dataset that is not in the lake: a folder, a topic, a table of a database.

    Args:
        window: what the step has absorbed of it; None: nothing, or that is unknown.
    """
    facet = ours(dataset_type_dataset.DatasetTypeDatasetFacet(kind))
    return InputDataset(name.namespace, name.name, facets={"datasetType": facet}, inputFacets=_read(window))


def _read(window: Absorbed | None) -> dict[str, InputDatasetFacet]:
    """Return what was read of an input, as facets."""
    if window is None:
        return {}
    read = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(window.records, window.bytes, window.files)
    return {"inputStatistics": ours(read)}


def named_output(lake: LakeBase, table: TableId) -> OutputDataset:
    """Return a table as output, by its name alone."""
    name = _known_name(lake, table)
    return OutputDataset(name.namespace, name.name)


def output_of(lake: LakeBase, spec: Spec, record: StepRecord | None = None) -> OutputDataset:
    """Return the table of a step as output; with what was written, if that is recorded."""
    loaded = lake.find(spec.table)
    name = name_of(lake, spec.table, loaded)
    facets = _facets(lake, spec.table, loaded, record.snapshot if record else None)
    if record is None or record.status != "absorbed":
        return OutputDataset(name.namespace, name.name, facets=facets)
    if loaded is not None and (lineage := _column_lineage(lake, spec, loaded)) is not None:
        facets["columnLineage"] = lineage
    written = ours(
        output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            record.rows_inserted + record.rows_updated, record.bytes_written, record.files_written
        )
    )
    return OutputDataset(name.namespace, name.name, facets=facets, outputFacets={"outputStatistics": written})


def _assertion(found: Finding) -> data_quality_assertions_dataset.Assertion:
    return data_quality_assertions_dataset.Assertion(
        found.audit,
        found.passed,
        severity="error" if found.blocking else "warn",
        name=found.audit,
        actual="cannot be evaluated" if found.error else plural(found.failing, "row"),
        expected="0 rows",
    )


def _facets(lake: LakeBase, table: TableId, loaded: Table | None, snapshot: int | None) -> dict[str, DatasetFacet]:
    config = lake.config
    uri = None if config.is_embedded else hide_in(config.catalog.get("uri", "")) or None
    facets = dict(_place(config.kind, config.name, uri, config.warehouse))
    if (symlink := in_catalog(config, table)) is not None:
        facets["symlinks"] = _symlinks(symlink)
    if snapshot is not None:
        facets["version"] = ours(dataset_version_dataset.DatasetVersionDatasetFacet(str(snapshot)))
    if loaded is not None:
        facets["schema"] = _columns(loaded, schema_at(loaded, snapshot))
    return facets


@lru_cache(10_000)
def _symlinks(name: DatasetName) -> symlinks_dataset.SymlinksDatasetFacet:
    identifier = symlinks_dataset.Identifier(name.namespace, name.name, "TABLE")
    return ours(symlinks_dataset.SymlinksDatasetFacet([identifier]))


@cache
def _place(kind: str, name: str, uri: str | None, warehouse: str | None) -> Mapping[str, DatasetFacet]:
    """Return the facets that all tables of a lake share."""
    warehouse = hide_in(warehouse) if warehouse else None
    catalog = catalog_dataset.CatalogDatasetFacet(
        "iceberg", kind, name, metadataUri=uri, warehouseUri=warehouse, source="lake_assets"
    )
    return {
        "datasetType": ours(dataset_type_dataset.DatasetTypeDatasetFacet("TABLE")),
        "storage": ours(storage_dataset.StorageDatasetFacet("iceberg", "parquet")),
        "catalog": ours(catalog),
    }


def _columns(table: Table, schema: Schema) -> schema_dataset.SchemaDatasetFacet:
    key = (str(table.metadata.table_uuid), schema.schema_id)
    if (found := _schemas.get(key)) is None:
        fields = [_field(f, n) for n, f in enumerate(schema.fields, 1)]
        found = _schemas.put(key, ours(schema_dataset.SchemaDatasetFacet(fields)))
    return found


def _field(field: NestedField, position: int) -> schema_dataset.SchemaDatasetFacetFields:
    kind = field.field_type
    inner: Sequence[NestedField] = ()
    match kind:
        case StructType():
            inner = kind.fields
        case ListType():
            inner = (kind.element_field,)
        case MapType():
            inner = (kind.key_field, kind.value_field)
        case _:
            pass
    name = "struct" if isinstance(kind, StructType) else str(kind)
    return schema_dataset.SchemaDatasetFacetFields(
        field.name, name, field.doc, position, [_field(f, n) for n, f in enumerate(inner, 1)]
    )


def _column_lineage(lake: LakeBase, spec: Spec, table: Table) -> _Lineage | None:
    """Return what each column is computed from; None if that is not known."""
    sources = {t: lake.find(t) for t in spec.sources}
    read = [s for s in (table, *sources.values()) if s is not None]
    schemas = tuple((str(t.metadata.table_uuid), t.metadata.current_schema_id) for t in read)
    key = (str(spec.table), getattr(spec, "sql", ""), schemas)
    found = _lineage.get(key) or _lineage.put(key, (_computed_lineage(lake, spec, sources),))
    return found[0]


def _computed_lineage(lake: LakeBase, spec: Spec, sources: Mapping[TableId, Table | None]) -> _Lineage | None:
    columns = column_sources(lake, spec)
    if not columns:
        return None
    names = {t: name_of(lake, t, sources.get(t) or lake.find(t)) for found in columns.values() for t, _ in found}
    fields = {
        column: column_lineage_dataset.Fields(
            [column_lineage_dataset.InputField(names[t].namespace, names[t].name, c) for t, c in found]
        )
        for column, found in columns.items()
    }
    return ours(_Lineage(fields))
