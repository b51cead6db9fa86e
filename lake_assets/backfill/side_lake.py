"""The side catalog of a backfill: its working copies, and its sources as they were when it last caught up.

Of a lake in a SQL catalog, it is the lake's own database under another catalog name, so that Spark and PyIceberg reach
it wherever they reach the lake. Of a lake in a REST catalog, it is a SQLite file in the lake's home: servers refuse
several tables in one place. It is another lake in every other respect: same files, same Spark, a session of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Generator, Iterable, Sequence
from typing import Any
from urllib.parse import urlparse

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables
from pyiceberg.table import Table
from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from lake_assets.backfill.backfill_record import BackfillRecord
from lake_assets.capture import icdc, source_tags
from lake_assets.errors import BackfillError
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.lake.caching_catalog import CachingSqlCatalog
from lake_assets.lake.metadata.metadata_commits import Metadata, now_ms, read_metadata
from lake_assets.lake.metadata.working_copies import COPIES, METADATA_PATH, at_snapshot, working_copy
from lake_assets.lake.paths import file_url
from lake_assets.lake.redaction import hide_in
from lake_assets.runtime.private_files import make_private
from lake_assets.tables.pending_windows import known_marks

# The property of a snapshot that was committed in a backfill, with its id; Spark adds it to each commit of a session.
BACKFILL_PROPERTY = "lake-assets.backfill"
# Settings of a catalog about where files are.
_STORAGE = ("s3.", "client.", "gcs.", "adls.", "hdfs.", "io-impl", "py-io-impl")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def can_build_aside(lake: Lake) -> bool:
    """Whether backfills can build the tables of a lake aside, and publish them together."""
    return isinstance(lake.catalog, CachingSqlCatalog | RestCatalog)


class SideLake:
    """The side catalog of one backfill.

    Raises BackfillError if the lake's catalog is neither a SQL nor a REST catalog, or Spark cannot reach the side
    catalog.

    Attributes:
        main: the lake.
        lake: the lake with the side catalog.
    """

    def __init__(self, main: Lake, record: BackfillRecord) -> None:
        if not can_build_aside(main):
            raise BackfillError(
                f"the catalog of the lake is {type(main.catalog).__name__}: backfills need a SQL catalog (SQLite or "
                "Postgres) or a REST catalog, which publish several tables together. `lake-assets rebuild TABLE` "
                "publishes one table by itself"
            )
        self.main, self._backfill = main, record.id
        name = f"{main.config.name}_{record.id}"
        if isinstance(main.catalog, CachingSqlCatalog):
            self._own_file, config = None, main.config.model_copy(update={"name": name})
        else:
            self._own_file = main.config.home / "backfills" / f"{record.id}.db"
            config = main.config.model_copy(update={"name": name, **self._beside_a_server(record)})
        self.lake = main.beside(config, {BACKFILL_PROPERTY: record.id})

    def _beside_a_server(self, record: BackfillRecord) -> dict[str, Any]:
        """Return the settings of a side catalog in a file of its own."""
        config = self.main.config
        remote = config.spark.remote
        if remote and (urlparse(remote).hostname or "") not in _LOOPBACK:
            raise BackfillError(
                f"backfills of a lake in a REST catalog keep their side catalog in {config.home}, where the Spark "
                f"Connect server {hide_in(remote)} cannot read it: run this on the server's machine, with `localhost` "
                "as host in spark.remote, or with a local Spark (spark.master)"
            )
        make_private(config.home / "backfills")
        storage = {k: v for k, v in config.catalog.items() if k.startswith(_STORAGE)}
        # Captures of changes need a place beside the tables: Spark may reach files nowhere else.
        first = next((t for r in record.tables if (t := self.main.find(r.table)) is not None), None)
        warehouse = f"{self.folder(first)}/side" if first else file_url(config.home / "backfills" / self._backfill)
        return {"catalog": {"type": "sql", "uri": f"sqlite:///{self._own_file}", **storage}, "warehouse": warehouse}

    def copy_tables(self, tables: Iterable[tuple[Table, int | None]]) -> dict[TableId, str]:
        """Register working copies of tables, or replace existing ones; return the first metadata file of each copy.

        Each table comes with the snapshot from which its copy starts; None: it is empty.
        """
        copies = {
            TableId.parse(table.name()): (
                table,
                working_copy(read_metadata(table), snapshot, self.folder(table), now_ms()),
            )
            for table, snapshot in tables
        }
        written = {name: self._write(table, metadata, "start") for name, (table, metadata) in copies.items()}
        self._register(written)
        return written

    def pin_sources(self, sources: Sequence[Table], folder: str) -> None:
        """Register sources as they are on main now; their copies are only read.

        Their metadata goes to the folder: they may belong to others, who want no files in them.
        """
        pinned: dict[TableId, str] = {}
        for table in sources:
            metadata = at_snapshot(read_metadata(table), table.metadata.current_snapshot_id, now_ms())
            properties = {**metadata.get("properties", {}), METADATA_PATH: folder}
            metadata |= {"metadata-log": [], "properties": properties}
            name = TableId.parse(table.name())
            at = table.metadata.current_snapshot_id
            # Names may be longer than those of files, and have characters that files cannot have.
            hashed = hashlib.sha256(json.dumps(name.parts).encode()).hexdigest()[:16]
            pinned[name] = self._write(table, metadata, f"{hashed}-{at}", folder)
        self._register(pinned)

    def absorbed(self, record: BackfillRecord, source: Table) -> dict[str, int]:
        """Return tags on the snapshots of another program's table from which the copies continue.

        Main moves on, and with it the tags of its consumers; the pipeline's own tables keep all snapshots meanwhile.
        """
        tags: dict[str, int] = {}
        name = str(TableId.parse(source.name()))
        for t in record.tables if source_tags.is_of_others(source) else ():
            mark = known_marks((self.lake if t.metadata else self.main).find(t.table)).get(name)
            if mark and mark.snapshot is not None:
                tags[record.source_tag(source, t.name)] = mark.snapshot
        return tags

    @contextlib.contextmanager
    def registered(self, copy: Table, name: TableId, metadata: Metadata) -> Generator[TableId]:
        """Register other metadata of a working copy's table under another name, for the context."""
        metadata = {
            **metadata,
            "metadata-log": [],
            "properties": {**metadata["properties"], METADATA_PATH: self.folder(copy)},
        }
        self._register({name: self._write(copy, metadata, "compared")}, like=TableId.parse(copy.name()))
        try:
            yield name
        finally:
            self.lake.catalog.drop_table(name.parts)

    def folder(self, table: Table) -> str:
        """Return the folder of a working copy's metadata files and manifests."""
        return f"{table.location().rstrip('/')}/metadata/{COPIES}{self._backfill}"

    def lake_tables(self) -> list[TableId]:
        """Return the registered tables of the lake: working copies and sources."""
        if self._own_file is not None and not self._own_file.exists():
            return []
        return self.lake.all_tables()

    def drop(self) -> None:
        """Remove the side catalog, and the ICDC tables that killed runs left in it. Files of the copies stay."""
        icdc.sweep(self.lake)
        if self._own_file is not None:
            self._catalog.engine.dispose()
            for ending in ("", "-wal", "-shm"):
                self._own_file.with_name(self._own_file.name + ending).unlink(missing_ok=True)
            return
        with Session(self._catalog.engine) as session:
            for model in (IcebergTables, IcebergNamespaceProperties):
                session.execute(delete(model).where(model.catalog_name == self._catalog.name))
            session.commit()

    @property
    def _catalog(self) -> CachingSqlCatalog:
        catalog = self.lake.catalog
        assert isinstance(catalog, CachingSqlCatalog)
        return catalog

    def _write(self, table: Table, metadata: Metadata, name: str, folder: str = "") -> str:
        path = f"{folder or self.folder(table)}/00000-{name}-{now_ms()}.metadata.json"
        # Iceberg refuses a history that ends more than a minute after the last update, which is main's last commit.
        times = (entry["timestamp-ms"] for entry in metadata.get("snapshot-log", ()))
        metadata = {**metadata, "last-updated-ms": max([metadata["last-updated-ms"], *times])}
        with table.io.new_output(path).create() as file:
            file.write(json.dumps(metadata, separators=(",", ":")).encode())
        return path

    def _register(self, tables: dict[TableId, str], like: TableId | None = None) -> None:
        """Register metadata files, by name, all in one transaction; tables of these names are replaced.

        `like` is a table of main; default: the one with the same name.
        """
        columns = IcebergTables.__table__
        with Session(self._catalog.engine) as session:
            for table, path in tables.items():
                row: dict[str, Any] = {"iceberg_type": "TABLE"}
                if self._own_file is None:
                    # Spark and PyIceberg differ in the columns of this table: the rest of the row is that of main.
                    query = select(columns).filter_by(**_named(like or table), catalog_name=self.main.catalog.name)
                    row = {**session.execute(query).mappings().one()}
                own = {**_named(table), "catalog_name": self._catalog.name, "metadata_location": path}
                session.execute(delete(IcebergTables).filter_by(**_named(table), catalog_name=self._catalog.name))
                session.execute(insert(IcebergTables).values({**row, **own, "previous_metadata_location": None}))
            session.commit()


def _named(table: TableId) -> dict[str, str]:
    return {"table_namespace": Catalog.namespace_to_string(table.namespace), "table_name": table.name}
