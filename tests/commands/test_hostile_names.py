"""Commands on a lake whose tables, columns, records and files have hostile names: readable, and nothing for a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import bidirectional, category

import pyarrow as pa
import pytest

from lake_assets import Lake, Pipeline
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.pipeline import PipelineConfig
from tests.support.cli import Done
from tests.support.hostile_names import NAMES, SPELLINGS
from tests.support.hostile_values import LINES
from tests.support.pipeline_files import write_pipeline

Call = Callable[..., Done]
ALL = (*NAMES, *SPELLINGS)
FEW = ("\x1b[31mred\x07", "\x9b2J", "[/red]", "n" * 300, "..", "back`tick", "\u202egpj", "tab\tname")
STREAM = {"name": "events", "format": "wal2json-v2", "tables": ["*.*"]}
DECLARED: dict[str, Any] = {"name": "p", "streams": [STREAM]}


def is_safe(text: str) -> bool:
    """Whether a terminal shows a text as it is: no control characters, and none that turn its direction around."""
    turning = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    return not [c for c in text if c not in "\n\t" and (category(c) in ("Cc", "Cs") or bidirectional(c) in turning)]


@pytest.fixture
def hostile(plain_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake with rejected records, with files of hostile names, and a table and a column of each hostile name."""
    (folder := plain_lake.config.home / "landing" / "events").mkdir(parents=True)
    for i, name in enumerate(n for n in ALL if "/" not in n and len(n) < 200 and n.strip(". ")):
        (folder / f"{i}{name}.jsonl").write_bytes(b"\n".join(LINES[:8]) + f'\n"{name}"\n'.encode())
    (folder / "zz.jsonl").write_bytes(b"\n".join((*LINES, b'"\x1b[31m\xc2\x9b2J"')) + b"\n")
    Pipeline(PipelineConfig.model_validate(DECLARED)).run(plain_lake, ["raw.events"])
    plain_lake.ensure_namespace(("final",))
    for name in ALL:
        rows = pa.table({"id": [1], name: [name]})
        at = plain_lake.location_of(TableId(("final",), name))
        table = plain_lake.catalog.create_table(
            ("final", name), rows.schema, location=at, properties={PIPELINE_PROPERTY: "p"}
        )
        table.append(rows)
    monkeypatch.setenv("LAKE_HOME", str(plain_lake.config.home))
    return plain_lake


@pytest.mark.long
def test_commands_show_hostile_names_and_records_as_text(hostile: Lake, call: Call, tmp_path: Path) -> None:
    file = write_pipeline(tmp_path / "p.yaml", DECLARED)
    raw = hostile.table("raw.events_rejected").scan().to_arrow()
    positions = raw["position"].to_pylist()
    assert len(positions) > 100
    reading = ("status", "rejected", "rejected list --limit 1000", "rejected summary", "repair", "repair --dry-run")
    commands = [
        *(c.split() for c in reading),
        *([*c.split(), "--json"] for c in reading[2:]),
        ["status", "--json"],
        *(["rejected", "explain", "raw.events", p] for p in positions[-10:]),
        ["check", file],
        *(["capture", TableId(("final",), name)] for name in ALL),
        *(["capture", TableId(("final",), name), "--json"] for name in FEW),
    ]
    for words in commands:
        done = call(*words)
        assert done.code == 0, (words, done.err)
        assert is_safe(done.out), (words, done.out)
        assert not done.err, (words, done.err)
        if "--json" in words:
            json.loads(done.out)
    assert r"\x1b[31mred" in call("status").out
    assert "[/red]" in call("status").out
    for words in (
        *(["capture", name] for name in ALL),
        *(["verify", TableId(("final",), name), "-p", file] for name in FEW),
        *(["explain", TableId(("final",), name)] for name in FEW),
        *(["explain", TableId(("agg",), name), "-p", file] for name in FEW),
        *(["repair", TableId(("agg",), name)] for name in FEW),
        *(["rejected", "list", "--raw", name] for name in FEW),
        *(["rejected", "list", "--raw", TableId(("raw",), name)] for name in FEW),
        *(["check", name] for name in FEW if name not in (".", "..")),
        *(["capture", "final.orders", "--from", name] for name in FEW),
    ):
        done = call(*words)
        assert done.code in (1, 2), (words, done.out)
        assert "Error" in done.err, (words, done.err)
        assert "This error is unexpected" not in done.err, (words, done.err)
        assert is_safe(done.err), (words, done.err)
