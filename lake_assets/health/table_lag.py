"""How old the changes are that a table has not absorbed yet, and how old they may be."""

from __future__ import annotations

import time
from collections.abc import Mapping

from lake_assets.health.table_status import TableStatus
from lake_assets.pipeline.table_graph import Spec


def lag_of(table: TableStatus, others: Mapping[str, TableStatus]) -> float:
    """Return the age, in seconds, of the oldest change that a table, or a table upstream of it, has not absorbed: of a
    commit, or of a file in a landing folder.

    Args:
        others: the status of all tables by name.
    """
    now = time.time()
    waiting = [table, *(others[t] for t in table.upstream if t in others)]
    return max(0.0, *(t.behind_seconds for t in waiting), *(now - (t.waiting.since or now) for t in waiting))


def target_of(spec: Spec) -> float | None:
    """Return the lag that a table is declared to have at most, in seconds; None: it has no target.

    `freshness` is none: it is about the last materialization, which is old as well if nothing has changed.
    """
    return spec.shown.target_lag
