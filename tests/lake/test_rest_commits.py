"""What a REST catalog is sent to make the next version of a table's metadata of the current one."""

from __future__ import annotations

from typing import Any

from lake_assets.lake.metadata.rest_commits import _requirements, updates

FIELDS = [{"id": 1, "name": "id", "type": "int", "required": False}]
BEFORE: dict[str, Any] = {
    "format-version": 2,
    "table-uuid": "u",
    "last-updated-ms": 100,
    "last-sequence-number": 1,
    "schemas": [{"schema-id": 0, "type": "struct", "fields": FIELDS}],
    "current-schema-id": 0,
    "last-column-id": 1,
    "properties": {"kept": "1", "changed": "1", "dropped": "1"},
    "snapshots": [{"snapshot-id": 1, "sequence-number": 1, "timestamp-ms": 90, "manifest-list": "a"}],
    "refs": {
        "main": {"type": "branch", "snapshot-id": 1},
        "left": {"type": "tag", "snapshot-id": 1},
        "dropped": {"type": "tag", "snapshot-id": 1},
    },
}


def test_equal_metadata_need_no_update() -> None:
    assert updates(BEFORE, {**BEFORE, "last-updated-ms": 500}, 1000) == []


def test_updates_are_in_the_order_in_which_they_refer_to_each_other() -> None:
    new = {"schema-id": 1, "type": "struct", "fields": FIELDS}
    snapshots = [
        *BEFORE["snapshots"],
        {"snapshot-id": 3, "sequence-number": 8, "timestamp-ms": 60, "schema-id": 1},
        {"snapshot-id": 2, "sequence-number": 7, "timestamp-ms": 50, "schema-id": 1},
    ]
    main = {"type": "branch", "snapshot-id": 3, "min-snapshots-to-keep": 5}
    after = {
        **BEFORE,
        "schemas": [*BEFORE["schemas"], new],
        "current-schema-id": 1,
        "properties": {"kept": "1", "changed": "2", "new": "3"},
        "snapshots": snapshots,
        "refs": {"main": main, "left": BEFORE["refs"]["left"]},
    }
    assert updates(BEFORE, after, 1000) == [
        {"action": "add-schema", "schema": new},
        {"action": "set-current-schema", "schema-id": 1},
        # Their own times are before what main shows by now.
        {"action": "add-snapshot", "snapshot": {**snapshots[2], "timestamp-ms": 1000}},
        {"action": "add-snapshot", "snapshot": {**snapshots[1], "timestamp-ms": 1000}},
        {"action": "remove-snapshot-ref", "ref-name": "dropped"},
        {"action": "set-snapshot-ref", "ref-name": "main", **main},
        {"action": "set-properties", "updates": {"changed": "2", "new": "3"}},
        {"action": "remove-properties", "removals": ["dropped"]},
    ]


def test_what_a_change_of_columns_requires_has_the_names_of_the_specification() -> None:
    after = {**BEFORE, "schemas": [*BEFORE["schemas"], {"schema-id": 1, "type": "struct", "fields": FIELDS}]}
    required = {r["type"]: r for r in _requirements(BEFORE, after)}
    assert required["assert-table-uuid"]["uuid"] == "u"
    assert required["assert-ref-snapshot-id"] == {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1}
    assert required["assert-current-schema-id"]["current-schema-id"] == 0
    assert required["assert-last-assigned-field-id"]["last-assigned-field-id"] == 1


def test_new_snapshots_are_not_older_than_the_table_whatever_the_clock_says() -> None:
    after = {**BEFORE, "snapshots": [*BEFORE["snapshots"], {"snapshot-id": 2, "sequence-number": 2, "timestamp-ms": 5}]}
    (added,) = updates(BEFORE, after, 50)
    assert added["snapshot"]["timestamp-ms"] == 100
