"""Flagged change sets and change feeds, as JSON lines, CSV and Parquet."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import json
import random
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets import Lake
from lake_assets.errors import MalformedRecordError, TruncatedInputError, UnsupportedEventError
from lake_assets.formats import SourceTable, event_format
from lake_assets.formats.event_model import DELETE, INSERT, UPDATE, Hints
from lake_assets.formats.files.csv_files import RowFilter, csv_records
from lake_assets.formats.files.file_records import reader_of
from lake_assets.formats.files.limited_files import Limits
from lake_assets.formats.files.parquet_files import parquet_records, spark_type
from lake_assets.formats.files.record_files import LocalFile
from tests.support.parsing import Parsed, lines_of, parse

CHANGE_SET, CHANGE_FEED = event_format("change-set"), event_format("change-feed")
T = SourceTable("oracle", "T")
KEYED = Hints(table=T, key=("ID",))


def images(events: list[Parsed]) -> list[tuple[str | None, dict[str, Any]]]:
    return [(e.op, {n: v for n, v in e.row.items() if v is not None}) for e in events]


# --- change sets ------------------------------------------------------------------------------------------------------

# "Simplifying change data capture", table 1: the change set of T at 2018-01-01 17:00:00. Record 1 is inserted, updated
# and deleted; record 2 is updated, record 3 deleted, both having been there before.
CSV = """FLAG,ID,VALUE,CDC_TIMESTAMP
I,1,10,2018-01-01 16:02:00
U,1,11,2018-01-01 16:02:01
D,1,11,2018-01-01 16:02:03
U,2,20,2018-01-01 16:02:04
D,3,30,2018-01-01 16:02:05
"""


@pytest.mark.spark
def test_the_change_set_of_the_article(spark_lake: Lake, tmp_path: Path) -> None:
    file = tmp_path / "change_set.csv"
    file.write_text(CSV)
    lines = [record for _, record, _ in csv_records(LocalFile(file))]
    hints = Hints(table=T, key=("ID",), types={"CDC_TIMESTAMP": "timestamp"})
    events = parse(spark_lake.spark(), CHANGE_SET, lines, hints)
    assert [e.op for e in events] == [INSERT, UPDATE, DELETE, UPDATE, DELETE]
    assert [(e.row["ID"], e.row["VALUE"]) for e in events] == [(1, 10), (1, 11), (1, 11), (2, 20), (3, 30)]
    assert [e.sequence for e in events] == sorted(e.sequence for e in events)
    assert events[0].row["CDC_TIMESTAMP"] == events[0].event_time == dt.datetime(2018, 1, 1, 16, 2, tzinfo=dt.UTC)
    # RANK() ... ORDER BY CDC_TIMESTAMP DESC, RNK = 1 AND FLAG <> 'D'
    last = {e.row["ID"]: e for e in sorted(events, key=lambda e: e.sequence)}
    assert {k: e.row["VALUE"] for k, e in last.items() if e.op != DELETE} == {2: 20}


@pytest.mark.spark
def test_json_rows_may_differ_in_their_columns_and_types_are_those_of_the_batch(spark_lake: Lake) -> None:
    lines = lines_of(
        {"FLAG": "I", "ID": 1, "n": 1, "x": None, "CDC_TIMESTAMP": "1"},
        {"flag": "i", "ID": 2},
        {"FLAG": "U", "ID": 1, "n": 2.5, "tags": ["a", None], "CDC_TIMESTAMP": "2"},
        {"FLAG": "D", "ID": 2, "n": 2**70, "o": {"k": [1]}, "CDC_TIMESTAMP": "10"},
    )
    events = parse(spark_lake.spark(), CHANGE_SET, [lines[0], *lines[2:]], KEYED)
    assert [e.row.get("n") for e in events] == [1.0, 2.5, float(2**70)]
    assert events[1].row["tags"] == ["a", None]
    assert events[2].row["o"] == '{"k":[1]}'
    assert "x" not in events[0].row  # null everywhere: no type yet
    assert events[2].sequence > events[1].sequence


@pytest.mark.spark
def test_a_declared_type_has_precedence_and_misfits_are_detected(spark_lake: Lake) -> None:
    values = ["12.34", "12.345", "1e-5", "99999999999.99", "12.3400000"]
    lines = [f'{{"FLAG":"I","ID":{i},"v":{v}}}' for i, v in enumerate(values)]
    events = parse(spark_lake.spark(), CHANGE_SET, lines, Hints(table=T, types={"v": "decimal(12,2)"}))
    assert [bool(e.bad) for e in events] == [False, True, True, True, False]
    assert events[0].row["v"] == Decimal("12.34")


@pytest.mark.spark
def test_the_existing_type_is_kept(spark_lake: Lake) -> None:
    lines = lines_of({"FLAG": "I", "ID": 1, "a": 5, "b": "x", "c": 7})
    hints = Hints(table=T, existing_columns={"a": "double", "b": "string", "c": "string"})
    (event,) = parse(spark_lake.spark(), CHANGE_SET, lines, hints)
    assert event.row == {"ID": 1, "a": 5.0, "b": "x", "c": "7"}
    assert isinstance(event.row["a"], float)


def test_rows_name_neither_table_nor_key() -> None:
    with pytest.raises(MalformedRecordError, match="declare the table"):
        CHANGE_SET.routes({"FLAG": "I", "ID": 1})
    assert CHANGE_SET.routes({"FLAG": "I", "ID": 1}, T) == (T,)


@pytest.mark.parametrize("record", [[], {"ID": 1}, {"FLAG": "X", "ID": 1}, {"FLAG": None}, {"FLAG": "I", "": 1}])
def test_a_row_without_a_known_flag_is_malformed(record: Any) -> None:
    with pytest.raises(MalformedRecordError):
        CHANGE_SET.routes(record, T)


# --- change feeds -----------------------------------------------------------------------------------------------------


def feed(kind: str, version: int, **row: Any) -> dict[str, Any]:
    at = f"2024-01-01T00:00:{version:02}.000Z"
    return {**row, "_change_type": kind, "_commit_version": version, "_commit_timestamp": at}


@pytest.mark.spark
def test_before_images_sort_before_all_after_images_of_their_commit(spark_lake: Lake) -> None:
    # UPDATE t SET id = id + 1: the after-image of one row has the key of the before-image of another.
    lines = lines_of(
        feed("insert", 1, ID=1, v="a"),
        feed("insert", 1, ID=2, v="b"),
        feed("update_postimage", 2, ID=2, v="a"),
        feed("update_preimage", 2, ID=1, v="a"),
        feed("update_postimage", 2, ID=3, v="b"),
        feed("update_preimage", 2, ID=2, v="b"),
        feed("delete", 10, ID=3, v="b"),
    )
    events = parse(spark_lake.spark(), CHANGE_FEED, lines, KEYED)
    assert [e.op for e in events] == [INSERT, INSERT, UPDATE, DELETE, UPDATE, DELETE, DELETE]
    rows: dict[int, str] = {}
    for e in sorted(events, key=lambda e: e.sequence):
        rows.pop(e.row["ID"], None)
        if e.op != DELETE:
            rows[e.row["ID"]] = e.row["v"]
    assert rows == {2: "a"}
    assert events[0].event_time == dt.datetime(2024, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    assert set(events[0].row) == {"ID", "v"}


@pytest.mark.spark
def test_icebergs_changelog_is_a_feed_too(spark_lake: Lake) -> None:
    kinds = ("INSERT", "UPDATE_BEFORE", "UPDATE_AFTER", "DELETE")
    rows = [
        {"ID": 1, "_change_type": k, "_change_ordinal": i // 2, "_commit_snapshot_id": 5} for i, k in enumerate(kinds)
    ]
    events = parse(spark_lake.spark(), CHANGE_FEED, lines_of(*rows), KEYED)
    assert images(events) == [(INSERT, {"ID": 1}), (DELETE, {"ID": 1}), (UPDATE, {"ID": 1}), (DELETE, {"ID": 1})]


@pytest.mark.spark
def test_numbers_in_documents_keep_their_digits(spark_lake: Lake) -> None:
    """A variant reads a number of more than 38 digits, or with an exponent, as a double."""
    long, exponent = "98765432109876543210987654321098765432109876", "1.23456789012345678901e-7"
    documents = [
        f'{{"a":[-{long},{exponent}],"b":1.5,"s":"{long}, \\"x\\": {long}"}}', f'[[1,{long}],{{"n":{long}}}]', long,
        '"text"', "7",
    ]  # fmt: skip
    for docs in (documents, documents[:1], documents[1:2]):
        lines = [f'{{"ID":{i},"FLAG":"I","CDC_TIMESTAMP":1,"big":{2**60},"doc":{d}}}' for i, d in enumerate(docs)]
        events = parse(spark_lake.spark(), CHANGE_SET, lines, KEYED)
        found = [e.row["doc"] if isinstance(e.row["doc"], str) else f"[{','.join(e.row['doc'])}]" for e in events]
        assert found == [d.strip('"') for d in docs]
        assert {(e.row["big"], e.bad) for e in events} == {(2**60, None)}


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_csv_text_is_a_number_only_if_a_number_keeps_it(spark_lake: Lake, tmp_path: Path) -> None:
    file = tmp_path / "t.csv.gz"
    text = 'FLAG,ID,zip,n,x,s,e\nI,1,00501,-5,0.5,"a,""b""\nc",\nI,2,10115,7,2,"",\n'
    file.write_bytes(gzip.compress(text.encode()))
    one, two = parse(spark_lake.spark(), CHANGE_SET, [r for _, r, _ in csv_records(LocalFile(file))], KEYED)
    assert one.row == {"ID": 1, "zip": "00501", "n": -5, "x": 0.5, "s": 'a,"b"\nc'}
    assert two.row == {"ID": 2, "zip": "10115", "n": 7, "x": 2.0, "s": ""}


VALUES: list[tuple[pa.DataType, Any, str, Any]] = [
    (pa.int8(), -1, "int", -1),
    (pa.int64(), 2**53 + 1, "bigint", 2**53 + 1),
    (pa.uint64(), 2**64 - 1, "decimal(20,0)", Decimal(2**64 - 1)),
    (pa.float32(), 1.5, "float", 1.5),
    (pa.float64(), float("inf"), "double", float("inf")),
    (pa.decimal128(38, 10), Decimal("1.0000000001"), "decimal(38,10)", Decimal("1.0000000001")),
    (pa.bool_(), True, "boolean", True),
    (pa.string(), "007", "string", "007"),
    (pa.dictionary(pa.int32(), pa.string()), "d", "string", "d"),
    (pa.binary(), b"\x00\xff", "binary", b"\x00\xff"),
    (pa.date32(), dt.date(2024, 2, 29), "date", dt.date(2024, 2, 29)),
    (pa.timestamp("ns"), dt.datetime.fromisoformat("2024-02-29 01:02:03.000004"), "timestamp_ntz",
     dt.datetime.fromisoformat("2024-02-29 01:02:03.000004")),
    (pa.timestamp("ms", "Europe/Paris"), dt.datetime(2024, 2, 29, tzinfo=dt.UTC), "timestamp",
     dt.datetime(2024, 2, 29, tzinfo=dt.UTC)),
    (pa.time64("us"), dt.time(1, 2, 3), "string", "01:02:03.000000"),
    (pa.list_(pa.int32()), [1, None], "array<int>", [1, None]),
    (pa.struct([("a", pa.int32())]), {"a": 1}, "string", '{"a":1}'),
]  # fmt: skip


@pytest.mark.spark
def test_parquet_rows_have_the_types_of_their_file(spark_lake: Lake, tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(len(VALUES))]
    arrays = [pa.array([v, None], t) for t, v, _, _ in VALUES]
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table([pa.array(["I", "U"]), pa.array([1, 1]), *arrays], ["FLAG", "ID", *names]), file)
    assert [spark_type(t) for t, *_ in VALUES] == [kind for _, _, kind, _ in VALUES]
    one, two = parse(spark_lake.spark(), CHANGE_SET, [r for _, r, _ in parquet_records(LocalFile(file))], KEYED)
    assert (one.bad, two.bad) == (None, None)
    for name, (kind, _, _, expected) in zip(names, VALUES, strict=True):
        assert (one.row[name], two.row[name]) == (expected, None), kind


@pytest.mark.spark
def test_files_with_different_schemas_in_one_batch_are_read_separately(spark_lake: Lake, tmp_path: Path) -> None:
    lines: list[str] = []
    for i, kind in enumerate((pa.int32(), pa.int64())):
        pq.write_table(pa.table([["I"], pa.array([i], kind)], ["FLAG", "ID"]), tmp_path / f"{i}.parquet")
        lines += [r for _, r, _ in parquet_records(LocalFile(tmp_path / f"{i}.parquet"))]
    lines += lines_of({"FLAG": "I", "ID": 2})
    assert [e.row["ID"] for e in parse(spark_lake.spark(), CHANGE_SET, lines, KEYED)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"FLAG,ID,ID\nI,1,2\n", MalformedRecordError),
        (b"FLAG,ID\nI,\xff\xfe\n", MalformedRecordError),
        (b"", MalformedRecordError),
    ],
)
def test_invalid_csv_is_malformed(tmp_path: Path, content: bytes, error: type[Exception]) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(error, match=r"t\.csv"):
        list(csv_records(LocalFile(tmp_path / "t.csv")))


def test_a_row_with_a_wrong_number_of_fields_is_a_record_with_a_problem(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"FLAG,ID\nI,1\nI,2,3\nI\nI,4\n")
    records = list(csv_records(LocalFile(tmp_path / "t.csv")))
    assert [(r.number, r.text) for r in records] == [
        (2, '{"@text":{"FLAG":"I","ID":"1"}}'), (3, "I,2,3"), (4, "I"), (5, '{"@text":{"FLAG":"I","ID":"4"}}'),
    ]  # fmt: skip
    assert [r.problem for r in records] == [
        None, "a row of 3 fields, but the header has 2", "a row of 1 fields, but the header has 2", None,
    ]  # fmt: skip


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("block", [64, 8 << 20])
def test_the_line_number_of_a_csv_row_is_that_of_an_editor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, block: int
) -> None:
    """Headers, line breaks in quotes, blank lines and invalid rows all count."""
    monkeypatch.setattr("lake_assets.lake.thresholds.CSV_BYTES_A_BLOCK", block)
    choose = random.Random(f"{end!r} {block}")
    pieces, expected, line = ["", f'FLAG,ID,"no{end}te"'], list[tuple[int, bool, str]](), 4
    for i in range(200):
        fits, piece = choose.choice([
            (True, f"I,{i},x"), (True, f'I,{i},"a{end}b{end}""c"""'), (True, f"I,{i},"), (True, ""), (False, f"I,{i}"),
            (False, f'I,{i},"{end}",4'),
        ])  # fmt: skip
        if piece:
            expected.append((line, fits, str(i)))
        pieces.append(piece)
        line += piece.count(end) + 1
    (tmp_path / "t.csv").write_bytes(end.join(pieces).encode())
    records = list(csv_records(LocalFile(tmp_path / "t.csv")))
    assert [(r.number, r.problem is None) for r in records] == [(n, fits) for n, fits, _ in expected]
    for record, (_, fits, i) in zip(records, expected, strict=True):
        assert (f'"ID":"{i}"' if fits else f"I,{i}") in record.text


