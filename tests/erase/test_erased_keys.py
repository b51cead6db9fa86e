"""`lake-assets erase`: every table is as if the events of the keys had never arrived, and no file holds the keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lake_assets import Lake
from tests.support.cli import Done
from tests.support.erased_users import CITIES, JOINED, NAMES, Users, broken
from tests.support.pipeline_runs import run

Call = Callable[..., Done]


@pytest.mark.parametrize("mode", ["scd1", pytest.param("scd2", marks=pytest.mark.long)])
def test_tables_are_as_if_the_events_had_never_arrived(
    lake: Lake, new_lake: Callable[[str], Lake], tmp_path: Path, call: Call, mode: str
) -> None:
    users = Users(lake, tmp_path / "p", mode=mode)
    others = Users(new_lake("others"), tmp_path / "q", mode=mode, without={17, 1700017})
    for one in (users, others):
        one.history()
    assert users.count("final.users", "id = 1700017")
    done = call("erase", "--table", "final.users", "--key", "id=17", "--pipeline", users.file, "--yes")
    assert done.code == 0, done.out + done.err
    assert "1700017" in done.out
    assert "no file holds a key" in done.out
    assert users.rows() == others.rows()
    # What comes later is absorbed as in any lake; the landed files are not landed again.
    for one in (users, others):
        one.deliver(one.user("c", 40), one.user("u", 2, "the second"), one.order(103, 40))
    assert users.rows() == others.rows()
    for table in ("final.users", "agg.cities", "agg.names", "agg.joined"):
        verified = call("verify", table, "--pipeline", users.file)
        assert "equal" in verified.out, verified.out + verified.err
