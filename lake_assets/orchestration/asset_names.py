"""Names of tables in Dagster: asset keys, op names, pools and groups."""

from __future__ import annotations

import hashlib
import re

import dagster as dg

from lake_assets.lake import TableId
from lake_assets.pipeline import Pipeline

PIPELINE_TAG = "lake_assets/pipeline"
# A run with this tag rebuilds its tables from the entire contents of their sources.
REBUILD_TAG = "lake_assets/rebuild"


def asset_key(table: TableId) -> dg.AssetKey:
    """Return the asset key of a table: `final.users` is `final/users`."""
    return dg.AssetKey(list(table.parts))


def op_name(*parts: str) -> str:
    """Return a name for an op: the parts of the asset key, with characters that Dagster forbids replaced."""
    plain = "__".join(parts)
    name = valid_name(plain)
    # Two tables that differ only in forbidden characters must not share a step.
    return name if name == plain else f"{name}_{hashlib.sha256(plain.encode()).hexdigest()[:6]}"


def inner_op_name(name: str) -> str:
    """Return the name of the step inside the graph `name`; no table's op has this name."""
    return f"{name}__step_of_partitions"


def valid_name(text: str) -> str:
    """Replace characters that names of ops, jobs and groups cannot have."""
    return re.sub(r"[^A-Za-z0-9_]", "_", text)


def layer_of(table: TableId) -> str:
    """Return the layer of a table, as a tag, a kind or a part of a group: `final` of `final.sales.users`."""
    return valid_name(table.namespace[0])


def group_of(pipeline: str, table: TableId) -> str:
    """Return the group of a table, unless one is declared: `shop/final`.

    A node of the graph shows the last part of the key only, and `staging.users` and `final.users` would look alike.
    """
    return f"{valid_name(pipeline)}/{layer_of(table)}"


def micro_batch_name(pipeline: str) -> str:
    """Return the name of the job that absorbs by hand what is pending in a pipeline."""
    return f"{valid_name(pipeline)}_micro_batch"


def pool(table: TableId) -> str:
    """Return the pool of a table: a limit of 1 on it means one writer at a time."""
    return f"lake_assets/{table}"


def new_tables_key(pipeline: Pipeline) -> dg.AssetKey:
    """Return the key of the asset that stands for tables without an asset in this code location."""
    return dg.AssetKey([pipeline.name, "new_tables"])
