"""`check` lists every mistake of a pipeline's file, each with its line; without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, IcebergType, IntegerType, NestedField, StringType

from lake_assets import Lake, Pipeline
from lake_assets.commands import check as command
from lake_assets.errors import PipelineError
from lake_assets.facade import Lake as LakeOfCommands
from lake_assets.lake.sql_syntax import SqlSyntaxError, parse_statements
from lake_assets.pipeline.pipeline_checks import check
from tests.support.cli import Done, caller

ID, TEXT, DAY = IntegerType(), StringType(), DateType()


def create(lake: Lake, table: str, /, **columns: IcebergType) -> None:
    namespace, name = table.split(".")
    lake.ensure_namespace((namespace,))
    fields = [NestedField(n, c, kind) for n, (c, kind) in enumerate(columns.items(), 1)]
    lake.catalog.create_table((namespace, name), Schema(*fields))


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "defs.yaml"
    file.write_text(f"type: lake_assets.LakePipeline\nattributes:\n{text}")
    return file


def mistakes(file: Path, lake: Lake) -> list[str]:
    """What `check` lists, without the folder of the file."""
    loaded, wrong = Pipeline.load_what_is_right(file)
    found = [*wrong, *(check(loaded, lake).mistakes if loaded else ())]
    return [line.replace(f"{file.parent}/", "") for line in found]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    monkeypatch.setenv("COLUMNS", "1000")
    # Spark's parser is asked only about models; what it says is tested elsewhere.
    monkeypatch.setattr(command, "rejected_by_spark", lambda *_: ([], []))
    return caller(monkeypatch, capsys)


def test_wrong_settings_do_not_hide_what_the_lake_shows_of_the_others(
    tmp_path: Path, plain_lake: Lake, call: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    create(plain_lake, "staging.users", id=ID, name=TEXT, at=TEXT)
    create(plain_lake, "final.users", id=ID, name=TEXT, at=TEXT)
    file = write(
        tmp_path,
        "  nmae: p\n"  # 3
        "  interval: 0\n"
        "  streams:\n"
        "    - name: s\n"
        "      tables:\n"
        "        - {table: public.users, key: idd}\n"  # 8
        "        - {table: public.orders, mode: scd3, audits: [{uniqe: id}]}\n"  # 9
        "        - {table: public.items, track: n, write: overwrite-partitions, deletes: soft, mode: append}\n"
        "    - {name: t, fromat: debezium, tables: [public.shops]}\n"  # 11
        "  models:\n"
        "    - {name: agg.a, sql: SELECT nam FROM final.users}\n"  # 13
        "    - {name: agg.b, sql: 'SELECT id FROM final.orders JOIN final.shops USING (id) JOIN final.usrs USING (id)'}\n"
        "    - {name: agg.c, sql: SELECT id FROM final.users, sql_file: c.sql}\n"  # 15
        "    - {name: agg.d, sql_file: d.sql}\n"
        "    - {name: agg.e, sql: SELECT id FROM agg.c JOIN agg.d USING (id)}\n",
    )
    found = mistakes(file, plain_lake)
    expected = {
        3: "nmae: unknown setting; did you mean `name`?",
        4: "a sensor runs at most once a second",
        8: "final.users: `key` names idd (did you mean id?)",
        9: "mode: expected 'scd1', 'scd2' or 'append', found 'scd3'",
        10: "`deletes: soft` is for `mode: scd1`",
        11: "fromat: unknown setting; did you mean `format`?",
        13: "model agg.a: no column nam (did you mean name?): final.users has id, name, at",
        14: "agg.b reads final.usrs, which neither exists in the lake nor is declared (did you mean final.users?)",
        15: "set exactly one of `sql` (the SELECT) and `sql_file`",
        16: "cannot be read: No such file",
    }
    for line, text in expected.items():
        assert any(m.startswith(f"defs.yaml, line {line}: ") and text in m for m in found), (line, found)
    assert any("line 9: " in m and "uniqe: unknown setting" in m for m in found)
    assert [m for m in found if "line 10: " in m and ("`track` is for" in m or "overwrite-partitions" in m)] != []
    assert sum("line 10: " in m for m in found) == 3
    # What reads tables whose own declaration is wrong is not called a mistake.
    assert not [m for m in found if "final.orders" in m or "final.shops" in m or "agg.e reads" in m]

    monkeypatch.setattr(LakeOfCommands, "load", classmethod(lambda *_: plain_lake))
    done = call("check", file)
    assert done.code == 1
    assert [line.replace(f"{file.parent}/", "") for line in done.out.splitlines()][: len(found)] == found


def test_values_that_yaml_cannot_read_and_settings_that_are_written_twice_do_not_hide_others(
    tmp_path: Path, plain_lake: Lake
) -> None:
    file = write(
        tmp_path,
        "  name: p\n"
        "  name: q\n"  # 4
        "  streams:\n"
        "    - name: s\n"
        "      tables:\n"
        "        - {table: public.a, partitions: {by: at, every: day, start: 2024-13-45}}\n"  # 8
        "        - {table: public.b, partitions: {by: at, every: day, start: 2024-02-31}}\n"
        "        - {table: public.c, mod: scd2}\n",
    )
    found = mistakes(file, plain_lake)
    assert [m.split(": ")[0] for m in found] == [f"defs.yaml, line {n}" for n in (4, 8, 9, 10)]
    with pytest.raises(PipelineError) as caught:
        Pipeline.load(file)
    assert str(caught.value).replace(f"{file.parent}/", "").splitlines() == found


def test_a_name_that_is_claimed_twice_is_named_with_both_lines(tmp_path: Path, plain_lake: Lake) -> None:
    file = write(
        tmp_path,
        "  name: p\n"
        "  streams:\n"
        "    - name: s\n"
        "      tables:\n"
        "        - public.users\n"  # 7
        "        - {table: audit.users}\n"
        "        - {table: public.people, name: users}\n"
        "    - name: s\n"  # 10
        "  models:\n"
        "    - {name: agg.m, sql: SELECT 1 AS a}\n"
        "    - {name: agg.m, sql: SELECT 2 AS a}\n"
        "    - {name: final.users, sql: SELECT 2 AS a}\n",
    )
    twice = "pipeline 'p' declares {} twice (also in defs.yaml, line {}): give one of them another `name`"
    # The raw tables come first.
    assert mistakes(file, plain_lake) == [
        f"defs.yaml, line {line}: {twice.format(table, first)}"
        for line, table, first in (
            (10, "raw.s", 5),
            (8, "staging.users", 7),
            (9, "staging.users", 7),
            (13, "agg.m", 12),
            (14, "final.users", 7),
        )
    ]
    with pytest.raises(PipelineError, match=r"line 8: .*declares staging.users twice"):
        Pipeline.load(file).specs(plain_lake)


def test_several_tables_that_read_what_nothing_makes_are_all_named(tmp_path: Path, plain_lake: Lake) -> None:
    (tmp_path / "one.py").write_text(
        "from lake_assets import Changes, model\n\n\n"
        "@model('agg.p', key='id', write='merge', inputs={'a': 'final.gone'})\n"
        "def p(a: Changes):\n    return a.upserts\n\n\n"
        "@model('agg.q', key='id', write='merge')\n"
        "def q(nowhere: Changes):\n    return nowhere.upserts\n"
    )
    (tmp_path / "two.py").write_text("1 / 0\n")
    file = write(
        tmp_path,
        "  name: p\n  python: [one.py, two.py, three.py]\n"
        "  jobs:\n    - {table: agg.j, inputs: final.gone, command: [x], depends_on: [agg/j]}\n",
    )
    found = mistakes(file, plain_lake)
    assert "two.py cannot be imported: ZeroDivisionError: division by zero (line 1)" in found[0]
    assert "three.py: no such Python file" in found[1]
    (tmp_path / "two.py").write_text("")
    (tmp_path / "three.py").write_text("")
    found = mistakes(file, plain_lake)
    for text in (
        "no table is called 'nowhere'",
        "agg.p reads final.gone, which neither exists",
        "agg.j reads final.gone, which neither exists",
        "agg.j: `depends_on` names agg/j",
    ):
        assert sum(text in m for m in found) == 1, (text, found)


def test_a_column_that_cannot_be_partitioned_by_time_is_a_mistake_before_the_first_run(
    tmp_path: Path, plain_lake: Lake
) -> None:
    create(plain_lake, "staging.users", id=ID, name=TEXT, day=DAY, _op=TEXT)
    create(plain_lake, "final.users", id=ID, name=TEXT, day=DAY)
    daily = "partitions: {by: %s, every: day, start: 2024-01-01}"
    file = write(
        tmp_path,
        "  name: p\n"
        "  streams:\n"
        "    - name: s\n"
        "      tables:\n"
        f"        - {{table: public.users, rename: {{name: nick}}, {daily % 'nick'}}}\n"  # 7
        f"        - {{table: public.later, types: {{at: string}}, {daily % 'at'}}}\n"
        f"        - {{table: public.right, types: {{at: date}}, {daily % 'at'}}}\n"
        "        - {table: public.hours, types: {at: date}, partitions: {by: at, every: hour, start: 2024-01-01}}\n"
        f"        - {{table: public.unknown, {daily % 'at'}}}\n"
        "  models:\n"
        f"    - {{name: agg.a, sql: SELECT upper(name) AS n FROM final.users, {daily % 'n'}}}\n"  # 13
        f"    - {{name: agg.b, sql: SELECT day FROM final.users, {daily % 'day'}}}\n"
        "    - {name: agg.c, sql: SELECT id FROM final.users, partitions: {by: id, values: [x]}}\n",
    )
    wrong = "`partitions`: `every: day` is for dates and timestamps, and"
    assert [m.partition(": name a column")[0] for m in mistakes(file, plain_lake)] == [
        f"defs.yaml, line 7: final.users: {wrong} nick is string",
        f"defs.yaml, line 8: final.later: {wrong} at is string",
        "defs.yaml, line 10: final.hours: `partitions`: `every: hour`, and at is a date: declare `every: day` or "
        "`every: month`",
        f"defs.yaml, line 13: agg.a: {wrong} n is string",
        "defs.yaml, line 15: agg.c: `partitions`: `values` has 'x', and id is int",
    ]


@pytest.mark.parametrize(
    ("sql", "line", "text"),
    [
        ("SELECT count(a\nFROM t", 2, "found `FROM`"),
        ("SELECT a\nFROM t\nWHERE", 3, "something is missing after `WHERE`"),
        ("SELECT a b\n  b3 FROM t", 2, "found `b3`"),
        ("SELECT CAST(a AS) FROM t", 1, "found `)`"),
        ("SELECT a FROM t GROUP a", 1, "found `a`, the last word"),
        ("SELECT\n map(a) FROM t", 2, "does a call lack an argument after `a`?"),
        ("SELECT a,\n 'b FROM t", 2, "a quote or comment that begins here is not closed"),
    ],
)
def test_wrong_sql_is_named_with_its_word(sql: str, line: int, text: str) -> None:
    with pytest.raises(SqlSyntaxError) as caught:
        parse_statements(sql)
    assert caught.value.line == line
    assert text in caught.value.text
    assert "class" not in caught.value.text


def test_descriptions_of_columns_that_no_table_has_are_mistakes(tmp_path: Path, plain_lake: Lake) -> None:
    create(plain_lake, "staging.users", id=ID, name=TEXT, mail=TEXT)
    create(plain_lake, "final.users", id=ID, name=TEXT, mail=TEXT)
    create(plain_lake, "crm.regions", city=TEXT)
    file = write(
        tmp_path,
        "  name: p\n"  # 3
        "  external_tables:\n"
        "    - table: crm.regions\n"
        "      column_descriptions: {town: a place}\n"  # 6
        "    - {table: crm.other, column_descriptions: {unknown: before it exists}}\n"
        "  streams:\n"
        "    - name: s\n"
        "      tables:\n"
        "        - table: public.users\n"
        "          key: id\n"
        "          column_descriptions:\n"
        "            ID: another spelling\n"
        "            nmae: who it is\n"  # 15
        "        - {table: public.later, column_descriptions: {unknown: before the first run}}\n"
        "  models:\n"
        "    - {name: agg.a, sql: SELECT id AS n FROM final.users, column_descriptions: {n: one, id: none}}\n",
    )
    assert mistakes(file, plain_lake) == [
        "defs.yaml, line 15: staging.users, final.users: `column_descriptions` names nmae (did you mean name?), and the "
        "columns are id, mail, name",
        "defs.yaml, line 18: agg.a: `column_descriptions` names id, and the columns are n",
        "defs.yaml, line 6: crm.regions: `column_descriptions` names town, and the columns are city",
    ]


def test_columns_in_double_quotes_are_warned_of(
    tmp_path: Path, plain_lake: Lake, call: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LakeOfCommands, "load", classmethod(lambda *_: plain_lake))
    create(plain_lake, "final.users", id=ID, name=TEXT)
    file = write(
        tmp_path,
        "  name: p\n"
        "  models:\n"
        "    - name: agg.a\n"
        "      sql: |\n"
        "        SELECT id,\n"
        '          upper("Name") AS n, \'name\' AS t, `name` -- "name"\n'  # 8
        '        FROM final.users WHERE name <> "nobody"\n',
    )
    done = call("check", file)
    text = (
        "\"Name\" is a text in Spark's SQL, not column name of final.users: write `name` for the column, 'Name' for the"
    )
    assert done.code == 0, done.out
    assert done.out.splitlines()[0] == f"warning: {file}, line 8: model agg.a: {text} text"
    assert done.out.count("warning") == 1
