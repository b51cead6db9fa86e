"""Tables as a pipeline's runs leave them, made without Spark, and a plain comparison of rows before and after."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from lake_assets import Lake, Pipeline
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY, to_properties
from lake_assets.models.model_spec import ModelSpec, declared
from lake_assets.models.steps.cost_estimate import COST
from lake_assets.tables.pending_windows import head_of
from lake_assets.tables.writing.table_state import FINGERPRINT_PROPERTY, KEY_PROPERTY


def store(lake: Lake, name: str, columns: Sequence[str], rows: int = 3, **commit: str) -> None:
    """Make a table of another program, or append to it."""
    table = TableId.parse(name)
    filled = pa.table({c: pa.array(range(rows), pa.int64()) for c in columns})
    lake.ensure_namespace(table.namespace)
    if not lake.exists(table):
        lake.catalog.create_table(table.parts, filled.schema)
    lake.table(table).append(filled, snapshot_properties=commit)


def store_models(lake: Lake, pipeline: Pipeline, columns: Mapping[str, Sequence[str]], seconds: float = 0.0) -> None:
    """Make the tables of a pipeline's SQL models as its first run would have, which took some seconds for each.

    `columns` are those of the models, by table.
    """
    for spec in pipeline.specs(lake):
        assert isinstance(spec, ModelSpec)
        name = str(spec.table)
        marks = to_properties({str(s): head_of(lake.table(s)) for s in spec.sources})
        cost = {"strategy": "full", "changed": 0, "rows": 3, "began": time.time() - seconds}
        store(lake, name, columns[name], **marks, **({COST: json.dumps(cost)} if seconds else {}))
        with lake.table(name).transaction() as change:
            own = {PIPELINE_PROPERTY: pipeline.name, FINGERPRINT_PROPERTY: spec.definition}
            change.set_properties({**own, KEY_PROPERTY: json.dumps(list(spec.key)), **declared(spec)})


def plain_differences(
    before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]], columns: Sequence[str], key: Sequence[str]
) -> tuple[tuple[int, int, int], dict[str, int]]:
    """Return how many rows appear, differ and disappear, and by column, how many rows differ in it; keys are unique."""
    old, new = (Counter(tuple(_text(row[c]) for c in columns) for row in rows) for rows in (before, after))
    removed, added = [*(old - new).elements()], [*(new - old).elements()]
    if not key:
        return (len(added), 0, len(removed)), {}
    at = [columns.index(k) for k in key]
    by_key = {tuple(row[n] for n in at): row for row in removed}
    pairs = [(by_key[k], row) for row in added if (k := tuple(row[n] for n in at)) in by_key]
    counts = {c: sum(a[n] != b[n] for a, b in pairs) for n, c in enumerate(columns)}
    both = len(pairs)
    return (len(added) - both, both, len(removed) - both), {c: n for c, n in counts.items() if n}


def _text(value: Any) -> str:
    """A value as text: NaN equals NaN, null equals null, and nothing else equals anything else."""
    if isinstance(value, Row):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{_text(k)}: {_text(v)}' for k, v in value.items()))}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value)
