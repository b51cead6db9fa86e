"""Change sets with declared columns: layouts of AWS DMS, Fivetran, Airbyte, OLake and others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import MalformedRecordError, PipelineError
from lake_assets.formats import EventFormat, SourceTable, event_format
from lake_assets.formats.event_model import DELETE, INSERT, READ, UPDATE, Hints
from lake_assets.formats.files.csv_files import csv_records
from lake_assets.formats.files.record_files import LocalFile
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.config.flag_settings import row_layout
from lake_assets.pipeline.config.pipeline_config import Stream
from lake_assets.pipeline.config.yaml_file import read_pipeline
from lake_assets.pipeline.pipeline_checks import check
from tests.support.parsing import Parsed, lines_of, parse

T = SourceTable("public", "t")
KEYED = Hints(table=T, key=("id",))


def stream(flag: Any = None, time: Any = (), **more: Any) -> dict[str, Any]:
    return {"name": "events", "format": "change-set", "flag": flag, "time": time, **more}


def reader(flag: Any, time: Any = ()) -> EventFormat:
    declared = Stream.model_validate(stream(flag, time))
    return event_format(declared.format, row_layout(declared.flag, declared.time))


def ops(events: list[Parsed]) -> list[str | None]:
    return [e.op for e in events]


def rows_of(events: list[Parsed]) -> dict[int, dict[str, Any]]:
    """The current rows, by the order of changes."""
    rows: dict[int, dict[str, Any]] = {}
    for e in sorted(events, key=lambda e: (e.sequence, e.position)):
        rows.pop(e.row["id"], None)
        if e.op != DELETE:
            rows[e.row["id"]] = {n: v for n, v in e.row.items() if n != "id"}
    return rows


# --- layouts ------------------------------------------------------------------------------------------------------

DMS, OP = "aws-dms", {"column": "Op", "insert": "I", "update": "U", "delete": "D"}
FIVETRAN = {"column": "_fivetran_deleted", "update": False, "delete": True}
AIRBYTE = {"column": "_ab_cdc_deleted_at", "delete": "*", "missing": "update"}
OLAKE = {"column": "_op_type", "insert": ["r", "c", "i"], "update": "u", "delete": "d"}


@pytest.mark.spark
def test_the_layouts_of_other_tools(spark_lake: Lake) -> None:
    spark = spark_lake.spark()
    deleted = parse(spark, reader(FIVETRAN, "_fivetran_synced"), lines_of(
        {"id": 1, "v": "a", "_fivetran_deleted": False, "_fivetran_synced": "2024-01-01T00:00:02Z"},
        {"id": 1, "v": "b", "_fivetran_deleted": True, "_fivetran_synced": "2024-01-01T00:00:01Z"},
        {"id": 2, "v": "c", "_fivetran_deleted": False, "_fivetran_synced": "2024-01-01T00:00:03Z"},
        {"id": 2, "v": "c", "_fivetran_deleted": True, "_fivetran_synced": "2024-01-01T00:00:04Z"},
    ), KEYED)  # fmt: skip
    assert ops(deleted) == [UPDATE, DELETE, UPDATE, DELETE]
    assert rows_of(deleted) == {1: {"v": "a", "_fivetran_synced": "2024-01-01T00:00:02Z"}}
    cdc = parse(spark, reader(AIRBYTE, "_ab_cdc_lsn"), lines_of(
        {"id": 1, "v": "b", "_ab_cdc_lsn": 1000, "_ab_cdc_deleted_at": None},
        {"id": 1, "v": "a", "_ab_cdc_lsn": 999, "_ab_cdc_deleted_at": "2024-01-01T00:00:00Z"},
        {"id": 2, "v": "c", "_ab_cdc_lsn": 5},
        {"id": 2, "v": "c", "_ab_cdc_lsn": 1001, "_ab_cdc_deleted_at": "2024-01-01"},
    ), KEYED)  # fmt: skip
    assert ops(cdc) == [UPDATE, DELETE, UPDATE, DELETE]
    assert rows_of(cdc) == {1: {"v": "b", "_ab_cdc_lsn": 1000}}
    olake = parse(spark, reader(OLAKE, ["_cdc_timestamp", "_olake_timestamp"]), lines_of(
        {"id": 1, "v": "a", "_op_type": "r", "_olake_timestamp": "2024-01-01T00:00:00Z"},
        {"id": 2, "v": "b", "_op_type": "C", "_cdc_timestamp": "2024-01-01T00:00:02Z", "_olake_timestamp": "2025-01-01"},
        {"id": 2, "v": "c", "_op_type": "u", "_cdc_timestamp": "2024-01-01T00:00:03Z", "_olake_timestamp": "2025-01-01"},
        {"id": 1, "_op_type": " d ", "_cdc_timestamp": "2024-01-01T00:00:01Z"},
        {"id": 2, "v": "x", "_op_type": "u"},
    ), KEYED)  # fmt: skip
    assert ops(olake) == [INSERT, INSERT, UPDATE, DELETE, UPDATE]
    assert olake[-1].sequence is None  # it says neither time, though both are declared
    assert [e.position for e in sorted(olake[:-1], key=lambda e: e.sequence)] == [0, 3, 1, 2]


@pytest.mark.spark
def test_a_first_load_comes_before_all_changes(spark_lake: Lake, tmp_path: Path) -> None:
    spark = spark_lake.spark()
    for time in ("", "ts"):
        rows = {
            "LOAD00000001": "id,v,ts\n1,a,2024-01-01 00:00:09.000000\n2,b,2024-01-01 00:00:09.000000\n",
            "20240101-000000001": "Op,id,v,ts\nU,1,c,2024-01-01 00:00:01.000000\nD,2,b,2024-01-01 00:00:02.000000\n",
        }
        lines: list[str] = []
        for name, text in rows.items():
            (tmp_path / f"{name}.csv").write_text(text)
            lines += [r.text for r in csv_records(LocalFile(tmp_path / f"{name}.csv"))]
        events = parse(spark, reader(DMS, time or []), lines, KEYED)
        assert ops(events) == [READ, READ, UPDATE, DELETE]
        # Though the time of the load is later: DMS writes there when it copied the row.
        assert {k: r["v"] for k, r in rows_of(events).items()} == {1: "c"}
        assert set(events[0].row) == {"id", "v", "ts"}
        alone = parse(spark, reader(DMS, time or []), lines[:2], KEYED)
        assert ops(alone) == [READ, READ]


def test_rows_whose_flag_is_not_declared_are_malformed() -> None:
    for flag, row in (
        (OP, {"id": 1}),
        (OP, {"id": 1, "Op": ""}),
        (OP, {"id": 1, "Op": "X"}),
        (OP, {"id": 1, "Op": ["I"]}),
        (DMS, {"id": 1, "Op": "R"}),
        (FIVETRAN, {"id": 1, "_fivetran_deleted": None}),
    ):
        with pytest.raises(MalformedRecordError, match="expected one of|no column"):
            reader(flag).routes(row, T)
    for flag, row in (
        (OP, {"id": 1, "OP": "i"}),
        (DMS, {"id": 1}),
        (DMS, {"id": 1, "Op": None}),
        (FIVETRAN, {"id": 1, "_fivetran_deleted": True}),
        ({"column": "gone", "update": 0, "delete": 1}, {"id": 1, "gone": 0}),
        (AIRBYTE, {"id": 1, "_ab_cdc_deleted_at": ""}),
    ):
        assert reader(flag).routes(row, T) == (T,)


# --- the declaration ----------------------------------------------------------------------------------------------

YAML = """type: lake_assets.LakePipeline
attributes:
  name: p
  streams:
    - name: events
      format: change-set
      flag: FLAG
      tables: [public.t]
