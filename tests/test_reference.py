"""The generated pages of the documentation are those of the code, and the code describes what they show."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from lake_assets.orchestration import (
    asset_checks,
    asset_metadata,
    backfill_job,
    live_sources,
    metadata_keys,
    partition_marks,
    upkeep_checks,
)
from lake_assets.orchestration.runs import run_history
from lake_assets.orchestration.sensing import sensor
from tests.support.processes import ROOT

FOLDER = ROOT / "docs" / "reference"


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("write_reference")


def test_the_pages_are_up_to_date(writer: Any) -> None:
    assert {p.name for p in FOLDER.iterdir()} == set(writer.PAGES)
    old = [name for name, text in writer.PAGES.items() if (FOLDER / name).read_text("utf-8") != text()]
    assert old == [], "run `make reference` and commit docs/reference"


def test_each_setting_says_what_it_is_for(writer: Any) -> None:
    settings = importlib.import_module("settings_reference")
    found = {name: of for root in settings.ROOTS for name, of in settings.classes(root).items()}
    assert len(found) > 25
    assert [
        f"{n}.{k}" for n, of in found.items() for k, field in of.model_fields.items() if not field.description
    ] == []


def test_each_error_says_what_to_do(writer: Any) -> None:
    known = importlib.import_module("error_reference").classes()
    assert set(importlib.import_module("error_advice").ADVICE) == set(known)


def test_examples_have_the_strategies_that_their_headings_promise(writer: Any) -> None:
    reference = importlib.import_module("strategy_reference")
    whole = {reference.planned(sql).strategy for sql in reference.EXAMPLES["Computed as a whole"].values()}
    alone = {reference.planned(sql).strategy for sql in reference.EXAMPLES["Rows that change by themselves"].values()}
    assert (whole, alone) == ({"full"}, {"retract"})


def _keys(module: ModuleType, function: str) -> Iterator[str]:
    """Yield the keys that a function puts into mappings, as far as they are written in it."""
    for node in ast.walk(ast.parse(inspect.getsource(getattr(module, function)))):
        if isinstance(node, ast.Dict):
            yield from (k.value for k in node.keys if isinstance(k, ast.Constant) and isinstance(k.value, str))
        elif (
            isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.slice, ast.Constant)
        ):
            yield str(node.slice.value)


@pytest.mark.parametrize(
    ("described", "functions", "others"),
    [
        (metadata_keys.STEP, [(asset_metadata, f) for f in ("of_outcome", "_counted", "of_record")], {"not_exact", "tables", "-rejected"}),
        (metadata_keys.TABLE, [(asset_metadata, "of_table"), (asset_metadata, "of_code")], {"dagster/column_lineage"}),
        (
            metadata_keys.PARTITION,
            [(partition_marks, "_partition_metadata")],
            {"rows_inserted", "rows_updated", "rows_deleted", "partitions_touched", "partitions"},
        ),
        (
            metadata_keys.AUDIT,
            [(asset_checks, "_verdict"), (asset_checks, "_comparison_result")],
            # What the first one returns for Dagster, and columns of the sample.
            {"schedule", "-passed", "-metadata", "-description", "-_expected", "-_found"},
        ),
        (metadata_keys.UPKEEP, [(upkeep_checks, "_result")], set()),
        (metadata_keys.BACKFILL, [(backfill_job, "_plan_metadata"), (backfill_job, "_metadata")], set()),
        (metadata_keys.SOURCE, [(live_sources, "_metadata")], set()),
        (
            metadata_keys.RUN_TAGS,
            [(sensor, "_summary_tags")],
            {
                run_history.PLAN_TAG, run_history.ATTEMPT_TAG, run_history.PENDING_TAG, backfill_job.BACKFILL_TAG,
                "lake_assets/pipeline", "lake_assets/rebuild",
            },
        ),
    ],
)  # fmt: skip
def test_each_key_of_metadata_is_described(
    described: dict[str, str], functions: list[tuple[ModuleType, str]], others: set[str]
) -> None:
    left_out = {o.removeprefix("-") for o in others if o.startswith("-")}
    found = {key for module, function in functions for key in _keys(module, function)} - left_out
    assert found | {o for o in others if not o.startswith("-")} == set(described)
