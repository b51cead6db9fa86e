"""Small inputs: by the size of everything read, or of the used share if the rest is skipped."""

from __future__ import annotations

import random
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from lake_assets.lake.thresholds import SMALL_INPUT_BYTES, SMALL_INPUT_ROWS
from lake_assets.tables.spark_tuning import in_one_piece, tuned_for


class Rows:
    """A DataFrame that records whether it was coalesced to one partition."""

    pieces = 8

    def coalesce(self, n: int) -> Rows:
        rows = Rows()
        rows.pieces = n
        return rows


@pytest.mark.parametrize(
    ("size", "rows", "of_it", "is_small"),
    [
        (SMALL_INPUT_BYTES, SMALL_INPUT_ROWS, None, True),
        (SMALL_INPUT_BYTES + 1, SMALL_INPUT_ROWS, None, False),
        (SMALL_INPUT_BYTES, SMALL_INPUT_ROWS + 1, None, False),
        (SMALL_INPUT_BYTES, SMALL_INPUT_ROWS * 2, 1_000, True),
        (SMALL_INPUT_BYTES * 2, SMALL_INPUT_ROWS * 2, SMALL_INPUT_ROWS, True),
        # The share is as large as the rest of the file is small.
        (SMALL_INPUT_BYTES * 9, SMALL_INPUT_ROWS, SMALL_INPUT_ROWS // 2, False),
        (SMALL_INPUT_BYTES, SMALL_INPUT_ROWS * 2, SMALL_INPUT_ROWS + 1, False),
        # More than the captured rows: commits count a record for each of its tables.
        (SMALL_INPUT_BYTES, SMALL_INPUT_ROWS, SMALL_INPUT_ROWS * 5, True),
        # Skipping very many rows takes long as well.
        (SMALL_INPUT_BYTES, SMALL_INPUT_ROWS * 11, 1, False),
        (SMALL_INPUT_BYTES * 11, SMALL_INPUT_ROWS, 1, False),
        (0, 0, 0, True),
    ],
)
def test_a_share_is_small_where_the_rest_is_not_too_large(
    size: int, rows: int, of_it: int | None, is_small: bool
) -> None:
    captured: Any = SimpleNamespace(files=[SimpleNamespace(bytes=size, records=rows)])
    frame: Any = Rows()
    assert in_one_piece(frame, captured, of_it).pieces == (1 if is_small else 8)


class Conf:
    """Settings of a session."""

    def __init__(self, **settings: str) -> None:
        self.settings, self.messages = settings, 0

    def get(self, key: str, default: str | None) -> str | None:
        return self.settings.get(key, default)

    def set(self, key: str, value: str) -> None:
        self.messages += 1
        self.settings[key] = value

    def unset(self, key: str) -> None:
        self.messages += 1
        del self.settings[key]


def lake_with(conf: Conf, **declared: str) -> Any:
    session = SimpleNamespace(conf=conf)
    return SimpleNamespace(config=SimpleNamespace(spark=SimpleNamespace(conf=declared)), spark=lambda: session)


WHOLE, FACTORY = "spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode"
LARGE = {WHOLE: "true", FACTORY: "FALLBACK"}
ADAPTIVE, CONSTRAINTS = "spark.sql.adaptive.enabled", "spark.sql.constraintPropagation.enabled"
ONCE = {ADAPTIVE: "false", CONSTRAINTS: "false", "spark.sql.shuffle.partitions": "1"}
SMALL = {WHOLE: "false", FACTORY: "NO_CODEGEN", **ONCE}


def captured(rows: int) -> Any:
    return SimpleNamespace(files=[SimpleNamespace(bytes=rows, records=rows)])


@pytest.mark.parametrize("seed", range(20))
def test_each_body_has_settings_that_fit_and_leaves_them_as_they_were(seed: int) -> None:
    dice = random.Random(seed)
    conf = Conf(**dice.choice([{}, {WHOLE: "true"}, SMALL, {ADAPTIVE: "true", FACTORY: "CODEGEN_ONLY", "other": "1"}]))
    lake, before = lake_with(conf), dict(conf.settings)
    with ExitStack() as scope:
        for _ in range(dice.randint(1, 5)):
            is_small = dice.random() < 0.5
            scope.enter_context(tuned_for(lake, (), captured(1 if is_small else SMALL_INPUT_ROWS + 1)))
            unchanged = {k: v for k, v in before.items() if k in ONCE}
            assert {k: v for k, v in conf.settings.items() if k in SMALL} == (SMALL if is_small else LARGE | unchanged)
    assert conf.settings == before


def test_within_a_body_that_fits_nothing_is_set() -> None:
    conf = Conf()
    lake = lake_with(conf)
    with tuned_for(lake, (), captured(1)):
        messages = conf.messages
        with tuned_for(lake, (), captured(2)):
            assert conf.settings == SMALL
        assert conf.messages == messages


def test_settings_of_the_lake_are_not_touched() -> None:
    conf = Conf(**{WHOLE: "true"})
    with tuned_for(lake_with(conf, **{WHOLE: "true"}), (), captured(1)):
        assert conf.settings == SMALL | {WHOLE: "true"}
    assert conf.settings == {WHOLE: "true"}