"""


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("aws", "line 7: .*no preset 'aws' .did you mean aws-dms.*write .column"),
        ("{insert: I}", "line 7: .*flag.column: missing"),
        ("{column: Op, insert: I, updated: U}", "line 7: .*did you mean `update`"),
        ("{column: Op, insert: I, update: [U, i]}", "line 7: .*i is named twice"),
        ("{column: Op, delete: D}", "line 7: .*no value stands for an insert or update"),
        ("{column: Op, delete: D, missing: delete}", "line 7: .*no value stands for"),
        ('{column: Op, insert: ""}', "line 7: .*`missing: insert`"),
        ('{column: "", insert: I}', "line 7: .*not the name of a column"),
        ("{column: Op, insert: I, missing: nothing}", "line 7: .*expected 'insert', 'update', 'delete' or 'load'"),
        ("aws-dms\n      format: simplified", "the format is simplified"),
    ],
)
def test_a_mistake_in_a_flag_has_a_line(tmp_path: Path, flag: str, message: str) -> None:
    text = YAML.replace("FLAG", flag)
    text = text.replace("      format: change-set\n", "") if "format: simplified" in flag else text
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(PipelineError, match=message):
        read_pipeline(tmp_path / "p.yaml")


def test_a_flag_and_a_time_need_the_format_of_change_sets(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        YAML.replace("      format: change-set\n", "").replace("FLAG", "aws-dms\n      time: at")
    )
    with pytest.raises(PipelineError, match="line 5: .*`flag` and `time` are for `format: change-set`.*is debezium"):
        read_pipeline(tmp_path / "p.yaml")


def test_yaml_reads_some_values_as_other_than_text(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(YAML.replace("FLAG", "{column: gone, update: [no, 0], delete: [yes, 1]}"))
    flag = read_pipeline(tmp_path / "p.yaml").streams[0].flag
    assert flag
    assert flag.words == {"false": UPDATE, "0": UPDATE, "true": DELETE, "1": DELETE}


# --- as tables ----------------------------------------------------------------------------------------------------


def current(lake: Lake) -> dict[int, str]:
    return {int(r["id"]): r["v"] for r in lake.spark().table(lake.sql_name("final.t")).collect()}


@pytest.mark.long
def test_files_of_dms_become_the_current_rows(lake: Lake) -> None:
    """The load lands first, though its name sorts last. Later flags are declared after an error, and rows read again."""
    (folder := lake.config.home / "landing" / "events").mkdir(parents=True)
    (folder / "LOAD00000001.csv").write_text("id,v\n1,a\n2,b\n3,c\n")
    (folder / "20240101-000000001.csv").write_text("Op,id,v\nU,1,d\nD,2,b\nI,4,e\n")
    tables = [{"table": "public.t", "key": "id"}]

    def declared(flag: Any, time: Any = ()) -> Pipeline:
        config = {"name": "p", "streams": [stream(flag, time, tables=tables)]}
        return Pipeline(PipelineConfig.model_validate(config))

    def run(flag: Any) -> dict[str, Any]:
        pipeline = declared(flag)
        assert not [o.error for o in pipeline.replay(lake) if o.error]
        return {o.table: o for o in pipeline.run(lake)}

    outcomes = run(OP)  # rows of the load have no flag
    assert outcomes["raw.events"].rejected == 3
    outcomes = run(DMS)
    assert not [o.error for o in outcomes.values() if o.error]
    assert "another `flag` or `time`" in outcomes["staging.t"].why
    assert current(lake) == {1: "d", 3: "c", 4: "e"}
    # A parquet file of changes, and a file of the first load that arrives behind them.
    pq.write_table(pa.table({"Op": ["U"], "id": [3], "v": ["f"]}), folder / "20240101-000000002.parquet")
    (folder / "LOAD00000002.csv").write_text("id,v\n3,old\n5,new\n")
    assert run(DMS)["staging.t"].rejected == 0
    assert current(lake) == {1: "d", 3: "f", 4: "e", 5: "new"}
    assert check(declared(DMS, "V"), lake).mistakes == ()
    assert list(check(declared(DMS, "vv"), lake).mistakes) == [
        "staging.t: `time` names vv (did you mean v?), and the columns are id, v"
    ]
