"""Remove keys from what the journal says of steps: errors may quote values of rows, of whatever column.

The records of the steps stay, without the texts that mention a key: figures of costs and lags are made of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import In
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from lake_assets.erase.clean_heads import ERASE, clean_head, removed_files
from lake_assets.erase.key_values import Key, is_distinctive
from lake_assets.erase.value_scan import Finding, TableScan, Wanted, has_word
from lake_assets.errors import ConcurrentWriteError
from lake_assets.journal import step_journal
from lake_assets.lake import LakeBase
from lake_assets.lake.metadata.metadata_commits import MovedError
from lake_assets.lake.metadata.row_counts import UPKEEP_PROPERTY
from lake_assets.tables import table_lock
from lake_assets.upkeep.services import expire_snapshots

# What stands in place of a text that mentions a key.
REMOVED = "(removed by an erasure)"
_TEXTS = ("error", "reason", "strategy")
_LISTS = ("not_exact", "failed_audits")
_ATTEMPTS = 4


def remove_keys(lake: LakeBase, keys: Collection[Key], tables: Collection[str]) -> int:
    """Remove the texts that mention a key from the journal's records; return of how many.

    Args:
        tables: of their steps, short values are looked for too: in an error of another table, `17` is any number.

    Raises:
        ConcurrentWriteError: other writers were faster each time.
    """
    every = sorted({v for key in keys for v in key})
    distinctive = [v for v in every if is_distinctive(v)]

    def mentions(record: Mapping[str, Any]) -> bool:
        words = every if record["table"] in tables else distinctive
        texts = [*(record[c] for c in _TEXTS), *(t for c in _LISTS for t in record[c] or ())]
        return any(has_word(text, words) for text in texts if text)

    last: Exception | None = None
    for _ in range(_ATTEMPTS):
        try:
            step_journal.flush(lake)
            with table_lock.of_record(lake, step_journal.TABLE):
                table = lake.find(step_journal.TABLE)
                if table is None or table.current_snapshot() is None:
                    return 0
                named = table.scan(selected_fields=("id", "table", *_TEXTS, *_LISTS)).to_arrow().to_pylist()
                found = [r["id"] for r in named if mentions(r)]
                _rewrite(table, found)
                if found or findings(lake, keys)[0]:
                    _forget_history(lake)
                return len(found)
        except (MovedError, CommitFailedException, ConcurrentWriteError) as e:
            last = e
    raise ConcurrentWriteError(f"{step_journal.TABLE}: other writers were faster {_ATTEMPTS} times: {last}") from last


def _rewrite(table: Table, ids: list[str]) -> None:
    """Write some records again, without their texts."""
    if not ids:
        return
    chosen = In("id", ids)  # pyright: ignore[reportCallIssue, reportArgumentType]
    rows: list[dict[str, Any]] = table.scan(row_filter=chosen).to_arrow().to_pylist()
    for row in rows:
        row |= {c: REMOVED for c in _TEXTS if row[c]} | {c: [REMOVED] for c in _LISTS if row[c]}
    written = pa.Table.from_pylist(rows, schema=schema_to_pyarrow(table.schema()))
    table.overwrite(written, overwrite_filter=chosen, snapshot_properties={UPKEEP_PROPERTY: ERASE})


def _forget_history(lake: LakeBase) -> None:
    """Leave the journal with one snapshot, and its files alone."""
    if removed_files(lake.table(step_journal.TABLE)):
        clean_head(lake, step_journal.TABLE, {})
    table = lake.table(step_journal.TABLE)
    head = table.metadata.current_snapshot_id
    if old := [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != head]:
        expire_snapshots(lake, step_journal.TABLE, old)


def findings(lake: LakeBase, keys: Collection[Key]) -> tuple[list[Finding], int]:
    """Return the files of the journal that hold a key, and how many files were looked through."""
    table, wanted = lake.find(step_journal.TABLE), Wanted((), keys, is_within=True)
    if table is None or not wanted.texts:
        return [], 0
    scan = TableScan(table, wanted)
    return scan.findings(), scan.files
