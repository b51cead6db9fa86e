"""Files of a landing that have not landed yet.

The ledger tells whether a file has landed. If names only grow, as `landing_order: by-name` declares, a listing begins
behind the last landed name, so its cost follows what is new. Where a listing begins decides nothing else: a file that
is listed again is in the ledger. A name that arrives late is found by listing the whole folder from time to time.
"""

from __future__ import annotations

import fnmatch
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pyiceberg.table import Table

from lake_assets.formats.files.record_files import RecordFile
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw import file_ledger
from lake_assets.ingest.raw.folder_listings import listing
from lake_assets.ingest.raw_tables import stored
from lake_assets.lake import LakeBase, thresholds
from lake_assets.tables.writing.table_ddl import set_properties

# Snapshot property: the landing, and the last landed name in each of its folders.
LAST_PROPERTY = "lake-assets.last-files"
# Table property: when a landing whose names only grow was last listed as a whole, in seconds.
LISTED_PROPERTY = "lake-assets.listed-at"


@dataclass(frozen=True)
class NewFiles:
    """The files of a landing that have not landed.

    Attributes:
        files: in the order in which they land.
        is_whole: whether whole folders were listed.
    """

    files: list[RecordFile]
    is_whole: bool


def find(lake: LakeBase, spec: RawSpec) -> NewFiles:
    """Return the files of a landing that have not landed. Reads metadata, the listing, and perhaps the ledger.

    Raises:
        ChangedInputError: the size of a landed file has changed.
        LandingFolderError, StorageUnavailableError, MissingPackageError: see `listing`.
    """
    assert spec.landing is not None
    raw = lake.find(spec.table)
    after = _listed_after(raw, spec)
    listed = in_order(listing(spec.landing, lake.config.object_stores, after), spec)
    new = unseen(listed, file_ledger.seen(lake, spec.table)) if listed and raw is not None else listed
    if not new and raw is not None and after is None:
        _listed[_key(raw, spec)] = _Listed(raw.metadata.current_snapshot_id, time.time(), _last_of(listed, spec, {}))
    return NewFiles(new, after is None)


def unseen(files: Iterable[RecordFile], seen: Mapping[str, int]) -> list[RecordFile]:
    """Return the files that a ledger lacks.

    Raises:
        ChangedInputError: the size of a landed file has changed.
    """
    return [f for f in files if file_ledger.is_new(f, seen)]


def in_order(files: Iterable[RecordFile], spec: RawSpec) -> list[RecordFile]:
    """Return listed files in the order in which they land: by name, first loads before changes if that is declared."""
    return sorted(files, key=lambda f: not _is_load(f, spec)) if spec.layout and spec.layout.load_files else [*files]


def last_files(raw: Table, spec: RawSpec, landed: Iterable[RecordFile]) -> dict[str, str]:
    """Return the snapshot property with the last landed names once further files have landed; empty if names need not
    grow."""
    if spec.landing is None or not spec.landing.by_name:
        return {}
    last = _last_of(landed, spec, _last(raw, spec) or {})
    return {LAST_PROPERTY: json.dumps({"landing": str(spec.landing), "last": last})}


def note_whole_listing(lake: LakeBase, spec: RawSpec) -> None:
    """Record that whole folders were listed, and all of their files have landed."""
    if spec.landing is not None and spec.landing.by_name:
        set_properties(lake, spec.table, {LISTED_PROPERTY: str(int(time.time()))})


def _listed_after(raw: Table | None, spec: RawSpec) -> Mapping[str, str] | None:
    """Return the name in each folder behind which the listing begins; None: list whole folders."""
    if raw is None or spec.landing is None or not spec.landing.by_name:
        return None
    listed = _listed.get(_key(raw, spec))
    if listed is not None and listed.snapshot != raw.metadata.current_snapshot_id:
        listed = None  # another process has landed files, or the table was rolled back
    age = time.time() - max(float(raw.properties.get(LISTED_PROPERTY, 0)), listed.at if listed else 0.0)
    # It is negative if the clock was set back.
    if not 0 <= age < thresholds.WHOLE_LISTING_SECONDS:
        return None
    return listed.last if listed else _last(raw, spec)


def _last(raw: Table, spec: RawSpec) -> Mapping[str, str] | None:
    known = stored(raw, LAST_PROPERTY)
    return known["last"] if known.get("landing") == str(spec.landing) else None


def _last_of(files: Iterable[RecordFile], spec: RawSpec, before: Mapping[str, str]) -> dict[str, str]:
    """Return the last name in each folder, of some files and of those before them."""
    last = dict(before)
    # First loads land before all others, whatever their names are: changes do not come behind them.
    for file in files:
        if not _is_load(file, spec):
            last[file.folder] = max(last.get(file.folder, ""), file.base_name)
    return last


def _is_load(file: RecordFile, spec: RawSpec) -> bool:
    pattern = spec.layout.load_files if spec.layout else ""
    return bool(pattern) and fnmatch.fnmatchcase(file.base_name, pattern)


def _key(raw: Table, spec: RawSpec) -> tuple[str, str]:
    return str(raw.metadata.table_uuid), str(spec.landing)


class _Listed(NamedTuple):
    """A whole listing in which all files had landed: the raw table's snapshot, the time, and the last names."""

    snapshot: int | None
    at: float
    last: Mapping[str, str]


# The last such listing of this process, by the uuid of the raw table and the landing: ticks commit nothing.
_listed: dict[tuple[str, str], _Listed] = {}
