"""A pipeline's YAML: its settings, and the tables that it declares; without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import PipelineError, TableClaimedError
from lake_assets.examples import shop
from lake_assets.final.final_spec import FinalSpec
from lake_assets.formats import SourceTable
from lake_assets.ingest.ingest_specs import RawSpec, StagingSpec
from lake_assets.ingest.landing_places import Landing
from lake_assets.ingest.raw.landing import land
from lake_assets.lake import TableId
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline import PipelineConfig
from tests.support.debezium import BIGINT, Event, Table, to_lines, write_lines
from tests.support.pipeline_files import load
from tests.support.streams import pipeline

GOOD = """\
type: lake_assets.LakePipeline

attributes:
  name: p
  streams:
    - name: s
      tables:
        - public.users
        - table: public.orders
          key: [id]
  models:
    - name: agg.m
      sql: SELECT id, count(*) AS n FROM final.users GROUP BY id
"""


def test_a_pipeline_is_read_from_yaml(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD).config
    assert config.name == "p"
    assert [t.table for t in config.streams[0].tables] == ["public.users", "public.orders"]
    assert config.streams[0].tables[1].key == ["id"]
    assert config.models[0].name == "agg.m"


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("    - name: s\n", "    - name: s\n      formatt: debezium\n", 7, "formatt"),
        ("    - name: s\n", "    - name: a-b\n", 6, "name"),
        ("  name: p\n", "  nmae: p\n", 4, "nmae"),
        ("key: [id]", "partitions: {by: at, every: week, start: 2024-01-01}", 10, "hour"),
        ("key: [id]", "partitions: {by: at, every: day}", 10, "`every` needs `start`"),
        ("key: [id]", "partitions: {by: at, every: day, start: soon}", 10, "'soon' is not a date"),
        ("key: [id]", "partitions: {by: at, every: day, start: 2024-01-01, timezone: Mars}", 10, "unknown time zone"),
        ("key: [id]", "partitions: {by: c, timezone: Europe/Berlin}", 10, "need `every`"),
        ("key: [id]", "partitions: {by: c, values: [a, a]}", 10, "named twice"),
        ("key: [id]", "partitions: {by: at, every: day, start: 2024-01-01, values: [a]}", 10, "not by both"),
        ("key: [id]", "partitions: {by: c}\n          partition_by: c", 9, "leave `partition_by` out"),
        ("key: [id]", "partitions: c\n          final: false", 9, "`final: false` there is no final table"),
        ("        - public.users\n", "        - users\n", 8, "not a source table"),
        ("        - public.users\n", "        - a.b.c\n", 8, "not a source table"),
        ("          key: [id]\n", "          key: {a: 1}\n", 10, "key"),
        ("        - table: public.orders\n", "        - table: public.*\n          name: x\n", 9, "several tables"),
        ("        - table: public.orders\n", "        - table: public.*\n          start_position: 3\n", 9, "several"),
        ("          key: [id]\n", "          start_position: -1\n", 10, "greater than or equal to 0"),
        ("          key: [id]\n", "          deletes: softly\n", 10, "soft"),
        ("        - table: public.orders\n", "        - table: public.o\n          track: n\n", 9, "mode: scd2"),
        (
            "        - table: public.orders\n",
            "        - {table: public.o, mode: scd2, deletes: soft}\n        - table: public.orders\n",
            9,
            "keeps deleted rows anyway",
        ),
        ("    - name: agg.m\n", "    - name: m\n", 12, "not a table name"),
        ("    - name: agg.m\n", "    - name: icdc.m\n", 12, "tables in icdc are created by lake_assets itself"),
        ("    - name: agg.m\n", "    - name: raw.m\n", 12, "tables in raw are created by lake_assets itself"),
        ("    - name: s\n", "    - name: s_files\n", 6, "the list of landed files of a stream called s"),
        ("    - name: s\n", "    - name: s_rejected\n", 6, "the list of rejected records of a stream called s"),
        ("      sql: SELECT", "      query: SELECT", 13, "query"),
        ("    - name: s\n", "    - name: s\n      format: avro\n", 7, "debezium"),
        ("key: [id]", "keey: [id]", 10, "streams[s].tables[public.orders].keey: unknown setting; did you mean `key`?"),
        ("key: [id]", "freshness: {fial: 1h}", 10, "freshness.fial: unknown setting; did you mean `fail`?"),
        ("key: [id]", "audits: [{uniqe: id}]", 10, "audits.0.uniqe: unknown setting; did you mean `unique`?"),
        ("    - name: s\n", "    - nmae: s\n", 6, "streams.0.nmae: unknown setting; did you mean `name`?"),
        ("  streams:\n", "  stream:\n", 5, "stream: unknown setting; did you mean `streams`?"),
        ("key: [id]", "key: [id, {a: 1}]", 10, "key: expected text or a list, found {'a': 1}"),
        ("key: [id]", "max_wait: [1]", 10, "max_wait: expected text or a number, found [1]"),
        ("key: [id]", "final: maybe", 10, "final: expected true or false, found 'maybe'"),
        ("key: [id]", "mode: scd3", 10, "mode: expected 'scd1', 'scd2' or 'append', found 'scd3'"),
        ("key: [id]", "rename: [a]", 10, "rename: expected settings as `name: value`, found ['a']"),
        ("key: [id]", "key: [id]\n          key: [name]", 11, "key: set twice in one place"),
        ("  models:\n", "  streams:\n    - name: t\n  models:\n", 11, "streams: set twice in one place"),
        ("    - name: s\n", "    - name: s\n      landing: sftp://b/in\n", 7, "landing: sftp://b/in is a URL"),
        (
            "    - name: s\n",
            "    - name: s\n      landing: s3://key:pl4nted@b/in\n",
            7,
            "neither credentials nor parameters",
        ),
        (
            "    - name: s\n",
            "    - name: s\n      landing: gs://b/in?token=pl4nted\n",
            7,
            "neither credentials nor parameters",
        ),
        ("    - name: s\n", "    - name: s\n      landing: s3:///in\n", 7, "write s3://bucket/folder"),
        ("    - name: s\n", "    - name: s\n      landing: file://host/in\n", 7, "file://host/in is a URL"),
        ("    - name: s\n", "    - name: s\n      landing: in/{tabel}\n", 7, "write {table}, or {schema} and {table}"),
        ("    - name: s\n", "    - name: s\n      landing: in/{schema}\n", 7, "{schema} without {table}"),
        (
            "    - name: s\n",
            "    - name: s\n      landing: s3://{table}/in\n",
            7,
            "the name of a bucket cannot be a placeholder",
        ),
        (
            "      sql: SELECT id, count(*) AS n FROM final.users GROUP BY id\n",
            "      sql_file: s3://b/m.sql\n",
            13,
            "URL",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(PipelineError) as caught:
        load(tmp_path, GOOD.replace(old, new))
    assert f"defs.yaml, line {line}: " in str(caught.value)
    assert message in str(caught.value)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(PipelineError) as caught:
        load(tmp_path, GOOD.replace("public.users", "users").replace("agg.m", "m"))
    assert [line.split(": ")[0].rsplit(" ", 1)[-1] for line in str(caught.value).splitlines()] == ["8", "12"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attributes: [", r"line 1: no valid YAML|line 2: no valid YAML"),
        ("type: other\nattributes: {}", r"type: lake_assets\.LakePipeline"),
        ("type: lake_assets.LakePipeline\n", "attributes"),
        ("- 1\n", "attributes"),
        ("", "found an empty file"),
        ("type: lake_assets.LakePipelin\nattributes: {}\n", "found `type: lake_assets.LakePipelin`"),
        ("type: lake_assets.LakePipeline\nattribute: {}\n", "found only these settings at the top: type, attribute"),
        ("type: lake_assets.LakePipeline\nattributes: 3\n", "line 2: expected settings as `name: value`, found 3"),
        ("type: lake_assets.LakePipeline\nattributes: {name: p}\n---\na: b\n", "line 3: .*single document"),
        ("\x00", "no valid YAML"),
        ("[" * 5_000, "nested too deeply"),
    ],
)
def test_what_is_no_pipeline_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        load(tmp_path, text)


def test_a_landing_folder_may_be_a_file_url_or_in_the_users_folder(
    plain_lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for written, folder in ((f"file://{tmp_path}/in", tmp_path / "in"), ("~/in", tmp_path / "in")):
        config = {"name": "p", "streams": [{"name": "s", "landing": written, "tables": ["public.users"]}]}
        raw = Pipeline(PipelineConfig.model_validate(config)).specs(plain_lake)[0]
        assert isinstance(raw, RawSpec)
        assert raw.landing == Landing(str(folder))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"none\.yaml"):
        Pipeline.load(tmp_path / "none.yaml")


# --- tables -----------------------------------------------------------------------------------------------------


def names(lake: Lake, p: Pipeline) -> list[str]:
    return [str(s.table) for s in p.specs(lake)]


def show(lake: Lake, *tables: str) -> None:
    """Let the stream contain these source tables."""
    folder = lake.config.home / "landing" / "events"
    events = [Event(Table({"id": BIGINT}, name=t), "c", (1, i), {"id": i}) for i, t in enumerate(tables)]
    write_lines(folder / "a.jsonl", to_lines(events))
    land(lake, RawSpec(TableId.parse("raw.events"), folder, "debezium", "made_up"))


def test_sources_come_before_what_depends_on_them(plain_lake: Lake) -> None:
    models = [
        {"name": "agg.b", "sql": "SELECT id FROM agg.a"},
        {"name": "agg.a", "sql": "SELECT id FROM final.users"},
    ]
    order = names(plain_lake, pipeline("public.users", {"table": "public.orders", "final": False}, models=models))
    assert order == ["raw.events", "staging.users", "staging.orders", "final.users", "agg.a", "agg.b"]


def test_specs_carry_what_was_declared(plain_lake: Lake) -> None:
    p = pipeline(
        {"table": "public.users", "name": "people", "key": "id", "rename": {"a": "b"}, "properties": {"x": "y"}},
        models=[{"name": "agg.m", "sql": "SELECT id FROM final.people", "key": "id"}],
    )
    raw, staging, final, model = p.specs(plain_lake)
    home = plain_lake.config.home
    table = TableId.parse
    users = SourceTable("public", "users")
    raw_table = table("raw.events")
    landing = home / "landing" / "events"
    assert raw == RawSpec(raw_table, landing, "debezium", "made_up", about=users, tables=("public.users",))
    assert staging == StagingSpec(
        table("staging.people"), table("raw.events"), SourceTable("public", "users"), "debezium", "made_up", {"a": "b"},
        key=("id",),
    )  # fmt: skip
    assert final == FinalSpec(
        table("final.people"), table("staging.people"), "made_up", ("id",), {"a": "b"}, {"x": "y"}, horizon=7 * 86_400
    )
    assert isinstance(model, ModelSpec)
    assert (model.sources, model.key) == ((table("final.people"),), ("id",))


def test_a_landing_folder_is_meant_from_the_lakes_home_or_absolute(plain_lake: Lake, tmp_path: Path) -> None:
    for folder, meant in (
        ("in/here", plain_lake.config.home / "in" / "here"),
        (str(tmp_path / "abs"), tmp_path / "abs"),
    ):
        config = PipelineConfig.model_validate({"name": "p", "streams": [{"name": "s", "landing": folder}]})
        (raw,) = Pipeline(config).specs(plain_lake)
        assert isinstance(raw, RawSpec)
        assert raw.landing == Landing(str(meant))


def test_a_pattern_stands_for_what_the_stream_has_shown(plain_lake: Lake) -> None:
    p = pipeline("public.users", "public.*")
    assert names(plain_lake, p) == ["raw.events", "staging.users", "final.users"]
    show(plain_lake, "public.users", "public.orders", "audit.log", "public.Odd.Name")
    assert {n for n in names(plain_lake, p) if n.startswith("final")} == {
        "final.users",
        "final.orders",
        "final.`Odd.Name`",
    }


@pytest.mark.parametrize(
    ("tables", "exclude", "expected"),
    [
        (["public.*"], ["public.b*"], ["a1", "a2"]),
        (["public.*"], ["public.a?", "public.b2"], ["b1"]),
        (["public.b1", "public.*"], ["public.b*"], ["a1", "a2", "b1"]),  # exact names win
        (["public.a*"], [], ["a1", "a2"]),
        (["*.*"], ["public.*"], []),
        (["public.[ab]1"], [], ["a1", "b1"]),
        (["public.A*"], [], []),
    ],
)
def test_excluded_tables_are_left_out_of_patterns(
    plain_lake: Lake, tables: list[str], exclude: list[str], expected: list[str]
) -> None:
    show(plain_lake, "public.a1", "public.b1", "public.b2", "public.a2")
    stream = {"name": "events", "tables": tables, "exclude": exclude}
    p = Pipeline(PipelineConfig.model_validate({"name": "made_up", "streams": [stream]}))
    assert sorted(s.table.name for s in p.specs(plain_lake) if isinstance(s, FinalSpec)) == expected


def test_the_first_pattern_that_fits_decides(plain_lake: Lake) -> None:
    show(plain_lake, "public.a", "public.b")
    p = pipeline({"table": "public.a*", "final": False}, {"table": "public.*", "key": "k"})
    finals = {s.table.name: s.key for s in p.specs(plain_lake) if isinstance(s, FinalSpec)}
    assert finals == {"b": ("k",)}


@pytest.mark.parametrize(
    ("tables", "models"),
    [
        (["public.users", "audit.users"], []),
        (["public.users", {"table": "public.people", "name": "users"}], []),
        (["public.users"], [{"name": "final.users", "sql": "SELECT 1 AS a"}]),
        ([], [{"name": "agg.m", "sql": "SELECT 1 AS a"}, {"name": "agg.m", "sql": "SELECT 2 AS a"}]),
    ],
)
def test_a_table_that_is_declared_twice_is_refused(plain_lake: Lake, tables: list[Any], models: list[Any]) -> None:
    with pytest.raises(TableClaimedError, match=r"declares \w+\.\w+ twice"):
        pipeline(*(tables or ["x.y"]), models=models).specs(plain_lake)


def refusals(lake: Lake, models: list[Any]) -> dict[str, str]:
    specs = pipeline("public.users", models=models).specs(lake)
    return {str(s.table): s.refused for s in specs if isinstance(s, ModelSpec)}


def test_models_that_depend_on_each_other_are_named(plain_lake: Lake) -> None:
    models = [
        {"name": "agg.a", "sql": "SELECT id FROM agg.b"},
        {"name": "agg.b", "sql": "SELECT id FROM agg.c"},
        {"name": "agg.c", "sql": "SELECT id FROM agg.a"},
    ]
    refused = refusals(plain_lake, models)
    assert len(refused) == 3
    assert all(
        "in a circle: " in why and "agg.a -> agg.b -> agg.c" in f"{why} -> agg.b -> agg.c" for why in refused.values()
    )


def test_a_model_of_itself_is_a_circle(plain_lake: Lake) -> None:
    refused = refusals(plain_lake, [{"name": "agg.a", "sql": "SELECT id FROM agg.a"}])
    assert "in a circle: agg.a -> agg.a" in refused["agg.a"]


def test_what_is_pending_is_found_without_spark(plain_lake: Lake) -> None:
    p = pipeline("public.users")
    assert p.pending(plain_lake) == []
    users = Table({"id": BIGINT}, name="public.users")
    folder = plain_lake.config.home / "landing" / "events"
    write_lines(folder / "a.jsonl", to_lines([Event(users, "c", (1, 1), {"id": 1})]))
    (landed,) = p.pending(plain_lake)
    assert (landed.table, landed.source, landed.files) == ("raw.events", str(folder), 1)
    land(plain_lake, RawSpec(TableId.parse("raw.events"), folder, "debezium", "made_up"))
    (staged,) = p.pending(plain_lake)
    assert (staged.table, staged.source, staged.start) == ("staging.users", "raw.events", None)
    assert staged.end == plain_lake.table("raw.events").metadata.current_snapshot_id


def test_the_shipped_pipeline_is_right(plain_lake: Lake) -> None:
    p = Pipeline.load(shop.PIPELINE)
    tables = names(plain_lake, p)
    assert tables[0] == "raw.shop_events"
    assert tables[-1] == "agg.city_population"
    assert json.loads((shop.DATA / "manifest.json").read_text())["stream"] == "debezium.jsonl.gz"


def test_partitions_are_read(tmp_path: Path, plain_lake: Lake) -> None:
    cases = {
        "{by: at, every: day, timezone: Europe/Berlin, start: 2024-01-01}": (
            "days(`at`)",
            "at every day in Europe/Berlin",
        ),
        "{by: at, every: month, start: 2024-02-17}": ("months(`at`)", "from 2024-02-01"),
        "{by: at, every: hour, start: 2024-02-17T08:30}": ("hours(`at`)", "from 2024-02-17-08:00"),
        "{by: c, values: [de, 1, true]}": ("`c`", "c in (1, de, true)"),
        "c": ("`c`", "c"),
    }
    for text, (field, summary) in cases.items():
        changed = GOOD.replace("key: [id]", f"partitions: {text}").replace(
            "GROUP BY id", f"GROUP BY id\n      partitions: {text}"
        )
        specs = {str(s.table): s for s in load(tmp_path, changed).specs(plain_lake, alone=False)}
        final, model = specs["final.orders"], specs["agg.m"]
        assert isinstance(final, FinalSpec)
        assert isinstance(model, ModelSpec)
        assert final.partitions
        assert final.partitions == model.partitions
        assert [f.sql for f in final.partition_by] == [field]
        assert summary in final.partitions.text
