"""Scanned manifests give what complete decoding gives, and broken ones an error. Random manifests, without tables."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lake_assets.capture.changed_files import _minus, _states
from lake_assets.capture.files.avro_files import AvroKind, container_of, decode, decode_record, scan_blocks
from lake_assets.capture.files.avro_scan import RecordScan
from lake_assets.capture.files.manifest_index import INDEXES
from lake_assets.capture.files.manifest_lists import Manifest
from lake_assets.capture.files.manifests import Entry, ManifestReader
from lake_assets.errors import CorruptMetadataError
from lake_assets.lake import thresholds
from tests.support.seeds import HISTORIES


def pairs(name: str, value: str) -> list[Any]:
    fields = [{"name": "key", "type": "int"}, {"name": "value", "type": value}]
    return ["null", {"type": "array", "items": {"type": "record", "name": name, "fields": fields}}]


DECIMAL = {"type": "fixed", "name": "decimal_9_2", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}
PARTITION = {
    "type": "record",
    "name": "r102",
    "fields": [
        {"name": "a", "type": ["null", DECIMAL]},
        {"name": "b", "type": ["null", "decimal_9_2"]},
        {"name": "c", "type": ["null", "string"]},
        {"name": "d", "type": ["null", "double"]},
        {"name": "e", "type": ["null", "boolean"]},
        {"name": "f", "type": ["null", {"type": "int", "logicalType": "date"}]},
    ],
}
DATA_FILE = [
    {"name": "content", "type": "int"},
    {"name": "file_path", "type": "string"},
    {"name": "file_format", "type": "string"},
    {"name": "partition", "type": PARTITION},
    {"name": "record_count", "type": "long"},
    {"name": "file_size_in_bytes", "type": "long"},
    {"name": "column_sizes", "type": pairs("k117_v118", "long")},
    {"name": "lower_bounds", "type": pairs("k126_v127", "bytes")},
    {"name": "key_metadata", "type": ["null", "bytes"]},
    {"name": "split_offsets", "type": ["null", {"type": "array", "items": "long"}]},
    {"name": "tags", "type": {"type": "map", "values": ["long", "null"]}},
]
LAST_FIELDS = [{"name": "first_row_id", "type": ["null", "long"]}, {"name": "sort_order_id", "type": ["null", "int"]}]


def kind_of(*, numbered: bool, with_ids: bool) -> AvroKind:
    """The kind of a manifest; v1 has no sequence numbers, v3 has row ids."""
    fields = DATA_FILE + (LAST_FIELDS if with_ids else LAST_FIELDS[1:])
    numbers = [{"name": n, "type": ["null", "long"]} for n in ("sequence_number", "file_sequence_number")]
    schema = {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            {"name": "status", "type": "int"},
            {"name": "snapshot_id", "type": ["null", "long"]},
            *(numbers if numbered else []),
            {"name": "data_file", "type": {"type": "record", "name": "r2", "fields": fields}},
        ],
    }
    return AvroKind(schema, {"content": "data"}, "")


longs = st.integers(-(2**62), 2**62)
# More than are read at once, too.
by_id = st.builds(lambda count, value: [(i, value - i) for i in range(count)], st.sampled_from([0, 1, 3, 70]), longs)


@st.composite
def entries(draw: st.DrawFn) -> dict[str, Any]:
    optional = st.none() | longs
    return {
        "status": draw(st.integers(0, 2)),
        "snapshot_id": draw(st.none() | st.integers(1, 9)),
        "sequence_number": (number := draw(st.none() | st.integers(0, 3))),
        "file_sequence_number": number,
        "data_file": {
            "content": 0,
            "file_path": draw(st.sampled_from(["a", "b", "ü", "d" * 200, "e"])),
            "file_format": "PARQUET",
            "partition": {
                "a": draw(st.none() | st.binary(min_size=4, max_size=4)),
                "b": draw(st.none() | st.binary(min_size=4, max_size=4)),
                "c": draw(st.none() | st.text(max_size=3)),
                "d": draw(st.none() | st.floats(allow_nan=False)),
                "e": draw(st.none() | st.booleans()),
                "f": draw(st.none() | st.integers(-9, 9)),
            },
            "record_count": draw(st.integers(0, 1000)),
            "file_size_in_bytes": draw(st.integers(0, 2**40)),
            "column_sizes": draw(st.none() | by_id.map(_listed)),
            "lower_bounds": draw(st.none() | st.dictionaries(st.integers(0, 9), st.binary(max_size=9)).map(_listed)),
            "key_metadata": None,
            "split_offsets": draw(st.none() | by_id.map(lambda listed: [v for _, v in listed])),
            "tags": draw(st.dictionaries(st.text(max_size=2), optional, max_size=2)),
            "first_row_id": draw(st.none() | st.integers(0, 10**6)),
            "sort_order_id": draw(st.none() | st.integers(0, 3)),
        },
    }


def _listed(by_id: Any) -> list[dict[str, Any]]:
    return [{"key": k, "value": v} for k, v in (by_id.items() if isinstance(by_id, dict) else by_id)]


def encoded(kind: AvroKind, records: Sequence[dict[str, Any]], codec: str, interval: int) -> bytes:
    out = io.BytesIO()
    schema = _plain(kind.schema)
    fastavro.writer(out, schema, records, metadata=kind.metadata, codec=codec, sync_interval=interval)
    return out.getvalue()


def _plain(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: _plain(v) for k, v in schema.items() if k not in ("logicalType", "precision", "scale")}
    return [_plain(s) for s in schema] if isinstance(schema, list) else schema


KINDS = st.builds(kind_of, numbered=st.booleans(), with_ids=st.booleans())
MANIFESTS = st.lists(st.lists(entries(), max_size=6), max_size=3)


# Making entries of many fields takes longer than what is tested.
RANDOM = settings(max_examples=20 * HISTORIES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Files:
    """A FileIO of some files in memory."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def new_input(self, path: str) -> Any:
        files = self

        class Input:
            def open(self) -> io.BytesIO:
                return io.BytesIO(files.contents[path])

        return Input()


