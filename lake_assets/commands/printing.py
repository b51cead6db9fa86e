"""Print values for people and for scripts."""

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

# Terminal control characters, bidirectional controls, and lone surrogates, which cannot be encoded. Names, values and
# records come from outside and may contain any of them.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Escape the control characters of a text: ESC becomes \x1b. Line breaks and tabs stay."""
    return _UNSAFE.sub(lambda m: f"\\x{ord(m[0]):02x}" if ord(m[0]) < 256 else f"\\u{ord(m[0]):04x}", text)


def visible_json(text: str) -> str:
    """Write control characters in JSON as JSON escapes."""
    return _UNSAFE.sub(lambda m: f"\\u{ord(m[0]):04x}", text)


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
    made = Console(highlight=False, stderr=is_stderr, width=width)
    made.push_render_hook(_VisibleOnly())
    return made


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
    """Convert an outcome to JSON values."""
    return {k: v for k, v in vars(outcome).items() if k != "exception"} | {
        "windows": [asdict(w) for w in outcome.windows],
        "rejected": outcome.rejected,
        "seconds": round(outcome.seconds, 3),
    }


def size(count: int) -> str:
    """Format a number of bytes with a unit: 1234 -> 1.2 kB."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def outcome_table(outcomes: Sequence[Outcome]) -> Table:
    """Return a table with one line per outcome."""
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
    """Return the strategy and the reason, and the audits that only warn."""
    how = ": ".join(filter(None, (outcome.strategy, outcome.why)))
    return "\n".join([how, *(f"audit {found}" for found in outcome.audits if not found.passed)])


def absorbed(outcome: Outcome) -> str:
    """Format rows inserted, updated and deleted (`+12 ~3 -1`), or the status if not absorbed; and rejected records."""
    said = f"+{outcome.inserted} ~{outcome.updated} -{outcome.deleted}"
    if outcome.status != "absorbed":
        said = f"[{STYLES[outcome.status]}]{outcome.status}[/]"
    return f"{said}, [bold red]{outcome.rejected:,} rejected[/]" if outcome.rejected else said


def rejection_note(outcomes: Sequence[Outcome], pipeline: str) -> str:
    """Return how many records of which tables were rejected, and what to do about them; empty if none."""
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
    """Return how `lake-assets rebuild`, if an error recommends it, finds the pipeline; else empty.

    Args:
        outcomes: outcomes of the run.
        pipeline: the pipeline's file or folder; shipped pipelines are found without it.
    """
    if not Path(pipeline).exists() or not any("`lake-assets rebuild" in (o.error or "") for o in outcomes):
        return ""
    return f"`lake-assets rebuild` finds this pipeline's tables with `--pipeline {pipeline}`, or below LAKE_PIPELINES"


def _window(window: Absorbed) -> str:
    said = f"{window.files} file{'s' if window.files != 1 else ''}, {size(window.bytes)}"
    source = window.source.rsplit("/", 1)[-1]
    shown = [f"{k} {v}" for k, v in list(window.ranges.items())[:1]]
    return ", ".join([f"{source}: {said}", *shown])
