"""PyIceberg's SQL catalog, which reads a table's metadata file once.

A step asks for the same tables again and again: where each is now has to be asked every time, but what a metadata file
says stays: its name is never given twice.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.io import load_file_io
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from lake_assets.lake.variant import table_metadata

# So many snapshots of all tables together are kept: they are most of what metadata is.
MOST_SNAPSHOTS = 10_000


class Known:
    """What metadata files say, those that were asked for last; for all threads of a process."""

    def __init__(self, most: int = MOST_SNAPSHOTS) -> None:
        """`most`: how many snapshots, and files, are kept together."""
        self._most, self._held = most, 0
        self._of: OrderedDict[str, TableMetadata] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, location: str) -> TableMetadata | None:
        """What a file says; None: it is not known."""
        with self._lock:
            found = self._of.get(location)
            if found is None:
                return None
            self._of.move_to_end(location)
        return _apart(found)

    def put(self, location: str, metadata: TableMetadata) -> TableMetadata:
        """Keep what a file says; returns it, for the caller to change."""
        with self._lock:
            if location not in self._of:
                self._of[location] = metadata
                self._held += _weight(metadata)
            while self._held > self._most:
                self._held -= _weight(self._of.popitem(last=False)[1])
        return _apart(metadata)

    def __len__(self) -> int:
        return len(self._of)


def _apart(metadata: TableMetadata) -> TableMetadata:
    """The same, with properties of its own: a writer sets some for its process alone."""
    return metadata.model_copy(update={"properties": dict(metadata.properties)})


def _weight(metadata: TableMetadata) -> int:
    return 1 + len(metadata.snapshots)


_known = Known()


class KnowingCatalog(SqlCatalog):
    """PyIceberg's SQL catalog with what its files said before."""

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        location, namespace, name = orm_table.metadata_location, orm_table.table_namespace, orm_table.table_name
        if not (location and namespace and name):
            return super()._convert_orm_to_iceberg(orm_table)
        metadata = _known.get(location)
        if metadata is None:
            file = load_file_io(properties=self.properties, location=location).new_input(location)
            metadata = _known.put(location, table_metadata(file))
        return Table(
            identifier=(*Catalog.identifier_to_tuple(namespace), name),
            metadata=metadata,
            metadata_location=location,
            io=self._load_file_io(metadata.properties, location),
            catalog=self,
        )


def knowing(catalog: Catalog) -> Catalog:
    """The same catalog; a SQL one knows what its files said before."""
    if type(catalog) is SqlCatalog:
        catalog.__class__ = KnowingCatalog
    return catalog
