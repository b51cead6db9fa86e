"""The last failure of each table, kept as a note in the lake's home until a step of the table succeeds.

A step may fail before its table exists, and while the catalog is unavailable: so the notes are files beside the lake,
not properties of its tables. They hold what status commands say of a table between runs, of any process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.foreign_errors import error_text
from lake_assets.lake.metadata.watermark import PROPERTY, find_property
from lake_assets.runtime.private_files import make_private, write_private

log = logging.getLogger(__name__)
_FOLDER = "failures"


@dataclass(frozen=True)
class Failure:
    """The failure of a table's last step.

    Attributes:
        table: the table, which may not exist.
        pipeline: the pipeline's name.
        file: the pipeline's file; empty: unknown.
        error: class and message of the error.
        at: when, in seconds since 1970.
        state: what the table had absorbed; see `_state_of`.
    """

    table: str
    pipeline: str
    file: str
    error: str
    at: float
    state: str


# What could not be written, as on a full disk, by file: the alerts of this process tell of it.
_unwritten: dict[Path, Failure] = {}


def note(lake: LakeBase, table: TableId, pipeline: str, file: Path | None, error: Exception) -> None:
    """Note that a step of a table failed. What prevents the note itself is logged: the error is raised in any case."""
    text = lake.config.hidden(error_text(error))
    path = str(file.absolute()) if file else ""
    failure = Failure(str(table), pipeline, path, text, time.time(), _state_of(lake, str(table)))
    target = _file_of(lake, str(table))
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        make_private(target.parent)
        write_private(partial, json.dumps(asdict(failure)))
        partial.replace(target)
    except OSError as e:
        log.warning("%s: only this process knows of its failure, and `status` does not show it: %s", table, e)
        _unwritten[target] = failure
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    else:
        _unwritten.pop(target, None)


def forget(lake: LakeBase, table: TableId | str) -> None:
    """Remove the note of a table: a step of it succeeded."""
    file = _file_of(lake, str(table))
    _unwritten.pop(file, None)
    try:
        file.unlink(missing_ok=True)
    except OSError as e:
        log.warning("%s: its former failure is still shown by `status`: %s", table, e)


def forget_others(lake: LakeBase, pipeline: str, tables: Collection[TableId]) -> None:
    """Remove the notes of tables that a pipeline no longer has."""
    names = {str(t) for t in tables}
    for failure in _all(lake):
        if failure.pipeline == pipeline and failure.table not in names:
            forget(lake, failure.table)


def standing(lake: LakeBase) -> dict[str, Failure]:
    """Return the failures that still stand, by table: since then, the table has absorbed nothing."""
    return {f.table: f for f in _all(lake) if _stands(lake, f)}


def has_failed(lake: LakeBase, table: TableId) -> bool:
    """Whether the last failure of a table still stands."""
    failure = _read(_file_of(lake, str(table)))
    return failure is not None and _stands(lake, failure)


def _stands(lake: LakeBase, failure: Failure) -> bool:
    now = _state_of(lake, failure.table)
    # Where a catalog on a full disk cannot be read, nothing says that the table has gone on.
    return "" in (failure.state, now) or failure.state == now


def _all(lake: LakeBase) -> Iterator[Failure]:
    folder = lake.config.home / _FOLDER
    for file in sorted({*folder.glob("*.json"), *(f for f in [*_unwritten] if f.parent == folder)}):
        if (failure := _read(file)) is not None:
            yield failure


def _read(file: Path) -> Failure | None:
    if (unwritten := _unwritten.get(file)) is not None:
        return unwritten
    try:
        return Failure(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as e:  # of another version
        log.info("%s is not read: %s", file, e)
        return None


def _file_of(lake: LakeBase, table: str) -> Path:
    # Names may contain anything, and differ in case only.
    return lake.config.home / _FOLDER / f"{hashlib.sha256(table.encode()).hexdigest()[:32]}.json"


def _state_of(lake: LakeBase, table: str) -> str:
    """Return what a table has absorbed: another process with another home may absorb more. Empty: unknown."""
    try:
        loaded = lake.find(table)
        if loaded is None:
            return "missing"
        marks = find_property(loaded, PROPERTY)
        absorbed = marks[0] if marks else loaded.metadata.current_snapshot_id
        return f"{loaded.metadata.table_uuid} {absorbed}"
    except Exception as e:  # of any kind: the catalog may be what failed
        log.info("%s: what it has absorbed is unknown: %s", table, e)
        return ""
