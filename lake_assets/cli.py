"""`lake-assets`: the commands, and the display of their errors."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from importlib import metadata
from typing import Annotated, Any

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
        except typer.BadParameter as e:
            if not e.message and e.param is not None and e.param.metavar == "ID":  # it is missing
                e.message = "`lake-assets backfills` lists the ids"
            raise
        except KeyboardInterrupt:
            # Handled here: Click would turn it into its own exit code before `main` sees it.
            _report_interrupt()
            raise typer.Exit(INTERRUPTED) from None


def _report_interrupt() -> None:
    print("interrupted: what was committed stays, and the next run continues from there", file=sys.stderr)


def _load_project_environment() -> None:
    """Set the variables of the project's `.env`, as Dagster does, except those that are set already."""
    from lake_assets.lake.project_root import find_project

    project = find_project()
    for name, value in project.environment().items() if project else ():
        os.environ.setdefault(name, value)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"lake-assets {metadata.version('lake-assets')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version, and exit")
    ] = False,
) -> None:
    """Keep Iceberg tables up to date, at the cost of the change."""


def _dagster_settings() -> str:
    """Return what `lake-assets doctor` says of Dagster's settings; importing Dagster takes seconds."""
    from lake_assets.orchestration.runs.instance_settings import settings_finding

    return settings_finding()


@functools.cache
def application() -> typer.Typer:
    """The command line with all commands."""
    from lake_assets.commands import (
        alerts,
        backfill,
        capture,
        check,
        costs,
        demo,
        doctor,
        erase,
        examples,
        explain,
        generate,
        history,
        init,
        machine,
        metrics,
        plan,
        rebuild,
        rejected,
        repair,
        report,
        run,
        serve,
        status,
        step,
        upkeep,
        verify,
    )

    app = typer.Typer(
        name="lake-assets",
        cls=_Commands,
        context_settings={"help_option_names": ["--help", "-h"]},
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    doctor.FURTHER["Dagster's settings"] = _dagster_settings
    for command in (
        init.init, demo.demo, examples.playback, examples.flights, run.run, serve.serve, serve.snapshot, status.status,
        rebuild.rebuild, backfill.backfill, backfill.backfills, backfill.compare, backfill.publish, backfill.discard,
        backfill.resume, backfill.undo, repair.repair, step.step, check.check, plan.plan, verify.verify,
        explain.explain, history.history, costs.costs, report.report, upkeep.upkeep, erase.erase, doctor.doctor,
        alerts.alerts, metrics.metrics,
    ):  # fmt: skip
        app.command()(command)
    app.add_typer(rejected.app, name="rejected")
    for command in (capture.capture, capture.changes, generate.generate_events, machine.setup, machine.spark_server):
        app.command()(command)
    return app


def main() -> None:
    """Run the command line: errors are one message and exit code 1; LAKE_DEBUG=1 shows the traceback."""
    try:
        _run()
    except SystemExit as e:
        _leave(e.code if isinstance(e.code, int) else int(e.code is not None))
        raise
    _leave(0)


def _leave(code: int) -> None:
    """End the process now if it has sessions of Spark Connect, whose clients may wait for ever at the end of Python."""
    # Whoever has opened one has imported this.
    sessions = sys.modules.get("lake_assets.lake.connect_sessions")
    if sessions is None or not sessions.are_open():
        return
    sessions.end_all()
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run() -> None:
    try:
        _load_project_environment()
        application()(prog_name="lake-assets")
    except KeyboardInterrupt:  # while commands are imported, which takes seconds
        _report_interrupt()
        sys.exit(INTERRUPTED)
    except Exception as e:
        if os.environ.get("LAKE_DEBUG"):
            raise
        # Imported late: they import PySpark, which takes seconds in which Ctrl-C may be pressed.
        from lake_assets.commands.printing import stderr
        from lake_assets.lake.foreign_errors import as_named

        e = as_named(e, "lake-assets") or e
        stderr.print(f"[bold red]{type(e).__name__}[/]: ", end="")
        stderr.print(str(e), markup=False, soft_wrap=True)
        if not isinstance(e, LakeError):
            stderr.print("This error is unexpected: LAKE_DEBUG=1 shows its traceback.")
        sys.exit(1)


if __name__ == "__main__":
    main()
