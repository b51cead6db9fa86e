from __future__ import annotations

import stat
from pathlib import Path

import platformdirs
import pytest

from lake_assets.lake import tokens


@pytest.fixture(autouse=True)
def kept_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(tokens.VARIABLE, raising=False)
    monkeypatch.setattr(platformdirs, "user_state_path", lambda _: tmp_path / "state")
    return tmp_path / "state"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_owner_of_a_server_finds_its_token(host: str, kept_in: Path) -> None:
    token = tokens.token_for(4000)
    assert len(token) > 40
    assert token != tokens.token_for(4001)
    assert tokens.with_token(f"sc://{host}:4000") == f"sc://{host}:4000/;authorization=Bearer%20{token}"
    with_more = tokens.with_token(f"sc://{host}:4000/;user_id=me")
    assert with_more == f"sc://{host}:4000/;user_id=me;authorization=Bearer%20{token}"
    assert tokens.with_token(f"sc://{host}:4000/") == tokens.with_token(f"sc://{host}:4000")
    assert tokens.with_token(with_more) == with_more
    assert all(stat.S_IMODE(f.stat().st_mode) == 0o600 for f in kept_in.iterdir())


def test_a_server_that_is_started_again_has_another_token() -> None:
    first = tokens.token_for(4000)
    second = tokens.token_for(4000)
    assert first != second
    assert tokens.with_token("sc://localhost:4000") == f"sc://localhost:4000/;authorization=Bearer%20{second}"


@pytest.mark.parametrize("remote", ["sc://127.0.0.1:4000", "sc://elsewhere:15002", "sc://elsewhere:15002/;token=t"])
def test_other_addresses_stay_as_they_are(remote: str) -> None:
    tokens.token_for(15002)
    assert tokens.with_token(remote) == remote


def test_a_token_that_is_said_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tokens.with_token("sc://127.0.0.1:4000/;token=mine") == "sc://127.0.0.1:4000/;authorization=Bearer%20mine"
    monkeypatch.setenv(tokens.VARIABLE, "given")
    assert tokens.token_for(4000) == "given"
