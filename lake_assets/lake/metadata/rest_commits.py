"""Metadata-only commits to a REST catalog: the server applies the difference between two versions of metadata.

Source: https://iceberg.apache.org/rest-catalog-spec/ (updateTable, commitTransaction)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    RESTError,
    ServerError,
)
from pyiceberg.typedef import Identifier
from requests import RequestException

from lake_assets.lake._compat import post_commit, serves

Json = dict[str, Any]
_TRANSACTIONS, _TABLE = "transactions/commit", "namespaces/{namespace}/tables/{table}"
# Lists in metadata, with the key of an entry's id, the entry's name in updates, and the field that chooses one of them.
_SHAPES = (
    ("schemas", "schema-id", "schema", "current"),
    ("partition-specs", "spec-id", "spec", "default"),
    ("sort-orders", "order-id", "sort-order", "default"),
)
# Fields of metadata that must be unchanged if columns or partitioning change, by the names of requirements.
_REQUIRED = {
    "current-schema-id": "current-schema-id",
    "last-assigned-field-id": "last-column-id",
    "default-spec-id": "default-spec-id",
    "last-assigned-partition-id": "last-partition-id",
    "default-sort-order-id": "default-sort-order-id",
}


@dataclass(frozen=True)
class Change:
    """A change of one table: its metadata before and after."""

    table: Identifier
    before: Json
    after: Json


def has_transactions(catalog: RestCatalog) -> bool:
    """Whether the server changes several tables in one commit."""
    return serves(catalog, "POST", _TRANSACTIONS)


def commit(catalog: RestCatalog, changes: Sequence[Change]) -> None:
    """Change one table, or several in one commit.

    Args:
        catalog: a catalog that has transactions, unless it is one table.

    Raises:
        CommitFailedException: a table has been updated meanwhile, and no table is changed; or the result of the commit
            is unknown.
        NoSuchTableError: a table was dropped.
        RESTError: the server refuses it.
    """
    requests = [_request(c) for c in changes]
    try:
        if len(changes) == 1:
            post_commit(catalog, _TABLE, changes[0].table, requests[0])
        else:
            post_commit(catalog, _TRANSACTIONS, (), {"table-changes": requests})
    except (CommitStateUnknownException, ServerError, RequestException) as e:
        if not all(_is_done(catalog, r) for r in requests):
            raise CommitFailedException(f"the catalog failed during a commit: {e}") from e


def updates(before: Json, after: Json, now: int) -> list[Json]:
    """Return the updates that lead from one version of a table's metadata to another.

    Args:
        after: the next metadata: snapshots, references, properties, columns and partitioning may differ.
        now: milliseconds since 1970. New snapshots get this time: servers refuse a history that goes back.
    """
    return [
        *_shape(before, after),
        *_snapshots(before, after, max(now, before["last-updated-ms"])),
        *_refs(before.get("refs") or {}, after.get("refs") or {}),
        *_properties(before.get("properties", {}), after.get("properties", {})),
    ]


def _request(change: Change) -> Json:
    *namespace, name = change.table
    return {
        "identifier": {"namespace": namespace, "name": name},
        "requirements": [*_requirements(change.before, change.after)],
        "updates": updates(change.before, change.after, int(time.time() * 1000)),
    }


def _requirements(before: Json, after: Json) -> Iterator[Json]:
    """Yield what the table must still have for the updates to be right."""
    yield {"type": "assert-table-uuid", "uuid": before["table-uuid"]}
    refs, next_refs = before.get("refs") or {}, after.get("refs") or {}
    changed = {name for name in {*refs, *next_refs} if refs.get(name) != next_refs.get(name)}
    # All changes are computed from what main is now.
    for name in sorted({"main", *changed}):
        at = refs.get(name, {}).get("snapshot-id")
        yield {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": at}
    if any(before.get(shape[0]) != after.get(shape[0]) for shape in _SHAPES):
        for name, field in _REQUIRED.items():
            if field in before:
                yield {"type": f"assert-{name}", name: before[field]}


def _shape(before: Json, after: Json) -> Iterator[Json]:
    if before["format-version"] != after["format-version"]:
        yield {"action": "upgrade-format-version", "format-version": after["format-version"]}
    for entries, key, name, which in _SHAPES:
        known = {entry[key] for entry in before.get(entries, ())}
        for entry in after.get(entries, ()):
            if entry[key] not in known:
                yield {"action": f"add-{name}", name: entry}
        chosen = f"{which}-{name}-id"
        if before.get(chosen) != after.get(chosen):
            yield {"action": f"set-{which}-{name}", f"{name}-id": after[chosen]}


def _snapshots(before: Json, after: Json, now: int) -> Iterator[Json]:
    known = {s["snapshot-id"] for s in before.get("snapshots", ())}
    for snapshot in sorted(after.get("snapshots", ()), key=lambda s: s.get("sequence-number", 0)):
        if snapshot["snapshot-id"] not in known:
            yield {"action": "add-snapshot", "snapshot": {**snapshot, "timestamp-ms": now}}


def _refs(before: Json, after: Json) -> Iterator[Json]:
    for name in before.keys() - after.keys():
        yield {"action": "remove-snapshot-ref", "ref-name": name}
    for name, ref in after.items():
        if before.get(name) != ref:
            yield {"action": "set-snapshot-ref", "ref-name": name, **ref}


def _properties(before: dict[str, str], after: dict[str, str]) -> Iterator[Json]:
    if changed := {k: v for k, v in after.items() if before.get(k) != v}:
        yield {"action": "set-properties", "updates": changed}
    if removed := sorted(before.keys() - after.keys()):
        yield {"action": "remove-properties", "removals": removed}


def _is_done(catalog: RestCatalog, request: Json) -> bool:
    """Whether a table shows the snapshots, references and properties of a request whose answer was lost."""
    identifier = request["identifier"]
    try:
        metadata = catalog.load_table((*identifier["namespace"], identifier["name"])).metadata
    except (RESTError, NoSuchTableError, RequestException):
        return False
    snapshots = {s.snapshot_id for s in metadata.snapshots}
    for update in request["updates"]:
        match update["action"]:
            case "add-snapshot" if update["snapshot"]["snapshot-id"] not in snapshots:
                return False
            case "set-snapshot-ref":
                ref = metadata.refs.get(update["ref-name"])
                if ref is None or ref.snapshot_id != update["snapshot-id"]:
                    return False
            case "remove-snapshot-ref" if update["ref-name"] in metadata.refs:
                return False
            case "set-properties" if not update["updates"].items() <= metadata.properties.items():
                return False
            case _:
                pass
    return True
