"""The assets of every shipped pipeline, compared with `asset_graph.json`.

A change that is meant: `UPDATE_ASSET_GRAPH=1 make test-fast ARGS="-k asset_graph"` writes the file anew; its diff is
part of the change.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.examples import shipped_pipelines
from lake_assets.orchestration import build_definitions

WRITTEN = Path(__file__).with_name("asset_graph.json")


def described(defs: dg.Definitions) -> dict[str, Any]:
    """Return the asset graph of some definitions as JSON."""
    graph = defs.resolve_asset_graph()
    pools = {
        key: a.node_def.pool  # type: ignore[attr-defined]
        for a in defs.assets or []
        if isinstance(a, dg.AssetsDefinition)
        for key in a.keys
    }
    assets = {
        spec.key.to_user_string(): {
            "deps": sorted(d.asset_key.to_user_string() for d in spec.deps),
            "group": spec.group_name,
            "kinds": sorted(spec.kinds),
            "pool": pools[spec.key],
            "partitions": repr(spec.partitions_def) if spec.partitions_def else None,
            "checks": sorted(k.name for k in graph.asset_check_keys if k.asset_key == spec.key),
            "owners": sorted(spec.owners),
            "tags": {k: v for k, v in sorted(spec.tags.items()) if not k.startswith("dagster/kind/")},
        }
        for spec in defs.resolve_all_asset_specs()
        if spec.key in pools  # the others are tables of somebody else
    }
    return {
        "assets": dict(sorted(assets.items())),
        "jobs": sorted(j.name for j in defs.jobs or []),
        "sensors": sorted(s.name for s in defs.sensors or []),
    }


@pytest.fixture
def graphs(plain_lake: Lake) -> dict[str, Any]:
    return {
        p.name: described(build_definitions(p, plain_lake)) for p in map(Pipeline.load, sorted(shipped_pipelines()))
    }


def test_the_assets_of_the_shipped_pipelines_are_the_recorded_ones(graphs: dict[str, Any]) -> None:
    if os.environ.get("UPDATE_ASSET_GRAPH"):
        WRITTEN.write_text(json.dumps(graphs, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert graphs == json.loads(WRITTEN.read_text(encoding="utf-8")), (
        "if this is meant: UPDATE_ASSET_GRAPH=1, and commit asset_graph.json"
    )


def test_every_shipped_pipeline_is_recorded(graphs: dict[str, Any]) -> None:
    assert len(graphs) == len(shipped_pipelines())
    assert all(g["assets"] and g["sensors"] for g in graphs.values())
