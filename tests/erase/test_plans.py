"""The plan of an erasure: which keys were one row's, and which records are about it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from lake_assets import Lake
from lake_assets.errors import Refused
from lake_assets.final.final_spec import FinalSpec
from lake_assets.final.folded_staging import fold
from tests.support.cli import Done
from tests.support.debezium import TEXT, Event, Table
from tests.support.erased_users import CITIES, NAMES, Users
from tests.support.pipeline_files import write_pipeline
from tests.support.streams import Feed

Call = Callable[..., Done]
DAYS = Table({"day": {"type": "int32", "name": "io.debezium.time.Date"}, "note": TEXT}, key=("day",), name="public.t")


def fold_all(lake: Lake, specs: list[object]) -> int:
    [final] = [s for s in specs if isinstance(s, FinalSpec) and s.table.name in ("t", "users")]
    gone = fold(lake, final, datetime.fromtimestamp(time.time() + 60, UTC))
    assert not isinstance(gone, Refused)
    return gone


@pytest.mark.long
def test_records_of_folded_events_and_of_other_rows_are_told_apart(lake: Lake, tmp_path: Path, call: Call) -> None:
    def day(op: str, at: int, number: int, note: str = "") -> Event:
        return Event(DAYS, op, (at, at), {"day": date(2022, 1, number), "note": note})  # type: ignore[arg-type]

    feed = Feed(lake, "public.t", name="shop")
    moved = day("d", 3, 8)
    feed.deliver([
        day("c", 1, 8), day("u", 2, 8), moved, Event(DAYS, "c", moved.sequence, {"day": date(2022, 1, 9), "note": ""}),
        day("u", 5, 9), day("u", 6, 9),
        # Another row, with the first one's key in a value; 2022-01-08 is day 19,000.
        day("c", 7, 20, '{"day": 19000, "day2": "2022-01-08"}'), day("u", 8, 20, '{"day": "2022-01-08"}'),
    ])  # fmt: skip
    declared = {"name": "shop", "streams": [{"name": "events", "tables": ["public.t"]}]}
    file = write_pipeline(tmp_path / "defs.yaml", declared)

    def planned() -> dict[str, object]:
        words = ("erase", "--table", "final.t", "--key", "day=2022-01-08", "--pipeline", file, "--dry-run", "--json")
        plan = json.loads(call(*words).out)
        return {name: plan[name] for name in ("keys", "positions", "others", "blocked")}

    whole = {"keys": [["2022-01-08"], ["2022-01-09"]], "positions": [0, 1, 2, 4, 5, 6], "others": [8], "blocked": []}
    assert planned() == whole
    assert fold_all(lake, feed.pipeline.specs(lake)) == 4
    assert planned() == whole


@pytest.mark.long
def test_a_folded_staging_table_is_erased_as_others_are(lake: Lake, tmp_path: Path, call: Call) -> None:
    users = Users(lake, tmp_path / "p", models=[CITIES, NAMES])
    users.history()
    users.deliver(users.user("u", 1700017), users.user("u", 1700017), users.user("u", 2, city='{"id": 17}'))
    assert fold_all(lake, users.pipeline.specs(lake)) > 0
    done = call("erase", "--table", "final.users", "--key", "id=17", "--pipeline", users.file, "--yes")
    assert done.code == 0, done.out + done.err
    assert "the key is mentioned elsewhere, as in a column of JSON, in 1 record of other rows" in done.out
    assert users.count("final.users", "id IN (17, 1700017)") == users.count("staging.users", "id IN (17, 1700017)") == 0
    assert users.count("final.users", "id = 2") == 1
    assert users.count("raw.events", "record LIKE '%1700017%'") == 0
