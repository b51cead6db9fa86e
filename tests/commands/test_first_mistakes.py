"""Mistakes that new users make: what is printed says what happened, where, and what to do, without a traceback.

None of them needs Spark: the session is a Spark Connect server that is not there.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField

from lake_assets import Lake, LakeConfig
from lake_assets.errors import ConfigError, InvalidNameError
from lake_assets.lake import foreign_errors
from lake_assets.lake._compat import silence_query_errors
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.lake.spark_session import check_spark_home
from tests.support.cli import Done

Call = Callable[..., Done]
ROOT = Path(__file__).parents[2]
HEAD = "type: lake_assets.LakePipeline\nattributes:\n  name: p\n"
STREAM = f"{HEAD}  streams:\n    - name: s\n"
TABLES = "      tables: [{table: shop.t, key: id}]\n"
FLAG = f"{STREAM}      format: change-set\n      flag: {{column: Op, insert: I}}\n{TABLES}"
IMPORT = "from lake_assets import Changes, model\n"
MODEL = f"{HEAD}  models:\n    - {{name: agg.m, sql: "


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, without Spark."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKE_SPARK__REMOTE", "sc://127.0.0.1:9")
    return tmp_path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a lake with tables of another pipeline."""
    home = tmp_path_factory.mktemp("home")
    lake = Lake(LakeConfig(home=home))
    for name in ("final.users", "staging.users", "agg.by_city"):
        lake.ensure_namespace((name.partition(".")[0],))
        schema = Schema(NestedField(1, "id", IntegerType()))
        lake.catalog.create_table(name, schema, properties={PIPELINE_PROPERTY: "other"})
    return home


