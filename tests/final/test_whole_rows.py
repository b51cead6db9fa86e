"""Tables without a key, whose rows are identified by all of their values."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pydantic import ValidationError

from lake_assets import Lake
from lake_assets.pipeline import PipelineConfig
from tests.support.item_events import Row, Write, change_feed, debezium, wal2json
from tests.support.item_stream import ITEMS, Stream

FORMATS: dict[str, tuple[str, Write]] = {
    "debezium": ("debezium", debezium),
    "wal2json-v2": ("wal2json-v2", wal2json),
    "change-feed": ("change-feed", change_feed),
}


OFTEN = ("wal2json-v2", "hard")


@pytest.mark.parametrize(
    ("name", "deletes"),
    [
        OFTEN,
        *(
            pytest.param(name, deletes, marks=pytest.mark.long)
            for name in ("debezium", "wal2json-v2", "change-feed")
            for deletes in ("hard", "soft")
            if (name, deletes) != OFTEN
        ),
    ],
)  # fmt: skip
def test_rows_without_a_key_follow_the_source(lake: Lake, name: str, deletes: str) -> None:
    choose = random.Random(f"{name} {deletes}")
    reads, write = FORMATS[name]
    stream = Stream(
        lake, format=reads, tables=[{"table": ITEMS, "key": "*", "deletes": deletes, "types": {"n": "int"}}]
    )
    rows: list[Row] = []
    deleted: list[Row] = []

    def new() -> Row:
        made = {"n": choose.choice([None, 1, 2]), "at": choose.choice([None, f"2026-01-0{choose.randint(1, 9)} 00:00:00+00"]),
                "name": choose.choice(["", "it's", "ü", None])}  # fmt: skip
        return made if made not in rows and any(v is not None for v in made.values()) else new()

    at = 0
    sent: list[str] = []
    for _ in range(2 if (name, deletes) == OFTEN else 3):
        # At-least-once delivery: some consecutive earlier events are repeated late.
        again = choose.randrange(max(1, len(sent)))
        lines = sent[again : again + 5]
        for _ in range(12):
            at += 1
            op = choose.choice("ccud") if rows else "c"
            before = rows.pop(choose.randrange(len(rows))) if op in "ud" else None
            after = new() if op in "cu" else None
            rows += [after] if after else []
            deleted += [before] if before else []
            made = write(at, op, before, after)
            lines, sent = lines + made, sent + made
        stream.run(*lines)
        current = [r for r in stream.rows("final.items") if not r.get("__deleted")]
        plain = [{c: _plain(r[c]) for c in ("n", "at", "name")} for r in current]
        assert sorted(map(str, plain)) == sorted(map(str, rows))
        assert len({r["__row"] for r in current}) == len(current)
    assert stream.rejected() == []
    if deletes == "soft":
        soft_deleted = [r for r in stream.rows("final.items") if r["__deleted"]]
        assert len(soft_deleted) == len({str(r) for r in deleted if r not in rows})


def _plain(value: Any) -> Any:
    return value.strftime("%Y-%m-%d %H:%M:%S+00") if hasattr(value, "strftime") else value


@pytest.mark.long
def test_an_event_without_its_old_row_is_rejected(lake: Lake) -> None:
    stream = Stream(lake, format="debezium", tables=[{"table": ITEMS, "key": "*"}])
    row = {"n": 1, "name": "a"}
    stream.run(
        *debezium(1, "c", None, row), *debezium(2, "u", None, {"n": 2, "name": "a"}), *debezium(3, "d", None, None)
    )
    assert [(p, r.split(":")[0]) for p, _, r in stream.rejected()] == [
        (1, "an update or delete without the whole old row"), (2, "an update or delete without the whole old row"),
    ]  # fmt: skip
    assert [r["n"] for r in stream.rows("final.items")] == [1]


@pytest.mark.parametrize("more", [{"key": ["*", "id"]}, {"key": "*", "mode": "scd2"}, {"key": "*", "columns": "id"}])
def test_what_does_not_go_together_is_said(more: dict[str, Any]) -> None:
    declared = {"name": "p", "streams": [{"name": "s", "tables": [{"table": "public.t", **more}]}]}
    with pytest.raises(ValidationError, match=r"`key: '\*'`"):
        PipelineConfig.model_validate(declared)
