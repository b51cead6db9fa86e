"""Users whose rows are erased, others whose rows stay, and tables over them; and the same lake without some users."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from lake_assets import Lake, Pipeline
from lake_assets.formats.event_model import ARRIVED_AT, POSITION
from tests.support.debezium import BIGINT, TEXT, Event, Table, to_lines, write_lines
from tests.support.oracle import rows_of
from tests.support.pipeline_files import write_pipeline
from tests.support.pipeline_runs import run

USERS = Table({"id": BIGINT, "name": TEXT, "city": TEXT}, name="public.users")
ORDERS = Table({"nr": BIGINT, "user_id": BIGINT}, key=("nr",), name="public.orders")
CITIES = {"name": "agg.cities", "sql": "SELECT city, count(*) AS n FROM final.users GROUP BY city"}
NAMES = {"name": "agg.names", "sql": "SELECT id AS user_id, upper(name) AS name FROM final.users"}
JOINED = {"name": "agg.joined", "sql": "SELECT o.nr, u.name FROM final.orders o JOIN final.users u ON u.id = o.user_id"}
LOG = {
    "name": "agg.log",
    "sql": "SELECT id AS who, name FROM {{ changes('final.users') }}",
    "write": "append",
}
TABLES = ("staging.users", "staging.orders", "final.users", "final.orders", "agg.cities", "agg.names", "agg.joined")


class Users:
    """A lake whose stream has users and orders, and the file of its pipeline.

    Args:
        without: ids of users of whom no record arrives.
    """

    def __init__(
        self, lake: Lake, folder: Path, *, mode: str = "scd1", models: Sequence[Any] = (CITIES, NAMES, JOINED),
        without: Collection[int] = (),
    ) -> None:  # fmt: skip
        self.lake, self.without = lake, set(without)
        folder.mkdir(parents=True, exist_ok=True)
        tables = [{"table": "public.users", "mode": mode}, {"table": "public.orders"}]
        declared = {"name": "shop", "streams": [{"name": "events", "tables": tables}], "models": [*models]}
        self.file = write_pipeline(folder / "defs.yaml", declared)
        self.landing = lake.config.home / "landing" / "events"
        self.landing.mkdir(parents=True, exist_ok=True)
        self.at = self.files = 0

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline.load(self.file)

    def user(self, op: Any, key: int, name: str = "", city: str = "Rome") -> Event:
        self.at += 10
        return Event(USERS, op, (self.at, self.at + 1), {"id": key, "name": name or f"name of {key}", "city": city})

    def moved(self, old: int, new: int, name: str = "") -> list[Event]:
        """A change of a user's key: a delete and an insert with one number."""
        delete = self.user("d", old)
        row = {"id": new, "name": name or f"name of {new}", "city": "Rome"}
        return [delete, Event(USERS, "c", delete.sequence, row)]

    def order(self, nr: int, user: int) -> Event:
        self.at += 10
        return Event(ORDERS, "c", (self.at, self.at + 1), {"nr": nr, "user_id": user})

    def land(self, *events: Event, lines: Sequence[str] = ()) -> None:
        """Land events as the next file, without those of users that are left out, and lines that are no events."""
        self.files += 1
        left = [e for e in events if not (e.table == USERS and e.row["id"] in self.without)]
        write_lines(self.landing / f"{self.files:04}.jsonl", [*to_lines(left), *(line.encode() for line in lines)])

    def deliver(self, *events: Event, lines: Sequence[str] = ()) -> None:
        """Land events and run."""
        self.land(*events, lines=lines)
        run(self.lake, self.pipeline)

    def history(self, *lines: str, runs: int = 3) -> None:
        """Three files: users that are inserted, changed, deleted and given other keys, and their orders.

        Args:
            lines: more files, of one line each, which arrive with the last one.
            runs: the number of runs that absorb them: the first files come together if it is less than three.
        """
        self.land(*(self.user("c", n) for n in (1, 2, 17, 18, 30)), self.order(100, 17), self.order(101, 2))
        if runs > 2:
            run(self.lake, self.pipeline)
        self.land(self.user("u", 17, "another name", "Bari"), self.user("u", 2, city="Bari"), self.user("d", 30))
        if runs > 1:
            run(self.lake, self.pipeline)
        self.land(*self.moved(17, 1700017), self.user("u", 1, "the first"), self.order(102, 1))
        for line in lines:
            self.land(lines=[line])
        run(self.lake, self.pipeline)

    def rows(self, *tables: str) -> dict[str, Counter[Any]]:
        """The rows of tables, without what depends on where and when records arrived."""
        found = {}
        for table in tables or TABLES:
            if self.lake.exists(table):
                rows = self.lake.spark().table(self.lake.sql_name(table)).drop(POSITION, ARRIVED_AT)
                found[table] = rows_of(rows, rows.columns)
        return found

    def count(self, table: str, where: str) -> int:
        return self.lake.spark().table(self.lake.sql_name(table)).where(where).count()


def broken(key: int) -> str:
    """A record about a user that cannot be read: its `op` is none."""
    event = Event(USERS, "c", (1, 1), {"id": key, "name": "broken", "city": "Rome"}).records()[0]
    event["value"]["payload"]["op"] = "?"
    return json.dumps(event)


def files_below(lake: Lake, table: str) -> list[Path]:
    """All files in the folder of a table."""
    folder = Path(lake.table(table).location().removeprefix("file://"))
    return [f for f in folder.rglob("*") if f.is_file()]
