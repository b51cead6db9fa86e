"""Every command, used clumsily: what was found, where, and what to do next, in one message without a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField

from lake_assets import Lake, LakeConfig, cli
from lake_assets.commands import machine
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw.landing import land
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.pipeline import Pipeline, PipelineConfig, pipeline
from lake_assets.tables.outcome import Outcome
from tests.support.cli import Done

Call = Callable[..., Done]
MODEL = """\
type: lake_assets.LakePipeline
attributes:
  name: p
  models:
    - {name: agg.m, sql: "SELECT id FROM raw.events"}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file and nothing else; the lake that commands read is not there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.yaml").touch()
    (tmp_path / "folder").mkdir()
    return tmp_path


READING = [
    "status", "rejected", "rejected summary", "rejected list", "rejected explain raw.x 3", "rejected replay shop",
    "rejected close raw.x --all --because known", "rejected reopen raw.x --all",
    "verify agg.x", "explain agg.x", "rebuild agg.x", "repair", "capture final.users", "changes final.users",
]  # fmt: skip


@pytest.mark.parametrize("words", READING)
def test_reading_a_lake_that_is_not_there_makes_none(call: Call, here: Path, words: str) -> None:
    done = call(*words.split())
    assert done.code == 1
    assert f"LakeNotFoundError: no lake at {here}/.lake" in done.err
    assert "LAKE_HOME" in done.err
    assert not (here / ".lake").exists()


@pytest.mark.usefixtures("spark_lake")
def test_a_pipeline_can_be_checked_before_there_is_a_lake(call: Call, here: Path) -> None:
    done = call("check", "shop")
    assert done.code == 0, done.err
    assert "not checked yet: columns of agg.city_population: final.users, final.user_city do not exist" in done.out
    assert "no mistake found" in done.out
    assert {p.name for p in here.iterdir()} == {"empty.yaml", "folder"}


def test_a_checked_pipeline_counts_its_python_models(call: Call, here: Path) -> None:
    catalog = Lake.load().catalog
    catalog.create_namespace("src")
    catalog.create_table("src.t", Schema(NestedField(1, "id", IntegerType())))
    (here / "own.yaml").write_text("type: lake_assets.LakePipeline\nattributes: {name: own}\n")
    (here / "models.py").write_text(
        "from lake_assets import Changes, model\n\n\n"
        "@model('agg.log', write='append')\ndef log(t: Changes):\n    return t.rows\n"
    )
    done = call("check", "own.yaml")
    assert "pipeline own: 0 streams and 1 model, no mistake found" in done.out, done


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("check shopp", "no pipeline shopp (did you mean shop?): name a YAML file"),
        ("check emtpy.yaml", "no pipeline emtpy.yaml (did you mean empty.yaml?)"),
        ("check shop.yaml", "no pipeline shop.yaml: name a YAML file"),
        ("check folder", "folder is a folder without a defs.yaml"),
        ("check empty.yaml", "empty.yaml: expected `type: lake_assets.LakePipeline`"),
        ("run empty.yaml", "found an empty file"),
        ("verify agg.x --sample 0", "--sample: '0' is not a share"),
        ("changes final.users --out x.txt", "--out x.txt: write a .parquet, .csv or .jsonl file"),
        ("changes final.users --out s3://b/x.parquet", "is a URL"),
        ("changes final.users --out none/x.parquet", "the folder none does not exist"),
        ("generate-events s3://b/x", "OUT: s3:/b/x is a URL"),
        ("generate-events empty.yaml", "OUT empty.yaml is a file"),
        ("generate-events out --rows none/x.json", "--rows none/x.json: the folder none does not exist"),
        ("generate-events out --rows folder", "--rows folder is a folder"),
        ("generate-events out --keys 0", "--keys, --transaction and --events-a-file are 1 or more"),
        ("generate-events out --format debezum", "no format 'debezum'"),
        ("generate-events out --files xml", "--files xml: choose jsonl, csv or parquet"),
        ("generate-events out --files csv", "--format debezium comes as jsonl"),
        ("spark-server --port 99999999", "99999999 is not a port"),
    ],
)
def test_a_wrong_word_is_named_with_what_to_write(call: Call, here: Path, words: str, expected: str) -> None:
    done = call(*words.split())
    assert done.code == 1
    assert expected in done.err
    assert "Traceback" not in done.err + done.out
    assert {p.name for p in here.iterdir()} == {"empty.yaml", "folder"}


@pytest.mark.parametrize(
    "words", ["nosuch", "generate-events", "verify", "spark-server --port abc", "run shop --tabel x"]
)
def test_a_wrong_command_line_is_code_2(call: Call, words: str) -> None:
    done = call(*words.split())
    assert done.code == 2
    assert "Traceback" not in done.err + done.out


