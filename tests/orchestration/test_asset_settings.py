"""Owners, tags, groups, kinds, descriptions and freshness: declared around tables or at them, checked with lines."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import ValidationError

from lake_assets import Lake, LakePipeline, Pipeline
from lake_assets.errors import PipelineError
from lake_assets.orchestration import build_definitions
from lake_assets.pipeline import PipelineConfig
from lake_assets.pipeline.config.asset_settings import TableSettings
from tests.support.dagster_shop import RAW

DECLARED = {
    "name": "p",
    "owners": ["team:data"],
    "tags": {"domain": "shop", "tier": "2"},
    "kinds": "postgres",
    "streams": [
        {
            "name": "e",
            "description": "What Debezium wrote.",
            "tags": {"tier": "1"},
            "tables": [
                {
                    "table": "public.users",
                    "owners": "ann@example.com",
                    "tags": {"pii": "yes"},
                    "group": "people/customers",
                    "description": "Customers.",
                    "freshness": {"fail": "2h", "warn": "30m"},
                    "depends_on": ["other/asset"],
                },
                {"table": "public.log", "final": False, "freshness": "1d"},
            ],
        }
    ],
    "models": [
        {
            "name": "agg.n",
            "sql": "SELECT id, count(*) AS n FROM final.users GROUP BY id",
            "owners": [],
            "kinds": ["report"],
            "freshness": {"cron": "0 9 * * *", "within": "1h", "timezone": "Europe/Berlin"},
        }
    ],
}


def specs_of(declared: dict[str, Any], lake: Lake) -> dict[str, dg.AssetSpec]:
    defs = build_definitions(Pipeline(PipelineConfig.model_validate(declared)), lake)
    return {s.key.to_user_string(): s for s in defs.resolve_all_asset_specs()}


def own_tags(spec: dg.AssetSpec) -> dict[str, str]:
    return {k: v for k, v in spec.tags.items() if not k.startswith(("dagster/", "lake_assets/"))}


def test_the_nearest_declaration_counts_and_tags_and_kinds_add_up(plain_lake: Lake) -> None:
    specs = specs_of(DECLARED, plain_lake)
    users, raw, model = specs["final/users"], specs["raw/e"], specs["agg/n"]
    assert (users.owners, raw.owners, model.owners) == (["ann@example.com"], ["team:data"], [])
    assert own_tags(users) == {"domain": "shop", "tier": "1", "pii": "yes"}
    assert own_tags(raw) == {"domain": "shop", "tier": "1"}
    assert own_tags(model) == {"domain": "shop", "tier": "2"}
    assert users.tags["lake_assets/layer"] == "final"
    assert users.kinds == {"final", "iceberg", "spark", "postgres"}
    assert model.kinds == {"agg", "iceberg", "spark", "postgres", "report"}
    assert (users.group_name, raw.group_name) == ("people/customers", "p/raw")


def test_a_described_stream_table_describes_its_final_asset(plain_lake: Lake) -> None:
    specs = specs_of(DECLARED, plain_lake)
    staging, final, log = specs["staging/users"], specs["final/users"], specs["staging/log"]
    assert staging.owners == final.owners
    assert staging.group_name == final.group_name
    assert (final.description or "").startswith("Customers.\n\nThe current rows")
    assert "Customers" not in (staging.description or "")
    assert (specs["raw/e"].description or "").startswith("What Debezium wrote.")
    assert dg.AssetKey(["other", "asset"]) in {d.asset_key for d in final.deps}
    assert [d.asset_key for d in staging.deps] == [dg.AssetKey(["raw", "e"])]
    assert staging.freshness_policy is None
    assert log.freshness_policy == dg.FreshnessPolicy.time_window(timedelta(days=1))


def test_freshness_becomes_a_dagster_policy(plain_lake: Lake) -> None:
    specs = specs_of(DECLARED, plain_lake)
    assert specs["final/users"].freshness_policy == dg.FreshnessPolicy.time_window(
        timedelta(hours=2), timedelta(minutes=30)
    )
    assert specs["agg/n"].freshness_policy == dg.FreshnessPolicy.cron("0 9 * * *", timedelta(hours=1), "Europe/Berlin")
    assert specs["raw/e"].freshness_policy is None


def test_settings_of_a_pattern_apply_to_each_matching_table(plain_lake: Lake) -> None:
    from lake_assets.ingest.ingest_specs import RawSpec
    from lake_assets.ingest.raw.landing import land
    from tests.support.debezium import BIGINT, Event, Table, to_lines, write_lines

    folder = plain_lake.config.home / "landing" / "shop_events"
    folder.mkdir(parents=True)
    tables = [Table({"id": BIGINT}, name=f"public.{n}") for n in ("a", "b")]
    write_lines(folder / "0.jsonl", to_lines(Event(t, "c", (1, n), {"id": n}) for n, t in enumerate(tables)))
    land(plain_lake, RawSpec(RAW, folder, "debezium", "p"))
    stream = {"name": RAW.name, "tables": [{"table": "public.*", "owners": ["team:web"], "freshness": "1h"}]}
    specs = specs_of({"name": "p", "streams": [stream]}, plain_lake)
    for name in ("final/a", "final/b"):
        assert specs[name].owners == ["team:web"]
        assert specs[name].freshness_policy == dg.FreshnessPolicy.time_window(timedelta(hours=1))
    assert not specs["raw/shop_events"].owners


def test_the_asset_for_new_tables_has_what_the_pipeline_declares(plain_lake: Lake) -> None:
    declared = {**DECLARED, "group": "g", "streams": [{"name": "e", "tables": ["public.*"]}], "models": []}
    new = specs_of(declared, plain_lake)["p/new_tables"]
    assert (new.owners, new.group_name, own_tags(new)) == (["team:data"], "g", DECLARED["tags"])


def test_the_component_resolves_templates_in_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM", "web")
    more = {"owners": ["team:{{ env.TEAM }}"], "tags": {"tier": 3, "version": "1.10"}}
    component = LakePipeline.from_attributes_dict(attributes={**DECLARED, **more})
    assert component.owners == ["team:web"]
    assert component.tags == {"tier": "3", "version": "1.10"}


WRONG = """\
type: lake_assets.LakePipeline
attributes:
  name: p
  owners: [ann]
  tags:
    "a b": c
  group: my group
  streams:
    - name: e
      tables:
        - table: public.a
          tags: {lake_assets/layer: x}
          freshness: {fail: 1h, warn: 2h}
          depends_on: [/x]
        - table: public.b
          kinds: [a b]
          freshness: 10s
        - table: public.c
          freshness: {cron: "0 9"}
          tags: {a: "x y"}
