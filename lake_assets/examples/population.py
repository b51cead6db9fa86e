"""The change feeds of `population`, step by step, and the expected tables after each step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lake_assets.examples import complete_file, shipped_pipeline
from lake_assets.lake import LakeBase

PIPELINE = shipped_pipeline("population")
NAME_CITY, POPULATION = "agg.user_name_city_tbl", "agg.city_population_tbl"


@dataclass(frozen=True)
class Step:
    """Changes, and the tables after them.

    Attributes:
        name: name of the files.
        what: description of the changes.
        feeds: new records by stream.
        name_city: expected rows of agg.user_name_city_tbl.
        population: expected rows of agg.city_population_tbl, by city.
    """

    name: str
    what: str
    feeds: Mapping[str, Sequence[Mapping[str, Any]]]
    name_city: frozenset[tuple[str, str, str]]
    population: Mapping[str, int]


def _records(version: int, *changes: tuple[str, dict[str, str]]) -> list[dict[str, Any]]:
    at = f"2022-07-29T10:0{version}:00Z"
    return [{**row, "_change_type": kind, "_commit_version": version, "_commit_timestamp": at} for kind, row in changes]


def _city(user: str, city: str) -> dict[str, str]:
    return {"user_id": user, "city": city}


def _name(user: str, name: str) -> dict[str, str]:
    return {"user_id": user, "name": name}


_NAMES = ("Ada", "Ben", "Chi", "Dai", "Eva")
STEPS: Sequence[Step] = (
    Step(
        "1_start",
        "five users have a name, four of them a city",
        {
            "user_name_feed": _records(
                1, *(("insert", _name(f"user{n}", name)) for n, name in enumerate(_NAMES, 1))
            ),
            "user_city_feed": _records(
                1, *(("insert", _city(f"user{n}", city)) for n, city in enumerate(("bj", "bj", "hz", "wh"), 1))
            ),
        },
        frozenset({("user1", "Ada", "bj"), ("user2", "Ben", "bj"), ("user3", "Chi", "hz"), ("user4", "Dai", "wh")}),
        {"bj": 2, "hz": 1, "wh": 1},
    ),
    Step(
        "2_move",
        "user1 moves from bj to hz, user5 comes to wh: one less in bj, one more in hz and in wh",
        {
            "user_city_feed": _records(
                2,
                ("update_preimage", _city("user1", "bj")),
                ("update_postimage", _city("user1", "hz")),
                ("insert", _city("user5", "wh")),
            )
        },
        frozenset(
            {
                ("user1", "Ada", "hz"), ("user2", "Ben", "bj"), ("user3", "Chi", "hz"), ("user4", "Dai", "wh"),
                ("user5", "Eva", "wh"),
            }
        ),
        {"bj": 1, "hz": 2, "wh": 2},
    ),
    Step(
        "3_leave",
        "user2 leaves, so that bj is gone; user4 takes another name, which no city counts",
        {
            "user_name_feed": _records(
                2, ("update_preimage", _name("user4", "Dai")), ("update_postimage", _name("user4", "Dan"))
            ),
            "user_city_feed": _records(3, ("delete", _city("user2", "bj"))),
        },
        frozenset({("user1", "Ada", "hz"), ("user3", "Chi", "hz"), ("user4", "Dan", "wh"), ("user5", "Eva", "wh")}),
        {"hz": 2, "wh": 2},
    ),
)  # fmt: skip


def feed(home: Path, step: Step) -> int:
    """Put a step's records into the landing folders, except existing files; return the number of new files."""
    new_files = 0
    for stream, records in step.feeds.items():
        folder = home / "landing" / stream
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{step.name}.jsonl"
        if target.exists():
            continue
        new_files += 1
        with complete_file(target) as file:
            file.write_text("".join(f"{json.dumps(r)}\n" for r in records), encoding="utf-8")
    return new_files


def fed(home: Path) -> list[Step]:
    """Return the steps whose records are in the landing folders."""
    return [s for s in STEPS if all((home / "landing" / stream / f"{s.name}.jsonl").exists() for stream in s.feeds)]


def differences(lake: LakeBase, step: Step) -> list[str]:
    """Return a description of each row that differs from the step's expectation."""
    expected = {NAME_CITY: Counter(step.name_city), POPULATION: Counter(step.population.items())}
    mismatches: list[str] = []
    for table, rows in expected.items():
        actual = Counter(tuple(r) for r in lake.spark().table(lake.sql_name(table)).collect())
        mismatches += [f"{table}: missing: {row}" for row in rows - actual]
        mismatches += [f"{table}: not expected: {row}" for row in actual - rows]
    return mismatches