@pytest.fixture
def lake(here: Path) -> Lake:
    """The lake of this folder, with one empty raw table."""
    lake = Lake(LakeConfig())
    land(lake, RawSpec(TableId.parse("raw.events"), here / "in", "simplified", "p"))
    return lake


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("capture raw.event", "no table raw.event (did you mean raw.events?) in the lake at"),
        ("capture rwa.events", "no table rwa.events (did you mean raw.events?) in the lake at"),
        ("capture events", "'events' is not a table name: write namespace.table"),
        ("capture raw.events --from yesterday", "yesterday"),
        ("changes final.users", "final holds: no tables"),
        ("explain raw.events", "raw.events is not a SQL model"),
        ("explain agg.city_populaton --pipeline shop", "(did you mean agg.city_population?); it has"),
        ("rebuild agg.city_populaton", "(did you mean agg.city_population?). Name its pipeline with --pipeline"),
        ("explain agg.m --pipeline shop", "no table agg.m in pipeline shop; it has raw.shop_events, "),
        ("verify agg.city_populaton", "(did you mean agg.city_population?). Name its pipeline with --pipeline"),
        ("verify final.users", "final.users was never run: run pipeline 'shop' first"),
        ("verify raw.shop_events", "verify final tables, models and tables of jobs"),
        ("rejected list --raw raw.event", "no raw table raw.event"),
        ("rejected explain raw.events 3", "raw.events has no rejected record at position 3"),
        ("rejected close raw.event --all --because known", "no raw table raw.event"),
        ("rejected close raw.events --because known", "say which records: --position"),
        ("rejected close raw.events", "why the records do not count, and say which records: --position"),
        ("rejected close raw.events --all", "say with --because why the records do not count"),
        ("rejected reopen raw.events --all --position 3", "contradict each other"),
    ],
)
def test_a_wrong_table_is_named_with_those_that_there_are(lake: Lake, call: Call, words: str, expected: str) -> None:
    done = call(*words.split())
    assert done.code == 1
    assert expected in done.err
    assert "Traceback" not in done.err + done.out


def test_a_table_is_not_taken_for_one_of_another_pipeline_with_the_same_name(lake: Lake, call: Call) -> None:
    lake.catalog.create_namespace("agg")
    lake.catalog.create_table(
        "agg.city_population", Schema(NestedField(1, "id", IntegerType())), properties={PIPELINE_PROPERTY: "mine"}
    )
    for command in ("verify", "rebuild"):
        assert "belongs to pipeline 'mine', whose file is not known here" in call(command, "agg.city_population").err
    assert "agg.city_population is not a SQL model" in call("explain", "agg.city_population").err


def test_a_column_that_is_missing_is_named_before_anything_runs(lake: Lake, call: Call, here: Path) -> None:
    (here / "p.yaml").write_text(MODEL)
    done = call("check", "p.yaml")
    assert done.code == 1
    assert "p.yaml, line 5: model agg.m: no column id" in done.out
    assert "raw.events has position, source_table" in done.out


# --- interrupts -------------------------------------------------------------------------------------------------


def test_ctrl_c_is_one_line_and_code_130(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(machine, "find_java", interrupted)
    # A Spark session of another test in this process may have left a handler of its own.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        done = call("setup")
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.code == 130
    assert done.err.startswith("interrupted: ")
    assert len(done.err.splitlines()) == 1


def test_ctrl_c_while_commands_are_imported_is_one_line_and_code_130(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def application() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "application", application)
    done = call("status")
    assert (done.code, len(done.err.splitlines())) == (130, 1)
    assert done.err.startswith("interrupted: ")
    # What is imported before that can be caught takes no time.
    loaded = "import sys, lake_assets.cli; print([m for m in ('pyspark', 'pyiceberg', 'dagster') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_what_fails_while_an_interrupt_is_handled_is_the_interrupt(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absorb(*_: object, **__: object) -> Outcome:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("Py4JError: the connection is in use")

    monkeypatch.setattr(pipeline, "absorb", absorb)
    made = Pipeline(PipelineConfig.model_validate({"name": "p", "streams": [{"name": "s", "tables": ["a.b"]}]}))
    with pytest.raises(KeyboardInterrupt):
        made.run(plain_lake)


def test_an_error_that_nobody_expects_is_one_message(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(machine, "find_java", broken)
    done = call("setup")
    assert done.code == 1
    assert "OSError: [Errno 5] Input/output error" in done.err
    assert "LAKE_DEBUG=1" in done.err
    monkeypatch.setenv("LAKE_DEBUG", "1")
    with pytest.raises(OSError, match="Input"):
        call("setup")
