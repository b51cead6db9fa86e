"""Errors caused by an interrupt are distinguished from other errors."""

from __future__ import annotations

import pytest

from lake_assets.errors import LakeError
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.lake import TableId
from lake_assets.pipeline.pipeline import _guarded
from lake_assets.tables.outcome import Outcome


def run(error: BaseException) -> Outcome:
    def step() -> Outcome:
        raise error

    return _guarded(step, RawSpec(TableId.parse("raw.t"), None, "debezium", "p"))


def test_an_error_while_an_interrupt_is_handled_is_the_interrupt() -> None:
    error = LakeError("the connection is gone")
    error.__context__ = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(error)


def test_an_error_that_is_its_own_context_is_a_failure() -> None:
    error, other = LakeError("first"), LakeError("second")
    error.__context__, other.__context__ = other, error
    assert run(error).status == "failed"
