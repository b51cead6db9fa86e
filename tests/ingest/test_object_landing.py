"""Objects of a store become rows of a raw table as the files of a local folder do: catalog and store only, no Spark."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake_assets import Lake, LakeConfig
from lake_assets.errors import (
    ChangedInputError,
    ConcurrentWriteError,
    InputError,
    LandingFolderError,
    MissingPackageError,
    StorageUnavailableError,
    TruncatedInputError,
    UnstableFileError,
)
from lake_assets.formats import SourceTable
from lake_assets.formats.files.limited_files import Limits
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.landing_places import Landing
from lake_assets.ingest.raw import file_ledger, folder_listings, landing, new_files
from lake_assets.ingest.raw.landing import RawStep, land
from lake_assets.ingest.raw.landing_backlog import Backlog, backlog
from lake_assets.lake import TableId, object_stores, thresholds
from lake_assets.pipeline.config.flag_settings import row_layout
from lake_assets.pipeline.config.pipeline_config import Stream
from lake_assets.pipeline.step_retries import absorb
from lake_assets.tables.specs import BatchSize
from tests.support.object_store import SECRET, Bucket, Request
from tests.support.seeds import long_seeds

RAW = TableId.parse("raw.s")
ORDERS = SourceTable("shop", "orders")


def spec(where: Landing | Path | str, **more: Any) -> RawSpec:
    where = Landing.parse(where) if isinstance(where, str) else where
    return RawSpec(RAW, where, "change-set", "p", about=ORDERS, **more)  # pyright: ignore[reportArgumentType]


def lines(*ids: int) -> bytes:
    return b"".join(json.dumps({"FLAG": "I", "id": i, "CDC_TIMESTAMP": i}).encode() + b"\n" for i in ids)


def rows(lake: Lake, *columns: str) -> list[tuple[Any, ...]]:
    found = lake.table(RAW).scan(selected_fields=("position", *columns)).to_arrow().to_pylist()
    return [tuple(r[c] for c in columns) for r in sorted(found, key=lambda r: r["position"])]


def ids(lake: Lake) -> list[int]:
    return [json.loads(r)["id"] for (r,) in rows(lake, "record")]


@pytest.fixture
def store_lake(bucket: Bucket, tmp_path: Path) -> Lake:
    return bucket.lake(tmp_path / "lake")


# --- the same as a local folder --------------------------------------------------------------------------------------


def _table(choose: random.Random) -> list[dict[str, Any]]:
    return [
        {"FLAG": choose.choice("IUD"), "id": n, "name": choose.choice(["a", 'q"uote', "two\nlines", "", "ü"])}
        for n in range(choose.randint(1, 30))
    ]


def as_jsonl(found: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(r).encode() + b"\n" for r in found)


def as_csv(found: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["FLAG", "id", "name"])
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue().encode()


def as_parquet(found: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(found), sink, row_group_size=7)
    return sink.getvalue()


def _files(choose: random.Random) -> list[tuple[str, bytes]]:
    """Files of every kind, some of which are cut, empty, or no files at all to a landing."""
    kinds: list[tuple[str, Callable[[list[dict[str, Any]]], bytes]]] = [
        ("jsonl", as_jsonl),
        ("csv", as_csv),
        ("parquet", as_parquet),
    ]
    found: list[tuple[str, bytes]] = []
    for n in range(choose.randint(3, 9)):
        end, write = choose.choice(kinds)
        content = write(_table(choose))
        if end != "parquet" and choose.random() < 0.3:
            end, content = f"{end}.gz", gzip.compress(content, mtime=0)
        if choose.random() < 0.08:
            content = content[: -choose.randint(3, len(content) // 2)]
        if choose.random() < 0.05:
            content = b""
        name = f"{choose.choice(['a', 'B', 'ü', '1 2', 'x%2F'])}{n:02}.{end}"
        name = choose.choice([name] * 8 + [f".{name}", f"_{name}", f"{name}.tmp", f"{name}.part"])
        found.append((name, content))
    return found


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("seed", [0, *long_seeds(1, 40)])
def test_any_set_of_files_gives_the_same_raw_table_from_a_folder_and_from_a_store(
    bucket: Bucket, tmp_path: Path, seed: int, by_name: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = random.Random(seed)
    if choose.random() < 0.5:  # objects that are not held in memory
        monkeypatch.setattr(thresholds, "OBJECT_BYTES_IN_MEMORY", choose.randint(0, 300))
        monkeypatch.setattr(thresholds, "OBJECT_BYTES_A_READ", choose.randint(64, 4096))
    folder = tmp_path / "in"
    folder.mkdir()
    deliveries = [_files(choose) for _ in range(3)]
    specs = {
        "local": spec(Landing.parse(str(folder), by_name=by_name)),
        "store": spec(Landing.parse(f"{bucket.url}/in", by_name=by_name)),
    }
    lakes = {name: bucket.lake(tmp_path / name) for name in specs}
    for number, files in enumerate(deliveries):
        for name, content in files:
            named = f"{number}-{name}" if name[0] not in "._" else name
            (folder / named).write_bytes(content)
            bucket.put(f"in/{named}", content)
        errors: dict[str, str] = {}
        pending: dict[str, list[str]] = {}
        for name, one in specs.items():
            pending[name] = [f.name for f in RawStep(one).new_files(lakes[name])]
            try:
                land(lakes[name], one)
                errors[name] = ""
            except InputError as e:
                errors[name] = f"{type(e).__name__}: {e}".replace(str(folder), "IN").replace(f"{bucket.url}/in", "IN")
        assert pending["local"] == pending["store"]
        assert errors["local"] == errors["store"]
        if lakes["local"].exists(RAW):
            columns = ("position", "source_file", "source_line", "source_table", "record", "problem")
            assert rows(lakes["local"], *columns) == rows(lakes["store"], *columns)
            assert file_ledger.seen(lakes["local"], RAW) == file_ledger.seen(lakes["store"], RAW)
        if errors["local"]:  # whoever delivers corrects the file, so that the next ones land
            broken = next(n for n in pending["local"] if n in errors["local"])
            (folder / broken).unlink()
            bucket.delete(f"in/{broken}")


def test_a_large_object_is_read_in_parts(bucket: Bucket, store_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "OBJECT_BYTES_IN_MEMORY", 100)
    monkeypatch.setattr(thresholds, "OBJECT_BYTES_A_READ", 10_000)
    bucket.put("in/a.jsonl.gz", gzip.compress(lines(*range(5_000)), 1))
    bucket.put(
        "in/b.csv",
        as_csv([{"FLAG": "I", "id": n, "name": "x" * 20} for n in range(2_000)]),
    )
    assert land(store_lake, spec(f"{bucket.url}/in")).records == 7_000
    assert ids_of_json(store_lake)[:5_000] == list(range(5_000))


def ids_of_json(lake: Lake) -> list[int]:
    return [json.loads(r)["id"] for (r,) in rows(lake, "record") if '"@text"' not in r]


def test_an_object_costs_one_request_and_a_tick_one_listing(bucket: Bucket, store_lake: Lake) -> None:
    for n in range(20):
        bucket.put(f"in/{n:03}.{'csv' if n % 2 else 'jsonl'}", as_csv(_table(random.Random(n))) if n % 2 else lines(n))
    one = spec(f"{bucket.url}/in")
    bucket.server.forget()
    assert len(RawStep(one).new_files(store_lake)) == 20
    assert [r.method for r in bucket.server.requests] == ["GET"]
    bucket.server.forget()
    assert land(store_lake, one).files == 20
    reads = [r for r in bucket.server.requests if not r.is_listing]
    assert [r.method for r in reads] == ["GET"] * 20
    # One listing before landing, one that finds nothing more.
    assert len(bucket.server.listings()) == 2
    bucket.server.forget()
    assert RawStep(one).new_files(store_lake) == []
    assert len(bucket.server.requests) == 1


def test_a_batch_that_waits_reads_neither_sizes_nor_times_one_by_one(bucket: Bucket, store_lake: Lake) -> None:
    bucket.put("in/a.jsonl", lines(1))
    waits = spec(f"{bucket.url}/in", batch=BatchSize(rows=100, wait=3600))
    bucket.server.forget()
    assert RawStep(waits).new_files(store_lake) == []
    assert sum(r.method == "HEAD" for r in bucket.server.requests) == 0
    assert [
        f.name for f in RawStep(spec(f"{bucket.url}/in", batch=BatchSize(files=1, wait=3600))).new_files(store_lake)
    ]


def test_what_is_pending_is_told_from_the_lake_alone(bucket: Bucket, store_lake: Lake) -> None:
    bucket.put("in/a.jsonl", lines(1, 2))
    land(store_lake, spec(f"{bucket.url}/in"))
    size = len(bucket.put("in/b.jsonl", lines(3)) and lines(3))
    assert backlog(store_lake, RAW) == Backlog(1, size, 1)


def test_the_name_of_a_landed_object_must_keep_its_content(bucket: Bucket, store_lake: Lake) -> None:
    bucket.put("in/a.jsonl", lines(1))
    land(store_lake, spec(f"{bucket.url}/in"))
    bucket.put("in/a.jsonl", lines(1, 2))
    with pytest.raises(ChangedInputError, match=r"s3://.*/in/a\.jsonl was landed with"):
        land(store_lake, spec(f"{bucket.url}/in"))


def test_objects_of_inner_folders_and_markers_of_folders_are_left_out(bucket: Bucket, store_lake: Lake) -> None:
    for key in ("in/", "in/inner/a.jsonl", "in/inner/", "other.jsonl", "in_too/b.jsonl", "in/_SUCCESS", "in/c.jsonl"):
        bucket.put(key, b"" if key.endswith("/") else lines(1))
    for url in (f"{bucket.url}/in", f"{bucket.url}/in/"):
        assert [f.name for f in RawStep(spec(url)).new_files(store_lake)] == ["c.jsonl"]
    assert [f.name for f in RawStep(spec(bucket.url)).new_files(store_lake)] == ["other.jsonl"]


def test_a_folder_that_moves_to_a_store_lands_nothing_twice(bucket: Bucket, store_lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(lines(1))
    land(store_lake, spec(tmp_path / "in"))
    bucket.put("in/a.jsonl", lines(1))
    bucket.put("in/b.jsonl", lines(2))
    for by_name in (False, True):
        land(store_lake, spec(Landing.parse(f"{bucket.url}/in", by_name=by_name)))
        assert ids(store_lake) == [1, 2]


def test_more_pages_than_one_are_listed(bucket: Bucket, store_lake: Lake) -> None:
    bucket.put_many({f"in/{n:05}.jsonl": lines(n) for n in range(1_050)})
    bucket.server.forget()
    assert len(RawStep(spec(f"{bucket.url}/in")).new_files(store_lake)) == 1_050
    assert len(bucket.server.listings()) == 2


def test_any_other_store_of_fsspec_works_the_same(tmp_path: Path) -> None:
    import fsspec

    store, lake = fsspec.filesystem("memory"), Lake(LakeConfig(home=tmp_path))
    root = f"memory://{tmp_path.name}/in"
    assert absorb(lake, spec(root)).why == f"no file has arrived in {root} yet"
    store.pipe_file(f"/{tmp_path.name}/in/a.jsonl", lines(1))
    store.pipe_file(f"/{tmp_path.name}/in/inner/b.jsonl", lines(2))
    assert land(lake, spec(root)).files == 1
    store.pipe_file(f"/{tmp_path.name}/in/c.csv", b"FLAG,id\nI,3\n")
    assert land(lake, spec(root)).files == 1
    assert [n for (n,) in rows(lake, "source_file")] == ["a.jsonl", "c.csv"]


# --- names that only grow --------------------------------------------------------------------------------------------


def grows(bucket: Bucket) -> RawSpec:
    return spec(Landing.parse(f"{bucket.url}/in", by_name=True))


def test_the_listing_begins_behind_the_last_landed_name(bucket: Bucket, store_lake: Lake) -> None:
    for n in range(5):
        bucket.put(f"in/{n:03}.jsonl", lines(n))
    assert land(store_lake, grows(bucket)).files == 5
    bucket.server.forget()
    assert RawStep(grows(bucket)).new_files(store_lake) == []
    (listing,) = bucket.server.listings()
    assert listing.parameters["start-after"] == "in/004.jsonl"
    bucket.put("in/005.jsonl", lines(5))
    bucket.server.forget()
    assert [f.name for f in RawStep(grows(bucket)).new_files(store_lake)] == ["005.jsonl"]
    land(store_lake, grows(bucket))
    assert {r.parameters.get("start-after") for r in bucket.server.listings()} == {"in/004.jsonl", "in/005.jsonl"}
    assert ids(store_lake) == list(range(6))


def test_files_that_landed_before_the_order_was_declared_are_listed_once(bucket: Bucket, store_lake: Lake) -> None:
    for n in range(3):
        bucket.put(f"in/{n}.jsonl", lines(n))
    land(store_lake, spec(f"{bucket.url}/in"))
    new_files._listed.clear()  # pyright: ignore[reportPrivateUsage] (as in another process)
    for start in (None, "in/2.jsonl", "in/2.jsonl"):
        bucket.server.forget()
        assert RawStep(grows(bucket)).new_files(store_lake) == []
        assert [r.parameters.get("start-after") for r in bucket.server.listings()] == [start]


def test_a_name_that_comes_late_lands_with_the_next_whole_listing(
    bucket: Bucket, store_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("in/b.jsonl", lines(1))
    land(store_lake, grows(bucket))
    bucket.put("in/a.jsonl", lines(2))
    assert RawStep(grows(bucket)).new_files(store_lake) == []
    monkeypatch.setattr(thresholds, "WHOLE_LISTING_SECONDS", 0)
    assert [f.name for f in RawStep(grows(bucket)).new_files(store_lake)] == ["a.jsonl"]
    assert land(store_lake, grows(bucket)).files == 1
    assert ids(store_lake) == [1, 2]


def test_the_last_name_counts_for_its_landing_only_and_after_a_rollback_as_it_was(
    bucket: Bucket, store_lake: Lake
) -> None:
    bucket.put("in/m.jsonl", lines(1))
    land(store_lake, grows(bucket))
    first = store_lake.table(RAW).metadata.current_snapshot_id
    bucket.put("elsewhere/a.jsonl", lines(2))
    elsewhere = spec(Landing.parse(f"{bucket.url}/elsewhere", by_name=True))
    assert land(store_lake, elsewhere).files == 1
    bucket.put("in/n.jsonl", lines(3))
    assert land(store_lake, grows(bucket)).files == 1
    store_lake.table(RAW).manage_snapshots().rollback_to_snapshot(first).commit()
    assert land(store_lake, grows(bucket)).files == 1
    assert ids(store_lake) == [1, 3]


def test_switching_the_order_lands_nothing_twice(bucket: Bucket, store_lake: Lake) -> None:
    plain = spec(f"{bucket.url}/in")
    for n, one in enumerate([grows(bucket), plain, grows(bucket), plain, plain, grows(bucket)]):
        bucket.put(f"in/{n}.jsonl", lines(n))
        assert land(store_lake, one).files == 1
    assert ids(store_lake) == list(range(6))


def test_first_loads_do_not_hide_the_changes_whose_names_come_before_theirs(bucket: Bucket, store_lake: Lake) -> None:
    flag = Stream(name="s", format="change-set", flag="aws-dms").flag
    dms = spec(Landing.parse(f"{bucket.url}/in", by_name=True), layout=row_layout(flag, []))
    for n in (1, 2):
        bucket.put(f"in/LOAD{n:08}.csv", f"id\n{n}\n".encode())
    assert land(store_lake, dms).files == 2
    for n in range(3):
        bucket.put(f"in/2026010{n}-000000.csv", f"Op,id\nU,{n}\n".encode())
        bucket.server.forget()
        assert len(RawStep(dms).new_files(store_lake)) == 1
        assert land(store_lake, dms).files == 1
    assert [r.parameters.get("start-after") for r in bucket.server.listings()] == [
        "in/20260101-000000.csv", "in/20260101-000000.csv", "in/20260102-000000.csv",
    ]  # fmt: skip


# --- faults ----------------------------------------------------------------------------------------------------------


def test_an_object_that_vanishes_after_the_listing_is_named_and_files_before_it_land(
    bucket: Bucket, store_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for memory in (8 << 20, 0):
        monkeypatch.setattr(thresholds, "OBJECT_BYTES_IN_MEMORY", memory)
        for name in "abc":
            bucket.put(f"in/{memory}{name}.jsonl", lines(memory))
        listed = folder_listings.listing

        def then_deleted(*args: Any, listed: Any = listed, memory: int = memory) -> Any:
            found = listed(*args)
            bucket.delete(f"in/{memory}b.jsonl")
            return found

        monkeypatch.setattr(new_files, "listing", then_deleted)
        with pytest.raises(UnstableFileError, match=r"s3://.*b\.jsonl was deleted after it was listed"):
            land(store_lake, spec(f"{bucket.url}/in"))
        monkeypatch.setattr(new_files, "listing", listed)
        land(store_lake, spec(f"{bucket.url}/in"))
    names = [n for (n,) in rows(store_lake, "source_file")]
    assert sorted(names) == ["0a.jsonl", "0c.jsonl", f"{8 << 20}a.jsonl", f"{8 << 20}c.jsonl"]


def test_a_local_file_that_vanishes_is_the_same_error(
    store_lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(1))
    listed = folder_listings.listing

    def then_deleted(*args: Any) -> Any:
        found = listed(*args)
        (tmp_path / "a.jsonl").unlink()
        return found

    monkeypatch.setattr(new_files, "listing", then_deleted)
    with pytest.raises(UnstableFileError, match=r"a\.jsonl was deleted after it was listed"):
        land(store_lake, spec(tmp_path))


@pytest.mark.parametrize("content", [lines(1, 2, 3), lines(1)[:-5], b""])
@pytest.mark.parametrize("memory", [8 << 20, 10])
def test_an_object_that_is_replaced_after_the_listing_is_not_landed_by_halves(
    bucket: Bucket, store_lake: Lake, content: bytes, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "OBJECT_BYTES_IN_MEMORY", memory)
    bucket.put("in/a.jsonl", lines(1))
    listed = folder_listings.listing

    def then_replaced(*args: Any) -> Any:
        found = listed(*args)
        bucket.put("in/a.jsonl", content)
        return found

    monkeypatch.setattr(new_files, "listing", then_replaced)
    with pytest.raises((UnstableFileError, StorageUnavailableError), match=r"in/a\.jsonl"):
        land(store_lake, spec(f"{bucket.url}/in"))
    monkeypatch.undo()
    bucket.put("in/a.jsonl", lines(1, 2))
    assert land(store_lake, spec(f"{bucket.url}/in")).records == 2


DENIED, AWAY = ("403 Forbidden", "AccessDenied"), ("404 Not Found", "NoSuchBucket")


@pytest.mark.parametrize(
    ("is_hit", "answer", "error", "message"),
    [
        (lambda r: r.is_listing, DENIED, StorageUnavailableError, "the store denies access"),
        (lambda r: not r.is_listing, DENIED, StorageUnavailableError, "the store denies access"),
        (lambda r: True, ("403 Forbidden", "InvalidAccessKeyId"), StorageUnavailableError, "the store denies access"),
        (lambda r: True, ("403 Forbidden", "ExpiredToken"), StorageUnavailableError, "the store denies access"),
    ],
)
@pytest.mark.parametrize("memory", [8 << 20, 0])
def test_a_store_that_denies_access_is_named_without_secrets(
    bucket: Bucket, store_lake: Lake, is_hit: Any, answer: tuple[str, str], error: type, message: str, memory: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(thresholds, "OBJECT_BYTES_IN_MEMORY", memory)
    bucket.put("in/a.parquet", as_parquet([{"FLAG": "I", "id": 1}]))

    def fault(request: Request) -> tuple[str, str] | None:
        return answer if is_hit(request) else None

    with bucket.server.failing(fault), pytest.raises(error, match=message) as caught:
        land(store_lake, spec(f"{bucket.url}/in"))
    assert SECRET not in str(caught.value)
    assert land(store_lake, spec(f"{bucket.url}/in")).files == 1


def test_a_bucket_that_does_not_exist_is_named(bucket: Bucket, store_lake: Lake) -> None:
    missing = spec("s3://no-such-bucket/in")
    for look in (lambda: land(store_lake, missing), lambda: RawStep(missing).new_files(store_lake)):
        with pytest.raises(LandingFolderError, match=r"s3://no-such-bucket does not exist"):
            look()
    assert absorb(store_lake, spec(f"{bucket.url}/in")).why == f"no file has arrived in {bucket.url}/in yet"


def test_an_endpoint_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        options = {"s3.endpoint": f"http://127.0.0.1:{taken.getsockname()[1]}", "s3.secret-access-key": "pl4nted",
                   "s3.access-key-id": "k"}  # fmt: skip
        lake = Lake(LakeConfig(home=tmp_path, storage=options))
        with pytest.raises(StorageUnavailableError, match=r"s3://b/in: the store cannot be reached") as caught:
            land(lake, spec("s3://b/in"))
    assert "pl4nted" not in str(caught.value)


def test_without_credentials_the_error_says_where_to_set_them(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    lake = Lake(LakeConfig(home=tmp_path, storage={"s3.endpoint": bucket.server.endpoint, "s3.region": "us-east-1"}))
    with pytest.raises(StorageUnavailableError, match=r"denies access .*credentials"):
        land(lake, spec(f"{bucket.url}/in"))


def test_credentials_and_endpoint_may_come_from_the_environment(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = bucket.server.options
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["s3.access-key-id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["s3.secret-access-key"])
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.server.endpoint)
    bucket.put("in/a.jsonl", lines(1))
    object_stores._opened.clear()  # pyright: ignore[reportPrivateUsage]
    assert land(Lake(LakeConfig(home=tmp_path)), spec(f"{bucket.url}/in")).files == 1
    object_stores._opened.clear()  # pyright: ignore[reportPrivateUsage]


def test_a_package_that_is_missing_is_named(store_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for scheme, package, extra in (("s3", "s3fs", "s3"), ("gs", "gcsfs", "gcs"), ("abfss", "adlfs", "azure")):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.setattr(object_stores, "_opened", {})
        url = "abfss://c@a.dfs.core.windows.net/in" if scheme == "abfss" else f"{scheme}://b/in"
        with pytest.raises(MissingPackageError, match=rf"needs the package {package}.*install lake-assets\[{extra}\]"):
            land(store_lake, spec(url))


def test_secrets_reach_neither_tables_nor_messages(bucket: Bucket, store_lake: Lake) -> None:
    bucket.put("in/a.jsonl", lines(1))
    bucket.put("in/b.jsonl", lines(2)[:-4])
    with pytest.raises(TruncatedInputError) as caught:
        land(store_lake, spec(f"{bucket.url}/in"))
    assert SECRET not in str(caught.value) + repr(store_lake.config) + repr(spec(f"{bucket.url}/in"))
    files = [f for f in store_lake.config.home.rglob("*") if f.is_file()]
    assert any("raw" in str(f) for f in files)
    assert not [f for f in files if SECRET.encode() in f.read_bytes()]


def test_a_kill_between_the_commit_and_the_ledger_lands_nothing_twice(
    bucket: Bucket, store_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    for n, one in enumerate([spec(f"{bucket.url}/in"), grows(bucket)] * 2):
        bucket.put(f"in/{n}.jsonl", lines(n))
        original = file_ledger.catch_up
        calls = iter(range(10))

        def killed(*args: Any, original: Any = original, calls: Any = calls) -> None:
            if next(calls):  # the first call is before the commit
                raise Killed
            original(*args)

        with monkeypatch.context() as patch:
            patch.setattr(file_ledger, "catch_up", killed)
            with pytest.raises(Killed):
                land(store_lake, one)
        assert land(store_lake, one).files == 0
    assert ids(store_lake) == [0, 1, 2, 3]


def test_two_processes_that_land_at_once_land_each_object_once(
    bucket: Bucket, store_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Lake(store_lake.config)
    for n, one in enumerate([spec(f"{bucket.url}/in"), grows(bucket)] * 2):
        bucket.put(f"in/{n}.jsonl", lines(n))
        with monkeypatch.context() as patch:
            original = landing.commit_batch  # pyright: ignore[reportPrivateUsage]

            def meanwhile(*args: Any, original: Any = original, patch: Any = patch, one: Any = one) -> Any:
                patch.undo()
                land(other, one)
                return original(*args)

            patch.setattr(landing, "commit_batch", meanwhile)
            with pytest.raises(ConcurrentWriteError):
                land(store_lake, one)
        land(store_lake, one)
    assert ids(store_lake) == [0, 1, 2, 3]


def test_a_file_larger_than_allowed_is_refused(bucket: Bucket, store_lake: Lake) -> None:
    bucket.put("in/a.jsonl.gz", gzip.compress(lines(*range(1_000))))
    with pytest.raises(InputError, match=r"s3://.*a\.jsonl\.gz has more than"):
        land(store_lake, spec(f"{bucket.url}/in", limits=Limits(file=1_000)))
