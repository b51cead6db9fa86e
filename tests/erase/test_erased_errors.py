"""An erasure removes its keys from what the journal says of errors, and from the journal's files."""

from __future__ import annotations

import json

from lake_assets import Lake
from lake_assets.erase.erased_errors import REMOVED, findings, remove_keys
from lake_assets.journal import step_journal
from lake_assets.journal.step_records import StepRecord
from lake_assets.signals.metrics.step_totals import step_totals
from tests.support.step_records import NOW, step

ADDRESS = "zebra-4711@example.org"
KEYS = [("17", ADDRESS)]


def _records(lake: Lake) -> dict[str, StepRecord]:
    return {r.id: r for r in step_journal.read(lake, NOW.replace(year=NOW.year - 1))}


def test_records_of_errors_stay_without_the_keys_that_they_quote(lake: Lake) -> None:
    failed = {
        "quoted": step("final.users", status="failed", error=f"ValueError: {ADDRESS} is no number"),
        "number": step("final.users", status="failed", error="KeyMissingError: 2 rows for (17,)"),
        "other number": step("final.users", status="failed", error="KeyMissingError: 2 rows for (1700,)"),
        "other table": step("final.orders", status="failed", error="ModelError: line 17"),
        "elsewhere": step("agg.all", status="failed", error="ModelError: held", not_exact=[f"of {ADDRESS}"], id="e"),
        "absorbed": step("final.users", reason="two keys"),
    }
    for n, record in enumerate(failed.values()):
        step_journal.note(lake, record)
        if n % 2:
            step_journal.flush(lake)
    step_totals(lake)
    assert [f.where for f in findings(lake, KEYS)[0]]
    assert remove_keys(lake, KEYS, {"final.users"}) == 3
    records = {name: _records(lake)[r.id] for name, r in failed.items()}
    assert {n: r.error for n, r in records.items()} == {
        "quoted": REMOVED,
        "number": REMOVED,
        "other number": failed["other number"].error,
        "other table": failed["other table"].error,
        "elsewhere": REMOVED,
        "absorbed": "",
    }
    assert records["elsewhere"].not_exact == [REMOVED]
    assert {n: (r.seconds, r.status) for n, r in records.items()} == {
        n: (r.seconds, r.status) for n, r in failed.items()
    }
    found, files = findings(lake, KEYS)
    assert (found, files > 0) == ([], True)
    assert step_totals(lake) == {}  # counters begin when they are first asked for: rewritten records are not counted
    assert remove_keys(lake, KEYS, {"final.users"}) == 0
    # What comes later is recorded as before.
    step_journal.note(lake, step("final.users", status="failed", error="again"))
    assert step_journal.flush(lake) == 1
    assert len(_records(lake)) == len(failed) + 1
    assert json.dumps(KEYS[0][1]) not in json.dumps([r.error for r in _records(lake).values()])
