"""The command line as a user calls it: arguments in, exit code and output out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner, Result

from lake_assets import cli


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


def invoke(*words: str) -> Result:
    """Call `lake-assets` in this process; an error that the command does not end with itself is raised."""
    result = CliRunner().invoke(cli.application(), list(words))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
