"""Numbers of rows at a scale, and the hashes from which all values derive."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

# The trading history of batch 1 covers five years; each later batch is one day.
FIRST_DAY = date(2012, 7, 7)
LAST_DAY = date(2017, 7, 7)
SECONDS = (LAST_DAY - FIRST_DAY).days * 86400
BATCHES = (1, 2, 3)


def day_of(batch: int) -> date:
    """Return the business day of a batch."""
    return LAST_DAY + timedelta(days=batch - 1)


@dataclass(frozen=True)
class Sizes:
    """Numbers of rows, in proportion to the scale; daily ones are those of one later batch."""

    scale: float

    def _of(self, rows: int) -> int:
        return max(4, round(rows * self.scale))

    @property
    def customers(self) -> int:
        """Customers of batch 1; each has two accounts."""
        return self._of(5_000)

    @property
    def accounts(self) -> int:
        """Accounts of batch 1."""
        return 2 * self.customers

    @property
    def employees(self) -> int:
        """Rows of HR; a third are brokers."""
        return self._of(5_000)

    @property
    def companies(self) -> int:
        """Companies in Finwire."""
        return self._of(500)

    @property
    def securities(self) -> int:
        """Securities in Finwire."""
        return self._of(830)

    @property
    def prospects(self) -> int:
        """Rows of each Prospect file."""
        return self._of(5_000)

    @property
    def trades(self) -> int:
        """Trades of batch 1."""
        return self._of(130_000)

    @property
    def watches(self) -> int:
        """Watches that customers placed in batch 1; 30 % of them are cancelled later."""
        return self._of(115_000)

    @property
    def market_days(self) -> int:
        """Days of DailyMarket in batch 1."""
        return 650

    @property
    def daily_trades(self) -> int:
        """New trades of a later batch."""
        return self._of(300)

    @property
    def daily_customers(self) -> int:
        """New customers of a later batch; as many are updated, and twice as many accounts."""
        return self._of(10)

    @property
    def daily_watches(self) -> int:
        """New watches of a later batch."""
        return self._of(100)


def pick(salt: int, most: int, of: str = "id") -> str:
    """Return SQL of a whole number from 0 to below `most` that depends on `of` and `salt` only."""
    return f"CAST(pmod(xxhash64({of}, {salt}), {most}) AS INT)"


def choice(salt: int, *values: str, of: str = "id") -> str:
    """Return SQL of one of some texts."""
    listed = ", ".join(f"'{v}'" for v in values)
    return f"element_at(array({listed}), {pick(salt, len(values), of)} + 1)"


def money(salt: int, low: int, high: int, of: str = "id", kind: str = "DECIMAL(10,2)") -> str:
    """Return SQL of an amount between two whole numbers, with cents."""
    return f"CAST(({low * 100} + {pick(salt, (high - low) * 100, of)}) / 100 AS {kind})"


def symbol(of: str) -> str:
    """Return SQL of a security's symbol."""
    return f"concat('S', lpad(conv({of}, 10, 36), 5, '0'))"


def at(seconds: str, first: date = FIRST_DAY) -> str:
    """Return SQL of the time some seconds after the beginning of a day."""
    return f"timestamp_seconds(unix_seconds(TIMESTAMP '{first} 00:00:00') + CAST({seconds} AS BIGINT))"
