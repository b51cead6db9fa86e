"""Files and folders that others on the machine cannot read."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from lake_assets import Lake, LakeConfig
from lake_assets.runtime.private_files import make_private, open_log, write_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_is_for_its_owner_alone_and_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(0o755)
    make_private(tmp_path / "shared" / "a" / "b")
    make_private(tmp_path / "shared")
    assert [mode(tmp_path / "shared" / p) for p in (".", "a", "a/b")] == [0o755, 0o700, 0o700]


def test_a_file_is_never_written_through_a_link_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("as it was")
    (tmp_path / "mine").symlink_to(tmp_path / "theirs")
    write_private(tmp_path / "mine", "secret")
    assert (tmp_path / "theirs").read_text() == "as it was"
    assert (mode(tmp_path / "mine"), (tmp_path / "mine").read_text()) == (0o600, "secret")


def test_a_log_that_has_grown_large_is_begun_anew(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "spark.log"
    for text in (b"first\n", b"second\n"):
        with open_log(log) as file:
            file.write(text)
    assert log.read_bytes() == b"first\nsecond\n"
    with open_log(log) as file:
        file.truncate(10 * 2**20 + 1)
        with open_log(log) as another:
            another.write(b"new\n")
        file.write(b"late\n")
    last = log.with_name("spark.log.1").read_bytes()
    assert (log.read_bytes(), last[:6], last[-5:]) == (b"new\n", b"first\n", b"late\n")


@pytest.mark.parametrize("is_there", [False, True])
def test_a_lake_that_is_made_cannot_be_entered_by_others(tmp_path: Path, is_there: bool) -> None:
    home = tmp_path / "lake"
    if is_there:
        home.mkdir(0o750)
    lake = Lake(LakeConfig(home=home))
    lake.ensure_namespace(("final",))
    assert mode(home) == (0o750 if is_there else 0o700)
