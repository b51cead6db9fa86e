"""The journal: a table of the lake with a record of each step, which any engine can read.

A step leaves its record as a file in the lake's home, which costs little beside a commit. Later, records are appended
to the table together. The commit names them, so a process that is killed before it deletes their files repeats nothing.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import logging
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from lake_assets.errors import ConcurrentWriteError
from lake_assets.journal.resource_use import ResourceUse, measured
from lake_assets.journal.step_costs import KnownSteps
from lake_assets.journal.step_records import BACKFILL, COMPLETE, SCHEMA, StepRecord, arrivals_of, of_error, of_outcome
from lake_assets.lake import LakeBase, TableId, thresholds
from lake_assets.lake.metadata.lost_files import lost_file
from lake_assets.lake.metadata.metadata_versions import PROPERTIES as VERSIONS
from lake_assets.lake.metadata.row_counts import UPKEEP_PROPERTY, summary_of
from lake_assets.lake.metadata.snapshot_log import ancestors
from lake_assets.lake.redaction import hide_in_error
from lake_assets.runtime.private_files import make_private, write_private
from lake_assets.tables import table_lock
from lake_assets.tables.outcome import Outcome
from lake_assets.tables.writing.arrow_writes import write_arrow

log = logging.getLogger(__name__)

TABLE = TableId(("lake_assets",), "steps")
_FOLDER = "journal"
# Summary property of a commit: the ids of its records.
_RECORDS = "lake-assets.records"
# The ids of records that were written before are looked for in so many commits.
_COMMITS = 50
_PROPERTIES = {"format-version": "2", "lake-assets.journal": "steps", **VERSIONS}

_LOST_FILE_ADVICE = (
    f"Restore the file from a backup; or roll {TABLE} back to a snapshot without it; or drop {TABLE}: then the next "
    "step begins it anew, and what earlier steps did and took is not known any more"
)

_run: contextvars.ContextVar[str] = contextvars.ContextVar("lake_assets_run", default="")


@contextlib.contextmanager
def executed_by(run: str) -> Generator[None]:
    """Name what executes the steps of the block, such as `dagster 3f2a…`."""
    token = _run.set(run)
    try:
        yield
    finally:
        _run.reset(token)


def executor() -> str:
    """Return what executes the steps of this context; empty: it has no name."""
    return _run.get()


def recorded(
    lake: LakeBase,
    pipeline: str,
    table: TableId,
    step: Callable[[], Outcome],
    on_record: Callable[[StepRecord, LakeBase], None] | None = None,
    record_id: str | None = None,
) -> Outcome:
    """Run a step, and leave a record of it if it absorbs something or fails.

    Args:
        on_record: called with that record, and with the tables that it was made of (see `LakeBase.glance`).
        record_id: its id; default: any.
    """
    use = ResourceUse(time.time())

    def leave(record: Callable[[LakeBase], StepRecord]) -> StepRecord | None:
        return _noted(lake, lambda seen: replace(record(seen), id=record_id) if record_id else record(seen), on_record)

    try:
        with measured(lake, use):
            outcome = step()
    except Exception as e:
        error = e
        # It goes on to logs, to outcomes, and to Dagster.
        hide_in_error(error, lake.config.hidden)
        leave(lambda seen: of_error(seen, pipeline, table, error, use, _run.get()))
        raise
    if outcome.status != "absorbed":
        return outcome
    record = leave(lambda seen: _earlier(lake).record(seen, pipeline, outcome, use))
    if record is not None:
        _earlier(lake).add(record)
    used = {name: getattr(record, name) for name in _USED} if record else {}
    return replace(outcome, cpu_seconds=use.cpu_seconds, **used)


class _Earlier:
    """What this process knows of earlier steps: it reads those of the last days once, and then knows its own.

    Attributes:
        arrivals: by snapshot, when the oldest change arrived that its step absorbed.
        known: what computing everything used.
    """

    def __init__(self, records: Sequence[StepRecord]) -> None:
        self.arrivals, self.known = arrivals_of(records), KnownSteps(records)

    def record(self, seen: LakeBase, pipeline: str, outcome: Outcome, use: ResourceUse) -> StepRecord:
        """Return the record of a step that absorbed something."""
        return self.known.with_estimate(of_outcome(seen, pipeline, outcome, use, _run.get(), self.arrivals))

    def add(self, record: StepRecord) -> None:
        """Take a step of this process into account."""
        self.known.add(record)
        if record.snapshot is not None and record.arrived_at is not None:
            self.arrivals[record.snapshot] = record.arrived_at


def _earlier(lake: LakeBase) -> _Earlier:
    home = str(lake.config.home)
    if home not in _known or len(_known[home].arrivals) > thresholds.JOURNAL_ARRIVALS:
        _known[home] = _Earlier(read(lake, datetime.now(UTC) - timedelta(days=thresholds.JOURNAL_EARLIER_DAYS)))
    return _known[home]


_known: dict[str, _Earlier] = {}

# What the outcome of a step says of its cost and its lag, as its record does.
_USED = (
    "bytes_read", "bytes_written", "files_read", "files_written", "lag_seconds", "in_full_cpu_seconds", "in_full_basis",
)  # fmt: skip


def _noted(
    lake: LakeBase,
    of_step: Callable[[LakeBase], StepRecord],
    on_record: Callable[[StepRecord, LakeBase], None] | None,
) -> StepRecord | None:
    """Leave a record and return it; what prevents that is logged, since the step has its own outcome."""
    try:
        seen = lake.glance()
        record = of_step(seen)
        if on_record is not None:
            on_record(record, seen)
        note(lake, record)
    except Exception as e:  # of the catalog, of a full disk, ...
        log.warning("a step is missing in %s: %s", TABLE, lake.config.hidden(str(e)))
        return None
    return record


def note(lake: LakeBase, record: StepRecord) -> None:
    """Leave a record for the next `flush`."""
    folder = _folder(lake)
    make_private(folder)
    partial = folder / f".{record.id}"
    write_private(partial, json.dumps(vars(record)))
    partial.replace(folder / f"{record.id}.json")


def flush(lake: LakeBase, *, older_than: float = 0.0) -> int:
    """Append the waiting records to the table; return their number.

    Args:
        older_than: seconds that the oldest one has to have waited for.
    """
    files = _waiting(lake)
    if not files or time.time() - files[0][0] < older_than:
        return 0
    with table_lock.of_record(lake, TABLE):
        # Another process may have written them meanwhile.
        records = _read(path for _, path in _waiting(lake)[: thresholds.JOURNAL_RECORDS])
        if not records:
            return 0
        table = _table(lake)
        written = _written(table)
        new = [r for r in records.values() if r.id not in written]
        if new:
            rows = pa.Table.from_pylist([r.to_row() for r in new], schema=schema_to_pyarrow(table.schema()))
            write_arrow(TABLE, table, rows, {_RECORDS: " ".join(r.id for r in new)})
        for path in records:
            path.unlink(missing_ok=True)
    _forget_outdated(lake)
    return len(new)


def try_flush(lake: LakeBase, *, older_than: float = thresholds.JOURNAL_SECONDS) -> None:
    """Append the waiting records, if that is due; the next call tries again after a failure."""
    try:
        flush(lake, older_than=older_than)
    except ConcurrentWriteError as e:
        log.info("%s: %s", TABLE, e)
    except Exception as e:  # of the catalog or the store: no step depends on it
        log.warning("records of steps are not in %s yet: %s", TABLE, lake.config.hidden(str(e)))
        _drop_oldest(lake)


def _drop_oldest(lake: LakeBase) -> None:
    """Delete the oldest waiting records, if they are too many: a catalog may never let the table be written."""
    if excess := _waiting(lake)[: -thresholds.JOURNAL_WAITING]:
        log.warning("the oldest %d records of steps were deleted", len(excess))
    for _, path in excess:
        path.unlink(missing_ok=True)


def read(
    lake: LakeBase,
    since: datetime,
    until: datetime | None = None,
    *,
    table: str | None = None,
    only_complete: bool = False,
    backfills: bool = False,
    fields: Sequence[str] = ("*",),
) -> Sequence[StepRecord]:
    """Return the records of steps that began in a period, the oldest first.

    Args:
        until: end of the period (exclusive); None: now.
        table: name of a table, to read its steps only.
        only_complete: whether to read only steps that computed everything (`StepRecord.computed_all`).
        backfills: whether to read also what published backfills have done, which are no steps.
        fields: the values to read, `id` and those without a default among them; others have their default.

    Raises:
        MissingDataFileError, CorruptMetadataError: a file of the journal cannot be read.
    """
    wanted = f"day >= '{since.astimezone(UTC).date()}' AND started_at >= '{since.isoformat()}'"
    if until is not None:
        wanted += f" AND started_at < '{until.isoformat()}'"
    if not backfills:
        wanted += f" AND (strategy IS NULL OR strategy != '{BACKFILL}')"
    stored = lake.find(TABLE)
    if only_complete and stored is not None:
        # Records of an older version lack the value, and a journal of one the column: the strategy tells of some.
        by_strategy = f"strategy IN {COMPLETE}"
        known = "computed_all" in {f.name for f in stored.schema().fields}
        is_complete = f"computed_all = true OR (computed_all IS NULL AND {by_strategy})" if known else by_strategy
        wanted += f" AND ({is_complete})"
    found: dict[str, StepRecord] = {}
    if stored is not None and stored.current_snapshot() is not None:
        found = {
            r["id"]: StepRecord.from_row(r) for r in _stored(stored, wanted, fields) if table in (None, r["table"])
        }
    first, last = since.timestamp(), until.timestamp() if until else float("inf")
    for record in _read(path for _, path in _waiting(lake)).values():
        is_wanted = table in (None, record.table) and (record.computed_all or not only_complete)
        is_wanted = is_wanted and (backfills or record.strategy != BACKFILL)
        if is_wanted and first <= record.started_at < last:
            found.setdefault(record.id, record)
    return sorted(found.values(), key=lambda r: r.started_at)


def _stored(table: Table, wanted: str, fields: Sequence[str]) -> list[Mapping[str, Any]]:
    try:
        return table.scan(wanted, tuple(fields)).to_arrow().to_pylist()
    except Exception as e:  # of PyIceberg, of PyArrow
        if (lost := lost_file(table, _LOST_FILE_ADVICE)) is None:
            raise
        raise lost from e


def waiting(lake: LakeBase) -> list[StepRecord]:
    """Return the records of steps that are not in the table yet, and some that have just been written to it."""
    return [r for r in _read(path for _, path in _waiting(lake)).values() if r.strategy != BACKFILL]


def _folder(lake: LakeBase) -> Path:
    return Path(lake.config.home) / _FOLDER


def _waiting(lake: LakeBase) -> list[tuple[float, Path]]:
    """Return the files of waiting records with their times, the oldest first."""
    found: list[tuple[float, Path]] = []
    with contextlib.suppress(FileNotFoundError), os.scandir(_folder(lake)) as entries:
        for entry in entries:
            if entry.name.endswith(".json"):
                with contextlib.suppress(FileNotFoundError):
                    found.append((entry.stat().st_mtime, Path(entry.path)))
    return sorted(found)


def _read(files: Iterable[Path]) -> dict[Path, StepRecord]:
    records: dict[Path, StepRecord] = {}
    for file in files:
        try:
            records[file] = StepRecord.from_json(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue  # another process has written it
        except (ValueError, TypeError, AttributeError) as e:  # cut by a full disk, or of another version
            log.warning("%s is no record of a step, and is left out: %s", file, e)
            with contextlib.suppress(OSError):  # another process has put it aside, or owns it
                file.replace(file.with_suffix(".broken"))
    return records


def _table(lake: LakeBase) -> Table:
    """Return the table with the columns of this version."""
    if (table := lake.find(TABLE)) is None:
        lake.ensure_namespace(TABLE.namespace)
        with contextlib.suppress(TableAlreadyExistsError):
            return _created(lake)
        table = lake.table(TABLE)
    known = {f.name for f in table.schema().fields}
    if not known.issuperset(SCHEMA.names):
        with table.update_schema() as update:
            update.union_by_name(SCHEMA)
        table = lake.table(TABLE)
    return table


def _created(lake: LakeBase) -> Table:
    location = lake.location_of(TABLE)
    with (
        lake.catalog.create_table_transaction(TABLE.parts, SCHEMA, location, properties=_PROPERTIES) as transaction,
        transaction.update_spec() as spec,
    ):
        # A day that is over is removed without reading it.
        spec.add_identity("day")
    return lake.table(TABLE)


def _written(table: Table) -> set[str]:
    found: set[str] = set()
    for n, snapshot in enumerate(ancestors(table)):
        if n >= _COMMITS:
            break
        found.update(summary_of(snapshot).get(_RECORDS, "").split())
    return found


def _forget_outdated(lake: LakeBase) -> None:
    """Delete the records of days that are over for long enough, once a day."""
    end = datetime.now(UTC).date() - timedelta(days=thresholds.JOURNAL_DAYS)
    table = lake.table(TABLE)
    if table.properties.get(_FORGOTTEN) == end.isoformat():
        return
    outdated = f"day < '{end.isoformat()}'"
    with table.transaction() as transaction:
        if table.scan(row_filter=outdated, limit=1).to_arrow().num_rows:
            transaction.delete(outdated, snapshot_properties={UPKEEP_PROPERTY: "retention"})
        transaction.set_properties({_FORGOTTEN: end.isoformat()})


# Property of the table: the day before which there are no records.
_FORGOTTEN = "lake-assets.records-since"
