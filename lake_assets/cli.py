"""`lake-assets`: the commands, and how their errors are shown."""

from __future__ import annotations

import functools
import os
import sys

import typer

from lake_assets.commands.output import stderr
from lake_assets.errors import LakeError


@functools.cache
def application() -> typer.Typer:
    """The command line with all commands."""
    from lake_assets.commands import (
        capture,
        check,
        demo,
        explain,
        generate,
        machine,
        pipelines,
        rebuild,
        rejected,
        verify,
    )

    app = typer.Typer(
        name="lake-assets",
        help="Keeps Iceberg tables up to date from what changed.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.command()(demo.demo)
    app.command()(pipelines.run)
    app.command()(pipelines.status)
    app.command()(rebuild.rebuild)
    app.command()(check.check)
    app.command()(verify.verify)
    app.command()(explain.explain)
    app.add_typer(rejected.app, name="rejected")
    app.command()(capture.capture)
    app.command()(capture.changes)
    app.command("generate-events")(generate.generate_events)
    app.command()(machine.setup)
    app.command("spark-server")(machine.spark_server)
    return app


def main() -> None:
    """Run the command line: errors of this package are one message and exit code 1, without a traceback."""
    try:
        application()()
    except LakeError as e:
        if os.environ.get("LAKE_DEBUG"):
            raise
        stderr.print(f"[bold red]{type(e).__name__}[/]: ", end="")
        stderr.print(str(e), markup=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
