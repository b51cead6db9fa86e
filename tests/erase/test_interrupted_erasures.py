"""An erasure that is killed anywhere, and repeated, completes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lake_assets import Lake
from lake_assets.capture import icdc
from lake_assets.erase import clean_heads, erasure
from lake_assets.erase.erase_plan import ErasePlan
from lake_assets.erase.erase_record import FOLDER, forget_plan, plan_file, save_plan
from lake_assets.report.contents import report
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


def test_an_erasure_that_is_not_completed_is_told_until_it_is(lake: Lake, call: Call) -> None:
    plan = ErasePlan("e1", 0.0, "final.users", ["id"], "staging.users", "raw.u", [["17"]], 1, [], 0, [], [])

    def told() -> list[str]:
        return [f.what for f in report(lake, [], datetime.now(UTC)).findings]

    assert told() == []
    save_plan(lake, plan)
    text = "the erasure e1 of final.users is not completed: unless its command is running, repeat it with the same keys"
    assert told() == [f"{text} (they are in {plan_file(lake, plan)})"]
    assert text in call("status").out
    plan_file(lake, plan).write_text("{")
    (broken,) = told()
    assert broken.startswith(f"{lake.config.home}/{FOLDER}/e1.plan.json is not the plan of an erasure")
    forget_plan(lake, plan)
    assert told() == []
