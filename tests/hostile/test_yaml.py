"""Hostile YAML: settings, or one error that names the file and does not take long."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lake_assets import Lake, LakeConfig
from lake_assets.errors import ConfigError, PipelineError
from lake_assets.lake.yaml_text import YamlError, check_written
from lake_assets.pipeline.config.yaml_file import read_pipeline
from tests.support.cli import caller

BEGIN = "type: lake_assets.LakePipeline\nattributes:\n"
STREAM = "  streams: [{name: events, tables: [a.b]}]\n"


def bomb(levels: int = 9) -> str:
    """Nine values, nine times that, nine times that: 400 million in a kilobyte."""
    lines = ["  x0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"  x{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


def setting(text: str) -> str:
    return f"{BEGIN}  name: {text}\n{STREAM}"


TEXTS: dict[str, str | bytes] = {
    "bomb": BEGIN + "  name: p\n" + bomb(),
    "bomb used": BEGIN + bomb() + "  name: p\n  streams: *a8\n",
    "bomb as type": bomb().replace("  x", "x") + "type: *a8\n",
    "bomb of mappings": BEGIN + "  x0: &a0 {a: 1, b: 2}\n"
    + "".join(f"  x{n}: &a{n} {{a: *a{n - 1}, b: *a{n - 1}, c: *a{n - 1}}}\n" for n in range(1, 20)),
    "circle": BEGIN + "  name: p\n  streams: &s\n    - *s\n",
    "circle of mappings": "type: lake_assets.LakePipeline\nattributes: &m\n  name: p\n  streams: *m\n",
    "merged circle": "type: lake_assets.LakePipeline\nattributes: &a\n  <<: *a\n  name: p\n",
    "merged scalar": BEGIN + "  <<: 3\n  name: p\n",
    "Python": setting("!!python/object/apply:os.system ['touch /tmp/owned']"),
    "unknown tag": setting("!foo x"),
    "not a date": setting("2024-13-45"),
    "long number": setting("9" * 10_000),
    "long hex number": setting("0x" + "f" * 10_000),
    "no int": setting("!!int abc"),
    "no float": setting("!!float abc"),
    "no moment": setting("!!timestamp abc"),
    "no bool": setting("!!bool abc"),
    "no base64": setting("!!binary '***'"),
    "no omap": setting("!!omap {a: 1}"),
    "infinity": setting(".inf"),
    "NUL": setting("a\0b"),
    "escaped NUL": setting('"a\\0b"'),
    "NUL in a path": f"{BEGIN}  name: p\n  streams: [{{name: events, tables: [a.b], landing: \"a\\0b\"}}]\n",
    "NUL in a URL": f"{BEGIN}  name: p\n  streams: [{{name: events, tables: [a.b], landing: \"file:///a%00b\"}}]\n",
    "surrogate": setting('"\\ud800"'),
    "bell": setting("a\ab"),
    "tabs": BEGIN + "\tname: p\n",
    "documents": setting("p") + "---\ntype: x\n",
    "empty": "",
    "list": "[1, 2]",
    "text": "x",
    "no settings": "type: lake_assets.LakePipeline\nattributes:\n",
    "list of settings": "type: lake_assets.LakePipeline\nattributes: [1]\n",
    "keys": BEGIN + "  [1, 2]: x\n  {a: 1}: y\n",
    "keys of other types": BEGIN + "  ~: x\n  1: y\n  true: z\n",
    "types": BEGIN + "  name: p\n  streams: {events: {tables: [1, null, [a], {b: c}, 1.5, true]}}\n",
    "tables": BEGIN + "  name: p\n  streams: [{name: e, tables: ['', ' ', '.', '..', 'a..b', '`', '../../x.y', '/']}]\n",
    "paths": BEGIN + "  name: ../../x\n  streams: [{name: ../../y, tables: [a.b], namespace: ../..}]\n",
    "deep mappings": BEGIN + "  name: " + "{a: " * 1_200 + "1" + "}" * 1_200 + "\n",
    "twice": setting("p\n  name: q"),
    "twice in quotes": setting("p\n  'name': q"),
    "undefined": setting("*nope"),
    "not closed": setting("[a"),
    "quote": setting('"a'),
    "UTF-16": setting("p").encode("utf-16"),
    "Latin-1": setting("ü").encode("latin-1"),
    "bytes": os.urandom(1_000) + b"\xff",
    "gzip": b"\x1f\x8b\x08",
}  # fmt: skip


@pytest.mark.parametrize("read", [read_pipeline, LakeConfig.load])
@pytest.mark.parametrize("name", TEXTS)
def test_what_is_wrong_with_a_yaml_file_is_said_at_once(tmp_path: Path, name: str, read: Callable[[Path], Any]) -> None:
    text = TEXTS[name]
    file = tmp_path / "settings.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    if read is not read_pipeline and not text:
        assert read(file)
        return
    began = time.process_time()
    with pytest.raises((PipelineError, ConfigError)) as raised:
        read(file)
    assert time.process_time() - began < 10
    assert str(file) in str(raised.value)
    assert len(str(raised.value)) < 3_000
    assert not Path("/tmp/owned").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("bomb", "expands to more than 1,000,000 values: an alias"),
        ("circle", "line 4: refers to itself by an alias"),
        ("not a date", "line 3: no valid YAML: looks like timestamp but is not valid: put it in quotes if it is text"),
        ("NUL in a path", "line 4: streams[events].landing: 'a\\x00b' is not a path: it contains a NUL character"),
    ],
)
def test_an_error_says_what_to_correct(tmp_path: Path, name: str, says: str) -> None:
    text = TEXTS[name]
    assert isinstance(text, str)
    (file := tmp_path / "defs.yaml").write_text(text)
    with pytest.raises(PipelineError) as raised:
        read_pipeline(file)
    assert says in str(raised.value)


def test_aliases_that_repeat_a_little_are_settings(tmp_path: Path) -> None:
    (file := tmp_path / "defs.yaml").write_text(
        f"{BEGIN}  name: p\n  streams:\n    - &first {{name: a, tables: &t [a.b]}}\n    - <<: *first\n      name: b\n"
    )
    assert [s.name for s in read_pipeline(file).streams] == ["a", "b"]


def test_what_dagster_has_read_is_looked_at_too() -> None:
    with pytest.raises(YamlError, match="1,000,000 values"):
        check_written(BEGIN + bomb())


def test_every_command_says_it_in_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = caller(monkeypatch, capsys)
    monkeypatch.setenv("LAKE_HOME", str(tmp_path / "lake"))
    Lake(LakeConfig.load()).ensure_namespace(("final",))
    (file := tmp_path / "defs.yaml").write_text(BEGIN + bomb())
    commands = [
        ("run", file), ("check", file), ("explain", "final.x", "-p", file), ("verify", "final.x", "-p", file),
        ("rebuild", "final.x", "-p", file),
    ]  # fmt: skip
    for words in commands:
        done = call(*words)
        assert done.code != 0
        assert "1,000,000 values" in done.err, (words, done)
        assert "Traceback" not in done.err