"""


def test_all_mistakes_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "defs.yaml"
    file.write_text(WRONG)
    with pytest.raises(PipelineError) as caught:
        Pipeline.load(file)
    message = str(caught.value)
    lines = {int(line.split("line ")[1].split(":")[0]) for line in message.splitlines()}
    assert {4, 5, 7, 12, 13, 14, 16, 17, 19, 20} <= lines, message
    assert "'ann' is not an owner: write an email address, or a team as team:name" in message
    assert "`warn` (2h) has to be shorter than `fail` (1h)" in message


@pytest.mark.parametrize(
    ("freshness", "message"),
    [
        ({"cron": "0 9 * * *", "within": "2d"}, "lower_bound_delta"),
        ({"cron": "99 9 * * *", "within": "1h"}, "cron"),
        ({"cron": "0 9 * * *", "within": "1h", "timezone": "Nowhere"}, "Nowhere"),
    ],
)
def test_errors_found_by_dagster_name_the_table(plain_lake: Lake, freshness: dict[str, str], message: str) -> None:
    stream = {"name": "e", "tables": [{"table": "public.a", "freshness": freshness}]}
    with pytest.raises(PipelineError, match=rf"pipeline 'p': final\.a: `freshness`: .*{message}"):
        specs_of({"name": "p", "streams": [stream]}, plain_lake)


@pytest.mark.parametrize(
    "settings",
    [
        {"owners": ["team:data"]},
        {"owners": ["team:"]},
        {"owners": ["a.b+c@x-y.example.org"]},
        {"owners": ["a@b"]},
        {"owners": [""]},
        {"tags": {"a": ""}},
        {"tags": {"a/b": "x.y-z_1"}},
        {"tags": {"a/b/c": "x"}},
        {"tags": {"/a": "x"}},
        {"tags": {"ä": "x"}},
        {"tags": {"a": "x" * 64}},
        {"tags": {"a" * 64: "x"}},
        {"group": "a/b_1"},
        {"group": "a//b"},
        {"group": "/a"},
        {"group": "a-b"},
    ],
)
def test_settings_are_accepted_if_and_only_if_dagster_accepts_them(settings: dict[str, Any]) -> None:
    try:
        dg.AssetSpec("a", owners=settings.get("owners"), tags=settings.get("tags"), group_name=settings.get("group"))
        is_accepted = True
    except dg.DagsterInvalidDefinitionError:
        is_accepted = False
    try:
        TableSettings.model_validate(settings)
        ours = True
    except ValidationError:
        ours = False
    assert ours == is_accepted


def test_a_table_of_the_pipeline_cannot_be_a_foreign_asset(plain_lake: Lake) -> None:
    stream = {"name": "e", "tables": ["public.a", {"table": "public.b", "depends_on": ["final/a"]}]}
    with pytest.raises(PipelineError, match=r"final\.b: `depends_on` names final/a, a table of the same pipeline"):
        specs_of({"name": "p", "streams": [stream]}, plain_lake)


def test_display_settings_are_not_part_of_the_declaration(plain_lake: Lake) -> None:
    stream = {"name": "e", "tables": ["public.a"]}
    one, two = (
        [
            str(s)
            for s in Pipeline(PipelineConfig.model_validate({"name": "p", "streams": [stream], **more})).specs(
                plain_lake
            )
        ]
        for more in ({}, {"owners": ["team:a"], "tags": {"a": "b"}, "group": "g"})
    )
    assert one == two
