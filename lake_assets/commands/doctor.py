"""`lake-assets doctor`: what a machine, a lake and a pipeline's sources need, and how to get it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer
from rich.markup import escape

from lake_assets.commands.printing import console, listing, print_json
from lake_assets.commands.table_lookup import AsJson, PipelineArgument, default_files, find_file
from lake_assets.errors import LakeError
from lake_assets.facade import Lake
from lake_assets.health.machine_checks import lake_checks, machine_checks
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw_tables import offsets
from lake_assets.lake import LakeConfig
from lake_assets.lake.redaction import hide_in
from lake_assets.lake.spark_session import packages
from lake_assets.pipeline import Pipeline
from lake_assets.runtime.jars import resolve
from lake_assets.runtime.java import find_java
from lake_assets.service.live_service import NAME, live_specs, source_of
from lake_assets.signals.signal_checks import signal_checks

# Checks of modules that this one does not import; `lake_assets.cli` adds Dagster's.
FURTHER: dict[str, Callable[[], str]] = {}


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


def doctor(pipeline: PipelineArgument = None, as_json: AsJson = False) -> None:
    """Look at versions, Java, Spark's jars, the machine, the lake, declared signals, Dagster's settings and the sources
    of pipelines; change nothing.

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
    lake = Lake(config)
    versions, *machine = machine_checks(config)
    yield _tried(*versions)
    yield _tried("Java", lambda: str(find_java()))
    if not config.spark.remote:
        yield _tried("Spark's jars", lambda: f"{len(resolve(packages(config)))} jars")
    for what, look in (*machine, *lake_checks(config, lake), *FURTHER.items(), *signal_checks(config)):
        yield _tried(what, look)
    for file in [find_file(pipeline)] if pipeline else default_files():
        yield from _sources(lake, file, is_named=pipeline is not None)


def _sources(lake: Lake, file: Path, *, is_named: bool) -> Iterator[Finding]:
    """Look at the sources of a pipeline: live ones, and landing folders of this machine."""
    try:
        loaded = Pipeline.load(file)
    except LakeError as e:
        if is_named:
            raise
        yield Finding(f"pipeline {file.parent.name}", False, str(e))
        return
    try:
        looks = list(_looks(lake, loaded))
    except LakeError as e:  # of the catalog, of the declaration: what else was found is printed all the same
        yield Finding(f"sources of {loaded.name}", False, str(e))
        return
    for what, look in looks:
        yield _tried(what, look)


def _looks(lake: Lake, loaded: Pipeline) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the sources of a pipeline, each with a function that looks at it."""
    if not lake.is_there:
        # Looking the tables of patterns up would create it.
        lake = Lake(lake.config.model_copy(update={"catalog": {"type": "sql", "uri": "sqlite:///:memory:"}}))
    for spec in live_specs(lake, loaded):
        entry = offsets(lake, spec.table).get(NAME)
        where = spec.live.where if spec.live else ""
        source = source_of(spec, prepares=False)
        yield (
            f"source of {spec.table}",
            lambda source=source, entry=entry, where=where: source.check(entry["at"] if entry else None) or where,
        )
    for spec in loaded.specs(lake, alone=False):
        if isinstance(spec, RawSpec) and spec.landing and not spec.live:
            yield f"source of {spec.table}", partial(_landing, str(spec.landing))


def _landing(place: str) -> str:
    folder = Path(place)
    if not folder.is_dir():
        return f"{place} does not exist yet: no file has arrived"
    if not os.access(folder, os.R_OK | os.X_OK):
        raise LakeError(f"{place} cannot be read: change its mode")
    return place


def _tried(what: str, look: Callable[[], object]) -> Finding:
    try:
        return Finding(what, True, str(look()))
    except LakeError as e:
        return Finding(what, False, str(e))
    except Exception as e:  # what nobody has expected must not hide what else is wrong
        return Finding(what, False, hide_in(f"{type(e).__name__}: {e}"))
