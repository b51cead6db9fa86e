"""The lake as one object: catalog, Spark session, tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pydantic
from pyiceberg.catalog import Catalog, CatalogType, load_catalog
from pyiceberg.exceptions import (
    BadRequestError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    ValidationError,
)
from pyiceberg.table import Table
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError

from lake_assets.errors import (
    CatalogUnavailableError,
    CorruptMetadataError,
    InvalidNameError,
    LakeNotFoundError,
    TableNotFoundError,
)
from lake_assets.lake import caching_catalog as catalogs
from lake_assets.lake.caching_catalog import CachingSqlCatalog, with_cache
from lake_assets.lake.config import LakeConfig
from lake_assets.lake.disk_space import disks
from lake_assets.lake.foreign_errors import catalog_problem
from lake_assets.lake.lake_place import check_place
from lake_assets.lake.names import CAPTURES, TableId, folder_of, nearest, nearest_table
from lake_assets.lake.redaction import hide, hide_in
from lake_assets.lake.spark_session import SNAPSHOT_PROPERTY, adopt_session, another_session, open_session, set_all
from lake_assets.runtime.private_files import make_private

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# What PyIceberg and SQLAlchemy say of a URI of an unknown kind.
_NO_DATABASE = ("Can't load plugin", "Could not infer the catalog type")
_CATALOG_ADVICE = "check that its server runs, and `catalog` in the lake's configuration (uri, credentials)"


class LakeBase:
    """PyIceberg's catalog and Spark's session over the same tables.

    Both are opened on first use: reading metadata never starts Spark.
    """

    def __init__(self, config: LakeConfig, *, session: Callable[[], SparkSession] | None = None) -> None:
        """
        Args:
            session: returns the Spark session, if another object owns it (Dagster's resource).
        """
        self.config = config
        # Summary properties of each commit that steps make.
        self.commit_properties: Mapping[str, str] = {}
        self._session_source = session
        self._session: SparkSession | None = None
        # Of a look (`glance`): what it has loaded. None: tables are loaded each time.
        self._seen: dict[TableId, Table | None] | None = None

    @classmethod
    def load(cls, path: str | Path | None = None) -> Self:
        """Open the lake of a lake.yaml, of the environment, or the embedded default (see `LakeConfig.load`)."""
        return cls(LakeConfig.load(path))

    @classmethod
    def load_existing(cls) -> Self:
        """Open an existing lake, for commands that only read: a mistyped home must not create one.

        Raises:
            LakeNotFoundError: there is no lake at that location.
        """
        lake = cls.load()
        if not lake.is_there:
            file = _sqlite_file(lake.config.catalog["uri"])
            raise LakeNotFoundError(
                f"no lake at {lake.config.home}: its catalog {file} does not exist. If the lake is elsewhere, set "
                "LAKE_HOME, or LAKE_CONFIG to its lake.yaml; `lake-assets run PIPELINE` creates a lake here"
            )
        return lake

    @property
    def is_there(self) -> bool:
        """Whether the catalog exists; assumed for catalogs behind a server."""
        return not self.config.is_embedded or _sqlite_file(self.config.catalog["uri"]).is_file()

    @cached_property
    def catalog(self) -> Catalog:
        """PyIceberg's catalog.

        Raises:
            CatalogUnavailableError: it cannot be opened; names reason and location.
            MovedLakeError: the folder of an embedded lake was moved or copied.
        """
        properties = self.config.catalog_properties
        uri = properties.get("uri", "")
        try:
            if self.config.is_embedded:
                properties["uri"] = _prepare_sqlite(uri, self.config.home)
                if self.config.scheme == "file" and self.config.warehouse and ":memory:" not in uri:
                    check_place(
                        _sqlite_file(uri), self.config.name, Path(self.config.warehouse.removeprefix("file://"))
                    )
            if self.config.warehouse:
                properties["warehouse"] = self.config.warehouse
            return with_cache(load_catalog(self.config.name, **properties))
        except CatalogUnavailableError:
            raise
        except NotInstalledError as error:
            kind = uri.partition(":")[0] if properties.get("type", "sql") == "sql" else properties["type"]
            # PyIceberg would name its own extra, and one for SQLite beside it.
            has_extra = kind in ("postgresql", "postgresql+psycopg2")
            advice = "`pip install 'lake-assets[postgres]'`" if has_extra else str(error)
            raise CatalogUnavailableError(
                f"the Iceberg catalog ({kind}) needs a package that is not installed: {advice}, in the environment "
                "that lake_assets runs in"
            ) from error
        except (SQLAlchemyError, sqlite3.Error, OSError, ValueError) as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: Exception) -> CatalogUnavailableError:
        """Return the error about a catalog that cannot be opened: where it is, why, and what to look at."""
        properties = self.config.catalog
        uri = properties.get("uri", "")
        why, advice = self.config.hidden(catalog_problem(error)), _CATALOG_ADVICE
        known = [kind.value for kind in CatalogType if kind is not CatalogType.IN_MEMORY]
        if (kind := properties.get("type")) not in (*known, CatalogType.IN_MEMORY.value, None):
            why, advice = (
                f"no catalog has the type {kind!r}{nearest(str(kind), known)}",
                "write sql, rest, hive or glue",
            )
        elif any(sign in why for sign in _NO_DATABASE) or isinstance(error, ArgumentError):
            why = f"{uri.partition(':')[0]}: names no kind of catalog or database"
            advice = (
                "write `catalog: uri` as postgresql+psycopg2://user@host:5432/database or sqlite:////folder/file.db"
            )
        elif self.config.is_embedded:
            file = _sqlite_file(uri)
            denied = isinstance(error, PermissionError) or "readonly" in why or "unable to open" in why
            why = f"this user may not write {file} and its folder" if denied else why
            advice = "get the right to write there, or name another lake in LAKE_HOME or LAKE_CONFIG"
            if full := [d.advice for d in disks(self.config) if d.is_little and not denied]:
                advice = "; ".join(full)
        return CatalogUnavailableError(
            f"the Iceberg catalog at {hide_in(uri) or hide(properties)} cannot be opened: {why}: {advice}"
        )

    def spark(self) -> SparkSession:
        """Return the Spark session; its catalog has the configured name (`lake`)."""
        if self._session is None:
            if self._session_source:
                self._session = self._session_source()
                adopt_session(self._session, self.config)
            else:
                self._session = open_session(self.config)
            self.catalog  # noqa: B018 (creates the SQLite file with the right journal mode before Spark opens it)
        return self._session

    @property
    def open_session(self) -> SparkSession | None:
        """The Spark session, if it has been opened."""
        return self._session

    def beside(self, config: LakeConfig, properties: Mapping[str, str]) -> Self:
        """Return another lake on the Spark of this one, with a session of its own.

        Args:
            properties: summary properties of each of its commits, whether Spark or this process makes them.
        """

        def session() -> SparkSession:
            made = another_session(self.spark(), self.config)
            # Settings of the JVM, fixed when it started, cannot be repeated.
            own = {key: value for key, value in config.spark.conf.items() if made.conf.isModifiable(key)}
            set_all(made, {**own, **{SNAPSHOT_PROPERTY + name: value for name, value in properties.items()}})
            return made

        lake = type(self)(config, session=session)
        lake.commit_properties = properties
        return lake

    def table(self, name: str | TableId) -> Table:
        """Load the PyIceberg table.

        Raises:
            TableNotFoundError: it does not exist; names similar tables.
            CorruptMetadataError: PyIceberg cannot read its metadata.
        """
        table_id = TableId.parse(name)
        try:
            if (found := self.find(table_id)) is not None:
                return found
            existing = ", ".join(str(t) for t in self.tables(table_id.namespace)) or "no tables"
            where = hide_in(self.config.catalog.get("uri", self.config.name))
            raise TableNotFoundError(
                f"no table {table_id}{nearest(str(table_id), map(str, self.all_tables()))} in the lake at {where}; "
                f"{'.'.join(table_id.namespace)} holds: {existing}"
            )
        except (pydantic.ValidationError, ValidationError) as error:
            raise CorruptMetadataError(
                f"PyIceberg cannot read the metadata of {table_id}: {error}. If it does not know the type of a column: "
                "VARIANT can only be read through a SQL catalog; register the table in one, or drop the column. "
                "Otherwise restore the metadata file from a backup"
            ) from error

    def named(self, text: str) -> TableId:
        """Return the table that a user names.

        Raises:
            InvalidNameError: it is no name, such as one without a layer; names the tables that may be meant.
        """
        try:
            return TableId.parse(text)
        except InvalidNameError as error:
            known = self.all_tables() if self.is_there else []
            raise InvalidNameError(f"{error}{nearest_table(text, known)}") from None

    def find(self, name: str | TableId) -> Table | None:
        """Load the PyIceberg table; None if it does not exist."""
        table_id = TableId.parse(name)
        if self._seen is not None and table_id in self._seen:
            return self._seen[table_id]
        try:
            found = self.catalog.load_table(table_id.parts)
        except (NoSuchTableError, NoSuchNamespaceError):
            found = None
        if self._seen is not None:
            self._seen[table_id] = found
        return found

    def glance(self) -> Self:
        """Return this lake for a look at many tables, which loads each of them once; for reading only.

        A table is then the same for all who ask, and no catalog is asked again for what it has just answered.
        """
        if self._seen is not None:
            return self
        self.catalog  # noqa: B018 (opened here, it is shared)
        found = copy(self)
        found._seen = {}
        return found

    def exists(self, name: str | TableId) -> bool:
        """Whether the table exists."""
        return self.catalog.table_exists(TableId.parse(name).parts)

    def tables(self, namespace: str | tuple[str, ...]) -> list[TableId]:
        """Return the tables of a namespace; empty if the namespace does not exist."""
        try:
            return sorted(TableId.parse(tuple(parts)) for parts in self.catalog.list_tables(namespace))
        except NoSuchNamespaceError:
            return []

    def all_tables(self) -> list[TableId]:
        """Return the tables of all namespaces, without those of captures."""
        catalog = self.catalog
        if isinstance(catalog, CachingSqlCatalog):
            found = sorted(TableId.parse(parts) for parts in catalog.all_tables())
        else:
            found = [t for n in self.namespaces() for t in self.tables(n)]
        return [t for t in found if t.namespace[0] != CAPTURES]

    def namespaces(self) -> list[tuple[str, ...]]:
        """Return all namespaces, nested ones after those that contain them; catalogs list one level at a time."""
        found: list[tuple[str, ...]] = []
        level = [tuple(n) for n in self.catalog.list_namespaces()]
        while level:
            found += level
            level = [below for namespace in level for below in self._below(namespace)]
        return found

    def _below(self, namespace: tuple[str, ...]) -> list[tuple[str, ...]]:
        try:
            below = {tuple(n) for n in self.catalog.list_namespaces(namespace)}
        except (NoSuchNamespaceError, BadRequestError):
            return []  # dropped meanwhile; or the server has no nested namespaces
        # Servers without nested namespaces may also list the top level again.
        return sorted(n for n in below if n[:-1] == namespace)

    def ensure_namespace(self, namespace: tuple[str, ...]) -> None:
        """Create the namespace if it does not exist."""
        try:
            if not self.catalog.namespace_exists(namespace):
                self.catalog.create_namespace(namespace)
        except (NamespaceAlreadyExistsError, IntegrityError):
            # Another process created it first; which of the two errors occurs depends on timing.
            if not self.catalog.namespace_exists(namespace):
                raise

    def location_of(self, table: TableId) -> str | None:
        """Return the location of a new table; None for the catalog's default, a folder with the table's name.

        Names come from streams as well: a name like `../x` must not leave the warehouse.
        """
        folders = [folder_of(part) for part in table.parts]
        if tuple(folders) == table.parts or not self.config.warehouse:
            return None
        return "/".join([self.config.warehouse.rstrip("/"), *folders])

    def rows_at(self, table: str | TableId, snapshot: int | None, session: SparkSession | None = None) -> DataFrame:
        """Return the rows of a table in a snapshot, with the columns that it had then; None: it was empty.

        Each frame has a reader of its own: over Spark Connect, frames share the options of their reader, so that a
        reader of two snapshots would make both frames read the second one.

        Args:
            session: the session that reads them; default: the lake's.
        """
        spark, name = session or self.spark(), self.sql_name(table)
        if snapshot is None:
            return spark.table(name).limit(0)
        return spark.read.option("versionAsOf", str(snapshot)).table(name)

    def sql_name(self, name: str | TableId) -> str:
        """Return the quoted name for Spark SQL."""
        return TableId.parse(name).sql(self.config.name)


def _sqlite_file(uri: str) -> Path:
    """Return the file of a SQLite URI."""
    return Path(uri.partition(":///")[2].split("?")[0])


def _prepare_sqlite(uri: str, home: Path) -> str:
    """Prepare the SQLite file for several writers; return the URI for PyIceberg."""
    path = _sqlite_file(uri)
    if path.parent == home and not home.exists() and home.parent.is_dir():
        make_private(home)
    if not path.parent.is_dir():
        raise CatalogUnavailableError(
            f"the catalog's folder {path.parent} does not exist: create it, or point LAKE_HOME (or catalog.uri) "
            "elsewhere"
        )
    # With write-ahead logging, readers need not wait for a writer. The file keeps the setting.
    with sqlite3.connect(path, timeout=catalogs.LOCK_SECONDS) as connection:
        connection.execute("PRAGMA journal_mode=WAL").fetchone()
    connection.close()
    return f"{uri}{'&' if '?' in uri else '?'}timeout={catalogs.LOCK_SECONDS:g}"