def test_a_truncated_file_is_detected(tmp_path: Path) -> None:
    whole = gzip.compress(CSV.encode())
    (tmp_path / "t.csv.gz").write_bytes(whole[: len(whole) - 9])
    with pytest.raises(TruncatedInputError):
        list(csv_records(LocalFile(tmp_path / "t.csv.gz")))
    pq.write_table(pa.table({"FLAG": ["I"]}), tmp_path / "t.parquet")
    whole = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(whole[:-20])
    with pytest.raises(MalformedRecordError, match="not a complete Parquet file"):
        list(parquet_records(LocalFile(tmp_path / "t.parquet")))


def test_types_without_a_counterpart_are_named() -> None:
    with pytest.raises(UnsupportedEventError, match="38 digits"):
        spark_type(pa.decimal256(50, 2))


def test_files_are_known_by_their_names() -> None:
    assert reader_of(LocalFile(Path("a/b.csv.gz"))) is reader_of(LocalFile(Path("b.CSV"))) is csv_records
    assert reader_of(LocalFile(Path("b.parquet"))) is parquet_records
    assert reader_of(LocalFile(Path("b.jsonl"))) is None


@pytest.mark.parametrize("place", ["first", pytest.param("last", marks=pytest.mark.long)])
def test_a_csv_row_larger_than_a_block_is_read_and_a_too_large_one_is_rejected(tmp_path: Path, place: str) -> None:
    block, limits = 8 << 20, Limits(record=10 << 20)
    long = ['2,"' + "x" * (block + 1) + '\n"', "3," + "y" * (3 * block)]
    others = ["4,b", "5,b,c", "", "6,"]
    file = tmp_path / "t.csv"
    file.write_text("\n".join(["ID,V", *([*long, *others] if place == "first" else [*others, *long])]))
    records = {r.number: r for r in csv_records(LocalFile(file), limits)}
    first, rest = (2, 5) if place == "first" else (6, 2)
    assert sorted(records) == sorted([first, first + 2, rest, rest + 1, rest + 3])
    assert json.loads(records[first].text) == {"@text": {"ID": "2", "V": "x" * (block + 1) + "\n"}}
    assert (records[first + 2].problem or "").startswith("larger than 10.0 MiB")
    assert records[first + 2].text.startswith("3,yy")
    assert len(records[first + 2].text) <= 1_000
    assert json.loads(records[rest].text) == {"@text": {"ID": "4", "V": "b"}}
    assert records[rest + 1].problem == "a row of 3 fields, but the header has 2"
    assert json.loads(records[rest + 3].text) == {"@text": {"ID": "6", "V": None}}


