"""HTML of reports: one page that needs nothing else, no script, no font and no other server."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from lake_assets.lake import thresholds
from lake_assets.lake.counts import plural
from lake_assets.lake.visible_text import visible
from lake_assets.report import charts, graph_layout
from lake_assets.report.amounts import core_time, counted, duration, money, short_time, size
from lake_assets.report.backfill_contents import BackfillReport
from lake_assets.report.contents import Report
from lake_assets.report.verification_contents import VerificationReport

_PARTS_OF_NAMES = re.compile(r"([._])(?=\w)")
_CODE = re.compile(r"`([^`\n]+)`")
_TEMPLATES = Path(__file__).parent / "templates"
AnyReport = Report | BackfillReport | VerificationReport
_PAGES = {Report: "report.html", BackfillReport: "backfill.html", VerificationReport: "verification.html"}


def _shown(value: Any) -> Any:
    """Return a value as it is shown: texts from outside may hold characters that turn the direction of a line."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@functools.cache
def _environment() -> Environment:
    # Its mappings of filters and names are typed by Jinja's own.
    environment: Any = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "core_time": core_time,
        "duration": duration,
        "short_time": short_time,
        "plural": plural,
        "bytes": size,
        "money": money,
        "shortened": shortened,
        "bounded": bounded,
        "counted": counted,
        "with_class": with_class,
        "marked": marked,
        "breakable": breakable,
    }
    environment.globals |= {
        "node": (graph_layout.WIDTH, graph_layout.HEIGHT),
        "lag_size": (charts.LAG_WIDTH, charts.LAG_HEIGHT),
        "days_size": (charts.DAYS_WIDTH, charts.DAYS_HEIGHT),
        "page_partitions": thresholds.PAGE_PARTITIONS,
    }
    return environment


def html_page(report: AnyReport) -> str:
    """Return the page; names, errors and values in it are text, whatever they contain."""
    return _environment().get_template(_PAGES[type(report)]).render(report=report)


def write_page(file: Path, report: AnyReport) -> None:
    """Write the page; whoever reads the file meanwhile has the former one."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    partial.write_text(html_page(report), encoding="utf-8")
    partial.replace(file)


def marked(text: str) -> Markup:
    """Return a text in which what stands in backticks, such as a command, is code."""
    parts = enumerate(_CODE.split(visible(text)))
    return Markup("").join(Markup("<code>{}</code>").format(part) if n % 2 else escape(part) for n, part in parts)


def breakable(name: str) -> Markup:
    """Return a name that a narrow screen may break after its dots and underscores, and nowhere else if it fits then."""
    return Markup(_PARTS_OF_NAMES.sub(r"\1<wbr>", str(escape(visible(str(name))))))


def bounded(text: str) -> str:
    """Return as much of a value as a page shows of it."""
    most = thresholds.PAGE_CHARACTERS
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def with_class(text: str, css_class: str) -> tuple[str, str]:
    """Return the header of a column, with the class of its cells."""
    return text, css_class


def shortened(text: str, length: int) -> str:
    """Return at most so many characters of a name, on one line."""
    line = " ".join(visible(text).split())
    return line if len(line) <= length else line[: length - 1] + "…"
