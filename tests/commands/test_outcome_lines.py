"""One line per table, for people: what was captured is short enough to be read."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from lake_assets.commands import printing
from lake_assets.commands.printing import OutcomeLines, outcome_table
from lake_assets.tables.outcome import Absorbed, Outcome

DAY = "2026-11-30 "


@pytest.mark.parametrize(
    ("ends", "printed"),
    [
        (f"{DAY}01:19:07.838303+00:00..{DAY}01:19:09.1+00:00", f"{DAY}01:19:07..01:19:09+00:00"),
        (f"{DAY}01:19:07.1..{DAY}01:19:07.9, null", f"{DAY}01:19:07, null"),
        (f"2026-11-29 01:19:07.1..{DAY}01:19:07", f"2026-11-29 01:19:07..{DAY}01:19:07"),
        (f"{DAY}01:19:07+00:00..{DAY}01:19:09+01:00", f"{DAY}01:19:07+00:00..{DAY}01:19:09+01:00"),
        (">= 2026-11-30 01:19:07.123456, <= x:10:10:10.5", ">= 2026-11-30 01:19:07, <= x:10:10:10.5"),
        ("1.50..2.75", "1.50..2.75"),
    ],
)
def test_ranges_of_times_are_shortened_and_others_are_not(ends: str, printed: str) -> None:
    output = io.StringIO()
    outcome = Outcome("final.t", "absorbed", (Absorbed("staging.t", 1, 2, 1, 10, {"at": ends}),), inserted=1)
    Console(file=output, width=200).print(outcome_table([outcome]))
    assert f"staging.t: 1 file, 10 B, at {printed}  " in output.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_error_that_all_tables_have_is_said_once(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool) -> None:
    output = io.StringIO()
    console = Console(file=output, width=200)
    java = "JavaNotFoundError: Spark needs Java 17 or 21"
    errors = {"raw.t": java, "staging.t": java, "final.t": "ModelError: another one", "agg.t": java}
    outcomes = [Outcome(table, "failed", error=error) for table, error in errors.items()]
    if is_terminal:
        console.print(outcome_table(outcomes))
    else:
        monkeypatch.setattr(printing, "console", console)
        lines = OutcomeLines([*errors])
        for outcome in outcomes:
            lines.show(outcome)
    text = output.getvalue()
    assert text.count("Spark needs Java") == 1
    assert text.count("JavaNotFoundError, as for raw.t") == 2
    assert "ModelError: another one" in text


def test_json_has_no_numbers_that_other_programs_cannot_read(capsys: pytest.CaptureFixture[str]) -> None:
    values = {"a": float("nan"), "b": [float("-inf"), 2**70, 0.1], "c": "NaN\x1b", "d": Outcome("t", "nothing")}
    printing.print_json(values)

    def refuse(text: str) -> None:
        raise ValueError(text)

    read = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert (read["a"], read["b"], read["c"]) == ("NaN", ["-Infinity", 2**70, 0.1], "NaN\x1b")
    assert read["d"]["table"] == "t"