FIELDS = ("status", "sequence_number", "data_file.file_path", "data_file.record_count", "data_file.first_row_id")


@RANDOM
@given(KINDS, st.lists(entries(), max_size=8), st.sampled_from(["null", "deflate"]), st.sampled_from([1, 500, 64_000]))
def test_scanned_fields_and_records_are_those_of_complete_decoding(
    kind: AvroKind, records: list[dict[str, Any]], codec: str, interval: int
) -> None:
    content = encoded(kind, records, codec, interval)
    decoded = list(decode(content, "m")[0])
    container, at = container_of(content, "m")
    number, scanned = 0, list[dict[str, Any]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thresholds, "COMBINED_ENTRIES", 3)
        for _, block, rows in scan_blocks(container, content, "m", FIELDS, at):
            for start, status, sequence, path, count, row_id in rows:
                raw, file = decoded[number], decoded[number]["data_file"]
                assert (status, path.decode(), count) == (raw["status"], file["file_path"], file["record_count"])
                assert (sequence, row_id) == (raw.get("sequence_number"), file.get("first_row_id"))
                scanned.append(decode_record(container, block, start, "m"))
                number += 1
    assert scanned == decoded


@RANDOM
@given(st.lists(entries(), min_size=1, max_size=4), st.data())
def test_a_broken_manifest_is_an_error_or_read_as_it_is(records: list[dict[str, Any]], data: st.DataObject) -> None:
    """Whatever bytes differ, the process survives: lengths are checked before they are used."""
    content = bytearray(encoded(kind_of(numbered=True, with_ids=True), records, "null", 500))
    container, at = container_of(bytes(content), "m")
    for place in data.draw(st.lists(st.integers(at, len(content) - 1), min_size=1, max_size=5)):
        content[place] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    broken = bytes(content[: data.draw(st.just(len(content)) | st.integers(at, len(content)))])
    with contextlib.suppress(CorruptMetadataError):
        for _, _, rows in scan_blocks(container, broken, "m", FIELDS, at):
            assert all(len(row) == 1 + len(FIELDS) for row in rows)


def test_lists_whose_length_is_stored_are_skipped() -> None:
    """Avro allows a negative count, followed by the length of the items."""
    schema = {
        "fields": [
            {"name": "numbers", "type": {"type": "array", "items": "long"}},
            {"name": "bounds", "type": pairs("b", "bytes")},
            {"name": "tags", "type": {"type": "map", "values": "int"}},
            {"name": "path", "type": "string"},
        ]
    }
    numbers, bounds, tags = b"\x03\x04\x02\x02\0", b"\x02\x01\x06\x02\x02x\0", b"\x01\x06\x02k\x08\0"
    record = numbers + bounds + tags + b"\x04ab"
    scan = RecordScan(schema, ("path",))
    assert [v[1] for v in scan.records(record * 2, [(2, 2 * len(record))])] == [b"ab", b"ab"]
    for broken in (record.replace(b"\x04ab", b"\x7fab"), record.replace(b"\x03\x04", b"\x03\x7f"), record[:-1]):
        with pytest.raises((EOFError, ValueError)):
            list(scan.records(broken, [(1, len(broken))]))


