"""`lake-assets repair`: point the catalog at the newest metadata of tables, and put right what others left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.markup import escape

from lake_assets.backfill.backfill_record import Records
from lake_assets.backfill.publishing import settle_all
from lake_assets.backfill.remains import Remains, remains
from lake_assets.commands.printing import console, listing, print_json
from lake_assets.commands.table_lookup import AsJson, all_pipelines
from lake_assets.errors import LakeError, RepairError, TableNotFoundError
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.lake.metadata.catalog_repair import Examined, examine
from lake_assets.lake.metadata.catalog_repair import forget as take_out
from lake_assets.lake.metadata.catalog_repair import repair as point_at_newest
from lake_assets.lake.metadata.metadata_commits import can_rewrite

_STYLES = {"current": "dim", "behind": "yellow", "unreadable": "red", "diverged": "bold red", "lost": "bold red"}


def repair(
    tables: Annotated[
        list[str] | None, typer.Argument(help="tables such as final.users; default: all", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be done, and change nothing")] = False,
    to: Annotated[
        str | None, typer.Option("--to", help="metadata file to use for the named table", metavar="FILE")
    ] = None,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="remove the named tables from the catalog, if no version of them can be read"),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find and fix what killed runs, restored catalogs, rollbacks and lost sources left behind.

    Points the catalog at the newest metadata file of each table, after the catalog was restored from a backup or
    metadata files were deleted or truncated. This writes and deletes nothing in the tables. Stop all runs first: a
    table that changes meanwhile is an error and stays unchanged.

    Without names of tables, also handles interrupted backfills, leftovers of killed runs, and sources whose history is
    lost.

    Exit code: 1 if a table still cannot be read, or something is left for you to decide.
    """
    lake = Lake.load_existing()
    chosen = [lake.named(t) for t in tables or ()]
    if to is not None and len(chosen) != 1:
        raise RepairError("--to names the metadata file of one table: name that table as well")
    if forget and (not chosen or to is not None):
        raise RepairError("--forget needs the names of the tables, and no --to")
    interrupted: set[str] = set()
    if dry_run:
        interrupted = {t.table for r in Records(lake).all() if r.state == "publishing" for t in r.tables}
    else:
        settle_all(lake)
    # Metadata files of an interrupted publication are no newer versions.
    results = [e for e in _examine(lake, chosen) if str(e.table) not in interrupted]
    if unknown := set(chosen) - {e.table for e in results} - set(map(TableId.parse, interrupted)):
        raise TableNotFoundError(f"the catalog has no table {', '.join(map(str, sorted(unknown)))}")
    todo = results if to is not None or forget else [e for e in results if e.can_be_repaired]
    for examined in [] if dry_run else todo:
        if forget:
            take_out(lake, examined)
        else:
            point_at_newest(lake, examined, to)
    items = [] if chosen else remains(lake, all_pipelines(lake))
    if not dry_run:
        items = [_mended(item) for item in items]
    if as_json:
        entries = [vars(e) | {"table": str(e.table), "repaired": e in todo and not dry_run} for e in results]
        print_json([*entries, *(_entry(r, is_done=not dry_run) for r in items)])
    else:
        _show(results, todo, "" if forget else to, is_done=not dry_run)
        _show_remains(items, is_done=not dry_run)
    if any(e not in todo for e in results if e.state != "current") or any(r.needs_user for r in items):
        raise typer.Exit(1)


def _examine(lake: Lake, chosen: Sequence[TableId]) -> list[Examined]:
    if not chosen and not can_rewrite(lake.catalog):
        return []  # the server of the catalog has its own backups
    return examine(lake, chosen or None)


def _mended(item: Remains) -> Remains:
    """Put something right; if that fails, return it with the error, for the user."""
    try:
        if item.mend is not None:
            item.mend()
    except LakeError as error:
        return replace(item, why=f"{item.why}; {error}", remedy="was not possible", needs_user=True, mend=None)
    return item


def _entry(item: Remains, *, is_done: bool) -> dict[str, Any]:
    """Return an entry of the JSON, with the keys of a table's entry."""
    why = f"{item.why}; {item.remedy}"
    repaired = item.mend is not None and is_done
    return {"table": item.what, "state": item.kind, "named": "", "newest": None, "why": why, "repaired": repaired}


def _show_remains(items: Sequence[Remains], *, is_done: bool) -> None:
    if not items:
        return
    printed = listing("left behind", "by", "what", fixed=["left behind", "by"], fold=True)
    for item in items:
        done = "" if item.mend is None else "done: " if is_done else "repair "
        style = "yellow" if item.needs_user else "dim"
        printed.add_row(escape(item.what), item.kind, f"{escape(item.why)}\n[{style}]{done}{escape(item.remedy)}[/]")
    console.print(printed)


def _show(results: Sequence[Examined], todo: Sequence[Examined], to: str | None, *, is_done: bool) -> None:
    wrong = [e for e in results if e.state != "current" or e in todo]
    printed = listing("table", "state", "what", fixed=["table", "state"], fold=True)
    for e in wrong:
        goes = f"\n{_goes(to, e, is_done)}" if e in todo else ""
        printed.add_row(f"[{_STYLES[e.state]}]{escape(str(e.table))}[/]", e.state, escape(e.why + goes))
    if wrong:
        console.print(printed)
    ok = sum(1 for e in results if e.state == "current")
    done = f"{len(todo)} repaired" if is_done else f"{len(todo)} would be repaired"
    console.print(f"{ok} of {len(results)} tables are at their newest version; {done}")
    if open_ := [e for e in results if e.state != "current" and e not in todo]:
        console.print(
            f"{len(open_)} cannot be repaired without a choice: `lake-assets repair TABLE --to FILE` uses another "
            "metadata file (of diverged tables, choose all from before or all from after the restore; without `--to`, "
            "a table stays as it is); where no version can be read, `lake-assets repair TABLE --forget` removes the "
            "table from the catalog, and the next run rebuilds it from its sources",
            style="yellow",
        )


def _goes(to: str | None, examined: Examined, is_done: bool) -> str:
    if to == "":
        return "is removed from the catalog" if is_done else "would be removed from the catalog"
    return f"the catalog {'names' if is_done else 'would name'} {to or examined.newest}{' now' if is_done else ''}"
