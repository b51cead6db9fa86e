"""What commands say of a backfill that has ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lake_assets.backfill.backfill_record import BackfillRecord, Records, TableRecord
from lake_assets.backfill.backfills import Backfill
from lake_assets.errors import BackfillError
from lake_assets.facade import Lake
from tests.support.cli import Done


@pytest.mark.parametrize(
    ("after", "said"),
    [(None, "is published, and no row differed"), (7, "is published: `lake-assets undo b123456` takes it back")],
)
def test_only_a_backfill_that_changed_rows_is_said_to_be_undoable(
    plain_lake: Lake, call: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, after: int | None, said: str
) -> None:
    monkeypatch.setenv("LAKE_HOME", str(plain_lake.config.home))
    plain_lake.ensure_namespace(("agg",))
    record = BackfillRecord(
        "b123456", "p", "all of agg.t", (TableRecord("agg.t", "everything", after=after),), "published"
    )
    Records(plain_lake).create(record)
    assert record.changed_nothing == (after is None)
    with pytest.raises(BackfillError, match=said):
        Backfill.load(plain_lake, {}, "b123456")  # type: ignore[arg-type]
    assert ("no row differed" in call("backfills").out) == (after is None)
