"""How values are shown to people and to scripts."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
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
from lake_assets.lake.paths import local_path
from lake_assets.tables.outcome import Absorbed, Outcome

# What a terminal obeys, what turns the direction of text around, and what cannot be encoded (lone surrogates). Names,
# values and records come from elsewhere, and may hold any of it.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""The text with its control characters as escapes: ESC is shown as \x1b. Line breaks and tabs stay."""
    return _UNSAFE.sub(lambda m: f"\\x{ord(m[0]):02x}" if ord(m[0]) < 256 else f"\\u{ord(m[0]):04x}", text)


def visible_json(text: str) -> str:
    """The same JSON with the characters that a terminal obeys as JSON's own escapes."""
    return _UNSAFE.sub(lambda m: f"\\u{ord(m[0]):04x}", text)


@dataclass(frozen=True)
class _Visible:
    """Something to print without the control characters that it holds; those that Rich makes itself stay."""

    inner: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in console.render(self.inner, options):
            yield part if part.control else Segment(visible(part.text), part.style)


class _VisibleOnly(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """See `RenderHook`."""
        return [_Visible(r) for r in renderables]


def _console(stream: TextIO, *, is_stderr: bool = False) -> Console:
    # Rich takes 80 columns where there is no terminal (CI, a pipe): too narrow for a line a table.
    width = None if stream.isatty() or "COLUMNS" in os.environ else 150
    made = Console(highlight=False, stderr=is_stderr, width=width)
    made.push_render_hook(_VisibleOnly())
    return made


console = _console(sys.stdout)
stderr = _console(sys.stderr, is_stderr=True)
STYLES = {"absorbed": "green", "nothing": "dim", "waiting": "yellow", "failed": "bold red"}


def local(path: Path, option: str) -> Path:
    """A path that was given on the command line, of this machine.

    Raises:
        ConfigError: it is a URL of something else.
    """
    try:
        return local_path(path)
    except ValueError as e:
        raise ConfigError(f"{option}: {e}") from e


def check_folder_of(file: Path, option: str) -> None:
    """Raise ConfigError where a file cannot be written, before anything is computed for it."""
    if file.is_dir():
        raise ConfigError(f"{option} {file} is a folder: name a file in it")
    if not file.parent.is_dir():
        raise ConfigError(f"{option} {file}: the folder {file.parent} does not exist; make it, or name another one")


def print_json(value: Any) -> None:
    """Print a value as JSON, dataclasses as objects."""
    print(visible_json(json.dumps(value, default=_plain, indent=2, ensure_ascii=False)))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else repr(value)


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome for scripts."""
    return {k: v for k, v in vars(outcome).items() if k != "exception"} | {
        "windows": [asdict(w) for w in outcome.windows],
        "rejected": outcome.rejected,
        "seconds": round(outcome.seconds, 3),
    }


def size(count: int) -> str:
    """Bytes with a unit: 1234 -> 1.2 kB."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def outcome_table(outcomes: Sequence[Outcome]) -> Table:
    """What each table did, a line each."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("table", "captured", "absorbed", "how", "s"):
        table.add_column(header, justify="right" if header == "s" else "left", no_wrap=header == "table")
    for outcome in outcomes:
        style = STYLES[outcome.status]
        table.add_row(
            f"[{style}]{escape(outcome.table)}[/]",
            escape("; ".join(_window(w) for w in outcome.windows)),
            absorbed(outcome),
            escape(outcome.error or _how(outcome)),
            f"{outcome.seconds:.1f}" if outcome.seconds else "",
        )
    return table


def _how(outcome: Outcome) -> str:
    """The strategy and the reason, and the audits that only warn."""
    how = ": ".join(filter(None, (outcome.strategy, outcome.why)))
    return "\n".join([how, *(f"audit {found}" for found in outcome.audits if not found.passed)])


def absorbed(outcome: Outcome) -> str:
    """Rows inserted, updated and deleted: `+12 ~3 -1`; the status where there are none; and rejected records."""
    said = f"+{outcome.inserted} ~{outcome.updated} -{outcome.deleted}"
    if outcome.status != "absorbed":
        said = f"[{STYLES[outcome.status]}]{outcome.status}[/]"
    return f"{said}, [bold red]{outcome.rejected:,} rejected[/]" if outcome.rejected else said


def rejection_note(outcomes: Sequence[Outcome], pipeline: str) -> str:
    """How many records of which tables were rejected, and what to do about them; empty where none was."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        if outcome.rejected:
            counts[outcome.table] = counts.get(outcome.table, 0) + outcome.rejected
    if not counts:
        return ""
    total, listed = sum(counts.values()), ", ".join(f"{table} {n:,}" for table, n in counts.items())
    which = "1 record was rejected and is" if total == 1 else f"{total:,} records were rejected and are"
    return (
        f"{which} in no staging or final table ({listed}). `lake-assets rejected list` shows each with its reason; "
        f"after a fix, `lake-assets rejected replay {pipeline}` reads them again"
    )


def pipeline_note(outcomes: Sequence[Outcome], pipeline: str) -> str:
    """How `lake-assets rebuild`, which some errors advise, finds the pipeline; empty where none does.

    Args:
        outcomes: of the run.
        pipeline: the file or folder that was given; a shipped pipeline is found without.
    """
    if not Path(pipeline).exists() or not any("`lake-assets rebuild" in (o.error or "") for o in outcomes):
        return ""
    return f"`lake-assets rebuild` finds this pipeline's tables with `--pipeline {pipeline}`, or below LAKE_PIPELINES"


def _window(window: Absorbed) -> str:
    said = f"{window.files} file{'s' if window.files != 1 else ''}, {size(window.bytes)}"
    source = window.source.rsplit("/", 1)[-1]
    shown = [f"{k} {v}" for k, v in list(window.ranges.items())[:1]]
    return ", ".join([f"{source}: {said}", *shown])