def written(
    files: Files, kind: AvroKind, sides: Iterable[tuple[str, list[list[dict[str, Any]]]]], first_row_id: int | None
) -> list[list[Manifest]]:
    """Write the manifests of two lists of a table; return their lines."""
    lists: list[list[Manifest]] = []
    for side, manifests in sides:
        lists.append([])
        for i, records in enumerate(manifests):
            path, content = f"{side}{i}", encoded(kind, records, "deflate", 500)
            files.contents[path] = content
            manifest = Manifest(path, len(content), 0, False, 3 + i, 0, 7, first_row_id, len(records))
            lists[-1].append(manifest)
    return lists


@RANDOM
@given(KINDS, MANIFESTS, MANIFESTS, st.none() | st.just(1000), st.sets(st.sampled_from(["a", "b", "ü", "z"])))
def test_compared_manifests_differ_in_the_same_entries_as_all_their_entries(
    kind: AvroKind,
    new: list[list[dict[str, Any]]],
    old: list[list[dict[str, Any]]],
    first_row_id: int | None,
    paths: set[str],
) -> None:
    files = Files()
    # Most entries of a merge are in both.
    sides = [("new", [*new, *old[:1]]), ("old", old)]
    lists = written(files, kind, sides, first_row_id)
    _without_cached()
    reader = ManifestReader(files)  # type: ignore[arg-type]
    new_all, old_all = (_states(reader.entries(manifests)) for manifests in lists)
    again = ManifestReader(files)  # type: ignore[arg-type]
    for _ in range(2):  # with cached indexes too
        some, others = again.different(*lists, paths)
        new_states, old_states = _states(some), _states(others)
        assert _content(_minus(new_states, old_states)) == _content(_minus(new_all, old_all))
        assert _content(_minus(old_states, new_states)) == _content(_minus(old_all, new_all))
        for states, complete in ((new_states, new_all), (old_states, old_all)):
            listed = [e for s, es in complete.items() if s[0] in paths for e in es]
            assert _content(e for s, es in states.items() if s[0] in paths for e in es) == _content(listed)
            assert not Counter({s: len(es) for s, es in states.items()}) - Counter(
                {s: len(es) for s, es in complete.items()}
            )


@RANDOM
@given(KINDS, MANIFESTS, st.none() | st.just(1000), st.sets(st.sampled_from(["a", "b", "ü", "z"])))
def test_entries_of_some_files_are_those_among_all_entries(
    kind: AvroKind, manifests: list[list[dict[str, Any]]], first_row_id: int | None, paths: set[str]
) -> None:
    files = Files()
    (lines,) = written(files, kind, [("m", manifests)], first_row_id)
    _without_cached()
    reader = ManifestReader(files)  # type: ignore[arg-type]
    expected = _content(e for e in reader.entries(lines) if e.path in paths)
    for _ in range(2):
        assert _content(reader.entries_of(lines, paths, keep=lambda e: True)) == expected


@RANDOM
@given(KINDS, st.lists(entries(), min_size=1, max_size=5))
def test_an_upgrade_to_v3_gives_ids_to_indexed_manifests(kind: AvroKind, records: list[dict[str, Any]]) -> None:
    files = Files()
    paths = {r["data_file"]["file_path"] for r in records}
    _without_cached()
    for first_row_id in (None, 500):
        (lines,) = written(files, kind, [("m", [records])], first_row_id)
        reader = ManifestReader(files)  # type: ignore[arg-type]
        listed = reader.entries_of(lines, paths, keep=lambda e: True)
        assert _content(listed) == _content(reader.entries(lines))
        assert all((e.first_row_id is None) == (first_row_id is None) for e in listed)


def _content(listed: Iterable[Entry]) -> list[tuple[str, dict[str, Any]]]:
    return [(e.manifest.path, e.raw) for e in listed]


def _without_cached() -> None:
    INDEXES._values.clear()
    INDEXES._size = 0
