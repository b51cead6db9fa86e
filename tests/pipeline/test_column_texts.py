"""Descriptions of columns flow down with the values that they describe; no test starts Spark."""

from __future__ import annotations

from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from lake_assets import Lake, Pipeline
from lake_assets.lake import TableId
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.column_texts import column_texts

TABLES = {
    "staging.users": {"id": LongType(), "city": StringType(), "note": StringType()},
    "final.users": {"id": LongType(), "city": StringType(), "note": StringType()},
    "agg.copied": {"id": LongType(), "town": StringType(), "note": StringType(), "n": LongType()},
    "agg.further": {"place": StringType()},
}
SQL = {
    "agg.copied": "SELECT id, city AS town, note, 2 * id AS n FROM final.users",
    "agg.further": "SELECT town AS place FROM agg.copied",
}


def texts(lake: Lake, *, described: bool = True) -> dict[str, dict[str, str]]:
    of_users = {"ID": "number of the user", "city": "where the user lives"} if described else {}
    models = [{"name": name, "sql": sql, "column_descriptions": {}} for name, sql in SQL.items()]
    if described:
        models[0]["column_descriptions"] = {"id": "number in this list"}
    users = {"table": "public.users", "column_descriptions": of_users}
    streams = [{"name": "events", "tables": [users]}]
    config = PipelineConfig.model_validate({"name": "shop", "streams": streams, "models": models})
    declared = {s.table: s for s in Pipeline(config).specs(lake)}
    return {name: column_texts(lake, TableId.parse(name), declared) for name in TABLES}


def test_a_column_has_its_own_text_or_that_of_the_column_that_it_copies(plain_lake: Lake) -> None:
    for name, columns in TABLES.items():
        plain_lake.ensure_namespace((name.partition(".")[0],))
        # Iceberg has texts of its own: of a column that nobody describes, and of one that the pipeline does.
        docs = {"staging.users": {"note": "free text"}, "final.users": {"city": "the city"}}.get(name, {})
        fields = [NestedField(n, c, kind, doc=docs.get(c)) for n, (c, kind) in enumerate(columns.items(), 1)]
        plain_lake.catalog.create_table(name, Schema(*fields))
    of_users = {"id": "number of the user", "city": "where the user lives"}
    assert texts(plain_lake) == {
        "staging.users": {**of_users, "note": "free text"},
        "final.users": {**of_users, "note": "free text"},
        "agg.copied": {"id": "number in this list", "town": "where the user lives", "note": "free text"},
        "agg.further": {"place": "where the user lives"},
    }
    assert set(map(len, texts(plain_lake, described=False).values())) == {0}, "no SQL is analyzed for nothing"
