"""PyIceberg's SQL catalog with a cache of metadata files.

A step loads the same tables repeatedly. It asks the catalog for the location of their metadata each time, but the
metadata files are immutable and their names never reused, so each is read once.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import pydantic
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.io import FileIO, InputFile, load_file_io
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier
from sqlalchemy import Select, bindparam, event, select
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import OperationalError

from lake_assets.errors import CatalogUnavailableError, CorruptMetadataError
from lake_assets.lake import thresholds
from lake_assets.lake.limited_cache import LimitedCache
from lake_assets.lake.redaction import hide_in
from lake_assets.lake.variant import table_metadata

_ADVICE = (
    "`lake-assets repair` lists the existing versions, and points the catalog at the newest readable one; other tables "
    "are not affected"
)
# Busy timeout for the lock of a SQLite catalog, also in the JVM.
LOCK_SECONDS = 60.0
# Messages of SQLite and Postgres, and what to do.
_DATABASE_ADVICE = {
    "is locked": "another process has held its lock for a minute; end that process, or let it finish",
    "disk is full": "make room on its disk",
    "No space left": "make room on its disk",
    "readonly database": "allow this user to write the file and its folder",
    "unable to open": "allow this user to read and write the file and its folder",
    "disk I/O error": "check whether its disk is full or broken",
}


class MetadataCache(LimitedCache[str, TableMetadata]):
    """Contents of metadata files by their location; callers may change what they get."""

    def __init__(self, most: int = thresholds.CACHED_SNAPSHOTS) -> None:
        """Keep at most `most` snapshots and files in total."""
        super().__init__(most, lambda metadata: 1 + len(metadata.snapshots))

    def get(self, key: str) -> TableMetadata | None:
        """Return a copy of the contents of a file; None if it is not cached."""
        metadata = super().get(key)
        return None if metadata is None else _copy(metadata)

    def put(self, key: str, value: TableMetadata) -> TableMetadata:
        """Cache the contents of a file; return a copy."""
        return _copy(super().put(key, value))


def _copy(metadata: TableMetadata) -> TableMetadata:
    """Copy metadata with separate properties, since writers override some within their process."""
    return metadata.model_copy(update={"properties": dict(metadata.properties)})


_cache = MetadataCache()


class CachingSqlCatalog(SqlCatalog):
    """PyIceberg's SQL catalog, reading each metadata file once."""

    def files_at(self, location: str) -> FileIO:
        """Return the FileIO for a location, with the catalog's settings."""
        return self._load_file_io(location=location)

    @cached_property
    def _location_query(self) -> Select[Any]:
        """The query for a table's metadata file, built once: building it takes longer than running it."""
        query = select(IcebergTables.metadata_location).where(
            IcebergTables.catalog_name == bindparam("catalog"),
            IcebergTables.table_namespace == bindparam("namespace"),
            IcebergTables.table_name == bindparam("name"),
        )
        only_tables = self._iceberg_type_filter()
        return query if only_tables is None else query.where(only_tables)

    def load_table(self, identifier: str | Identifier) -> Table:
        """Load a table as PyIceberg does, but without building the query and an ORM object every time."""
        namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
        name = Catalog.table_name_from(identifier)
        with self.engine.connect() as connection:
            location = connection.scalar(
                self._location_query, {"catalog": self.name, "namespace": namespace, "name": name}
            )
        if not location:
            raise NoSuchTableError(f"Table does not exist: {namespace}.{name}")
        return self._table_at(location, namespace, name)

    def all_tables(self) -> list[Identifier]:
        """Return the identifiers of all tables, in one query."""
        query = select(IcebergTables.table_namespace, IcebergTables.table_name).where(
            IcebergTables.catalog_name == self.name
        )
        only_tables = self._iceberg_type_filter()
        with self.engine.connect() as connection:
            rows = connection.execute(query if only_tables is None else query.where(only_tables)).all()
        return [(*Catalog.identifier_to_tuple(namespace), name) for namespace, name in rows]

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        location, namespace, name = orm_table.metadata_location, orm_table.table_namespace, orm_table.table_name
        if not (location and namespace and name):
            return super()._convert_orm_to_iceberg(orm_table)
        return self._table_at(location, namespace, name)

    def _table_at(self, location: str, namespace: str, name: str) -> Table:
        metadata = _cache.get(location)
        # Spark would retry a missing file for minutes. In an object store, checking costs as much as reading.
        if metadata is None or (location.startswith("file:") and not Path(location.removeprefix("file://")).exists()):
            file = load_file_io(properties=self.properties, location=location).new_input(location)
            metadata = _cache.put(location, _read(f"{namespace}.{name}", file))
        return Table(
            identifier=(*Catalog.identifier_to_tuple(namespace), name),
            metadata=metadata,
            metadata_location=location,
            io=self._load_file_io(metadata.properties, location),
            catalog=self,
        )


def _read(table: str, file: InputFile) -> TableMetadata:
    try:
        return table_metadata(file)
    except FileNotFoundError as error:
        reason = (
            f"the metadata file {file.location} is gone, but the catalog still names it. A catalog restored from a "
            "backup may name files that were deleted since"
        )
        raise CorruptMetadataError(f"{table} cannot be read: {reason}. {_ADVICE}") from error
    except PermissionError as error:
        reason = f"reading its metadata file {file.location} is not permitted"
        raise CorruptMetadataError(
            f"{table} cannot be read: {reason} ({error}). Grant this user read access"
        ) from error
    except (ValidationError, pydantic.ValidationError) as error:
        raise CorruptMetadataError(
            f"PyIceberg cannot read the metadata of {table} in {file.location}: {error}. If it does not know the "
            f"type of a column, upgrade it, or drop the column. Otherwise the file is broken: {_ADVICE}"
        ) from error
    except (ValueError, EOFError, OSError, KeyError, TypeError, AttributeError) as error:
        reason = (
            f"its metadata file {file.location} is broken or truncated ({type(error).__name__}: {_first_line(error)})"
        )
        raise CorruptMetadataError(f"{table} cannot be read: {reason}. {_ADVICE}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


def with_cache(catalog: Catalog) -> Catalog:
    """Make a SQL catalog cache its metadata files and raise named errors; return any other catalog unchanged."""
    if type(catalog) is SqlCatalog:
        catalog.__class__ = CachingSqlCatalog
        event.listen(catalog.engine, "handle_error", _raise_named)
    return catalog


def _raise_named(context: ExceptionContext) -> None:
    """Raise CatalogUnavailableError if a request to the database fails."""
    if not isinstance(context.sqlalchemy_exception, OperationalError) or context.engine is None:
        return
    message = hide_in(str(context.original_exception).strip())
    advice = next((text for sign, text in _DATABASE_ADVICE.items() if sign in message), "check that it can be reached")
    where = context.engine.url.render_as_string(hide_password=True)
    raise CatalogUnavailableError(
        f"the catalog at {where} does not answer ({message}): {advice}. Run again afterwards: commits are kept, and "
        "nothing is half-published"
    ) from context.original_exception
