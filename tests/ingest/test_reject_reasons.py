"""What can be done about a rejected record: a fix and a replay, or delivering it again, by its reason."""

from __future__ import annotations

import pytest
import yaml

from lake_assets.formats.files.limited_files import Limits, too_large
from lake_assets.health.table_status import TableStatus
from lake_assets.ingest.records.reject_reasons import (
    advice,
    can_be_replayed,
    counted,
    fix,
    kind_of,
    without_values,
)
from lake_assets.report.findings import findings

ONLY_AGAIN = (
    "not JSON (unexpected character, expected a JSON value: line 1 column 1 (char 0))",
    "not UTF-8 ('utf-8' codec can't decode byte 0xff in position 0: invalid start byte)",
    "larger than 1MiB (max_record)",
    "no value that can be read: t (OverflowError: date value out of range)",
    "a row of 3 fields, but the header has 2",
)
AFTER_A_FIX = (
    "n does not fit int: many",
    "key column id is null",
    "no such changeType: 'upsert'",
    "nested deeper than 50 levels",
    'the record has no "table": declare the table of the stream',
)


@pytest.mark.parametrize("reason", ONLY_AGAIN)
def test_what_no_declaration_reads_is_promised_no_replay(reason: str) -> None:
    assert not can_be_replayed(reason)
    assert "eliver the r" in advice(reason, None)
    assert "replay" not in advice(reason, None)


@pytest.mark.parametrize("reason", ONLY_AGAIN)
def test_a_reason_without_its_value_promises_no_replay_either(reason: str) -> None:
    for shown in (reason, without_values(reason)):
        assert not can_be_replayed(kind_of(shown))


def test_the_limit_of_a_record_is_no_value_of_it() -> None:
    reason = too_large(Limits(record=1024))
    assert without_values(reason) == reason == "larger than 1.0 KiB (`max_record`), and only its beginning is kept"


@pytest.mark.parametrize("reason", AFTER_A_FIX)
def test_what_a_fix_makes_readable_is_replayed(reason: str) -> None:
    assert can_be_replayed(reason)
    assert advice(reason, "public.items").endswith("then replay")


def do(*reasons: tuple[str, int]) -> tuple[str, str]:
    status = TableStatus(
        "raw.a", "p", 0, {}, {}, 0.0, None, rejected=sum(n for _, n in reasons), reject_reasons=counted(reasons)
    )
    (found,) = findings([status])
    return found.what, found.do


def test_the_report_names_the_leading_reasons_without_values_and_what_to_do_about_them() -> None:
    misfits = [(f"n does not fit int: {n}", 2) for n in range(3)]
    what, then = do(*misfits, (ONLY_AGAIN[0], 4), ("no such changeType: 'upsert'", 1), ("key column id is null", 1))
    assert what == (
        "12 records of this stream are rejected: n does not fit int (6); not JSON (4); no such changeType: '…' (1); "
        "other reasons (1)"
    )
    assert then.endswith("reads them again then; 4 of them have to be delivered again, corrected")
    assert "replay" not in do((ONLY_AGAIN[0], 4))[1]
    assert "delivered again" not in do(*misfits)[1]


@pytest.mark.parametrize(
    ("reason", "setting"),
    [
        ("n does not fit int: many", {"n": "string"}),
        ("n does not fit int: a; order no does not fit decimal(38,2): b", {"n": "string", "order no": "string"}),
        ("b does not fit binary: x", None),
    ],
)
def test_the_setting_that_is_advised_is_one(reason: str, setting: dict[str, str] | None) -> None:
    assert (yaml.safe_load(fix(reason)) or {}).get("types") == setting
    assert (f"`{fix(reason)}`" in advice(reason, "public.items")) == (setting is not None)
