"""Carry out upkeep's actions by Iceberg's procedures, each in one commit that takes seconds.

A commit that loses a race to a writer is given up: the writer's work counts, and the action is still due.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping

from pyiceberg.table import Table
from pyspark.sql import Row

from lake_assets.errors import ConcurrentWriteError, Refused
from lake_assets.lake import LakeBase, TableId, quote, thresholds
from lake_assets.lake.foreign_errors import named_errors
from lake_assets.lake.metadata import refresh_state
from lake_assets.lake.metadata.row_counts import UPKEEP_PROPERTY, summary_of
from lake_assets.lake.names import literal
from lake_assets.tables import leftovers
from lake_assets.tables.snapshot_retention import keep_sources
from lake_assets.tables.upkeep_policy import UpkeepPolicy
from lake_assets.tables.writing.publication import Commit
from lake_assets.tables.writing.races import as_race
from lake_assets.tables.writing.table_writer import TableWriter
from lake_assets.upkeep import claims, upkeep_records
from lake_assets.upkeep.retention import readers_in, remove_outdated
from lake_assets.upkeep.table_health import TableHealth
from lake_assets.upkeep.upkeep_actions import Action, Kind
from lake_assets.upkeep.upkeep_records import Done

log = logging.getLogger(__name__)
# So large that no file is rewritten for its size alone.
_NO_LIMIT = str(1 << 60)


def carry_out(
    lake: LakeBase, name: TableId, action: Action, health: TableHealth, policy: UpkeepPolicy
) -> Done | Refused:
    """Carry out an action on a table, or a piece of it that takes seconds; or say what it has to wait for.

    Raises:
        ConcurrentWriteError: another writer was faster; nothing has changed.
        LakeError: a file is missing, the catalog is unavailable, or the like.
    """
    began = time.monotonic()
    with named_errors(name), as_race(name):
        try:
            result = _SERVICES[action.kind](lake, name, action, health, policy)
        except Exception:
            with contextlib.suppress(Exception):  # a part of it may be done; why the rest is not is what counts
                _keep_refresh_state(lake, name)
            raise
        _keep_refresh_state(lake, name)
    if isinstance(result, Refused):
        return result
    files, size = result
    return Done(action.kind, action.reason, time.time(), time.monotonic() - began, files, size)


def _keep_refresh_state(lake: LakeBase, name: TableId) -> None:
    """Let the newest snapshot have the refresh state of the rows, which Iceberg's procedures do not hand on."""
    table = lake.table(name)
    state = refresh_state.carried(table)
    if state.items() <= summary_of(table.current_snapshot()).items():
        return
    # A writer that was faster has stored its own.
    with contextlib.suppress(ConcurrentWriteError):
        TableWriter(Commit(lake, name, table, properties={**state, UPKEEP_PROPERTY: "refresh-state"})).nothing()


def _combine(
    lake: LakeBase, name: TableId, action: Action, health: TableHealth, policy: UpkeepPolicy
) -> tuple[int, int]:
    options = {
        "min-file-size-bytes": str(min(action.limit, int(0.75 * policy.target_file_size))),
        "min-input-files": str(thresholds.UPKEEP_INPUT_FILES),
        "delete-ratio-threshold": "1.0",
    }
    return _rewrite(lake, name, policy, _piece(health.small_files, health.small_bytes), options)


def _deletes(
    lake: LakeBase, name: TableId, action: Action, health: TableHealth, policy: UpkeepPolicy
) -> tuple[int, int]:
    options = {"min-file-size-bytes": "0", "delete-ratio-threshold": str(policy.deleted_rows)}
    return _rewrite(lake, name, policy, _piece(health.worn, health.worn_bytes), options)


