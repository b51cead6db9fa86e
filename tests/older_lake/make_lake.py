"""Make the archive again, with the version of the package that made it.

    git worktree add --detach /tmp/older-version 30066a0
    PYTHONPATH=/tmp/older-version python tests/older_lake/make_lake.py

Everything is made in /tmp/older-lake, whose path the archive holds; `unpack` puts it elsewhere.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lake_assets
from lake_assets import Lake, LakeConfig, Pipeline
from lake_assets.lake import SparkConfig

HERE = Path(__file__).parent
# Only the package is the earlier one: the events come from today's test helpers.
sys.path.insert(0, str(HERE.parents[1]))

from tests.older_lake import ARCHIVE, COMMIT, HOME, history  # noqa: E402
from tests.older_lake.deliver import append_payments, land_files, visits_of  # noqa: E402

SMALL = {"spark.sql.shuffle.partitions": "1", "spark.ui.enabled": "false"}
# The tables of the last run: the others are behind.
LAST_RUN = {"raw.shop_events", "staging.customers", "staging.orders", "final.customers", "final.orders"}


def main() -> None:
    """Make the lake, and the archive of it."""
    package = Path(lake_assets.__file__).parents[1]
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=package, check=True, capture_output=True, text=True
    ).stdout
    if not commit.startswith(COMMIT):
        sys.exit(f"the lake is made with commit {COMMIT}, and {package} is at {commit.strip()}")
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir()
    for name in ("pipeline.yaml", "ranked.sql"):
        shutil.copy(HERE / name, HOME)
    lake = Lake(LakeConfig(home=HOME, spark=SparkConfig(master="local[2]", driver_memory="1g", conf=SMALL)))
    pipeline = Pipeline.load(HOME / "pipeline.yaml")
    for n, arrival in enumerate(history.ABSORBED):
        land_files(HOME, n, arrival)
        append_payments(lake, n, arrival)
        pipeline.land(lake, "visits", visits_of(arrival))
        for outcome in pipeline.run(lake):
            if outcome.status not in ("absorbed", "nothing"):
                sys.exit(f"{outcome.table}: {outcome.status}: {outcome.error or outcome.why}")
    n = len(history.ABSORBED)
    land_files(HOME, n, history.HALF_ABSORBED)
    failed = [o.table for o in pipeline.run(lake, LAST_RUN) if o.status == "failed"]
    if failed != ["final.orders"]:
        sys.exit(f"only the audit of final.orders was to fail: {failed}")
    land_files(HOME, n + 1, history.PENDING)
    append_payments(lake, n + 1, history.PENDING)
    # As if a run was killed after its first commit: which files were landed is in the summaries of snapshots only.
    lake.catalog.drop_table("raw.readings_files")
    shutil.rmtree(HOME / "warehouse" / "raw" / "readings_files")
    reported = {"pending": sorted(_pending(lake, pipeline)), "tables": _tables(lake)}
    (HOME / "found.json").write_text(json.dumps(reported, indent=1, sort_keys=True))
    lake.spark().stop()
    _pack()


def _pending(lake: Lake, pipeline: Pipeline) -> Iterator[Any]:
    for p in pipeline.pending(lake):
        yield [p.table, p.source.removeprefix(str(HOME)), p.start or 0, p.end or 0, p.files]


def _tables(lake: Lake) -> dict[str, Any]:
    """The uuid, refs and properties of each table."""
    tables: dict[str, Any] = {}
    for layer in ("raw", "staging", "final", "agg", "kafka"):
        for name in lake.tables(layer):
            metadata = lake.table(name).metadata
            refs = {ref: r.snapshot_id for ref, r in metadata.refs.items()}
            tables[str(name)] = {"uuid": str(metadata.table_uuid), "refs": refs, "properties": metadata.properties}
    return tables


def _pack() -> None:
    """Write the archive, without Hadoop's checksums and earlier versions of metadata."""
    if any(HOME.rglob("*-deletes.parquet")):
        sys.exit("`unpack` does not rewrite the paths in Parquet files of position deletes")
    with sqlite3.connect(HOME / "catalog.db") as catalog:
        catalog.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        current = {
            Path(row[0].split(":", 1)[-1]).name
            for row in catalog.execute("SELECT metadata_location FROM iceberg_tables")
        }
    catalog.close()
    with tarfile.open(ARCHIVE, "w:gz", compresslevel=9) as archive:
        for file in sorted(p for p in HOME.rglob("*") if p.is_file()):
            if file.name.startswith(".") or "logs" in file.parts or file.name in ("catalog.db-wal", "catalog.db-shm"):
                continue
            if file.name.endswith(".metadata.json") and file.name not in current:
                continue
            archive.add(file, str(file.relative_to(HOME)), filter=_plain)
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size:,} bytes")


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out the owner of a file."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    main()
