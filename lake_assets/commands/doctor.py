"""`lake-assets doctor`: what a machine, a lake and a pipeline's sources need, and how to get it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from lake_assets.commands.printing import console, listing, print_json
from lake_assets.commands.table_lookup import AsJson, find_pipeline
from lake_assets.errors import LakeError
from lake_assets.facade import Lake
from lake_assets.ingest.raw_tables import offsets
from lake_assets.lake import LakeConfig
from lake_assets.lake.disk_space import disks
from lake_assets.lake.spark_session import packages
from lake_assets.runtime.jars import resolve
from lake_assets.runtime.java import find_java
from lake_assets.service.live_service import NAME, live_specs, source_of
from lake_assets.signals.signal_checks import signal_checks


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: its name.
        is_well: whether it is as it has to be.
        text: what was found; if something is wrong, what to do.
    """

    what: str
    is_well: bool
    text: str


def doctor(
    pipeline: Annotated[
        str | None,
        typer.Argument(
            help="also look at its sources: YAML file, folder with a defs.yaml, or a shipped pipeline's name"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look at Java, jars, disks, the catalog, declared signals and the live sources of a pipeline; change nothing.

    Exit code 1 if something is wrong.
    """
    found: list[Finding] = []
    with console.status("looking"):
        found.extend(_findings(pipeline))
    if as_json:
        print_json(found)
    else:
        table = listing("", "what", "found", fold=True)
        for finding in found:
            table.add_row("[green]ok[/]" if finding.is_well else "[bold red]no[/]", finding.what, escape(finding.text))
        console.print(table)
    if not all(f.is_well for f in found):
        raise typer.Exit(1)


def _findings(pipeline: str | None) -> Iterator[Finding]:
    config = LakeConfig.load()
    yield _tried("Java", lambda: str(find_java()))
    if not config.spark.remote:
        yield _tried("Spark's jars", lambda: f"{len(resolve(packages(config)))} jars")
    yield _tried("home of the lake", lambda: _writable(config.home))
    yield from (Finding("disk", not d.is_little, d.advice if d.is_little else d.text) for d in disks(config))
    yield _tried("catalog", lambda: _catalog(config))
    for what, look in signal_checks(config):
        yield _tried(what, look)
    if pipeline is None:
        return
    loaded, lake = find_pipeline(pipeline), Lake(config)
    for spec in live_specs(lake, loaded):
        entry = offsets(lake, spec.table).get(NAME)
        where = spec.live.where if spec.live else ""
        source = source_of(spec, prepares=False)
        yield _tried(
            f"source of {spec.table}",
            lambda source=source, entry=entry, where=where: source.check(entry["at"] if entry else None) or where,
        )


def _tried(what: str, look: Callable[[], object]) -> Finding:
    try:
        return Finding(what, True, str(look()))
    except LakeError as e:
        return Finding(what, False, str(e))


def _writable(home: Path) -> str:
    folder = next(f for f in (home, *home.parents) if f.exists())
    if not os.access(folder, os.W_OK | os.X_OK):
        raise LakeError(f"{folder} cannot be written to: choose another folder with LAKE_HOME, or change its mode")
    return str(home) if home.exists() else f"{home} does not exist yet; the first run creates it"


def _catalog(config: LakeConfig) -> str:
    namespaces = Lake(config).namespaces()
    return f"{len(namespaces)} namespaces"
