"""Print values for people and for scripts."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from lake_assets.errors import ConfigError
from lake_assets.lake.counts import plural
from lake_assets.lake.paths import local_path
from lake_assets.lake.visible_text import visible, visible_json
from lake_assets.report.amounts import size
from lake_assets.tables.outcome import Absorbed, Outcome

# What Python writes for numbers that JSON does not have; it may also be a part of a text.
_NO_NUMBER = re.compile(r"NaN|Infinity")


@dataclass(frozen=True)
class _Visible:
    """A renderable whose control characters are escaped, except those that Rich adds itself."""

    inner: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in console.render(self.inner, options):
            yield part if part.control else Segment(visible(part.text), part.style)


class _VisibleOnly(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """See `RenderHook`."""
        return [_Visible(r) for r in renderables]


def _console(stream: TextIO, *, is_stderr: bool = False) -> Console:
    # Without a terminal (CI, a pipe) Rich uses 80 columns, which is too narrow for one line per table.
    width = None if stream.isatty() or "COLUMNS" in os.environ else 150
    console = Console(highlight=False, stderr=is_stderr, width=width)
    console.push_render_hook(_VisibleOnly())
    return console


console = _console(sys.stdout)
stderr = _console(sys.stderr, is_stderr=True)
STYLES = {"absorbed": "green", "nothing": "dim", "waiting": "yellow", "failed": "bold red"}


def local(path: Path, option: str) -> Path:
    """Return a path from the command line as a local path.

    Raises:
        ConfigError: it is a URL that is not local.
    """
    try:
        return local_path(path)
    except ValueError as e:
        raise ConfigError(f"{option}: {e}") from e


def check_folder_of(file: Path, option: str) -> None:
    """Raise ConfigError if a file cannot be written, before anything is computed for it."""
    if file.is_dir():
        raise ConfigError(f"{option} {file} is a folder: name a file in it")
    if not file.parent.is_dir():
        raise ConfigError(f"{option} {file}: the folder {file.parent} does not exist; make it, or name another one")


def say_written(file: Path) -> None:
    """Say that a page was written."""
    console.print(f"wrote {file}", markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a value as JSON, dataclasses as objects; NaN and infinities, which JSON does not have, as texts."""
    text = json.dumps(value, default=_plain, indent=2, ensure_ascii=False)
    if _NO_NUMBER.search(text):
        text = json.dumps(json.loads(text, parse_constant=str), indent=2, ensure_ascii=False)
    print(visible_json(text))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else repr(value)


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """Convert an outcome to JSON values."""
    return {k: v for k, v in vars(outcome).items() if k != "exception"} | {
        "windows": [asdict(w) for w in outcome.windows],
        "rejected": outcome.rejected,
        "seconds": round(outcome.seconds, 3),
    }


def listing(
    *headers: str, right: Collection[str] = (), fixed: Collection[str] = (), fold: bool = False, style: str = "bold"
) -> Table:
    """Return an empty table without lines.

    Args:
        headers: the names of its columns.
        right: the columns that are aligned to the right.
        fixed: the columns that are not wrapped.
        fold: whether long words in the other columns are wrapped instead of shortened.
        style: the style of the headers.
    """
    table = Table(box=None, pad_edge=False, header_style=style)
    for header in headers:
        table.add_column(
            header,
            justify="right" if header in right else "left",
            no_wrap=header in fixed,
            overflow="fold" if fold and header not in fixed else "ellipsis",
        )
    return table


def facts() -> Table:
    """Return an empty table of names and texts."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def outcome_table(outcomes: Sequence[Outcome], said: dict[str, str] | None = None) -> Table:
    """Return a table with one line per outcome. Of several equal errors, the first is printed in full.

    Args:
        outcomes: the outcomes.
        said: the errors printed before, each with its first table; new ones are added.
    """
    said = {} if said is None else said
    headers = ("table", "captured", "absorbed", "rejected", "how", "s")
    table = listing(*headers, right=["rejected", "s"], fixed=["table"], fold=True)
    for outcome in outcomes:
        style = STYLES[outcome.status]
        table.add_row(
            f"[{style}]{escape(outcome.table)}[/]",
            escape("; ".join(_window(w) for w in outcome.windows)),
            absorbed(outcome),
            f"[bold red]{outcome.rejected:,}[/]" if outcome.rejected else "",
            escape(_error(outcome.error, said.setdefault(outcome.error, outcome.table), outcome.table))
            if outcome.error
            else escape(_how(outcome)),
            f"{outcome.seconds:.1f}" if outcome.seconds else "",
        )
    return table


class OutcomeLines:
    """The lines of `outcome_table`, printed one by one: for places where what is printed stays, such as a log."""

    def __init__(self, tables: Collection[str]) -> None:
        """
        Args:
            tables: the tables that are known before, for the width of the first column.
        """
        self._width = max(map(len, tables), default=20)
        self._is_first = True
        self._said: dict[str, str] = {}

    def show(self, outcome: Outcome) -> None:
        """Print an outcome, after the headers if it is the first one."""
        line = outcome_table([outcome], self._said)
        line.show_header, self._is_first, line.expand = self._is_first, False, True
        name, captured, changed, _, how, seconds = line.columns
        name.width, changed.width, seconds.width = max(self._width, len(outcome.table)), 16, 6
        captured.ratio, how.ratio = 4, 5
        console.print(line)


def _error(error: str, first: str, table: str) -> str:
    """Return an error, or where it was printed before: `JavaNotFoundError, as for raw.events`."""
    return error if first == table else f"{error.partition(':')[0]}, as for {first}"


def _how(outcome: Outcome) -> str:
    """Return the strategy and the reason, and the audits that only warn."""
    how = ": ".join(filter(None, (outcome.strategy, outcome.why)))
    return "\n".join([how, *(f"audit {found}" for found in outcome.audits if not found.passed)])


def absorbed(outcome: Outcome) -> str:
    """Format rows inserted, updated and deleted (`+12 ~3 -1`), or the status if not absorbed."""
    if outcome.status != "absorbed":
        return f"[{STYLES[outcome.status]}]{outcome.status}[/]"
    return f"+{outcome.inserted} ~{outcome.updated} -{outcome.deleted}"


def _window(window: Absorbed) -> str:
    source = window.source.rsplit("/", 1)[-1]
    files = f"{source}: {plural(window.files, 'file')}, {size(window.bytes)}"
    return ", ".join([files, *(f"{k} {_short(v)}" for k, v in list(window.ranges.items())[:1])])


_FRACTION = re.compile(r"(?<=[ T]\d\d:\d\d:\d\d)\.\d+")
_SAME_DAY = re.compile(r"(\d{4}-\d\d-\d\d) ([\d:]+)(\S*?)\.\.\1 ([\d:]+)\3")


def _short(ends: str) -> str:
    """Shorten a range of times, to fit into a line: `2026-11-30 01:19:07..01:19:09+00:00`; other ranges stay."""
    without_fractions = _FRACTION.sub("", ends)
    return _SAME_DAY.sub(lambda m: f"{m[1]} {m[2]}{'' if m[2] == m[4] else f'..{m[4]}'}{m[3]}", without_fractions)