@pytest.fixture
def lake(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the lake with tables, which no test changes."""
    monkeypatch.setenv("LAKE_HOME", str(home))


def is_told(done: Done, expected: str, code: int = 1) -> None:
    """Assert the exit code and a text, and that no traceback is shown."""
    text = f"{done.out}{done.err}"
    assert done.code == code, text
    assert expected in text
    assert "Traceback" not in text
    assert "unexpected" not in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{HEAD}  stream: []\n", "line 4: stream: unknown setting; did you mean `streams`?"),
        (f"{STREAM}      landings: x\n", "line 6: streams[s].landings: unknown setting; did you mean `landing`?"),
        (f"{STREAM}      tables: [{{table: a.b, keys: id}}]\n", "did you mean `key`?"),
        (f"{STREAM}      tables: [{{table: a.b, audits: [{{not_nul: id}}]}}]\n", "did you mean `not_null`?"),
        (f"{STREAM}      tables: [{{table: a.b, types: {{x: decimall}}}}]\n", "declared (did you mean decimal?)"),
        (f"{STREAM}      tables: [users]\n", "'users' is not a source table: write schema.table"),
        (f"{STREAM}      format: debezum\n", "found 'debezum' (did you mean debezium?)"),
        (f"{STREAM}      format: wal2json\n", "found 'wal2json' (did you mean wal2json-v1 or wal2json-v2?)"),
        (f"{STREAM}      format: csv\n", "found 'csv', the kind of a file, which follows from its name"),
        (HEAD.replace("p\n", "My Shop\n"), "line 3: name: expected letters, digits and `_` only, found 'My Shop'"),
        (HEAD.replace("attributes", "attribute"), "attribute (did you mean attributes?)"),
        (HEAD.replace("Pipeline", "Pipelin"), "LakePipelin` (did you mean lake_assets.LakePipeline?)"),
        (HEAD.replace("  name", "\tname"), "line 3: no valid YAML: while scanning for the next token: found character"),
        (HEAD.replace("  name", "\tname"), "indent with spaces"),
        (f"{STREAM}     tables: []\n", "line 6: no valid YAML: while parsing a block collection"),
        (f"{STREAM}     tables: []\n", "indent the entries of one list, or the settings of one entry, alike"),
        (STREAM.replace("name: s", "name:s\n      tables: []"), "without a space after its colon"),
        (f"{STREAM}      tables:\n        - *\n", 'put text that begins with `*` in quotes: "*"'),
        (f"{HEAD}---\n{HEAD}", "line 4: no valid YAML: expected a single document in the stream"),
        (f"{HEAD}---\n{HEAD}", "keep one document per file"),
        ("", "found an empty file"),
        ("- a\n", "found a list"),
        ("a\n", "found text"),
        (f"{MODEL}'SELECT id FROM final.user'}}\n", "line 5: pipeline 'p': agg.m reads final.user, which neither"),
        (f"{MODEL}'SELECT id FROM final.user'}}\n", "(did you mean final.users?)"),
        (f"{MODEL}'SELECT id FROM users'}}\n", "table users is named without its layer: write for example final.users"),
        (f"{MODEL}'SELECT idd FROM final.users'}}\n", "no column idd (did you mean id?): final.users has id"),
        (f"{MODEL}'CREATE TABLE x AS SELECT 1 AS a'}}\n", "expected one SELECT, found CREATE: write the SELECT alone"),
        (f"{MODEL}'SELECT 1 AS a; SELECT 2 AS a'}}\n", "found 2 statements: keep one"),
        (f"{MODEL}'-- nothing'}}\n", "found no statement: write the SELECT"),
        (f"{MODEL}'SELEC id FROM final.users'}}\n", "(did you mean SELECT?)"),
        (f"{MODEL}'SELECT id FROM agg.m'}}\n", "models depend on each other in a circle: agg.m -> agg.m"),
        (f"{HEAD}  models:\n    - {{nam: agg.m, sql: SELECT 1 AS a}}\n", "models.0.nam: unknown setting; did you mean"),
        (
            f"{HEAD}  models:\n    - {{name: final.users, sql: SELECT 1 AS id}}\n",
            "final.users belongs to pipeline 'other', and pipeline 'p' declares it too: rename it in one pipeline",
        ),
    ],
)
@pytest.mark.usefixtures("lake")
def test_a_mistake_in_a_pipeline(call: Call, here: Path, text: str, expected: str) -> None:
    (here / "p.yaml").write_text(text)
    is_told(call("check", "p.yaml"), expected)


@pytest.mark.usefixtures("lake")
def test_a_mistyped_setting_is_not_also_missing(call: Call, here: Path) -> None:
    (here / "p.yaml").write_text(f"{HEAD}  models:\n    - {{nam: agg.m, sql: SELECT 1 AS a}}\n")
    assert "missing" not in call("check", "p.yaml").out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import pandass\n", "models.py cannot be imported: ModuleNotFoundError: No module named 'pandass' (line 1)"),
        ("def f(t:\n    pass\n", "models.py cannot be imported: SyntaxError: '(' was never closed"),
        ("@model('agg.m', write='append')\ndef f(t): ...\n", "NameError: name 'model' is not defined (line 1)"),
        (f"{IMPORT}def f(t: Changes): ...\n", "models.py declares no model: put `@model(...)` of lake_assets above"),
        (
            f"{IMPORT}@model('agg.m', write='apend')\ndef f(t: Changes): ...\n",
            "line 2: model agg.m: `write` is 'apend'",
        ),
        (f"{IMPORT}@model('m', write='append')\ndef f(t: Changes): ...\n", "'m' is not a table name: write namespace"),
        (f"{IMPORT}@model('agg.m', write='append')\ndef f(t): ...\n", "annotate the parameter 't' as Changes, Lookup"),
        (
            f"{IMPORT}@model('agg.m', write='append')\ndef f(user: Changes): ...\n",
            "no table is called 'user' (did you mean",
        ),
    ],
)
@pytest.mark.usefixtures("lake")
def test_a_mistake_in_a_python_model(call: Call, here: Path, text: str, expected: str) -> None:
    (here / "p.yaml").write_text(HEAD)
    (here / "models.py").write_text(text)
    is_told(call("check", "p.yaml"), expected)


def test_windows_line_ends_and_a_byte_order_mark_are_no_mistake(call: Call, here: Path) -> None:
    (here / "p.yaml").write_bytes(b"\xef\xbb\xbf" + f"{STREAM}{TABLES}".replace("\n", "\r\n").encode())
    assert "1 stream and 0 models, no mistake found" in call("check", "p.yaml").out


@pytest.mark.parametrize("name", ["p.yaml", "lake.yaml"])
def test_a_file_that_is_not_in_utf8(call: Call, here: Path, name: str) -> None:
    (here / "p.yaml").write_text(HEAD)
    (here / name).write_bytes("a: b\nname: größe\n".encode("latin-1"))
    is_told(call("check", "p.yaml"), f"{name}, line 2: no valid YAML: not UTF-8")
    is_told(call("check", "p.yaml"), "save the file in UTF-8")


@pytest.mark.parametrize(
    ("words", "expected", "code"),
    [
        ("stauts", "Did you mean 'status'?", 2),
        ("status --jsn", "Possible options: --json", 2),
        ("--version", "lake-assets ", 0),
        ("status -h", "Usage:", 0),
        ("undo", "`lake-assets backfills` lists the ids", 2),
        ("publish", "`lake-assets backfills` lists the ids", 2),
        ("undo 123", "no backfill 123: there is none yet", 1),
        ("capture final.user", "no table final.user (did you mean final.users?)", 1),
        ("verify users", "'users' is not a table name: write namespace.table", 1),
        *((f"{command} users", "(did you mean final.users or staging.users?)", 1)
          for command in ("verify", "changes", "backfill --all", "history --key id=1")),
        ("verify by_cty", "(did you mean agg.by_city?)", 1),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("lake")
def test_a_mistake_on_the_command_line(call: Call, words: str, expected: str, code: int) -> None:
    is_told(call(*words.split()), expected, code)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hom: x\n", "from lake.yaml: hom: unknown setting; did you mean `home`? (line 1)"),
        ("spark:\n  drivermemory: 2g\n", "did you mean `driver_memory`? (line 2)"),
        ("catalog: {type: sqll, uri: x}\n", "no catalog has the type 'sqll' (did you mean sql?)"),
        ("catalog: {uri: 'http://127.0.0.1:9/'}\n", "127.0.0.1:9/ cannot be opened: nothing listens there"),
        (
            "catalog: {uri: 'http://nohost.invalid/'}\n",
            "cannot be opened: its host is not known: check that its server",
        ),
        (
            "catalog: {uri: 'postgresql+psycopg2://u:pw@127.0.0.1:9/x'}\n",
            "u:***@127.0.0.1:9/x cannot be opened: nothing",
        ),
        ("catalog: {uri: 'postgres://u@127.0.0.1:9/x'}\n", "write `catalog: uri` as postgresql+psycopg2://"),
        ("catalog: [\n", "a quote or bracket is not closed"),
    ],
)
def test_a_mistake_in_the_lakes_configuration(call: Call, here: Path, text: str, expected: str) -> None:
    (here / "p.yaml").write_text(f"{STREAM}{TABLES}")
    (here / "lake.yaml").write_text(text)
    # The most that a command can do with a catalog: the error is one, not one of each table.
    done = call("run", "p.yaml")
    is_told(done, expected)
    assert done.err.count(expected) == 1
    assert done.out == ""


def test_a_mistake_in_the_environment_names_the_variable(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_SPARK__DRIVER_MEMRY", "2g")
    is_told(call("status"), "did you mean `driver_memory`? (in the environment variable LAKE_SPARK__DRIVER_MEMRY)")


def test_a_spark_home_that_is_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/nope")
    with pytest.raises(ConfigError, match="SPARK_HOME names /nope, which has no bin/spark-submit: unset it"):
        check_spark_home()


def test_a_lake_that_this_user_may_not_write(call: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(here / ".lake"))

    (here / "p.yaml").write_text(f"{STREAM}{TABLES}")
    monkeypatch.setattr("lake_assets.lake.lake_base.make_private", refuse)
    is_told(call("run", "p.yaml"), f"this user may not write {here}/.lake/catalog.db and its folder: get the right")


def test_an_error_of_the_operating_system_is_no_unexpected_one(
    call: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/lake/journal")

    (here / "p.yaml").write_text(f"{STREAM}{TABLES}")
    monkeypatch.setattr("lake_assets.commands.run.settle_all", refuse)
    is_told(call("run", "p.yaml"), "/lake/journal cannot be opened or created: this user may not")


WAL = '{"action":"I","schema":"shop","table":"t","columns":[]}\n'
DEBEZIUM = '{"op":"c","source":{"schema":"shop","table":"t"},"after":{"id":1}}\n'


@pytest.mark.parametrize(
    ("pipeline", "name", "content", "expected"),
    [
        (FLAG, "a.csv", "Op;id\nI;1\n", "a.csv, line 1: the header's fields are separated by semicolons"),
        (FLAG, "a.csv", "Op\tid\nI\t1\n", "separated by tabs, so they are one column"),
        (FLAG, "a.csv", "I,1\nI,2\n", "no column Op among I, 1: the file may lack its header line"),
        (FLAG, "a.csv", "Opp,id\nI,2\n", "no column Op (did you mean Opp?) among Opp, id"),
        (FLAG, "a.csv", 'Op,id\nI,"2\n', "a quote in the row that begins on line 2 is never closed"),
        (FLAG, "a.csv", b"Op,id\nI,gr\xf6\xdfe\n", "not UTF-8 (In CSV column #1: Row #2"),
        (FLAG, "a.csv", b"Op,gr\xf6\xdfe\nI,2\n", "perhaps it is in Latin-1 or Windows-1252"),
        (FLAG, "a.csv", "", "the file is empty: a CSV file begins with a header line"),
        (FLAG, "a.csv.gz", "Op,id\n", "its name ends in .gz, but it is not compressed"),
        (FLAG, "a.xlsx", b"PK\x03\x04 x", "is a ZIP archive, as files of Excel are"),
        (FLAG, "a.txt", "Op,id\n", "if the file is CSV, give it a name that ends in .csv"),
        (FLAG, "a.json", "[\n", "files have one JSON object per line, and no list around them"),
        (FLAG, "a.json", '[{"Op":"I"}]\n', "files have one JSON object per line, and no list around them"),
        (f"{STREAM}{TABLES}", "a.jsonl", WAL, "it looks like wal2json-v2: declare `format: wal2json-v2`"),
        (f"{STREAM}{TABLES}", "a.csv", "Op,id\nI,1\n", "it is a row of a CSV file: declare `format: change-set"),
        (f"{STREAM}      format: wal2json-v2\n{TABLES}", "a.jsonl", DEBEZIUM, "declare `format: debezium`"),
        (
            f"{STREAM}{TABLES}".replace("shop.t", "shop.tt"), "a.jsonl", DEBEZIUM,
            "shop.tt: no event has arrived yet (did you mean shop.t?)",
        ),
        (FLAG, "2026/a.csv", "Op,id\nI,1\n", "its folders (2026) are not read, only its own files"),
    ],
)  # fmt: skip
def test_a_mistake_in_what_arrives(
    call: Call, here: Path, pipeline: str, name: str, content: str | bytes, expected: str
) -> None:
    (here / "p.yaml").write_text(pipeline)
    file = here / ".lake" / "landing" / "s" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    done = call("run", "p.yaml", "--no-upkeep", "--json")
    assert done.code in (0, 1, 3), done
    rejected = call("rejected", "list", "--json").out
    text = f"{done.out}{rejected}"
    assert expected in text.replace("\\n", "\n").replace('\\"', '"')
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        ("abc", "ConfigError: 'abc' is not a port: use a number from 1 to 65535, such as PORT=3001"),
        ("", "ConfigError: '' is not a port"),
        ("70000", "ConfigError: 70000 is not a port"),
    ],
)
def test_a_port_that_is_none(port: str, expected: str) -> None:
    script = ROOT / "scripts" / "check_port.py"
    done = subprocess.run([sys.executable, script, port, "x"], capture_output=True, text=True, check=False)
    assert (done.returncode, expected in done.stderr) == (1, True)
    assert "Traceback" not in done.stderr


def test_an_error_of_sparks_analyzer_is_shown_without_its_plan() -> None:
    class AnalysisException(Exception):
        pass

    AnalysisException.__module__ = "pyspark.errors.exceptions.captured"
    error = AnalysisException("[UNRESOLVED] no `idd`. SQLSTATE: 42703;\n'Sort ['idd ASC], false\n+- Project [id#51L]\n")
    assert foreign_errors.error_text(error) == "AnalysisException: [UNRESOLVED] no `idd`. SQLSTATE: 42703"
    assert foreign_errors.error_text(ValueError("a;\n'b")) == "ValueError: a;\n'b"


def test_pyspark_prints_no_json_about_an_error_that_it_raises() -> None:
    silence_query_errors()
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        assert not logging.getLogger(name).isEnabledFor(logging.ERROR)


def test_a_name_without_a_layer_in_a_lake_without_tables(here: Path) -> None:
    lake = Lake.load()
    with pytest.raises(InvalidNameError, match=r"example final\.users$"):
        lake.named("users")
    assert not (here / ".lake").exists()
