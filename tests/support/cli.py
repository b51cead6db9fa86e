"""The command line as a user calls it: arguments in, exit code and output out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner, Result

from lake_assets import Lake, cli
from lake_assets.backfill.backfill_record import Records


@dataclass(frozen=True)
class Done:
    """What a command did; texts without the line breaks that the terminal's width makes."""

    code: int
    out: str
    err: str


def caller(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Calls `lake-assets` in this process."""

    def call(*words: object) -> Done:
        monkeypatch.setattr("sys.argv", ["lake-assets", *map(str, words)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else 1 if e.code else 0
        streams = capsys.readouterr()
        return Done(code, streams.out, streams.err)

    return call


@dataclass
class User:
    """Somebody with a lake, who reads errors and does what they say."""

    lake: Lake
    call: Callable[..., Done]

    def gets(self, words: str) -> str:
        """Return the output of a command that succeeds."""
        done = self.call(*shlex.split(words))
        assert done.code == 0, f"{words}: {done.err}"
        return done.out

    def is_told(self, words: str, *texts: str) -> str:
        """Return the error of a command, which contains some texts."""
        done = self.call(*shlex.split(words))
        assert (done.code, "Traceback" in done.err) == (1, False), f"{words}: {done.out}{done.err}"
        assert [t for t in texts if t not in done.err] == [], f"{words}: {done.err}"
        return done.err

    def follows(self, error: str, number: int = 0) -> str:
        """Run a command that an error names, as it is written there; return its output."""
        return self.gets(re.findall(r"`lake-assets ([^`]+)`", error)[number])

    @property
    def newest(self) -> str:
        """The id of the newest backfill."""
        return Records(self.lake).all()[-1].id


def invoke(*words: str) -> Result:
    """Call `lake-assets` in this process; an error that the command does not end with itself is raised."""
    result = CliRunner().invoke(cli.application(), list(words))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
