"""What a job is handed reads the same in every process: JSON, variables, placeholders."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.capture import FieldRange
from lake_assets.errors import JobError
from lake_assets.jobs import StepParameters, current_step
from lake_assets.jobs.step_parameters import StepSource, filled

VALUES = (
    st.dates(),
    st.datetimes(timezones=st.just(UTC)),
    st.datetimes(),
    st.times(),
    st.decimals(allow_nan=False, allow_infinity=False, places=3),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.booleans(),
    st.uuids(),
    st.binary(),
)


def step(**more: Any) -> StepParameters:
    source = StepSource(None, 7, False, "icdc.a", None, "file:/a.json", None)
    return StepParameters("agg.t", "abc", {"raw.t": source}, **more)


@st.composite
def ranges(draw: st.DrawFn) -> FieldRange:
    kind = st.none() | draw(st.sampled_from(VALUES))
    return FieldRange(draw(kind), draw(kind), draw(st.booleans()), draw(st.booleans()), draw(st.booleans()))


@given(st.dictionaries(st.text(), ranges()), st.dictionaries(st.text(), st.integers() | st.none()))
def test_json_keeps_every_range_and_snapshot(hulls: dict[str, FieldRange], lookups: dict[str, int | None]) -> None:
    parameters = step(ranges=hulls, lookups=lookups, properties={"p": '{"a":1}'})
    assert StepParameters.of_json(parameters.json()) == parameters
    json.loads(parameters.json(), parse_constant=pytest.fail)  # no NaN or Infinity, which are no JSON


@given(st.sampled_from(VALUES).flatmap(lambda kind: st.lists(kind | st.none(), max_size=5)))
def test_json_keeps_every_key(values: list[Any]) -> None:
    parameters = step(keys=[{"k": v} for v in values])
    assert StepParameters.of_json(parameters.json()) == parameters


def test_variables_are_found_by_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    day = FieldRange(date(2024, 1, 1), None, exact=True, nulls=True)
    parameters = step(ranges={"day": day}, lookups={"raw.titles": 3})
    env = parameters.env
    assert {k: v for k, v in env.items() if k.endswith(("DAY", "RAW_T", "TITLES"))} == {
        "LAKE_STEP_LOW_DAY": "2024-01-01", "LAKE_STEP_HIGH_DAY": "", "LAKE_STEP_NULLS_DAY": "true",
        "LAKE_STEP_START_RAW_T": "", "LAKE_STEP_END_RAW_T": "7",
        "LAKE_STEP_AFTER_RAW_T": "icdc.a", "LAKE_STEP_BEFORE_RAW_T": "",
        "LAKE_STEP_AFTER_METADATA_RAW_T": "file:/a.json", "LAKE_STEP_BEFORE_METADATA_RAW_T": "",
        "LAKE_STEP_SNAPSHOT_RAW_TITLES": "3",
    }  # fmt: skip
    with pytest.raises(JobError, match="no step started this process"):
        current_step()
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert current_step() == parameters
    assert parameters.run_config("daily")["ops"]["daily"]["config"]["id"] == "abc"
    monkeypatch.setenv("LAKE_STEP", "{}")
    with pytest.raises(JobError, match="does not hold the parameters"):
        current_step()


def test_variables_that_cannot_be_set_are_errors() -> None:
    one = FieldRange(1, 2, exact=True, nulls=False)
    with pytest.raises(JobError, match="two parameters are called LAKE_STEP_LOW_A_B"):
        _ = step(ranges={"a.b": one, "a_b": one}).env
    with pytest.raises(JobError, match="50,000 keys changed"):
        _ = step(keys=[{"k": n} for n in range(50_000)]).env


@pytest.mark.parametrize("value", [datetime(2024, 1, 1, 2, 3, tzinfo=UTC), time(1, 2), Decimal("1.50"), "a b", b"\x01"])
def test_a_placeholder_is_the_value_as_text(value: Any) -> None:
    parameters = step(ranges={"v": FieldRange(value, None, exact=True, nulls=False)})
    expected = {
        datetime: "2024-01-01 02:03:00+00:00", time: "01:02:00", Decimal: "1.50", str: "a b", bytes: "01",
    }[type(value)]  # fmt: skip
    assert filled(["x", "<{low.v}>", "{high.v|none}"], parameters) == ["x", f"<{expected}>", "none"]
    with pytest.raises(JobError, match=r"high\.v has no value in this step"):
        filled(["x", "{high.v}"], parameters)
