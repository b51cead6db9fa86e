"""A table with a key under random changes, for windows over its rows."""

from __future__ import annotations

import itertools
import random
from typing import Any

from lake_assets import Lake
from tests.support.model_world import World

SCHEMA = {"g": "string", "o": "int", "p": "date", "v": "int", "d": "decimal(10,2)", "x": "double", "big": "bigint"}
KEYED: dict[str, Any] = {"name": "staging.t", "sql": "SELECT * FROM final.t", "key": ["g", "o", "p"]}


def prove(lake: Lake, choose: random.Random, runs: int, models: list[dict[str, Any]]) -> None:
    """Compare models with their queries over a random history: late rows, deletes, changed keys, nulls, and nothing."""
    world = World(lake, f"t ({', '.join(f'{n} {t}' for n, t in SCHEMA.items())})")
    moves = itertools.count(1)

    def new(rows: int) -> str:
        """New rows, of keys that are not in the table now."""
        values: dict[str, str] = {}
        for _ in range(rows):
            key = ", ".join(map(choose.choice, [["'a'", "'b'", "NULL"], [*map(str, range(40)), "NULL"],
                                                ["DATE'2024-01-01'", "DATE'2024-01-02'", "NULL"]]))  # fmt: skip
            v, x = choose.choice([*range(4), "NULL"]), choose.choice(["-0.0D", "0.5D", "1.5D", "NULL"])
            values[key] = f"({key}, {v}, {v}, {x}, {v})"
        same = " AND ".join(f"s.{c} <=> t.{c}" for c in KEYED["key"])
        rows_of = f"(VALUES {', '.join(values.values())}) s({', '.join(SCHEMA)})"
        return f"INSERT INTO final.t SELECT s.* FROM {rows_of} LEFT ANTI JOIN final.t t ON {same}"

    def change() -> str:
        low = choose.randrange(40)
        match choose.choice(["new", "new", "update", "delete", "move", "compact"]):
            case "new":
                return new(choose.choice([1, 3, 10]))
            case "update":
                return f"UPDATE final.t SET v = {choose.randrange(4)} WHERE o BETWEEN {low} AND {low + choose.randrange(4)}"
            case "move":
                return f"UPDATE final.t SET o = o + {100 * next(moves)} WHERE g = 'a' AND o < 100"
            case "delete":
                return f"DELETE FROM final.t WHERE {choose.choice([f'o = {low}', 'g IS NULL', 'p IS NULL'])}"
            case _:
                return f"CALL {lake.config.name}.system.rewrite_data_files(table => 'final.t', options => map('rewrite-all', 'true'))"

    world.sql(new(60))
    world.run(KEYED, *models)
    for _ in range(runs):
        for _ in range(choose.randint(1, 3)):
            world.sql(change())
        done = world.run(KEYED, *models)
        assert not [o.why for o in done.values() if "missing in the table" in o.why or "did not accept" in o.why]
