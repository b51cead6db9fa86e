"""A stream's records are routed as each of them alone, although what they have in common is found out once."""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lake_assets.examples.event_generator import Source, Workload
from lake_assets.examples.shop import DATA
from lake_assets.examples.stream_writers import ENCODERS
from lake_assets.formats import FORMATS, SourceTable
from lake_assets.formats.files.limited_files import DEFAULT_LIMITS
from lake_assets.ingest.records.routing import Routed, route
from lake_assets.ingest.records.stream_routing import StreamRouter
from tests.support.nested_text import FORMS

ITEMS = SourceTable("public", "items")
RECORDED = Path(__file__).parents[1] / "recordings"
FILES = [*DATA.glob("*.jsonl.gz"), *RECORDED.glob("*/*.jsonl.gz")]
# The format that reads what an encoder writes, by the first word of its name.
READERS = {"wal2json-v1": "wal2json-v1", "wal2json-v2": "wal2json-v2", "change-set": "change-set"}
READERS |= {"change-feed": "change-feed"}
# A number, a text or a word of a record's JSON.
_VALUE = re.compile(r'(?<=[:\[,])(?:-?[0-9][0-9.eE+-]*|"(?:[^"\\]|\\.)*"|true|false|null)')
_OTHERS = ("null", "true", "1", "1.0", '"r"', '"d"', '"x"', '""', '"true"', "[1]", '{"a":1}', '"\\u0000"', '"{}"')


def reader_of(encoder: str) -> str:
    return READERS.get(encoder, encoder.split("-")[0])


def lines_of(encoder: str, events: int = 60) -> list[str]:
    workload = Workload(seed=3, events=events, keys=20)
    return [line for t in Source(workload) for line in ENCODERS[encoder](t, workload)]


def odd_ones(lines: Sequence[str], choose: random.Random) -> Iterator[str]:
    """Records in which one value is another one, a piece is missing, or two pieces changed places."""
    for line in lines:
        yield line
        values = list(_VALUE.finditer(line))
        if values:
            value = choose.choice(values)
            yield line[: value.start()] + choose.choice(_OTHERS) + line[value.end() :]
        at, end = sorted(choose.choices(range(len(line)), k=2))
        yield line[:at] + line[end:]
        yield line.replace(choose.choice(('"schema":', '"op":', '"source":', '"key":', '"table":')), '"other":')
        yield line.replace('"op":"c"', '"op":"r"').replace('"snapshot":"false"', '"snapshot":"first"')


def assert_alike(name: str, lines: Sequence[str], depth: int = DEFAULT_LIMITS.depth) -> list[Routed]:
    reader = FORMATS[name]
    router = StreamRouter(reader, ITEMS, depth, (), lambda table, database: None)
    routed = [router.route(line) for line in lines]
    for line, r in zip(lines, routed, strict=True):
        assert r._replace(is_known=False) == route(reader, line, ITEMS, depth), line
    return routed


@pytest.mark.parametrize("encoder", ENCODERS)
def test_records_are_routed_as_each_alone(encoder: str) -> None:
    lines, name = lines_of(encoder), reader_of(encoder)
    routed = assert_alike(name, lines)
    known = sum(r.is_known for r in routed)
    assert known == 0 if name == "wal2json-v1" else known > len(lines) / 3
    for seed in range(8):
        choose = random.Random(seed)
        odd = list(odd_ones(lines, choose))
        choose.shuffle(odd)
        assert_alike(name, odd)


# One recording of each writer and server in every run.
SELDOM = ("mariadb_11/enveloped.jsonl.gz", "mariadb/enveloped.jsonl.gz", "odd/debezium.jsonl.gz")


def _short(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"


@pytest.mark.parametrize("most", [400, pytest.param(1_500, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "file", [pytest.param(f, marks=pytest.mark.long if _short(f) in SELDOM else ()) for f in FILES], ids=_short
)
def test_recorded_streams_are_routed_as_each_record_alone(file: Path, most: int) -> None:
    name = file.name.removesuffix(".jsonl.gz").replace("_", "-")
    name = name if name in FORMATS else "debezium"
    with gzip.open(file, "rt", encoding="utf-8", newline="\n") as stream:
        lines = [line.rstrip("\n") for line in stream][:most]
    assert_alike(name, lines)
    assert_alike(name, list(odd_ones(lines, random.Random(1))))


@pytest.mark.parametrize("depth", [2, 3, 4, 5, 6, 7, 8, 9])
def test_a_known_schema_counts_as_deep_as_it_is(depth: int) -> None:
    lines = lines_of("debezium", 10) + lines_of("debezium-value", 10)
    routed = assert_alike("debezium", lines * 2, depth)
    assert any(r.problem for r in routed) == (depth < 8)


def test_json_text_inside_json_is_read_as_if_it_were_none() -> None:
    assert_alike("debezium", [*FORMS.values()] * 3 + lines_of("debezium-plain", 5))


def test_a_schema_elsewhere_than_around_key_and_value_stays() -> None:
    line = lines_of("debezium", 1)[0]
    schema = line[line.index('"value":{"schema":') + 18 : line.index(',"payload":{"before"')]
    swapped = line.replace(schema, "null")
    lines = [
        line.replace('"connector":"postgresql"', f'"connector":{{"schema":{schema}}}'),
        swapped.replace('"source":{', f'"source":{{"schema":{schema},'),
        line.replace('"key":{"schema":', f'"key":{{"schema":{schema},"schema":'),
        line.replace(f'"schema":{schema}', f'"schema":null,"a\\"schema":{schema}'),
        line.replace(schema, schema.replace(":", ": ", 1)),
    ]
    assert len({*lines, line}) == 6
    assert_alike("debezium", [line, line, line, *lines, *lines, *lines])


def test_what_a_refused_record_says_is_not_remembered() -> None:
    refused = [True]
    router = StreamRouter(
        FORMATS["debezium"], None, 200, (), lambda table, database: "another database" if refused[0] else None
    )
    line = lines_of("debezium-plain", 1)[0]
    assert [router.route(line).problem for _ in range(3)] == ["another database"] * 3
    refused[0] = False
    assert [router.route(line).problem for _ in range(2)] == [None, None]