@given(
    st.lists(st.sampled_from(["a", ",", '"', '""', ',"', '",', "\n", "\r\n", "\r", "é", '"\n', '\n"']), max_size=40),
    st.integers(1, 9),
)
def test_rows_begin_where_pythons_csv_reader_finds_them(pieces: list[str], chunk: int) -> None:
    class Chunks(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(chunk)

    text = "".join(pieces)
    rows = RowFilter(Chunks(text.encode()), 1 << 20, 10)
    assert rows.read() == text.encode()
    reader, begins, end = csv.reader(io.StringIO(text, newline="")), list[int](), 0
    for fields in reader:
        if fields:
            begins.append(end + 1)
        end = reader.line_num
    assert list(islice(rows.lines(), len(begins))) == begins


PARQUET: list[tuple[str, pa.DataType, Any, str, Any]] = [
    ("map", pa.map_(pa.string(), pa.decimal128(4, 2)), [("a", Decimal("1.50"))], "string", [["a", "1.50"]]),
    ("map", pa.map_(pa.string(), pa.binary()), [("a", b"x"), ("b", None)], "string", [["a", "eA=="], ["b", None]]),
    ("map", pa.map_(pa.string(), pa.float64()), [("a", float("nan"))], "string", [["a", "NaN"]]),
    ("duration", pa.duration("ns"), 1_500, "bigint", 1),
    ("finer moment", pa.timestamp("ns"), -1, "timestamp_ntz", "1969-12-31 23:59:59.999999999"),
    ("finer zoned moment", pa.timestamp("ns", "UTC"), 1_001, "timestamp", "1970-01-01 00:00:00.000001001Z"),
    ("finer time", pa.time64("ns"), 1, "string", "00:00:00.000000001"),
    ("far date", pa.date32(), 2**30, "date", f"<value out of range: {2**30}>"),
    ("far moment", pa.timestamp("us", "UTC"), 2**62, "timestamp", "17036-07-06 14:00:27.387904Z"),
    ("far dates", pa.list_(pa.timestamp("s")), [2**38], "array<timestamp_ntz>", ["10680-07-14 06:09:04.000"]),
]


@pytest.mark.parametrize(("kind", "value", "spark", "text"), [p[1:] for p in PARQUET], ids=[p[0] for p in PARQUET])
def test_parquet_values_that_json_or_python_lack_are_reported(
    tmp_path: Path, kind: pa.DataType, value: Any, spark: str, text: Any
) -> None:
    pq.write_table(pa.table({"x": pa.array([value, None], kind)}), tmp_path / "t.parquet")
    rows = [json.loads(text) for _, text, _ in parquet_records(LocalFile(tmp_path / "t.parquet"))]
    assert rows == [{"@types": {"x": spark}, "row": {"x": x}} for x in (text, None)]