def _piece(files: int, size: int) -> int:
    """Return how many files of this number and size are rewritten at a time."""
    average = max(1, size // max(1, files))
    most = min(thresholds.UPKEEP_PIECE_BYTES // average, thresholds.UPKEEP_PIECE_FILES)
    return max(thresholds.UPKEEP_INPUT_FILES, most)


def _equality_deletes(
    lake: LakeBase, name: TableId, action: Action, health: TableHealth, policy: UpkeepPolicy
) -> tuple[int, int]:
    # A delete file of this kind applies to all older files: they are rewritten in one commit, after which no file
    # needs it.
    return _rewrite(lake, name, policy, None, {"min-file-size-bytes": "0", "delete-file-threshold": "1"})


def _rewrite(
    lake: LakeBase, name: TableId, policy: UpkeepPolicy, most: int | None, options: Mapping[str, str]
) -> tuple[int, int]:
    """Rewrite data files, `most` at most; return by how many fewer they are, with delete files, and their bytes."""
    table = lake.table(name)
    all_options = {
        "target-file-size-bytes": str(policy.target_file_size),
        "max-file-size-bytes": _NO_LIMIT,
        "max-file-group-size-bytes": str(thresholds.UPKEEP_PIECE_BYTES),
        "remove-dangling-deletes": "true",
        **options,
    }
    if most is not None:
        all_options["max-files-to-rewrite"] = str(most)
    before = table.metadata.current_snapshot_id
    # Sorted tables stay sorted.
    strategy = "'sort'" if _is_sorted(table) else "'binpack'"
    row = _call(lake, "rewrite_data_files", name, strategy=strategy, options=_map(all_options))
    if lake.table(name).metadata.current_snapshot_id == before:
        return 0, 0
    removed = row["rewritten_data_files_count"] - row["added_data_files_count"]
    return removed + (row.asDict().get("removed_delete_files_count") or 0), row["rewritten_bytes_count"]


def _is_sorted(table: Table) -> bool:
    return bool(table.sort_order().fields)


def _manifests(
    lake: LakeBase, name: TableId, action: Action, health: TableHealth, policy: UpkeepPolicy
) -> tuple[int, int]:
    row = _call(lake, "rewrite_manifests", name, use_caching="false")
    return row["rewritten_manifests_count"] - row["added_manifests_count"], health.manifest_bytes


def _expire(
    lake: LakeBase, name: TableId, action: Action, health: TableHealth, policy: UpkeepPolicy
) -> tuple[int, int]:
    _tag_absorbed(lake, name)
    before = len(lake.table(name).metadata.snapshots)
    _call(
        lake,
        "expire_snapshots",
        name,
        older_than=f"timestamp_millis({health.expire_before})",
        retain_last=str(thresholds.SNAPSHOTS_KEPT),
        stream_results="true",
    )
    return before - len(lake.table(name).metadata.snapshots), 0


def _tag_absorbed(lake: LakeBase, source: TableId) -> None:
    """Tag what the tables of the lake have absorbed of a table, as their steps do that are not killed after a commit.

    A table that cannot be read keeps the tag that it has, and one that has lost its claim gets none.
    """
    lost = upkeep_records.read(lake, source, time.time()).claims
    for target, mark in readers_in(lake, source):
        if not claims.has_lost(lost, target, mark.snapshot):
            keep_sources(lake, target, [source])


def _orphans(
    lake: LakeBase, name: TableId, action: Action, health: TableHealth, policy: UpkeepPolicy
) -> tuple[int, int]:
    return len(leftovers.remove_unnamed_files(lake, name, policy.orphans)), 0


def _outdated(
    lake: LakeBase, name: TableId, action: Action, health: TableHealth, policy: UpkeepPolicy
) -> tuple[int, int] | Refused:
    removed = remove_outdated(lake, name, policy, time.time())
    return removed if isinstance(removed, Refused) else (removed, 0)


def _claims(
    lake: LakeBase, name: TableId, action: Action, health: TableHealth, policy: UpkeepPolicy
) -> tuple[int, int]:
    return claims.carry_out(lake, name, action.claims, time.time()), 0


_Service = Callable[[LakeBase, TableId, Action, TableHealth, UpkeepPolicy], tuple[int, int] | Refused]
_SERVICES: Mapping[Kind, _Service] = {
    "combine": _combine,
    "deletes": _deletes,
    "equality-deletes": _equality_deletes,
    "manifests": _manifests,
    "expire": _expire,
    "orphans": _orphans,
    "records": _outdated,
    "events": _outdated,
    "claims": _claims,
}


def rewrite_deleted_rows(lake: LakeBase, name: TableId) -> None:
    """Rewrite every data file with deleted rows, so that no file of the current snapshot holds them.

    Raises:
        ConcurrentWriteError: another writer was faster; nothing has changed.
    """
    with named_errors(name), as_race(name):
        _rewrite(lake, name, UpkeepPolicy(), None, {"min-file-size-bytes": "0", "delete-file-threshold": "1"})


def expire_snapshots(lake: LakeBase, name: TableId, snapshots: Iterable[int]) -> None:
    """Expire some snapshots of a table, however many it is to keep, and delete the files that only they name.

    Raises:
        ConcurrentWriteError: another writer was faster; nothing has changed.
    """
    with named_errors(name), as_race(name):
        _call(lake, "expire_snapshots", name, snapshot_ids=f"array({', '.join(str(int(s)) for s in snapshots)})")


def _call(lake: LakeBase, procedure: str, name: TableId, **arguments: str) -> Row:
    """Call a procedure of Iceberg's, with arguments as SQL; return its row."""
    given = {"table": literal(".".join(quote(p) for p in name.parts)), **arguments}
    listed = ", ".join(f"{k} => {v}" for k, v in given.items())
    return lake.spark().sql(f"CALL {quote(lake.config.name)}.system.{procedure}({listed})").collect()[0]


def _map(options: Mapping[str, str]) -> str:
    return f"map({', '.join(f'{literal(k)}, {literal(v)}' for k, v in options.items())})"
