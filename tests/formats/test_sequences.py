"""Sequences: texts that sort like the numbers and moments in records."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import re
from collections.abc import Callable, Sequence
from fractions import Fraction

import pyarrow as pa
import pytest

from lake_assets import Lake
from lake_assets.formats.event_model import SEQUENCE
from lake_assets.formats.sequences import KIND, STORED, placed, version
from tests.support.seeds import long_seeds

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def computed(lake: Lake, texts: Sequence[str | None], sql: str, column: str = "t") -> list[str | None]:
    """Evaluate `sql` over texts in a session in New York, where a moment without a zone must still be in UTC."""
    spark = lake.spark()
    rows = spark.createDataFrame(pa.table({"i": range(len(texts)), column: pa.array(texts, pa.string())}))
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        return [r["s"] for r in rows.selectExpr("i", f"{sql} AS s").orderBy("i").collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def sequences(lake: Lake, texts: Sequence[str | None]) -> list[str | None]:
    return computed(lake, texts, placed("t"))


# --- the model: numbers and moments in plain Python -------------------------------------------------------------


def number(choose: random.Random) -> tuple[str, Fraction]:
    """A number in any notation, and its value."""
    size = choose.choice([1, 2, 6, 13, 19, 20, 21, 40])
    whole = choose.choice(["", "0", "00"]) + str(choose.randrange(10**size))
    fraction = "".join(choose.choices("0123456789", k=choose.choice([0, 0, 1, 2, 9, 30])))
    text = choose.choice(["", "", "-", "+"]) + whole + (f".{fraction}" if fraction else choose.choice(["", "", "."]))
    if choose.random() < 0.3:
        text += choose.choice("eE") + choose.choice(["", "+", "-"]) + str(choose.choice([0, 1, 3, 17, 40, 300]))
    if choose.random() < 0.2:
        # Near an existing value: errors of order occur between neighbours.
        text = choose.choice(
            ["-1", "-1.5", "-1.05", "0", "-0.0", "9.5", "10.5", "2.5", "3", "1e20", "99999999999999999999"]
        )
    return choose.choice(["", " "]) + text, Fraction(text)


def moment(choose: random.Random) -> tuple[str, Fraction]:
    """A moment in any notation, and its nanoseconds since 1970."""
    day = choose.choice([0, 0, 1, choose.randint(-700_000, 2_900_000)])
    minutes, nanos = choose.choice([0, 1, 1439, choose.randrange(1440)]), 0
    local = dt.datetime(1970, 1, 1) + dt.timedelta(days=day, minutes=minutes)  # noqa: DTZ001
    form = choose.choice(["day", "minutes", "seconds", "fraction", "fraction"])
    if form == "day":
        local = local.replace(hour=0, minute=0)
        text = f"{local:%m-%d}"
    else:
        text = f"{local:%m-%d}" + choose.choice([" ", "T"]) + f"{local:%H:%M}"
    if form in ("seconds", "fraction"):
        local = local.replace(second=choose.choice([0, 59]))
        text += f":{local:%S}"
    if form == "fraction":
        digits = "".join(choose.choices("0019", k=choose.choice([1, 3, 6, 7, 9])))
        nanos, text = int(digits.ljust(9, "0")), f"{text}.{digits}"
    offset = 0
    if form != "day" and choose.random() < 0.6:
        offset = choose.choice([0, 60, -300, 330, -570, 840])
        sign, (hours, rest) = "-" if offset < 0 else "+", divmod(abs(offset), 60)
        offsets = [f"{sign}{hours:02}:{rest:02}", f"{sign}{hours:02}{rest:02}"]
        offsets += [] if offset else ["Z", "z", " UTC"]
        offsets += [] if rest else [f"{sign}{hours}"]
        text += choose.choice(offsets)
    seconds = (local - dt.datetime(1970, 1, 1)) // dt.timedelta(seconds=1) - offset * 60  # noqa: DTZ001
    return f"{local.year:04}-{text}", Fraction(seconds * 10**9 + nanos)


@pytest.mark.spark
@pytest.mark.parametrize("seed", [1, *long_seeds(2, 4)])
@pytest.mark.parametrize("made_up", [number, moment])
def test_sequences_sort_like_their_values(
    spark_lake: Lake, made_up: Callable[[random.Random], tuple[str, Fraction]], seed: int
) -> None:
    choose = random.Random(f"{made_up.__name__} {seed}")
    values = [made_up(choose) for _ in range(1_500)]
    texts = sequences(spark_lake, [text for text, _ in values])
    assert None not in texts
    by_value = sorted(
        zip((v for _, v in values), ((s or "").encode() for s in texts), (t for t, _ in values), strict=True)
    )
    for (a, one, x), (b, two, y) in itertools.pairwise(by_value):
        assert (one < two) == (a < b), (x, y, one, two)
        assert (one == two) == (a == b), (x, y, one, two)


@pytest.mark.spark
def test_texts_that_are_neither_numbers_nor_moments_have_no_sequence(spark_lake: Lake) -> None:
    texts = [
        "yesterday", "now", "today", "NaN", "nan", "inf", "Infinity", "-infinity", "0x10", "1_000", "1,5", "1e9999",
        "2024-02-30", "2024-13-01", "10000-01-01", "0000-06-01", "0044-03-15 BC", "12:30", "12:30:45.123", "T10:00:00",
        "2024-01-01 25:00:00", "2024-01-01 10:00:00 CEST", "2024", "2024-01-01T10", "1.5d", "١٢", "--1", "1e", ".", "-",
    ]  # fmt: skip
    assert [t for t, s in zip(texts, sequences(spark_lake, texts), strict=True) if s is not None] == ["2024"]
    assert sequences(spark_lake, [None, "", "  "]) == ["", "", ""]


@pytest.mark.spark
def test_one_instant_has_one_sequence_in_any_time_zone(spark_lake: Lake) -> None:
    same = ["2024-03-10T05:30:00+05:30", "2024-03-10 00:00Z", "2024-03-10", "2024-03-09T19:00:00.000000000-05:00"]
    assert set(sequences(spark_lake, same)) == {"2024-03-10 00:00:00.000000"}


def formerly(text: str) -> str:
    """A sequence as stored in staging before numbers and moments were normalized."""
    if re.fullmatch("[0-9]{1,20}", text):
        return text.zfill(20)
    try:
        at = dt.datetime.fromisoformat(text)
    except ValueError:
        return text
    at = at if at.tzinfo else at.replace(tzinfo=dt.UTC)
    return f"{at.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S.%f}"


@pytest.mark.spark
def test_older_sequences_in_staging_sort_among_new_ones(spark_lake: Lake) -> None:
    texts = [
        "0", "3", "10", "18446744073709551615", "2.5", "9.5", "10.5", "-1", "-1.5", "1e3", "123456789012345678901234",
        "2024-01-01", "2024-01-01T10:00:00+02:00", "2024-01-01 00:00:00.123456", "",
    ]  # fmt: skip
    stored = computed(spark_lake, [formerly(t) for t in texts], STORED, SEQUENCE)
    now = sequences(spark_lake, texts)
    assert stored == now
    # Normalized texts do not change, and texts without a sequence sort first instead of last.
    assert computed(spark_lake, now, STORED, SEQUENCE) == now
    assert computed(spark_lake, ["yesterday", None], STORED, SEQUENCE) == ["", None]


@pytest.mark.spark
def test_the_kind_of_a_sequence_is_recognized(spark_lake: Lake) -> None:
    texts = ["0", "-7.5", "1e30", "2024-01-01T00:00:00.000000001Z", ""]
    kinds = computed(spark_lake, [*sequences(spark_lake, texts), "00000000000000000007/0"], KIND, SEQUENCE)
    assert kinds == ["numbers", "numbers", "numbers", "moments", None, "versions"]


@pytest.mark.spark
def test_versions_are_whole_numbers(spark_lake: Lake) -> None:
    texts = ["7", "007", "7.0", "18446744073709551615", "7.5", "-1", "1e30", "abc", None]
    assert computed(spark_lake, texts, version("t")) == [*["7".zfill(20)] * 3, texts[3], *[None] * 5]
