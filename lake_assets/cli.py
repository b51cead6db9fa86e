"""`lake-assets`: the commands, and how their errors are shown."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from lake_assets.errors import LakeError

INTERRUPTED = 130


class _Commands(TyperGroup):
    """The commands; Ctrl-C ends any of them with exit code 130, as a shell expects."""

    def invoke(self, ctx: Any) -> Any:
        """See `click.Group`."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Not left to `main`: Click would make an exit code of its own of it.
            _say_interrupted()
            raise typer.Exit(INTERRUPTED) from None


def _say_interrupted() -> None:
    print("interrupted: what was committed stays, and the next run goes on from there", file=sys.stderr)


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
        rebuild,
        rejected,
        repair,
        run_and_status,
        verify,
    )

    app = typer.Typer(
        name="lake-assets",
        cls=_Commands,
        help="Keeps Iceberg tables up to date from what changed.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.command()(demo.demo)
    app.command()(run_and_status.run)
    app.command()(run_and_status.status)
    app.command()(rebuild.rebuild)
    app.command()(repair.repair)
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
    """Run the command line: errors are one message and exit code 1; LAKE_DEBUG=1 shows the traceback."""
    try:
        application()()
    except KeyboardInterrupt:  # while commands are imported, which takes seconds
        _say_interrupted()
        sys.exit(INTERRUPTED)
    except Exception as e:
        if os.environ.get("LAKE_DEBUG"):
            raise
        # Imported when it is needed: PySpark comes with it, and takes seconds in which somebody may press Ctrl-C.
        from lake_assets.commands.printing import stderr

        stderr.print(f"[bold red]{type(e).__name__}[/]: ", end="")
        stderr.print(str(e), markup=False, soft_wrap=True)
        if not isinstance(e, LakeError):
            stderr.print("This is no error that lake-assets expects: LAKE_DEBUG=1 shows where it comes from.")
        sys.exit(1)


if __name__ == "__main__":
    main()
