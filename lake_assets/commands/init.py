"""`lake-assets init`: a new project, or the settings of Dagster's instance."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from lake_assets.commands.printing import console, local
from lake_assets.errors import ConfigError
from lake_assets.examples.new_project import write_project, write_settings


def init(
    name: Annotated[
        Path | None, typer.Argument(help="new folder of the project; its last part names it", show_default=False)
    ] = None,
    dagster_home: Annotated[
        Path | None,
        typer.Option("--dagster-home", help="only write the tuned dagster.yaml into this folder, as for DAGSTER_HOME"),
    ] = None,
) -> None:
    """Write a project of Dagster with a pipeline over a sample, its test, and Dagster's settings; overwrite nothing."""
    if (name is None) == (dagster_home is None):
        raise ConfigError("name the new project (`lake-assets init my-project`), or a folder with --dagster-home")
    if dagster_home is not None:
        _settings(local(dagster_home, "--dagster-home"))
        return
    assert name is not None
    folder = local(name, "NAME").resolve()
    write_project(folder)
    where = os.path.relpath(folder)
    console.print(
        f"project {folder.name} is in {folder}\n\nNext:\n"
        f"  cd {where}\n"
        "  lake-assets run                     absorb the first file of the sample\n"
        "  cp sample/2_changes.jsonl .lake/landing/shop/ && lake-assets run\n"
        "                                      absorb what changed\n"
        "  dg dev                              the same tables as Dagster assets, on http://127.0.0.1:3000\n"
        "README.md has more.",
        markup=False,
        soft_wrap=True,
    )


def _settings(home: Path) -> None:
    file = write_settings(home)
    console.print(f"Dagster's settings are in {file}", markup=False, soft_wrap=True)
    if os.environ.get("DAGSTER_HOME", "") != str(file.parent):
        console.print(f"  export DAGSTER_HOME={file.parent}", markup=False, soft_wrap=True)
