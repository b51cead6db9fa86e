"""Every type that Kafka Connect and Debezium's connectors send, with extreme values and what a column holds of them."""

from __future__ import annotations

import base64
import datetime as dt
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

CONNECT, TIME, DATA = "org.apache.kafka.connect.data", "io.debezium.time", "io.debezium.data"
EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001
I32 = (-(2**31), -(2**31) + 1, -1, 0, 1, 2**31 - 1)
I64 = (-(2**63), -(2**63) + 1, -(2**53) - 1, -1, 0, 1, 2**53 + 1, 2**63 - 1)
DAY_MS = 86_400_000
# MySQL's TIME: -838:59:59 to 838:59:59.
MYSQL_SECONDS = 838 * 3600 + 59 * 60 + 59


@dataclass(frozen=True)
class ConnectType:
    """A type of Connect.

    Attributes:
        schema: its schema.
        values: extreme values, as they are in JSON.
        stored: what a column holds of a value, as text; None: the value does not fit.
        in_key: the same in a key, if that differs.
    """

    schema: dict[str, Any]
    values: Sequence[Any]
    stored: Callable[[Any], str | None]
    in_key: Callable[[Any], str | None] | None = None


def clock(per_second: int) -> Callable[[int], str]:
    """Return the text of a duration; `Decimal` is exact, unlike floats."""

    def text(n: int) -> str:
        seconds, finer = divmod(abs(n), per_second)
        micros = finer * 1_000_000 // per_second
        rest = finer * 1_000_000_000 // per_second % 1000
        day = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"
        return ("-" if n < 0 else "") + day + (f"{rest:03}" if rest else "")

    return text


def moment(per_second: int) -> Callable[[int], str | None]:
    """Return the text of a timestamp, in which digits beyond microseconds are cut off."""

    def text(n: int) -> str | None:
        micros = n * 1_000_000 // per_second
        if not -62_135_596_800_000_000 <= micros <= 253_402_300_799_999_999:
            return None
        found = EPOCH + dt.timedelta(microseconds=micros)
        fraction = f"{found:%f}".rstrip("0")
        return f"{found.year:04}-{found:%m-%d %H:%M:%S}" + (f".{fraction}" if fraction else "")

    return text


def day(n: int) -> str | None:
    return (dt.date(1970, 1, 1) + dt.timedelta(days=n)).isoformat() if -719_162 <= n <= 2_932_896 else None


def unscaled(number: int) -> str:
    """Return a number as Java's BigInteger.toByteArray, in base64."""
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def number_of(text: str) -> int:
    return int.from_bytes(base64.b64decode(text), "big", signed=True)


def decimal_type(precision: int, scale: int) -> ConnectType:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    most = 10**precision - 1
    values = [unscaled(n) for n in (0, 1, -1, most, -most, most + 1, -most - 1, 127, 128, -128, -129, 10**400)]

    def stored(text: str) -> str | None:
        number = number_of(text)
        return shifted(number, scale) if abs(number) <= most else None

    return ConnectType({"type": "bytes", "name": f"{CONNECT}.Decimal", "parameters": parameters}, values, stored)


