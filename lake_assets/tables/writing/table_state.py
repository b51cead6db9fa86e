"""What a step's rows depend on in the table that it writes, and whether another run has changed it meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.table import Table

from lake_assets.lake.metadata.metadata_commits import Metadata
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY

# Table properties that say by what the rows were computed: a commit of rows that were computed by something else would
# put them under a definition that they do not have.
KEY_PROPERTY = "lake-assets.key"
# The declared key, of several, that a staging table uses.
KEY_SET_PROPERTY = "lake-assets.key-set"
# The query of a model, or the function, with its settings.
FINGERPRINT_PROPERTY = "lake-assets.model"
# The settings of a final table.
DECLARATION_PROPERTY = "lake-assets.final"
# How many times all records of a staging table were read again; each time, tables downstream are computed again.
GENERATION_PROPERTY = "lake-assets.generation"
# The declared key by which updates are split into a delete and an insert.
PARTED_PROPERTY = "lake-assets.parted-by"
# Declared types and start with which the records were read, and whether `order_by` was declared.
READ_PROPERTY = "lake-assets.read-as"
# What orders the events of a staging table, and from which position in the stream on.
ORDER_PROPERTY = "lake-assets.order"
# What of the past the table holds that its sources do not, such as a log of changes; empty: nothing.
PAST_PROPERTY = "lake-assets.past"
DEFINITION = (
    PIPELINE_PROPERTY, KEY_PROPERTY, KEY_SET_PROPERTY, FINGERPRINT_PROPERTY, DECLARATION_PROPERTY, GENERATION_PROPERTY,
    PARTED_PROPERTY, READ_PROPERTY, ORDER_PROPERTY,
)  # fmt: skip
APPENDED = "its rows were appended as changes came"
_IDS = {"current-schema-id": "its columns", "default-spec-id": "its partitioning"}


def past_in(table: Table) -> str:
    """Return what of the past a table holds that its sources do not; empty: its rows can be computed again."""
    # Tables of former versions do not have the property.
    is_appended = table.properties.get(FINGERPRINT_PROPERTY, "").startswith('python:["append"')
    return table.properties.get(PAST_PROPERTY, APPENDED if is_appended else "")


@dataclass(frozen=True)
class TableState:
    """A table at one moment: main's snapshot, columns, partitioning, definition.

    Attributes:
        uuid: the table's uuid; it changes if the table is dropped and created again.
        snapshot: main's snapshot; None: it has none.
        ids: the ids of its current columns and partitioning, by the name of the field of the metadata.
        definition: its properties of `DEFINITION`.
    """

    uuid: str
    snapshot: int | None
    ids: Mapping[str, int]
    definition: Mapping[str, str]

    @classmethod
    def of(cls, table: Table) -> TableState:
        """Return the state of a loaded table."""
        metadata = table.metadata
        ids = {"current-schema-id": metadata.current_schema_id, "default-spec-id": metadata.default_spec_id}
        return cls(str(metadata.table_uuid), metadata.current_snapshot_id, ids, _defining(table.properties))

    @classmethod
    def in_metadata(cls, metadata: Metadata) -> TableState:
        """Return the state that the JSON of a metadata file describes."""
        refs: Mapping[str, Any] = metadata.get("refs") or {}
        current = refs.get("main", {}).get("snapshot-id", metadata.get("current-snapshot-id"))
        ids = {name: int(metadata.get(name, 0)) for name in _IDS}
        snapshot = None if current in (None, -1) else int(current)
        return cls(str(metadata["table-uuid"]), snapshot, ids, _defining(metadata.get("properties", {})))

    def changed(self, now: TableState, *, but: Iterable[str] = ()) -> str:
        """Return what another writer has changed since this state, for people; empty: nothing.

        `but` are fields of `ids` that the step itself may have changed.
        """
        if now.uuid != self.uuid:
            return "it was dropped and created again"
        if now.definition != self.definition:
            return "it was built by another definition"
        if now.snapshot != self.snapshot:
            return f"main was at snapshot {self.snapshot}, and is at {now.snapshot}"
        return next(
            (f"{what} changed" for name, what in _IDS.items() if name not in but and now.ids[name] != self.ids[name]),
            "",
        )


def _defining(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: properties[name] for name in DEFINITION if name in properties}
