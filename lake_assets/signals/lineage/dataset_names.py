"""Names of datasets as OpenLineage's integrations of Spark, Flink and others write them.

A table is named by its location, as Spark's integration does, so that its lineage joins with that of other jobs. Its
name in the catalog is in the symlinks facet.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlparse

from lake_assets.ingest.landing_places import Landing
from lake_assets.lake import LakeConfig, TableId
from lake_assets.lake.redaction import hide_in
from lake_assets.sources.kafka_spec import KafkaSpec, is_pattern
from lake_assets.sources.live_specs import LiveSpec, MysqlSpec, PostgresSpec

_STORES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


@dataclass(frozen=True)
class DatasetName:
    """A dataset's name within a namespace."""

    namespace: str
    name: str


def at_location(location: str) -> DatasetName:
    """Return the name of a folder: `file` and its path, or the bucket and the key."""
    at = urlparse(location)
    if at.scheme in ("", "file"):
        return DatasetName("file", at.path.rstrip("/") or "/")
    scheme = _STORES.get(at.scheme, at.scheme)
    # Keys of S3 and GCS begin without a slash; paths of other stores with one.
    path = at.path.strip("/") if scheme in ("s3", "gs") else at.path.rstrip("/")
    return DatasetName(f"{scheme}://{at.netloc}", path or "/")


def in_catalog(config: LakeConfig, table: TableId) -> DatasetName | None:
    """Return the name of a table in its catalog; None: what names the catalog is not known."""
    uri, kind = hide_in(config.catalog.get("uri", "")), config.kind
    if kind == "glue":
        region, account = (config.catalog.get(f"glue.{n}", "") for n in ("region", "id"))
        if not (region and account):
            return None
        return DatasetName(f"arn:aws:glue:{region}:{account}", f"table/{'/'.join(table.parts)}")
    if kind == "hive" and uri:
        return DatasetName(f"hive://{urlparse(uri).netloc}", str(table))
    if kind == "rest" and uri:
        return DatasetName(uri, str(table))
    if not config.warehouse:
        return None
    place = at_location(config.warehouse)
    # A warehouse of files is a namespace with its path: `file:/data/warehouse`, `s3://bucket/warehouse`.
    namespace = f"file:{place.name}" if place.namespace == "file" else f"{place.namespace}/{place.name}".rstrip("/")
    return DatasetName(namespace, str(table))


def of_landing(landing: Landing) -> DatasetName:
    """Return the name of a landing folder."""
    return at_location(landing.root)


def of_live(live: LiveSpec) -> list[DatasetName]:
    """Return the names of the tables or topics that a live source declares by name; patterns are left out."""
    match live:
        case KafkaSpec():
            broker = live.servers.split(",")[0].strip()
            return [DatasetName(f"kafka://{broker}", t) for t in live.topics if not is_pattern(t)]
        case PostgresSpec():
            tables = [f"{live.database}.{t.name}" for t in live.tables if not t.is_pattern]
            return [DatasetName(f"postgres://{live.host}:{live.port}", t) for t in tables]
        case MysqlSpec():
            return [DatasetName(f"mysql://{live.host}:{live.port}", t.name) for t in live.tables if not t.is_pattern]
