"""Arbitrary input: each record is routed, or rejected with a named error, in every format."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.errors import InputError, MalformedRecordError
from lake_assets.examples.event_generator import Source, Workload
from lake_assets.examples.stream_writers import ENCODERS
from lake_assets.formats import FORMATS, SourceTable
from lake_assets.formats.format_base import decode

T = SourceTable("s", "t")
WORDS_OF_FORMATS = (
    "key value schema payload source table op before after __op __deleted __table action columns identity pk name type "
    "change kind columnnames columnvalues columntypes oldkeys keynames keyvalues changeType columnNames columnValues "
    "oldKeyNames oldKeyValues FLAG _change_type @text @types row insert update delete I U D c d u"
)
WORDS = st.sampled_from(WORDS_OF_FORMATS.split())
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=6)
)


def routed(name: str, record: Any) -> None:
    with contextlib.suppress(InputError):
        for table in (None, T):
            tables = FORMATS[name].routes(record, table)
            assert all(t.schema and t.name for t in tables)
            assert all(SourceTable.parse(str(t)) == t for t in tables)


@pytest.mark.parametrize(
    ("name", "examples"),
    [
        *((n, 100) for n in ("debezium", "wal2json-v2", "change-set")),
        *(pytest.param(n, 400, marks=pytest.mark.long) for n in FORMATS),
    ],
)
def test_any_json_is_routed_or_rejected(name: str, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(record=JSON)
    def check(record: Any) -> None:
        routed(name, record)

    check()


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=200, deadline=None)
@given(line=st.binary(max_size=60))
def test_any_bytes_are_routed_or_rejected(name: str, line: bytes) -> None:
    with contextlib.suppress(MalformedRecordError):
        routed(name, decode(line))


SAMPLES = {
    name: [line for t in Source(Workload(events=12, key_changes=0.5)) for line in encode(t, Workload())]
    for name, encode in ENCODERS.items()
}


@pytest.mark.parametrize("name", ENCODERS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_damaged_records_are_routed_or_rejected(name: str, data: st.DataObject) -> None:
    line = data.draw(st.sampled_from(SAMPLES[name]))
    at, length = data.draw(st.integers(0, len(line))), data.draw(st.integers(0, 40))
    damaged = line[:at] + data.draw(st.text(max_size=3)) + line[at + length :]
    for reader in FORMATS:
        with contextlib.suppress(MalformedRecordError):
            routed(reader, decode(damaged.encode("utf-8", "replace")))


@pytest.mark.parametrize("line", [b"", b"{", b'{"a":1}x', b"\xff", b"NaN", b'{"a":\x00}'])
def test_invalid_json_is_malformed(line: bytes) -> None:
    with pytest.raises(MalformedRecordError, match="not JSON"):
        decode(line)
