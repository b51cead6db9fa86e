"""Numbers as JSON may write them, and the types that columns store them as."""

from __future__ import annotations

import random
import struct

KINDS = ("int", "bigint", "double", "float", "decimal(38,0)", "decimal(12,2)", "decimal(38,20)")
NUMBERS = [
    "0", "-0", "0.0", "1.0", "-1.0", "2e0", "2E+0", "2.342361e+06", "2.342361e+05", "20e-1", "15e-1", "1.5", "1.50",
    "1005e-3", "1.005", "1.2345e2", "0e999999", "0.0e-999999", "1e400", "-1e400", "1e-400", "1e39", "1e38", "1e22", "1e23",
    "9007199254740992", "9007199254740993", "-9007199254740993", "9007199254740993.0", "9.007199254740993e15",
    "90071992547409930e-1", "9007199254740992.0", "9007199254740993.5", "16777216", "16777217", "16777217.0",
    "1.6777217e7", "1.23456792E8", "1.23456794e9", "2147483647.0", "2147483648.0", "-2147483648", "9223372036854775807",
    "9223372036854775807.0", "9223372036854775808", "9.223372036854775807e18", "9.223372036854775807e+18",
    "18446744073709551616", "18446744073709551617", "1152921504606846976", "1152921504606847000", "1.2345678901234568E20",
    "123456789012345680000", "123456789012345683968", "1.23456789012345684e+20", "1.7976931348623157E308", "3.4028235E38",
    "0.1", "0.10000000000000001", "0.12345678901234567890123", "5E-324", "4.9E-324", "1E-45", "5.684341886080802E-14", "3.0380646915094013E25", "1.2345678901234567e17", "1.23456789012345671e17",
    "1" + "0" * 37, "1" + "0" * 38, "9" * 38, "9" * 40, "0." + "0" * 30 + "1", "1" * 18 + "." + "1" * 20, "1" * 19 + ".5",
    "1e-20", "100000000000000000000000e-20", "123456789.12", "12345678901.1", "0.005", "0.50", "1e1000000000",
]  # fmt: skip


def random_numbers(choose: random.Random, count: int) -> list[str]:
    """Return numbers around the limits of doubles and of whole types, in any notation."""

    def one() -> str:
        digits = str(choose.getrandbits(choose.choice((10, 31, 32, 53, 54, 60, 63, 64, 100, 126)))) or "0"
        point = choose.randint(0, len(digits) - 1)
        number = digits if choose.random() < 0.4 else f"{digits[: point + 1]}.{digits[point + 1 :] or '0'}"
        exponent = choose.choice(["", "", f"e{choose.randint(-30, 30)}", f"E+{choose.randint(0, 20)}"])
        return choose.choice(("", "-")) + number + exponent

    doubles = [repr(struct.unpack("d", choose.randbytes(8))[0]) for _ in range(count)]
    return [one() for _ in range(count)] + [d for d in doubles if d[-1].isdigit()]
