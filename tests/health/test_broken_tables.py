"""A table that cannot be read, or is dropped meanwhile, hides no other one from those who look at a lake."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.errors import PipelineError
from lake_assets.health.lake_status import own_tables, quick_status
from lake_assets.ingest.records.rejects import rejected_of
from lake_assets.journal import step_journal
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.pipeline import PipelineConfig
from lake_assets.report.contents import report
from tests.support.cli import caller
from tests.support.signalled_shop import CITIES, Shop

RAW = TableId.parse("raw.events")
_REJECTS = pa.schema([("position", pa.int64()), ("source_table", pa.string()), ("reason", pa.string())])


@pytest.mark.parametrize("is_gone", [True, False])
def test_rejects_that_cannot_be_read_are_an_error_of_their_raw_table_alone(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch, *, is_gone: bool
) -> None:
    shop = Shop(plain_lake, monkeypatch)
    shop.step()
    plain_lake.ensure_namespace(RAW.namespace)
    plain_lake.catalog.create_table(RAW.parts, _REJECTS, properties={PIPELINE_PROPERTY: "shop"})
    rejects = plain_lake.catalog.create_table(rejected_of(RAW).parts, _REJECTS)
    rejects.append(pa.table({"position": [1], "source_table": ["a"], "reason": ["not JSON"]}, schema=_REJECTS))
    (task,) = rejects.scan().plan_files()
    file = Path(task.file.file_path.removeprefix("file://"))
    if is_gone:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:100])
    raw, cities = quick_status(plain_lake)
    assert (raw.table, cities.table, cities.error) == (str(RAW), str(CITIES), None)
    assert raw.error is not None
    assert file.name in raw.error
    assert "Restore the file" in raw.error


def test_a_journal_that_cannot_be_read_is_the_first_finding_of_the_report(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(plain_lake, monkeypatch)
    shop.step()
    step_journal.flush(plain_lake)
    (task,) = plain_lake.table(step_journal.TABLE).scan().plan_files()
    Path(task.file.file_path.removeprefix("file://")).unlink()
    made = report(plain_lake, [shop.pipeline], datetime.now(UTC) - timedelta(days=1))
    first = made.findings[0]
    assert (first.kind, first.table) == ("failing", "lake_assets.steps")
    assert "is gone" in first.what
    assert "or drop lake_assets.steps: then the next step begins it anew" in first.what
    assert [(t.table, t.state) for t in made.tables] == [(str(CITIES), "good")]
    # The advice can be followed.
    plain_lake.catalog.drop_table(step_journal.TABLE.parts)
    shop.order()
    shop.step()
    step_journal.flush(plain_lake)
    again = report(plain_lake, [shop.pipeline], datetime.now(UTC) - timedelta(days=1))
    assert "failing" not in again.counts
    assert again.costs is not None
    assert again.costs.total.steps == 1


def test_a_table_that_is_dropped_while_tables_are_looked_at_is_left_out(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(plain_lake, monkeypatch)
    shop.step()
    listed = plain_lake.all_tables()
    copy = TableId.parse("copies.cities")

    def listed_before(*_: Any) -> list[TableId]:
        return [*listed, copy]

    monkeypatch.setattr(Lake, "all_tables", listed_before)
    assert own_tables(plain_lake) == [CITIES]


def test_an_empty_lake_has_a_disk_and_declarations_all_the_same(
    plain_lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unreadable(Pipeline):
        def specs(self, *_: Any, **__: Any) -> Any:
            raise PipelineError("two streams declare final.x")

    other = Unreadable(PipelineConfig.model_validate({"name": "other"}))
    monkeypatch.setattr("lake_assets.commands.status.known_pipelines", lambda _: ([other], ["no such file"]))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=100 << 30, free=1 << 30))
    monkeypatch.setenv("LAKE_HOME", str(plain_lake.config.home))
    plain_lake.ensure_namespace(("final",))
    printed = caller(monkeypatch, capsys)("status").out
    for text in (
        "no pipeline has filled a table",
        "are free on the disk of",
        "two streams declare final.x",
        "no such file",
    ):
        assert text in printed
