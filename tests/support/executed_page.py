"""A page of the documentation that is executed as a reader would: files are written, statements and commands run, what
they print is compared with what the page shows.

The notation of such a page:

- A block of SQL begins with the `psql` command in which it is entered, as a comment.
- A file begins with its name, as a comment: `# sales.yaml`.
- A `console` block has commands after `$`, and below each what it prints; `...` stands for anything, also nothing. Its
  first line may name the terminal, as a comment, and say that the command is entered "until it prints this". `^C`
  interrupts what runs in the terminal.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg2

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILES = {"yaml", "python"}
_SECONDS = 300.0
_ANYTHING = r"(?:.|\n)*?"
FIRST = "the first terminal"


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page at which it begins."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Call:
    """What is entered into a terminal, and what the page shows below it."""

    command: str
    shown: Sequence[str]


def blocks(page: str) -> list[Block]:
    """Return all fenced blocks of a page."""
    return [Block(m[1], m[2], page.count("\n", 0, m.start()) + 1) for m in _FENCE.finditer(page)]


@dataclass(frozen=True)
class Session:
    """A `console` block: the terminal, what is entered into it, and whether that is repeated until the output fits."""

    terminal: str
    calls: Sequence[Call]
    is_repeated: bool


def session(text: str) -> Session:
    """Read a `console` block."""
    lines = text.rstrip("\n").split("\n")
    head = lines.pop(0).removeprefix("# ") if lines[0].startswith("# ") else FIRST
    found: list[Call] = []
    for line in lines:
        if line.startswith("$ ") or line == "^C":
            found.append(Call(line.removeprefix("$ "), []))
        else:
            assert found, f"{line!r} is shown before a command"
            found[-1] = Call(found[-1].command, [*found[-1].shown, line])
    return Session(head.partition(",")[0], found, head.endswith(", until it prints this"))


class Terminal:
    """A shell that stays open, and what it has printed."""

    def __init__(self, folder: Path, log: Path, env: Mapping[str, str]) -> None:
        self.log, self._read = log, 0
        with log.open("wb") as output:
            self.shell = subprocess.Popen(
                ["bash", "--norc"], cwd=folder, env=dict(env), stdin=subprocess.PIPE, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip

    def enter(self, command: str) -> None:
        """Type a command; what it prints from now on is its output."""
        self._read = self.log.stat().st_size
        assert self.shell.stdin is not None
        # What runs must not read the commands that follow it.
        self.shell.stdin.write(f'{{ {command}\n}} < /dev/null; echo "exit code $?"\n'.encode())
        self.shell.stdin.flush()

    def output(self) -> str:
        """Return what was printed since the last command."""
        return self.log.read_bytes()[self._read :].decode()

    def result(self) -> str:
        """Wait for the end of the command, which has to succeed; return its output."""
        until = time.monotonic() + _SECONDS
        while not (end := re.search(r"^exit code (\d+)\n\Z", self.output(), re.MULTILINE)):
            assert time.monotonic() < until, f"not ended after {_SECONDS:.0f} s:\n{self.output()}"
            time.sleep(0.1)
        assert end[1] == "0", self.output()
        return self.output()[: end.start()]

    def interrupt(self) -> str:
        """Press Ctrl-C; return what is printed from then on."""
        self._read = self.log.stat().st_size
        for process in psutil.Process(self.shell.pid).children():
            process.send_signal(signal.SIGINT)
        return self.result()

    def close(self) -> None:
        """End it, with all that it has started: as Ctrl-C does, so that programs end what they have started themselves."""
        with contextlib.suppress(psutil.NoSuchProcess):
            shell = psutil.Process(self.shell.pid)
            started = shell.children(recursive=True)
            for process in shell.children():
                process.send_signal(signal.SIGINT)
            _, left = psutil.wait_procs(started, timeout=60)
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.shell.kill()
        self.shell.wait()


@dataclass
class Reader:
    """Who does what a page says.

    Attributes:
        folder: where the reader works; empty at first.
        env: the environment of the terminals.
        replaced: what the page says, and what is right here.
        varies: patterns of what differs from run to run, as in `same`.
        foreground: commands that do not end by themselves; what they show is waited for.
        passwords: by role.
    """

    folder: Path
    logs: Path
    env: Mapping[str, str]
    replaced: Mapping[str, str]
    varies: Sequence[str]
    foreground: Sequence[str]
    passwords: Mapping[str, str]

    def __post_init__(self) -> None:
        self.terminals: dict[str, Terminal] = {}

    @contextlib.contextmanager
    def working(self) -> Generator[Reader]:
        """End all terminals after the context."""
        try:
            yield self
        finally:
            for terminal in self.terminals.values():
                terminal.close()

    def do(self, block: Block) -> None:
        """Do what a block says.

        Raises:
            AssertionError: something else happens than what the page shows.
        """
        text = self._here(block.text)
        try:
            if block.language == "sql":
                self._query(text)
            elif block.language in _FILES:
                name = re.match(r"# (\S+)\n", text)
                assert name, "it has no name"
                file = self._place / name[1]
                file.parent.mkdir(exist_ok=True, parents=True)
                file.write_text(text, encoding="utf-8")
            else:
                assert block.language == "console", f"nobody knows what to do with {block.language!r}"
                self._type(text)
        except (AssertionError, psycopg2.Error) as e:
            raise AssertionError(f"the block at line {block.line}: {e}") from e

    @property
    def _place(self) -> Path:
        """The folder in which the reader is: that of the first terminal."""
        first = next(iter(self.terminals.values()), None)
        return Path(psutil.Process(first.shell.pid).cwd()) if first else self.folder

    def _here(self, text: str) -> str:
        for said, here in self.replaced.items():
            text = text.replace(said, here)
        return text

    def _query(self, text: str) -> None:
        first, _, statements = text.partition("\n")
        words = shlex.split(first.removeprefix("-- psql "))
        options = dict(zip(words[::2], words[1::2], strict=True))
        with contextlib.closing(
            psycopg2.connect(
                host=options["-h"], port=options["-p"], user=options["-U"], dbname=options["-d"],
                password=self.passwords[options["-U"]],
            )
        ) as connection, connection.cursor() as cursor:  # fmt: skip
            connection.autocommit = True
            # As psql does: each statement is a transaction of its own.
            for statement in filter(str.strip, statements.split(";\n")):
                cursor.execute(statement)

    def _type(self, text: str) -> None:
        entered = session(text)
        name = entered.terminal
        if name not in self.terminals:
            self.terminals[name] = Terminal(self.folder, self.logs / f"terminal{len(self.terminals)}.log", self.env)
        terminal = self.terminals[name]
        for call in entered.calls:
            if call.command == "^C":
                self._compare(call, terminal.interrupt())
                continue
            terminal.enter(call.command)
            if call.command in map(self._here, self.foreground):
                self._wait(call, terminal.output, lambda: None)
            elif entered.is_repeated:
                self._wait(call, terminal.result, lambda call=call: terminal.enter(call.command))
            else:
                self._compare(call, terminal.result())

    def _wait(self, call: Call, printed: Callable[[], str], again: Callable[[], None]) -> None:
        until = time.monotonic() + _SECONDS
        while not self._is_shown(call, output := printed()):
            assert time.monotonic() < until, f"after {_SECONDS:.0f} s `{call.command}` still prints\n{output}"
            time.sleep(0.5)
            again()

    def _compare(self, call: Call, printed: str) -> None:
        if call.shown:
            assert self._is_shown(call, printed), f"`{call.command}` prints\n{printed}\nnot\n" + "\n".join(call.shown)

    def _is_shown(self, call: Call, printed: str) -> bool:
        return same("\n".join(call.shown), printed, self.varies)


def same(shown: str, printed: str, varies: Sequence[str]) -> bool:
    """Whether a program prints what a page shows: the same words, except for what matches the same one of some patterns.

    Only whether there is space counts, not how much: a column is as wide as the longest of its values.
    """
    pattern = r"\s+".join(_any_of(word, varies) for word in shown.split())
    # What may be nothing has no space around it either.
    pattern = pattern.replace(rf"{_ANYTHING}\s+", _ANYTHING).replace(rf"\s+{_ANYTHING}", _ANYTHING)
    return bool(re.fullmatch(rf"\s*{pattern}\s*", printed))


def _any_of(word: str, varies: Sequence[str]) -> str:
    if word == "...":
        return _ANYTHING
    return next((v for v in varies if re.fullmatch(v, word)), re.escape(word))
