"""Tokens of Spark Connect servers: found by their owner, and never replacing a token that is given."""

from __future__ import annotations

import stat
from pathlib import Path

import platformdirs
import pytest

from lake_assets.runtime import connect_tokens


@pytest.fixture(autouse=True)
def kept_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(connect_tokens.VARIABLE, raising=False)
    monkeypatch.setattr(platformdirs, "user_state_path", lambda _: tmp_path / "state")
    return tmp_path / "state"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_owner_of_a_server_finds_its_token(host: str, kept_in: Path) -> None:
    token = connect_tokens.token_for(4000)
    assert len(token) > 40
    assert token != connect_tokens.token_for(4001)
    assert connect_tokens.with_token(f"sc://{host}:4000") == f"sc://{host}:4000/;authorization=Bearer%20{token}"
    with_more = connect_tokens.with_token(f"sc://{host}:4000/;user_id=me")
    assert with_more == f"sc://{host}:4000/;user_id=me;authorization=Bearer%20{token}"
    assert connect_tokens.with_token(f"sc://{host}:4000/") == connect_tokens.with_token(f"sc://{host}:4000")
    assert connect_tokens.with_token(with_more) == with_more
    assert all(stat.S_IMODE(f.stat().st_mode) == 0o600 for f in kept_in.iterdir())


def test_a_server_that_is_started_again_has_another_token() -> None:
    first = connect_tokens.token_for(4000)
    second = connect_tokens.token_for(4000)
    assert first != second
    assert connect_tokens.with_token("sc://localhost:4000") == f"sc://localhost:4000/;authorization=Bearer%20{second}"


@pytest.mark.parametrize("remote", ["sc://127.0.0.1:4000", "sc://elsewhere:15002", "sc://elsewhere:15002/;token=t"])
def test_other_addresses_stay_as_they_are(remote: str) -> None:
    connect_tokens.token_for(15002)
    assert connect_tokens.with_token(remote) == remote


def test_a_token_that_is_said_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        connect_tokens.with_token("sc://127.0.0.1:4000/;token=mine")
        == "sc://127.0.0.1:4000/;authorization=Bearer%20mine"
    )
    monkeypatch.setenv(connect_tokens.VARIABLE, "given")
    assert connect_tokens.token_for(4000) == "given"
