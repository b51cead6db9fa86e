"""SQL of models, in the YAML or in separate files: all mistakes are reported at once, with their lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from lake_assets import Lake, Pipeline, cli
from lake_assets.errors import ModelError, PipelineError
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline.pipeline_checks import check

HEAD = "type: lake_assets.LakePipeline\nattributes:\n  name: p\n  models:\n"


@pytest.fixture
def lake(plain_lake: Lake) -> Lake:
    """Create final.users (id, name, city) and final.cities (id, name), both empty."""
    plain_lake.ensure_namespace(("final",))
    for table, columns in {
        "users": {"id": LongType(), "name": StringType(), "city": IntegerType()},
        "cities": {"id": IntegerType(), "name": StringType()},
    }.items():
        fields = [NestedField(n, c, t) for n, (c, t) in enumerate(columns.items(), 1)]
        plain_lake.catalog.create_table(("final", table), Schema(*fields))
    return plain_lake


def write(folder: Path, models: str, **files: str) -> Path:
    """Write a pipeline's YAML with these models, and files beside it; the first model begins on line 5."""
    for name, text in files.items():
        (folder / f"{name}.sql").write_text(text)
    file = folder / "defs.yaml"
    file.write_text(HEAD + models)
    return file


def refused(file: Path) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        Pipeline.load(file)
    return [line.replace(f"{file.parent}/", "") for line in str(caught.value).splitlines()]


def mistakes_of(file: Path, lake: Lake) -> list[str]:
    return [line.replace(f"{file.parent}/", "") for line in check(Pipeline.load(file), lake).mistakes]


def test_sql_comes_from_a_file_beside_the_yaml(tmp_path: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "    - {name: agg.m, sql_file: m.sql}\n", m="-- users\nSELECT id FROM final.users\n")
    monkeypatch.chdir("/")
    (spec,) = Pipeline.load(file).specs(lake)
    assert isinstance(spec, ModelSpec)
    assert spec.sql == "-- users\nSELECT id FROM final.users\n"
    assert [str(s) for s in spec.sources] == ["final.users"]
    assert mistakes_of(file, lake) == []


@pytest.mark.parametrize("model", ["sql: SELECT 1 AS one, sql_file: m.sql", "key: id"])
def test_exactly_one_of_the_two_is_needed(tmp_path: Path, model: str) -> None:
    (message,) = refused(write(tmp_path, f"    - {{name: agg.m, {model}}}\n", m="SELECT id FROM final.users"))
    assert message.startswith("defs.yaml, line 5")
    assert "exactly one of `sql`" in message


def test_files_that_are_not_there_are_all_named(tmp_path: Path) -> None:
    first, second = refused(
        write(tmp_path, "    - {name: agg.a, sql_file: a.sql}\n    - {name: agg.b, sql_file: x/b.sql}\n")
    )
    assert first == "defs.yaml, line 5: model agg.a: its sql_file a.sql cannot be read: No such file or directory"
    assert second.startswith("defs.yaml, line 6: model agg.b: its sql_file x/b.sql")


def test_mistakes_that_need_no_lake_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    models = """\
    - name: agg.a
      sql: |
        SELECT id
        FROM final.users
        WHERE (
    - name: agg.b
      sql_file: b.sql
    - name: agg.c
      sql: SELECT id FROM users
    - name: agg.d
      sql: >
        SELECT id,
          now() AS t FROM final.users
    - name: agg.e
      key: {a: b}
      sql: |

        SELECT 'x FROM final.users
    - {name: agg.f, sql: SELECT g.id FROM agg.g g}
    - name: agg.g
      sql: |
        SELECT id FROM final.users
        UNION ALL
        SELECT id FROM agg.f
    - {name: agg.h, sql: SELECT id FROM agg.h}
"""
    messages = refused(
        write(tmp_path, models, b="SELECT u.id\nFROM final.users u\nJOIN cities c ON true\nJOIN a.b.c d ON true")
    )
    for at, text in [
        ("defs.yaml, line 9: ", "agg.a: "),
        ("b.sql, line 3: ", "agg.b: table cities is named without its layer"),
        ("b.sql, line 4: ", "names a catalog"),
        ("defs.yaml, line 13: ", "agg.c: table users is named without its layer"),
        ("defs.yaml, line 15: ", "agg.d: NOW() gives another value each time"),
        ("defs.yaml, line 19: ", "key"),
        ("defs.yaml, line 22: ", "agg.e: a quote or comment that begins here is not closed"),
        ("defs.yaml, line 23: ", "agg.f -> agg.g -> agg.f"),
        ("defs.yaml, line 29: ", "agg.h -> agg.h"),
    ]:
        assert [s for s in messages if s.startswith(at) and text in s], (at, text, messages)
    assert len(messages) == 9


