"""`lake-assets setup` and `lake-assets spark-server`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from lake_assets.commands.printing import console
from lake_assets.lake import LakeConfig
from lake_assets.lake.connect_server import PORT, command
from lake_assets.lake.spark_session import packages
from lake_assets.runtime.class_archive import class_archive, write_class_archive
from lake_assets.runtime.jars import resolve
from lake_assets.runtime.java import find_java
from lake_assets.runtime.loopback_ports import check_free


def setup(
    archive: Annotated[
        bool,
        typer.Option("--archive", help="also keep Spark's classes in a file: it starts faster from then on"),
    ] = False,
) -> None:
    """Find Java and download Spark's jars; later calls only check them."""
    config = LakeConfig.load()
    java = find_java()
    with console.status("resolving Spark's jars"):
        jars = resolve(packages(config))
    console.print(f"Java at {java}, {len(jars)} jars in {jars[0].parent}")
    if archive and class_archive(jars) is None:
        with console.status("writing Spark's classes (a minute)"):
            write_class_archive(jars)
    if file := class_archive(jars):
        console.print(f"class archive of {file.stat().st_size / 1e6:.0f} MB: Spark starts with it")


def spark_server(port: Annotated[int, typer.Option(help="port on 127.0.0.1")] = PORT) -> None:
    """Run a Spark Connect server on loopback until interrupted: one warm Spark for all runs."""
    config = LakeConfig.load()
    check_free(port, "choose another one with --port")
    arguments, env = command(config, port)
    console.print(
        f"Spark Connect server at sc://127.0.0.1:{port}; use it with LAKE_SPARK__REMOTE=sc://127.0.0.1:{port}"
    )
    os.execve(arguments[0], arguments, env)
