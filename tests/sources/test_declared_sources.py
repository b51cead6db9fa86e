"""Declarations of live sources: what is wrong is named, and no secret is in them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from lake_assets import Lake, Pipeline
from lake_assets.pipeline import PipelineConfig
from lake_assets.service.live_service import declared, live_specs
from lake_assets.sources.live_specs import PostgresSpec, SourceTableSpec

GOOD: dict[str, Any] = {"database": "shop", "user": "cdc"}


def config(source: dict[str, Any], **stream: Any) -> PipelineConfig:
    streams = [{"name": "shop", "source": source, "tables": ["public.users"], **stream}]
    return PipelineConfig.model_validate({"name": "p", "streams": streams})


@pytest.mark.parametrize(
    ("source", "stream", "message"),
    [
        ({}, {}, "set exactly one of `table`"),
        ({"table": "a.b", "postgres": GOOD}, {}, "there is table and postgres"),
        ({"postgres": GOOD, "value": "v", "on_gap": "append"}, {}, "`on_gap`, `value` are for `table`"),
        ({"postgres": {**GOOD, "password": "secret"}}, {}, "a password does not belong in a file: write {env: NAME}"),
        ({"postgres": {"user": "cdc"}}, {}, "database\n  Field required"),
        ({"postgres": {**GOOD, "port": 0}}, {}, "greater than 0"),
        ({"postgres": {**GOOD, "slot": "Not-A-Slot"}}, {}, "should match pattern"),
        (
            {"postgres": {**GOOD, "properties": {"offset.storage": "x"}}},
            {},
            "offset.storage: set by lake_assets itself",
        ),
        ({"postgres": {**GOOD, "on_gap": "append"}}, {}, "'stop' or 'snapshot'"),
        ({"postgres": {**GOOD, "hots": "x"}}, {}, "hots"),
        ({"postgres": GOOD}, {"format": "wal2json-v2"}, "gives records of `format: debezium`, and the format is wal2"),
        ({"postgres": GOOD}, {"tables": []}, "needs the `tables` to read"),
        ({"postgres": GOOD}, {"landing": "in"}, "from a folder (`landing`) or from a `source`, not from both"),
    ],
)
def test_mistakes_are_named(source: dict[str, Any], stream: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as error:
        config(source, **stream)
    assert message in str(error.value)


def test_a_declared_source_as_a_value(plain_lake: Lake) -> None:
    tables = [
        "public.a*",
        {"table": "public.users", "key": [["tenant", "mail"], ["id"]], "rename": {"email": "mail"}},
        {"table": "public.bare", "key": "*"},
    ]
    source = {"postgres": {**GOOD, "password": {"env": "SHOP"}, "max_wait": "5s", "properties": {"a": "b"}}}
    pipeline = Pipeline(config(source, tables=tables, exclude=["public.ab"], max_rows=7))
    (spec,) = live_specs(plain_lake, pipeline)
    live = spec.live
    assert isinstance(live, PostgresSpec)
    assert live.tables == (
        SourceTableSpec("public.a*"),
        SourceTableSpec("public.users", (("tenant", "email"), ("id",))),
        SourceTableSpec("public.bare", by_row=True),
    )
    assert (live.slot, live.publication) == ("lake_assets_p_shop", "lake_assets_p_shop")
    assert (live.rows, live.wait, live.exclude, live.properties) == (7, 5.0, ("public.ab",), (("a", "b"),))
    assert spec.summary == "Records as they arrived (debezium), from Postgres shop on 127.0.0.1:5432."
    assert spec.landing is None
    # It is a key of a dictionary, like any other declaration.
    assert hash(spec.live) == hash(live)


def test_the_password_is_read_when_it_is_needed(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(config({"postgres": {**GOOD, "password": {"env": "SHOP"}}}))
    (spec,) = live_specs(plain_lake, pipeline)
    monkeypatch.setenv("SHOP", "hunter2")
    assert isinstance(spec.live, PostgresSpec)
    assert spec.live.password == "hunter2"
    assert "hunter2" not in repr(spec) + repr(pipeline.config) + str(vars(spec))


def test_only_what_the_service_does_counts_as_another_declaration() -> None:
    one = Pipeline(config({"postgres": GOOD}))
    assert declared(one) == declared(Pipeline(config({"postgres": GOOD})))
    assert declared(one) != declared(Pipeline(config({"postgres": {**GOOD, "max_wait": 3}})))
    model = {"name": "agg.n", "sql": "SELECT count(*) AS n FROM final.users"}
    assert declared(one) == declared(Pipeline(PipelineConfig(**{**dict(one.config), "models": [model]})))