def test_names_that_the_lake_does_not_have_are_told_at_once(tmp_path: Path, lake: Lake) -> None:
    models = """\
    - name: agg.a
      sql: |
        SELECT u.nope, x.id,
          name
        FROM final.users u JOIN final.cities c ON u.city = c.idd
        WHERE EXISTS (SELECT 1 FROM final.cities d
          WHERE d.id = u.zip)
    - name: agg.b
      sql: |
        WITH w AS (SELECT id AS k FROM final.users)
        SELECT k, l
        FROM w
    - {name: agg.c, sql_file: c.sql}
    - {name: agg.d, sql: SELECT id FROM final.users, key: [id, nokey]}
    - {name: agg.e, sql: SELECT o FROM agg.good}
    - {name: agg.good, sql: SELECT id AS n FROM final.users}
    - {name: agg.f, sql: "SELECT id, ID FROM final.users"}
"""
    file = write(tmp_path, models, c="SELECT id\nFROM final.users\nGROUP BY id, who\n")
    messages = mistakes_of(file, lake)
    for at, text in [
        ("defs.yaml, line 7: ", "agg.a: no column nope in final.users: it has id, name, city"),
        ("defs.yaml, line 7: ", "no table or alias x"),
        ("defs.yaml, line 8: ", "column name is ambiguous: u and c have one; write u.name"),
        ("defs.yaml, line 9: ", "no column idd in final.cities (did you mean id?): it has id, name"),
        ("defs.yaml, line 11: ", "no column zip in final.users"),
        ("defs.yaml, line 15: ", "agg.b: no column l: w has k"),
        ("c.sql, line 3: ", "no column who"),
        ("defs.yaml, line 18: ", "key nokey is not an output column"),
        ("defs.yaml, line 19: ", "agg.e: no column o: agg.good has n"),
        ("defs.yaml, line 21: ", "two output columns share a name"),
    ]:
        assert [s for s in messages if s.startswith(at) and text in s], (at, text, messages)
    assert len(messages) == 10
    file.write_text(
        HEAD + "    - name: agg.a\n      sql: |\n        SELECT a.id\n        FROM final.gone a, final.lost b\n"
    )
    lost, gone = sorted(mistakes_of(file, lake), key=lambda s: "gone" in s)
    assert gone.startswith("defs.yaml, line 8: ")
    assert lost.startswith("defs.yaml, line 8: ")


def test_a_failed_step_says_the_line_too(tmp_path: Path, lake: Lake) -> None:
    file = write(tmp_path, "    - name: agg.a\n      sql: |\n        SELECT id\n        FROM final.users\n")
    (spec,) = Pipeline.load(file).specs(lake)
    assert isinstance(spec, ModelSpec)
    assert spec.origin is not None
    assert spec.origin.at(2) == f"{file}, line 8"
    file = write(tmp_path, '    - {name: agg.a, sql: "SELECT id FROM final.users"}\n')
    (spec,) = Pipeline.load(file).specs(lake)
    assert isinstance(spec, ModelSpec)
    assert spec.origin is not None
    assert spec.origin.at(None) == f"{file}, line 5"


def test_a_column_that_is_dropped_under_a_query_is_named_with_its_line(new_lake, tmp_path: Path) -> None:
    lake = new_lake("lake")
    lake.ensure_namespace(("final",))
    spark = lake.spark()
    spark.sql("CREATE TABLE final.users (id INT, name STRING) USING iceberg")
    spark.sql("INSERT INTO final.users VALUES (1, 'a')")
    file = write(
        tmp_path, "    - name: agg.a\n      sql: |\n        SELECT id,\n          name\n        FROM final.users\n"
    )
    pipeline = Pipeline.load(file)
    assert [o.status for o in pipeline.run(lake)] == ["absorbed"]
    spark.sql("ALTER TABLE final.users DROP COLUMN name")
    spark.sql("INSERT INTO final.users VALUES (2)")
    before = lake.table("agg.a").metadata.current_snapshot_id
    (outcome,) = pipeline.run(lake)
    assert isinstance(outcome.exception, ModelError)
    assert f"{file}, line 8: model agg.a: no column name" in str(outcome.exception)
    assert lake.table("agg.a").metadata.current_snapshot_id == before