def shifted(number: int, scale: int) -> str:
    """Return a number with its last `scale` digits behind the point."""
    if scale <= 0:
        return str(number * 10**-scale)
    digits = str(abs(number)).rjust(scale + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def variable(value: dict[str, Any]) -> str:
    return shifted(number_of(value["value"]), value["scale"])


def as_it_is(value: Any) -> str:
    return value


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def named(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "name": name, **more}


def integer(kind: str, bits: int) -> ConnectType:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    column = max(bits, 32)

    def stored(n: Any) -> str | None:
        return str(int(n)) if int(n) == n and -(2 ** (column - 1)) <= n < 2 ** (column - 1) else None

    return ConnectType({"type": kind}, [low, low + 1, -1, 0, 1, high, 2**63, -(2**63) - 1, 1.0, 2.5, 2e5], stored)


def floating(kind: str, most: float) -> ConnectType:
    words = {"NaN": "NaN", "Infinity": "Infinity", "-Infinity": "-Infinity"}

    def stored(n: Any) -> str | None:
        if isinstance(n, str):
            return words[n]
        if isinstance(n, int) and not is_exact(n, kind):
            return None
        return repr(float(n))

    values = [0.0, 0.1, -0.1, most, -most, 16_777_216, 16_777_217, 2**53, 2**53 + 1, -(2**53) - 1, 10**22, 10**22 + 1,
              2**70, 2**70 + 1, 10**39, *words]  # fmt: skip
    return ConnectType({"type": kind}, values, stored)


def is_exact(n: int, kind: str) -> bool:
    """Whether a whole number of up to 38 digits is a float or double."""
    bits = 53 if kind in ("double", "float64") else 24
    size = abs(n)
    return size < 10**38 and size == size >> max(0, size.bit_length() - bits) << max(0, size.bit_length() - bits)


def hexadecimal(text: str) -> str:
    return base64.b64decode(text).hex().upper()


NANOS = [*I64, 999, 1000, -999, -1000, 1_704_067_200_123_456_789, -62_135_596_800_000]
MICROS = [0, 1, -1, -62_135_596_800_000_000, -62_135_596_800_000_001, 253_402_300_799_999_999, 253_402_300_800_000_000]
BYTES = [base64.b64encode(b).decode() for b in (b"", b"\x00", b"\xff" * 9, bytes(range(256)))]
TEXTS = ["", " ", "null", "NaN", "0", 'q"\\\n\t é😀 \u2028 $.x', "x" * 5000]


def clocks(per_second: int, bounds: Sequence[int]) -> list[int]:
    hours = [s * per_second for s in (MYSQL_SECONDS, 86_400, 86_399, 90_000, 359_999, 360_000)]
    finer = [1, 9, per_second - 1, per_second // 10]
    return [n * sign for n in (0, *hours, *finer) for sign in (1, -1)] + list(bounds)


def utc(text: str) -> str | None:
    """Return a moment in UTC, in which digits beyond microseconds are cut off."""
    if text in ("infinity", "-infinity"):
        return "9999-12-31 23:59:59.999999" if text == "infinity" else "0001-01-01 00:00:00"
    year = text.split("-")[0]
    if len(year) != 4:
        return None
    whole, _, rest = text.partition(".")
    digits = rest.rstrip("Z")
    zone = text[-6:] if text[-6] in "+-" else "+00:00"
    digits = digits.removesuffix(zone)[:6].ljust(6, "0")
    try:
        found = dt.datetime.fromisoformat(whole.removesuffix("Z").removesuffix(zone) + "." + digits + zone)
        found = found.astimezone(dt.UTC).replace(tzinfo=None)
    except (OverflowError, ValueError):
        return None
    fraction = f"{found:%f}".rstrip("0")
    return f"{found.year:04}-{found:%m-%d %H:%M:%S}" + (f".{fraction}" if fraction else "")


ZONED = ["2024-02-29T23:59:59.999999Z", "2024-01-01T00:00:00.1234567+05:30", "0001-01-01T00:00:00Z",
         "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-01:00",
         "+10000-01-01T00:00:00Z", "1883-11-18T12:03:58Z", "infinity", "-infinity"]  # fmt: skip


def unless_finer(per_micro: int, stored: Callable[[int], str | None]) -> Callable[[int], str | None]:
    return lambda n: stored(n) if n % per_micro == 0 else None


TYPES: dict[str, ConnectType] = {
    "int8": integer("int8", 8), "int16": integer("int16", 16), "int32": integer("int32", 32),
    "int64": integer("int64", 64), "float32": floating("float32", 3.4028235e38),
    "float64": floating("float64", 1.7976931348623157e308), "double": floating("double", 5e-324),
    "boolean": ConnectType({"type": "boolean"}, [True, False], compact),
    "string": ConnectType({"type": "string"}, TEXTS, as_it_is),
    "bytes": ConnectType({"type": "bytes"}, BYTES, hexadecimal),
    "Connect Date": ConnectType(named("int32", f"{CONNECT}.Date"), [*I32, -719_162, -719_163, 2_932_896, 2_932_897], day),
    "Connect Time": ConnectType(named("int32", f"{CONNECT}.Time"), clocks(1000, I32), clock(1000)),
    "Connect Timestamp": ConnectType(named("int64", f"{CONNECT}.Timestamp"), [*I64, *(n // 1000 for n in MICROS)], moment(1000)),
    **{f"Decimal {p}, {s}": decimal_type(p, s) for p, s in ((1, 0), (12, 2), (18, 18), (19, 1), (38, 0), (38, 38), (38, 10))},
    # bigint.unsigned.handling.mode=precise; in the mode `long` it is an int64.
    "unsigned bigint": decimal_type(20, 0),
    "Date": ConnectType(named("int32", f"{TIME}.Date"), [*I32, -719_162, -719_163, 2_932_896, 2_932_897], day),
    "Time": ConnectType(named("int32", f"{TIME}.Time"), clocks(1000, I32), clock(1000)),
    "MicroTime": ConnectType(named("int64", f"{TIME}.MicroTime"), clocks(10**6, I64), clock(10**6)),
    "NanoTime": ConnectType(named("int64", f"{TIME}.NanoTime"), [*clocks(10**9, I64), 1001, -1001, 999], clock(10**9)),
    "Timestamp": ConnectType(named("int64", f"{TIME}.Timestamp"), [*I64, *(n // 1000 for n in MICROS)], moment(1000)),
    "MicroTimestamp": ConnectType(named("int64", f"{TIME}.MicroTimestamp"), [*I64, *MICROS], moment(10**6)),
    "NanoTimestamp": ConnectType(named("int64", f"{TIME}.NanoTimestamp"), NANOS, moment(10**9), unless_finer(1000, moment(10**9))),
    "ZonedTimestamp": ConnectType(named("string", f"{TIME}.ZonedTimestamp"), ZONED, utc, lambda t: utc(t) if "1234567" not in t else None),
    "MicroDuration": ConnectType(named("int64", f"{TIME}.MicroDuration"), I64, str),
    "NanoDuration": ConnectType(named("int64", f"{TIME}.NanoDuration"), I64, str),
    "Year": ConnectType(named("int32", f"{TIME}.Year"), [0, 1901, 2155, 9999, *I32], str),
    **{
        name: ConnectType(named("string", f"{TIME}.{name}"), values, as_it_is)
        for name, values in {
            "Interval": ["P0Y0M0DT0H0M0S", "P-178000000Y-11M-31DT-23H-59M-59.999999S"],
            "ZonedTime": ["00:00:00Z", "23:59:59.999999999Z", "24:00:00+15:59", "12:30:00.1-15:59"],
            "IsoDate": ["2024-02-29Z", "-4713-11-24Z", "+294276-12-31Z"], "IsoTime": ["24:00:00Z", "-838:59:59Z", "00:00:00.000000001Z"],
            "IsoTimestamp": ["+294276-12-31T23:59:59.999999Z", "0000-00-00T00:00:00Z", "2024-01-01T00:00:00.123456789Z"],
        }.items()
    },
    **{
        name: ConnectType(named("string", f"{DATA}.{name}"), values, as_it_is)
        for name, values in {
            "Json": ['{"a": 1.10, "b": [9007199254740993, 1e400]}', "null", '"x"', "[]", "1.0"], "Xml": ["<a b='c'>&amp;\n</a>"],
            "Uuid": ["00000000-0000-0000-0000-000000000000", "FFFFFFFF-ffff-FFFF-ffff-FFFFFFFFFFFF"],
            "Enum": ["", "a", "a,b"], "EnumSet": ["", "a", "a,b,c"], "Ltree": ["Top.Science"], "TsVector": ["'a':1 'b':2"],
        }.items()
    },
    "Bits": ConnectType(named("bytes", f"{DATA}.Bits", parameters={"length": "9"}), BYTES, hexadecimal),
    "VariableScaleDecimal": ConnectType(
        named("struct", f"{DATA}.VariableScaleDecimal"),
        [{"scale": s, "value": unscaled(n)} for s in (-20, -2, 0, 1, 5, 130) for n in (0, 1, -1, 10**38, -(10**125))], variable,
    ),
    **{
        name: ConnectType(named("struct", f"{DATA}.geometry.{name}"), values, compact)
        for name, values in {
            "Point": [{"x": -180.0, "y": 89.99999999999999, "wkb": BYTES[3], "srid": None}, {"x": 0.1, "y": 0.5, "wkb": "", "srid": 4326}],
            "Geometry": [{"wkb": BYTES[3], "srid": 2**31 - 1}, {"wkb": "", "srid": None}], "Geography": [{"wkb": BYTES[2], "srid": 4326}],
        }.items()
    },
    "SparseVector": ConnectType(named("struct", f"{DATA}.SparseVector"), [{"dimensions": 3, "vector": {"1": 0.5, "32767": -1.5}}], compact),
    "map": ConnectType({"type": "map"}, [{}, {"k": None, "": "v"}, [[1, 9007199254740993], [2, None]]], compact),
    "struct": ConnectType({"type": "struct"}, [{}, {"a": {"b": [1, {"c": None}]}, "n": 2**63 - 1}], compact),
    **{
        f"array of {name}": ConnectType({"type": "array", "items": schema}, values, stored)
        for name, schema, values, stored in (
            ("int32", {"type": "int32"}, [[], [None, *I32], [2**31], [1.0, 2]], lambda a: None if 2**31 in a else _listed(a, int)),
            ("int64", {"type": "int64"}, [list(I64), [2**63]], lambda a: None if 2**63 in a else _listed(a, int)),
            ("string", {"type": "string"}, [[], ["", None, "a,b", '"']], lambda a: _listed(a, str)),
            ("DoubleVector", {"type": "float64"}, [[0.5, -1.5, None], [2**53 + 1]], lambda a: None if 2**53 + 1 in a else _listed(a, float)),
            ("MicroTime", named("int64", f"{TIME}.MicroTime"), [[-1, 0, 86_400_000_000, MYSQL_SECONDS * 10**6]], lambda a: _listed(a, clock(10**6))),
            ("Date", named("int32", f"{TIME}.Date"), [[0, -1], [0, 2**31 - 1]], lambda a: None if 2**31 - 1 in a else _listed(a, day)),
        )
    },
}  # fmt: skip


def _listed(items: Sequence[Any], text: Callable[[Any], Any]) -> str:
    """Return a list as Spark shows it."""
    return "[" + ", ".join("null" if i is None else str(text(i)) for i in items) + "]"


def more_values(kind: ConnectType, choose: random.Random, count: int) -> list[Any]:
    """Return random values of types that are numbers in JSON: as many of each size."""
    if kind.schema["type"] not in ("int32", "int64") or "name" not in kind.schema:
        return []
    bits = int(kind.schema["type"][3:]) - 1
    return [choose.choice((1, -1)) * choose.getrandbits(choose.randint(1, bits)) for _ in range(count)]
