"""One folder per table: records that name no table are about that of their folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import LandingFolderError, PipelineError, TruncatedInputError
from lake_assets.formats import SourceTable
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.landing_places import Landing
from lake_assets.ingest.raw import file_ledger
from lake_assets.ingest.raw.landing import RawStep, land
from lake_assets.ingest.raw.landing_backlog import backlog
from lake_assets.ingest.raw_tables import routes
from lake_assets.lake import TableId
from lake_assets.pipeline.config.pipeline_config import PipelineConfig
from tests.support.debezium import BIGINT, Event, to_lines
from tests.support.debezium import Table as SourceRows
from tests.support.object_store import Bucket

RAW = TableId.parse("raw.cdc")


def line(n: int, flag: str = "I") -> bytes:
    return (
        json.dumps({"FLAG": flag, "ID": n, "VALUE": f"v{n}", "CDC_TIMESTAMP": f"2018-01-01 17:00:{n % 60:02}"}).encode()
        + b"\n"
    )


def write(file: Path, *contents: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"".join(contents))
    return file


def spec(landing: str, schema: str | None = None, form: str = "change-set", **more: Any) -> RawSpec:
    return RawSpec(RAW, Landing.parse(landing, schema=schema, **more), form, "p")


def rows(lake: Lake) -> list[tuple[str, str | None]]:
    found = lake.table(RAW).scan(selected_fields=("position", "source_file", "source_table")).to_arrow().to_pylist()
    return [(r["source_file"], r["source_table"]) for r in sorted(found, key=lambda r: r["position"])]


@pytest.mark.parametrize(
    ("pattern", "file", "schema", "table"),
    [
        ("{schema}/{table}", "shop/orders/LOAD0001.csv", None, "shop.orders"),
        ("{table}", "orders/1.csv", "shop", "shop.orders"),
        ("{schema}.{table}", "shop.order.items/1.csv", None, "shop.`order.items`"),
        ("{table}/data", "orders/data/1.csv", "shop", "shop.orders"),
        ("v1_{table}/{schema}", "v1_orders/shop/1.csv", None, "shop.orders"),
        ("a.b/{table}", "orders/1.csv", "shop", "shop.orders"),
    ],
)
@pytest.mark.parametrize("root", ["/data/in", "s3://bucket", "s3://bucket/a/b"])
def test_the_folder_names_the_table(root: str, pattern: str, file: str, schema: str | None, table: str) -> None:
    landing = Landing.parse(f"{root}/{pattern}", schema=schema)
    assert str(landing.table_of(file)) == table
    assert landing.table_of("elsewhere.csv") is None
    assert str(landing) == f"{root}/{pattern}"
    assert Landing.parse(str(landing), schema=schema) == landing


def _deliver(place: Path | Bucket, name: str, content: bytes) -> None:
    if isinstance(place, Path):
        write(place / name, content)
    else:
        place.put(f"cdc/{name}", content)


@pytest.mark.parametrize("kind", ["local", pytest.param("store", marks=pytest.mark.long)])
@pytest.mark.parametrize("by_name", [False, True])
def test_65_tables_arrive_in_a_folder_each(bucket: Bucket, tmp_path: Path, kind: str, by_name: bool) -> None:
    place: Path | Bucket = tmp_path / "cdc" if kind == "local" else bucket
    root = str(place) if isinstance(place, Path) else f"{bucket.url}/cdc"
    one, lake = spec(f"{root}/{{table}}/", "shop", by_name=by_name), bucket.lake(tmp_path / "lake")
    tables = [f"t{n:02}" for n in range(65)]
    for batch in range(2):
        for n, table in enumerate(tables):
            # The files of all tables have one name.
            _deliver(place, f"{table}/{batch:04}.jsonl", b"".join(line(i) for i in range(n % 3 + 1)))
        _deliver(place, "_temporary/t00/x.jsonl", line(1))
        _deliver(place, "readme.txt", b"no table's folder")
        assert len(RawStep(one).new_files(lake)) == 65
        assert land(lake, one).files == 65
        assert RawStep(one).new_files(lake) == []
    assert {str(t) for t in routes(lake, RAW)} == {f"shop.{t}" for t in tables}
    assert len(file_ledger.seen(lake, RAW)) == 130
    for file, table in rows(lake):
        assert table == f"shop.{file.partition('/')[0]}"
    assert backlog(lake, RAW).files == 0
    _deliver(place, "t99/0000.jsonl", line(1))
    assert backlog(lake, RAW).files == 1


def test_the_layout_of_dms_names_schema_and_table(bucket: Bucket, tmp_path: Path) -> None:
    lake = bucket.lake(tmp_path)
    config = {
        "name": "p",
        "streams": [
            {"name": "cdc", "format": "change-set", "flag": "aws-dms", "landing": f"{bucket.url}/dms/{{schema}}/{{table}}",
             "tables": [{"table": "shop.*", "key": "id"}, "hr.people"], "exclude": ["shop.tmp_*"]},
        ],
    }  # fmt: skip
    pipeline = Pipeline(PipelineConfig.model_validate(config))
    for folder in ("shop/orders", "shop/users", "hr/people", "shop/tmp_1"):
        bucket.put(f"dms/{folder}/LOAD00000001.csv", b"id,name\n1,a\n")
        bucket.put(f"dms/{folder}/20260101-000000000.csv", b"Op,id,name\nU,1,b\n")
    raw = pipeline.specs(lake)[0]
    assert isinstance(raw, RawSpec)
    assert land(lake, raw).files == 8
    # First loads come before all changes.
    assert [f.rpartition("/")[2][:4] for f, _ in rows(lake)] == ["LOAD"] * 4 + ["2026"] * 4
    assert {f"{f.rpartition('/')[0]}".replace("/", ".") == t for f, t in rows(lake)} == {True}
    finals = {str(s.table) for s in pipeline.specs(lake) if s.table.namespace == ("final",)}
    assert finals == {"final.orders", "final.users", "final.people"}


def test_one_declaration_stands_for_65_tables(bucket: Bucket, tmp_path: Path) -> None:
    lake = bucket.lake(tmp_path)
    tables = [{"table": "ora.*", "key": "ID"}]
    config = {
        "name": "p",
        "streams": [{"name": "cdc", "format": "change-set", "landing": f"{bucket.url}/{{table}}", "tables": tables}],
    }
    pipeline = Pipeline(PipelineConfig.model_validate(config))
    bucket.put_many({f"T{n}/0.jsonl": line(n) for n in range(65)})
    raw = pipeline.specs(lake)[0]
    assert isinstance(raw, RawSpec)
    land(lake, raw)
    layers = [s.table.namespace[0] for s in pipeline.specs(lake)]
    assert (layers.count("raw"), layers.count("staging"), layers.count("final")) == (1, 65, 65)


def test_records_that_name_their_table_keep_it(tmp_path: Path, plain_lake: Lake) -> None:
    events = to_lines([Event(SourceRows({"id": BIGINT}, name="public.users"), "c", (1, 1), {"id": 1})])
    write(tmp_path / "in" / "elsewhere" / "a.jsonl", *events)
    land(plain_lake, spec(f"{tmp_path}/in/{{table}}", "shop", "debezium"))
    assert rows(plain_lake) == [("elsewhere/a.jsonl", "public.users")]


def test_a_broken_file_stops_the_later_ones_of_its_folder_only(tmp_path: Path, plain_lake: Lake) -> None:
    one = spec(f"{tmp_path}/in/{{table}}", "shop")
    for folder in "abc":
        for n in range(3):
            write(tmp_path / "in" / folder / f"{n}.jsonl", line(n)[: -9 if (folder, n) == ("b", 1) else None])
    with pytest.raises(TruncatedInputError, match=r"b/1\.jsonl"):
        land(plain_lake, one)
    landed = [f for f, _ in rows(plain_lake)]
    assert landed == [f"{f}/{n}.jsonl" for f in "abc" for n in range(3) if f != "b" or n < 1]
    write(tmp_path / "in" / "b" / "1.jsonl", line(1))
    assert land(plain_lake, one).files == 2


def test_broken_files_of_all_folders_are_told_one_by_one_and_whole_ones_land(tmp_path: Path, plain_lake: Lake) -> None:
    one = spec(f"{tmp_path}/in/{{table}}", "shop")
    for n in range(10):
        write(tmp_path / "in" / f"t{n}" / "0.jsonl", line(n))
        write(tmp_path / "in" / f"t{n}" / "1.jsonl", line(n)[:-9])
        write(tmp_path / "in" / f"t{n}" / "2.jsonl", line(n))
    for _ in range(2):
        with pytest.raises(TruncatedInputError):
            land(plain_lake, one)
        assert [f for f, _ in rows(plain_lake)] == [f"t{n}/0.jsonl" for n in range(10)]


def test_rejected_records_are_routed_again_by_their_folder(lake: Lake, tmp_path: Path) -> None:
    from lake_assets.pipeline.table_steps import step_of

    write(tmp_path / "in" / "a" / "0.jsonl", line(1, "X"), line(2))
    write(tmp_path / "in" / "b" / "0.jsonl", line(3, "X"))
    one = spec(f"{tmp_path}/in/{{table}}", "shop")
    assert land(lake, one).rejected == 2
    config = {"name": "p", "streams": [{"name": "cdc", "format": "change-set", "landing": f"{tmp_path}/in/{{table}}",
              "flag": {"column": "FLAG", "insert": ["I", "X"]}, "tables": ["shop.*"]}]}  # fmt: skip
    raw = Pipeline(PipelineConfig.model_validate(config)).specs(lake)[0]
    assert step_of(raw).replay(lake).updated == 2  # pyright: ignore[reportAttributeAccessIssue]
    assert sorted(rows(lake)) == [("a/0.jsonl", "shop.a"), ("a/0.jsonl", "shop.a"), ("b/0.jsonl", "shop.b")]


def test_links_and_names_that_are_no_text_are_no_folders_of_tables(tmp_path: Path, plain_lake: Lake) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(LandingFolderError, match=r"in/link' is a link"):
        land(plain_lake, spec(f"{tmp_path}/in/{{table}}", "shop"))
    (tmp_path / "in" / "link").unlink()
    Path(str(tmp_path / "in" / "a\udcff")).mkdir()
    with pytest.raises(LandingFolderError, match="not UTF-8"):
        land(plain_lake, spec(f"{tmp_path}/in/{{table}}", "shop"))


def test_tombstones_are_about_the_table_of_their_folder(tmp_path: Path, plain_lake: Lake) -> None:
    one = spec(f"{tmp_path}/in/{{table}}", "public", "debezium")
    for table in ("a", "b"):
        events = to_lines([Event(SourceRows({"id": BIGINT}, name=f"public.{table}"), "c", (1, 1), {"id": 1})])
        write(tmp_path / "in" / table / "0.jsonl", *events)
        key = json.loads(next(iter(events)))["key"]
        write(tmp_path / "in" / table / "1.jsonl", json.dumps({"key": key, "value": None}).encode() + b"\n")
    land(plain_lake, one)
    assert rows(plain_lake) == [(f"{t}/{n}.jsonl", f"public.{t}") for t in "ab" for n in range(2)]


def test_an_unusual_table_name_is_kept(bucket: Bucket, tmp_path: Path) -> None:
    lake = bucket.lake(tmp_path)
    for name in ("Order Items", "a%2Fb", "ü", "x.y", "a+b", "q?r", "h#i"):
        bucket.put(f"in/{name}/0.jsonl", line(1))
    land(lake, spec(f"{bucket.url}/in/{{table}}", "shop"))
    assert {t.name for t in routes(lake, RAW)} == {"Order Items", "a%2Fb", "ü", "x.y", "a+b", "q?r", "h#i"}


@pytest.mark.parametrize(
    ("tables", "is_good"),
    [(["shop.*"], True), (["shop.a", "shop.b"], True), (["shop.a", "hr.b"], False), (["*.a"], False), ([], False)],
)
def test_without_a_schema_in_the_folders_the_tables_tell_it(tables: list[str], is_good: bool, tmp_path: Path) -> None:
    config = {"name": "s", "landing": f"{tmp_path}/{{table}}", "format": "change-set", "tables": tables}
    pipeline = {"name": "p", "streams": [config]}
    if is_good:
        assert PipelineConfig.model_validate(pipeline).streams[0].folder_schema == "shop"
        return
    with pytest.raises(ValueError, match=r"does not tell the schema of its tables: write {schema}/{table}"):
        PipelineConfig.model_validate(pipeline)


def test_a_stream_of_one_declared_table_takes_the_table_from_the_folder_too(tmp_path: Path, plain_lake: Lake) -> None:
    config = {"name": "p", "streams": [{"name": "cdc", "format": "change-set", "landing": "in/{table}",
              "tables": ["shop.a"]}]}  # fmt: skip
    (raw, *_) = Pipeline(PipelineConfig.model_validate(config)).specs(plain_lake)
    assert isinstance(raw, RawSpec)
    write(plain_lake.config.home / "in" / "a" / "0.jsonl", line(1))
    write(plain_lake.config.home / "in" / "b" / "0.jsonl", line(1))
    landed = land(plain_lake, raw)
    assert [t for _, t in rows(plain_lake)] == ["shop.a", "shop.b"]
    assert landed.unmatched == {"shop.b": 1}
    assert raw.about_of("a/0.jsonl") == SourceTable("shop", "a")


def test_a_pipeline_with_a_typing_error_in_the_pattern_is_refused(tmp_path: Path) -> None:
    file = write(
        tmp_path / "defs.yaml",
        b"type: lake_assets.LakePipeline\nattributes:\n  name: p\n  streams:\n    - name: s\n      landing: cdc/{tables}\n",
    )
    with pytest.raises(PipelineError, match=r"line 6: .*write {table}, or {schema} and {table}"):
        Pipeline.load(file)
