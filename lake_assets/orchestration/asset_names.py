"""How tables are called in Dagster: asset keys, op names, pools and groups."""

from __future__ import annotations

import hashlib
import re

import dagster as dg

from lake_assets.lake import TableId
from lake_assets.pipeline import Pipeline

PIPELINE_TAG = "lake_assets/pipeline"
# A run with this tag computes its tables from all that their sources hold, whatever they have absorbed.
REBUILD_TAG = "lake_assets/rebuild"


def asset_key(table: TableId) -> dg.AssetKey:
    """`final.users` is the asset `final/users`."""
    return dg.AssetKey(list(table.parts))


def op_name(*parts: str) -> str:
    """The step's name: the parts of its asset key, as far as Dagster allows their characters."""
    plain = "__".join(parts)
    name = valid_name(plain)
    # Two tables that differ in forbidden characters only must not become one step.
    return name if name == plain else f"{name}_{hashlib.sha256(plain.encode()).hexdigest()[:6]}"


def inner_op_name(name: str) -> str:
    """The name of the step within a graph of this name: no table's."""
    return f"{name}__step_of_partitions"


def valid_name(text: str) -> str:
    """`text` in the letters that names of ops, jobs and groups may have."""
    return re.sub(r"[^A-Za-z0-9_]", "_", text)


def pool(table: TableId) -> str:
    """One pool a target table: a limit of 1 on it means one writer at a time."""
    return f"lake_assets/{table}"


def new_tables_key(pipeline: Pipeline) -> dg.AssetKey:
    """The asset that absorbs tables which the code location does not know yet."""
    return dg.AssetKey([pipeline.name, "new_tables"])


def has_patterns(pipeline: Pipeline) -> bool:
    """Whether the pipeline's tables depend on what its streams turn out to hold."""
    return pipeline.has_patterns
