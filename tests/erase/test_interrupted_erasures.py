"""An erasure that is killed anywhere, and repeated, completes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lake_assets import Lake
from lake_assets.capture import icdc
from lake_assets.erase import clean_heads, erasure
from tests.support.cli import Done
from tests.support.erased_users import CITIES, NAMES, Users
from tests.support.kills import Points, killed_everywhere

Call = Callable[..., Done]


@pytest.mark.long
def test_an_erasure_that_is_killed_anywhere_completes_when_it_is_repeated(
    lake: Lake,
    new_lake: Callable[[str], Lake],
    tmp_path: Path,
    call: Call,
    points: Points,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for owner, name in (
        (clean_heads, "commit"), (clean_heads, "_put"), (erasure, "save_plan"), (erasure, "save_report"),
        (erasure, "forget_plan"), (erasure, "delete_file"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, points.around(getattr(owner, name), lambda *_, name=name: name))
    # The process that a kill stands for is gone; captures of this one would look open.
    monkeypatch.setattr(icdc, "is_gone", lambda _: True)
    users = Users(lake, tmp_path / "p", models=[CITIES, NAMES])
    others = Users(new_lake("others"), tmp_path / "q", models=[CITIES, NAMES], without={17, 1700017})
    for one in (users, others):
        one.history()

    def erase() -> None:
        done = call("erase", "--table", "final.users", "--key", "id=17", "--pipeline", users.file, "--yes")
        assert done.code == 0, done.out + done.err
        assert "no file holds a key" in done.out

    killed = killed_everywhere(points, erase)
    assert {"after save_plan", "after commit", "after MERGE INTO", "after save_report"} <= {*killed}
    assert users.rows() == others.rows()
    for one in (users, others):
        one.deliver(one.user("c", 40), one.user("u", 2, "the second"))
    assert users.rows() == others.rows()
