"""Requests and seconds of looking for new objects in a bucket, and of landing them.

    make bench-object_landing

The store is moto's, on this machine: requests are those of any S3, seconds are not. A sensor's tick looks for new files
by whole listings, and with `landing_order: by-name`; in one folder, and in one folder per table. `UPath` lists a folder
and asks for the size of each object, as a landing through it would.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from upath import UPath

from lake_assets import Lake
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.landing_places import Landing
from lake_assets.ingest.raw import file_ledger
from lake_assets.ingest.raw.landing import RawStep, land
from lake_assets.lake import TableId
from tests.support.object_store import Bucket, StoreServer, new_bucket, running_store

STATS = 1_000  # objects that UPath lists


def main() -> int:
    """Run the benchmark; exit code 1 if a listing by name is not bounded by what is new."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=20_000, help="landed objects")
    parser.add_argument("--tables", type=int, default=65, help="folders of tables")
    args = parser.parse_args()
    each = min(args.objects // args.tables, 20)
    print(f"{args.objects:,} landed objects in one folder; {each:,} in each of {args.tables} folders")
    print(f"{'':66} {'requests':>8} {'seconds':>8}")
    with running_store() as server, tempfile.TemporaryDirectory(prefix="bench-objects-") as home:
        by_name = _one_folder(server, Path(home), args.objects)
        _folders(server, Path(home), each, args.tables)
        _upath(server)
    return 0 if by_name <= 1 else 1


def _one_folder(server: StoreServer, home: Path, objects: int) -> int:
    """Land files from a local folder, then go on with the same files in a bucket; return the requests of a tick."""
    bucket, name = new_bucket(server), TableId.parse("raw.one")
    lake = bucket.lake(home / "one")
    contents = {f"{n:09}.jsonl": _line(n) for n in range(objects)}
    folder = home / "in"
    folder.mkdir()
    for file, content in contents.items():
        (folder / file).write_bytes(content)
    _measured(server, "land all from a local folder", lambda: land(lake, _spec(name, str(folder), False)))
    _measured(server, "tick, 0 new, local folder", lambda: RawStep(_spec(name, str(folder), False)).new_files(lake))
    bucket.put_many({f"in/{file}": content for file, content in contents.items()})
    grows, plain = (_spec(name, f"{bucket.url}/in", is_by_name) for is_by_name in (True, False))
    _measured(server, "tick, 0 new, landing_order: any", lambda: RawStep(plain).new_files(lake))
    requests: list[int] = []
    for n, what in ((0, "the first"), (1, "a later")):
        bucket.put_many({f"in/{objects + n:09}.jsonl": _line(objects + n)})
        requests.append(_measured(server, f"land {what} new object, landing_order: by-name", lambda: land(lake, grows)))
        requests.append(
            _measured(server, "tick, 0 new, landing_order: by-name", lambda: RawStep(grows).new_files(lake))
        )
    _measured(server, "read the ledger", lambda: _read_ledger(lake, name))
    return requests[-1]


def _read_ledger(lake: Lake, name: TableId) -> Mapping[str, int]:
    file_ledger._cache.clear()  # pyright: ignore[reportPrivateUsage] (as in a new process)
    return file_ledger.seen(lake, name)


def _folders(server: StoreServer, home: Path, objects: int, tables: int) -> None:
    bucket = new_bucket(server)
    lake = bucket.lake(home / "folders")
    bucket.put_many({f"t{t:03}/{n:09}.jsonl": _line(n) for n in range(objects) for t in range(tables)})
    name, landing = TableId.parse("raw.folders"), f"{bucket.url}/{{table}}"
    _measured(server, f"{tables} folders: land all", lambda: land(lake, _spec(name, landing, True)))
    for is_by_name in (False, True):
        spec, order = _spec(name, landing, is_by_name), "by-name" if is_by_name else "any"
        what = f"{tables} folders: tick, 0 new, landing_order: {order}"
        _measured(server, what, lambda s=spec: RawStep(s).new_files(lake))


def _upath(server: StoreServer) -> None:
    bucket: Bucket = new_bucket(server)
    bucket.put_many({f"in/{n:09}.jsonl": _line(n) for n in range(STATS)})
    options: dict[str, Any] = {
        "use_listings_cache": False,
        "key": "k",
        "secret": "s",
        "client_kwargs": {"endpoint_url": server.endpoint, "region_name": "us-east-1"},
    }
    folder: Any = UPath(f"{bucket.url}/in", **options)
    _measured(server, f"UPath: size of each of {STATS:,} objects", lambda: [p.stat().st_size for p in folder.iterdir()])
    spec = _spec(TableId.parse("raw.u"), f"{bucket.url}/in", False)
    with tempfile.TemporaryDirectory() as home:
        lake = bucket.lake(Path(home))
        what = f"the listing: size of each of {STATS:,} objects"
        _measured(server, what, lambda: [f.size for f in RawStep(spec).new_files(lake)])


def _spec(name: TableId, landing: str, is_by_name: bool) -> RawSpec:
    return RawSpec(name, Landing.parse(landing, schema="shop", by_name=is_by_name), "change-set", "bench")


def _line(n: int) -> bytes:
    return json.dumps({"FLAG": "I", "id": n, "CDC_TIMESTAMP": n}).encode() + b"\n"


def _measured(server: StoreServer, what: str, work: Callable[[], Any]) -> int:
    server.forget()
    began = time.monotonic()
    work()
    requests = len(server.requests)
    print(f"{what:66} {requests:>8,} {time.monotonic() - began:>8.2f}", flush=True)
    return requests


if __name__ == "__main__":
    sys.exit(main())
