"""Audits in a pipeline's YAML, and the messages about mistakes; without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, StringType

from lake_assets import Lake
from lake_assets.errors import PipelineError
from lake_assets.final.final_spec import FinalSpec
from lake_assets.lake import TableId
from lake_assets.models.model_spec import ModelSpec
from lake_assets.pipeline.pipeline_checks import check
from lake_assets.pipeline.table_graph import after
from lake_assets.tables.audits.audit_kinds import (
    AcceptedValues,
    Assertion,
    EqualsQuery,
    NotNull,
    Relationship,
    RowCountChange,
    Unique,
)
from lake_assets.tables.specs import Limit
from tests.support.pipeline_files import load

HEAD = """\
type: lake_assets.LakePipeline
attributes:
  name: p
  streams:
    - name: s
      tables:
"""
GOOD = (
    HEAD
    + """\
        - table: public.users
          audits:
            - unique
            - unique: [email, city]
            - not_null: [email, city]
            - {not_null: id, name: ids, severity: warn}
            - accepted_values: {level: [1, 2, true, x]}
            - relationships: {city: final.cities.id, boss: final.users.id}
            - row_count_change: 200%
            - name: old
              sql: SELECT * FROM {table} u JOIN final.cities c ON u.city = c.id WHERE c.name IS NULL
        - public.cities
  models:
    - name: agg.m
      sql: SELECT city, count(*) AS n FROM final.users GROUP BY city
      audits:
        - equals_query
        - {equals_query: {sample: 1%, schedule: 0 * * * *}, name: often, severity: warn}
        - unique