@pytest.mark.usefixtures("spark_lake")
def test_the_command_prints_all_and_exits_with_one(
    tmp_path: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from typer.testing import CliRunner

    monkeypatch.setattr(Lake, "load", lambda: lake)
    file = write(tmp_path, "    - {name: agg.a, sql: 'SELECT x, y FROM final.users'}\n")
    result = CliRunner().invoke(cli.application(), ["check", str(file)])
    assert (result.exit_code, result.stdout.count("line 5")) == (1, 2)
    file = write(tmp_path, "    - {name: agg.a, sql: 'SELECT id FROM final.users'}\n")
    assert CliRunner().invoke(cli.application(), ["check", str(file)]).exit_code == 0


def test_what_a_query_tells_of_its_columns_is_checked_before_there_are_tables(tmp_path: Path, lake: Lake) -> None:
    file = write(
        tmp_path,
        "    - {name: agg.a, sql: SELECT id AS user FROM final.later, key: usr}\n"
        "    - {name: agg.b, sql: SELECT city FROM final.users, range: {column: cty}}\n"
        "    - {name: agg.c, sql: SELECT name FROM final.later, partitions: nam}\n"
        "    - {name: agg.d, sql: SELECT usr FROM agg.e}\n"
        "    - {name: agg.e, sql: SELECT id AS user FROM final.later}\n"
        "    - {name: agg.f, sql: SELECT * FROM final.later, key: id, range: {column: day}}\n"
        "  streams:\n"
        "    - {name: ev, format: simplified, tables: [public.later]}\n",
    )
    result = check(Pipeline.load(file), lake)
    messages = sorted(line.replace(f"{file.parent}/", "") for line in result.mistakes)
    assert messages == [
        "defs.yaml, line 5: model agg.a: key usr is not an output column (did you mean user?); the output columns are user",
        "defs.yaml, line 6: model agg.b: range column cty is not an output column (did you mean city?); the output columns are city",
        "defs.yaml, line 7: agg.c: `partitions` names nam, and the table has name",
        "defs.yaml, line 8: model agg.d: no column usr (did you mean user?): agg.e has user",
    ]
    assert "key, range of agg.f: agg.f does not exist before the first run" in result.open


def test_a_source_that_nothing_makes_is_named_with_the_nearest_table(tmp_path: Path, lake: Lake) -> None:
    file = write(tmp_path, "    - {name: agg.a, sql: SELECT id FROM finall.users}\n")
    (message,) = mistakes_of(file, lake)
    assert "agg.a reads finall.users, which neither exists in the lake nor is declared" in message
    file = write(tmp_path, "    - {name: agg.a, sql: SELECT id FROM final.user}\n")
    assert "(did you mean final.users?)" in mistakes_of(file, lake)[0]


def test_columns_that_settings_name_are_those_that_have_arrived(tmp_path: Path, lake: Lake) -> None:
    lake.ensure_namespace(("staging",))
    names = ["id", "ctiy", "age", "_op", "_position"]
    fields = [NestedField(n, c, StringType()) for n, c in enumerate(names, 1)]
    lake.catalog.create_table(("staging", "people"), Schema(*fields))
    table = "{{table: public.people, mode: scd2, rename: {{ctiy: city}}, types: {{later: int}}, {}}}"
    stream = "    []\n  streams:\n    - name: ev\n      format: simplified\n      tables:\n        - "
    wrong = "key: idd, order_by: [agee], track: [ctiy, age], partition_by: [days(at)], sort_by: [cty]"
    file = write(tmp_path, stream + table.format(wrong) + "\n")
    assert mistakes_of(file, lake) == [
        f"defs.yaml, line 10: final.people: `{setting}` names {missing}, and the columns are {existing}"
        for setting, missing, existing in (
            ("key", "idd (did you mean id?)", "age, city, id, later"),
            ("order_by", "agee (did you mean age?)", "age, city, id, later"),
            ("track", "ctiy (did you mean city?)", "age, city, id, later"),
            ("partition_by", "at", "age, city, effective_from, effective_to, id, is_current, later"),
            ("sort_by", "cty (did you mean city?)", "age, city, effective_from, effective_to, id, is_current, later"),
        )
    ]
    right = "key: id, order_by: [age], track: [city, later], partition_by: [days(effective_from)], sort_by: [city]"
    assert mistakes_of(write(tmp_path, stream + table.format(right) + "\n"), lake) == []
