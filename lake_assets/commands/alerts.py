"""`lake-assets alerts`: what is wrong now, and whether the webhook knows."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.markup import escape

from lake_assets.commands.printing import console, listing, print_json, stderr
from lake_assets.commands.table_lookup import AsJson, known_pipelines
from lake_assets.facade import Lake
from lake_assets.lake.durations import in_words
from lake_assets.signals.alerts.alert_evaluation import evaluate, standing_now


def alerts(
    send: Annotated[bool, typer.Option("--send", help="also post alerts that began or ended to the webhook")] = False,
    as_json: AsJson = False,
) -> None:
    """Print what is wrong now: failed or late tables, audits, rejects, tables that are not exact, unread or silent
    sources, consumers that have stopped.

    Runs and Dagster's sensors post alerts by themselves; `--send` is for cron.
    """
    lake = Lake.load_existing()
    pipelines, unread = known_pipelines(lake)
    sent = evaluate(lake, pipelines, of_all=True, wait=10.0) if send else 0
    found = standing_now(lake, pipelines)
    if as_json:
        print_json([{**vars(c), "since": since} for c, since in found])
    elif not found:
        console.print("nothing is wrong")
    else:
        table = listing("table", "what", "for", "detail", fold=True)
        for condition, since in found:
            lasts = in_words(max(0.0, time.time() - since)) if since else ""
            table.add_row(escape(condition.table), condition.kind, lasts, escape(condition.text))
        console.print(table)
    if send:
        stderr.print(f"{sent} message{'' if sent == 1 else 's'} sent")
    for text in unread:
        stderr.print(f"without declarations: {text}", markup=False, soft_wrap=True)
