"""Values of the data in Dagster: bounded, in one line, and never markup. No test starts Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from lake_assets import Lake
from lake_assets.lake import TableId
from lake_assets.lake.metadata.written_rows import written_rows
from lake_assets.lake.sensitive_values import PROPERTY, SensitiveColumns
from lake_assets.orchestration.shown_values import in_markdown, markdown_table, row_preview, shown
from lake_assets.tables.outcome import Outcome
from lake_assets.tables.specs import Sensitive, Shown
from tests.support.signalled_shop import CITIES, Shop

T = TableId.parse("final.t")
MARKUP = "<img src=x onerror=a> | **b** [c](javascript:d) `e` _f_ https://g www.h \\|"


def test_a_value_is_one_bounded_line() -> None:
    assert shown(T, "c", None) is None
    assert shown(T, "c", "a\nb\x00\u202ec") == "a b  c"
    assert shown(T, "c", "x" * 1000) == "x" * 99 + "…"


def test_no_character_of_a_value_is_markup() -> None:
    escaped = in_markdown(MARKUP)
    assert not set(escaped) & set("<>|*[]`\\")
    assert "://" not in escaped
    assert in_markdown("agg.orders_a_day at 12:30, 5 % & _x") == "agg.orders_a_day at 12:30, 5 % &#38; &#95;x"
    lines = markdown_table(["a|b"], [[MARKUP], ["two\nlines"]]).splitlines()
    assert [line.count("|") for line in lines] == [2, 2, 2, 2]


def test_the_rows_that_a_commit_has_added_are_read_up_to_a_number(plain_lake: Lake) -> None:
    plain_lake.ensure_namespace(("final",))
    table = plain_lake.catalog.create_table(("final", "t"), pa.schema([("id", pa.int64())]))
    assert written_rows(table, None, 3) == []
    for first in (0, 100):
        table.append(pa.table({"id": range(first, first + 5)}))
    ids = [s.snapshot_id for s in table.snapshots()]
    assert written_rows(table, ids[0], 3) == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert len(written_rows(table, None, 10)) == 5


def test_a_preview_is_shown_if_it_is_declared(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(plain_lake, monkeypatch)
    shop.step()
    outcome = Outcome(str(CITIES), "absorbed", inserted=2)
    assert row_preview(plain_lake, shop.spec, outcome) == {}
    spec = replace(shop.spec, shown=Shown(show_rows=1))
    preview: dict[str, Any] = dict(row_preview(plain_lake, spec, outcome))
    assert isinstance(preview["preview"], dg.MarkdownMetadataValue)
    assert len(preview["preview"].value.splitlines()) == 3
    assert row_preview(plain_lake, spec, replace(outcome, inserted=0)) == {}


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_preview_hides_the_values_of_sensitive_columns(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch, *, is_declared: bool
) -> None:
    shop = Shop(plain_lake, monkeypatch)
    outcome = shop.step()
    assert _preview(plain_lake, shop, outcome) == ["| a | 1 |", "| b | 1 |"]
    if not is_declared:  # by the pipeline that wrote the table before
        with plain_lake.table(CITIES).transaction() as change:
            change.set_properties({PROPERTY: SensitiveColumns.of(["city"]).to_property()})
    sensitive = Sensitive(columns=("CITY",)) if is_declared else None
    assert _preview(plain_lake, shop, outcome, sensitive) == ["| &#42;&#42;&#42; | 1 |"] * 2


def _preview(lake: Lake, shop: Shop, outcome: Outcome, sensitive: Sensitive | None = None) -> list[str]:
    """The rows of a preview, as Markdown."""
    spec = replace(shop.spec, shown=Shown(show_rows=2, sensitive=sensitive or Sensitive()))
    return str(row_preview(lake, spec, outcome)["preview"].value).splitlines()[2:]