"""
)


def test_audits_are_read_from_yaml(tmp_path: Path, plain_lake: Lake) -> None:
    specs = {str(s.table): s for s in load(tmp_path, GOOD).specs(plain_lake)}
    users, model = specs["final.users"], specs["agg.m"]
    assert isinstance(users, FinalSpec)
    assert isinstance(model, ModelSpec)
    cities = TableId.parse("final.cities")
    sql = "SELECT * FROM {table} u JOIN final.cities c ON u.city = c.id WHERE c.name IS NULL"
    assert users.audits == (
        Unique(name="unique"),
        Unique(name="unique_email_city", of=("email", "city")),
        NotNull(name="not_null_email", column="email"),
        NotNull(name="not_null_city", column="city"),
        NotNull(name="ids", column="id", severity="warn"),
        AcceptedValues(name="accepted_values_level", column="level", values=("1", "2", "true", "x")),
        Relationship(name="relationships_city", column="city", table=cities, other="id"),
        Relationship(name="relationships_boss", column="boss", table=users.table, other="id"),
        RowCountChange(name="row_count_change", limit=Limit(share=2.0)),
        Assertion(name="old", sql=sql, tables=(cities,)),
    )
    assert model.audits == (Unique(name="unique"),)
    assert model.comparisons == (
        EqualsQuery(name="equals_query"),
        EqualsQuery(name="often", severity="warn", sample=0.01, schedule="0 * * * *"),
    )


def test_a_patterns_audits_are_those_of_each_of_its_tables(tmp_path: Path) -> None:
    config = load(tmp_path, HEAD + "        - {table: public.*, audits: [unique]}\n").config
    assert [a.kinds for a in config.streams[0].tables[0].audits] == [["unique"]]


@pytest.mark.parametrize(
    ("audit", "message"),
    [
        ("uniqe", "'uniqe' is incomplete"),
        ("{uniqe: id}", "uniqe"),
        ("{unique: id, not_null: id}", "this one has 2"),
        ("{severity: warn}", "this one has 0"),
        ("{not_null: []}", "`not_null` names no column"),
        ("{accepted_values: {a: []}}", "`accepted_values` of a: list at least one"),
        ("{relationships: {a: cities.id}}", "'cities.id' is not a column of a table"),
        ("{row_count_change: many}", "'many' is not a limit"),
        ("{sql: 'SELECT 1 FROM {table}'}", "needs a `name`"),
        ("{name: upkeep, sql: 'SELECT 1 FROM {table}'}", "is the name of the check that does upkeep: choose another"),
        ("{name: s, sql: 'SELECT 1 FROM final.t'}", "has to contain {table}"),
        ("{name: s, sql: 'SELECT 1 FROM {table} WHERE ('}", "line 1 of its SQL"),
        ('{name: s, sql: "SELECT \'x FROM {table}"}', "a quote or comment that begins here is not closed"),
        ("{name: s, sql: 'DELETE FROM {table}'}", "has to be one SELECT"),
        ("{name: s, sql: 'SELECT 1 FROM {table}, users'}", "names table users: write layer.table"),
        ("{not_null: a, severity: bad}", "'error' or 'warn'"),
        ("{not_null: a, name: a-b}", "name"),
        ("equals_query", "equals_query"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, audit: str, message: str) -> None:
    text = HEAD + f"        - table: public.users\n          audits:\n            - unique\n            - {audit}\n"
    with pytest.raises(PipelineError) as caught:
        load(tmp_path, text)
    assert "defs.yaml, line 10: " in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("audits", "message"),
    [
        ("[{not_null: a}, {not_null: [a, b]}]", "two audits are called not_null_a"),
        (
            "[{name: s, sql: 'SELECT 1 FROM {table} JOIN final.users'}]",
            "audit s would check the rows already published, not the new ones",
        ),
    ],
)
def test_what_needs_the_tables_name_is_told_when_they_are_listed(
    tmp_path: Path, plain_lake: Lake, audits: str, message: str
) -> None:
    pipeline = load(tmp_path, HEAD + f"        - {{table: public.users, audits: {audits}}}\n")
    with pytest.raises(PipelineError, match=message.replace("(", r"\(")):
        pipeline.specs(plain_lake)


def test_a_table_without_a_final_one_has_no_audits(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="final: false"):
        load(tmp_path, HEAD + "        - {table: public.users, final: false, audits: [unique]}\n")


def test_tables_come_after_those_that_their_audits_look_at_unless_that_is_a_circle(
    tmp_path: Path, plain_lake: Lake
) -> None:
    text = HEAD + (
        "        - {table: public.a, audits: [{relationships: {x: final.b.x, y: final.a.y, z: final.elsewhere.z}}]}\n"
        "        - {table: public.b, audits: [{relationships: {x: final.a.x}}]}\n"
    )
    specs = load(tmp_path, text).specs(plain_lake)
    names = [str(s.table) for s in specs]
    assert names.index("final.b") < names.index("final.a")
    upstream = {str(t): [str(s) for s in above] for t, above in after(specs).items()}
    assert (upstream["final.a"], upstream["final.b"]) == (["staging.a", "final.b"], ["staging.b"])


def test_check_tells_columns_and_tables_that_are_not_there(tmp_path: Path, plain_lake: Lake) -> None:
    for layer, name, columns in (
        ("staging", "users", ["id", "_op"]),
        ("staging", "cities", ["id"]),
        ("final", "shops", ["id"]),
    ):
        plain_lake.ensure_namespace((layer,))
        fields = [NestedField(n, c, IntegerType() if c == "id" else StringType()) for n, c in enumerate(columns, 1)]
        plain_lake.catalog.create_table((layer, name), Schema(*fields))
    text = HEAD + (
        "        - table: public.users\n          deletes: soft\n          audits:\n"
        "            - not_null: [id, __deleted, nope, _op]\n"
        "            - relationships: {id: final.cities.code}\n"
        "            - {relationships: {id: final.gone.id}, name: gone}\n"
        "            - {relationships: {id: final.shops.id}, name: shops}\n"
        "            - {name: s, sql: \"SELECT t.no, c.id FROM {table} t JOIN final.cities c ON c.id = t.id\"}\n"
        "        - {table: public.cities, audits: [unique, {unique: id, name: ids}]}\n"
        "        - {table: public.logs, mode: append, audits: [unique]}\n"
        "        - {table: public.people, key: id, audits: [unique]}\n"
        "        - {table: public.unknown, audits: [unique]}\n"
        "  models:\n    - name: agg.m\n      sql: SELECT id AS k FROM final.shops\n"
        "      audits: [{not_null: id}, unique]\n"
        "    - {name: agg.keyed, sql: \"SELECT id, count(*) AS n FROM final.shops GROUP BY id\", audits: [unique]}\n"
    )  # fmt: skip
    file = tmp_path / "defs.yaml"
    places = ("audits:", "audits: [unique, {", "audits: [unique]", "audits: [{")
    users, cities, logs, model = (f"{file}, line {text[: text.index(at)].count(chr(10)) + 1}: " for at in places)
    no_key = "audit unique: the table has no key: name the columns (`unique: [...]`)"
    assert sorted(check(load(tmp_path, text), plain_lake).mistakes) == sorted(
        [
            f"{users}final.users: audit s, line 1 of its SQL: no column no in {{table}}: it has id, __deleted",
            f"{users}final.users: audit relationships_id: no column code: final.cities has id",
            f"{users}final.users: audit not_null_nope names nope, and the table has id, __deleted",
            f"{users}final.users: audit not_null__op names _op, and the table has id, __deleted",
            f"{users}final.users: audit gone reads final.gone, which neither exists in the lake nor is declared",
            f"{model}agg.m: audit not_null_id names id, and the table has k",
            f"{model}agg.m: {no_key}",
            f"{cities}final.cities: {no_key}",
            f"{logs}final.logs: {no_key}",
        ]
    )
