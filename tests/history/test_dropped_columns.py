"""What a dropped column held is shown in the history of a row, unless it may have been sensitive."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lake_assets import Lake
from lake_assets.history.history_document import HistoryRequest
from lake_assets.history.row_history import row_history
from lake_assets.lake import TableId

USERS = TableId.parse("final.users")


@pytest.mark.parametrize(("properties", "shown"), [({}, "a@b.c"), ({"lake-assets.sensitive": '["email"]'}, "***")])
def test_a_dropped_column_is_as_hidden_as_it_was(plain_lake: Lake, properties: dict[str, str], shown: str) -> None:
    plain_lake.ensure_namespace(USERS.namespace)
    rows = pa.table({"id": pa.array([1], pa.int64()), "email": ["a@b.c"]})
    table = plain_lake.catalog.create_table(USERS.parts, rows.schema, properties=properties)
    table.append(rows)
    with table.update_schema() as update:
        update.delete_column("email")
    table.append(pa.table({"id": pa.array([2], pa.int64())}))

    def history(**more: Any) -> dict[str, Any]:
        (version,) = row_history(plain_lake, [], HistoryRequest(USERS, ("id=1",)), **more).versions
        return dict(version.changes[0].after or {})

    assert history() == {"id": 1, "email (dropped)": shown}
    assert history(shows_sensitive=True) == {"id": 1, "email (dropped)": "a@b.c"}
