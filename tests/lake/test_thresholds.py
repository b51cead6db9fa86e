"""Thresholds live in one module, and other modules read them where they compare."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from lake_assets.lake import thresholds

ROOT = Path(__file__).parents[2]
HOME = Path(thresholds.__file__)
UNIT = re.compile("ROWS|RECORDS|EVENTS|FILES|BYTES|KEYS|GROUPS|PARTITIONS|MANIFESTS|SNAPSHOTS|VERSIONS|RANGES")
# Numbers from 100 on, with a unit in their name, that choose no way.
ELSEWHERE = {
    "MAX_ROW_BYTES": "Arrow counts the bytes of a block in 32 bits",
    "_MAX_FOLDER_BYTES": "a limit of file systems",
    "_LOG_BYTES": "in a layer below the lake's, which knows no lake",
    "_MAX_NAME_BYTES": "a limit of file systems",
    "_ROWS_PER_SECOND": "an estimate that a plan shows",
}


# Most modules have neither word, and need not be parsed.
CONSTANT = re.compile(rf"^[^a-z]*(?:{UNIT.pattern})[^a-z]*[:=]", re.MULTILINE)


@functools.cache
def modules() -> dict[Path, str]:
    paths = sorted((ROOT / "lake_assets").rglob("*.py"))
    return {p: p.read_text(encoding="utf-8") for p in paths if p != HOME and "examples" not in p.parts}


def parsed(is_needed: Callable[[str], object]) -> Iterator[ast.Module]:
    """Modules whose text needs a look."""
    return (ast.parse(text) for text in modules().values() if is_needed(text))


def constants(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield names in upper case with their numbers, such as `1_000`, `32 << 20` or `10**6`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for name, value in zip(names, values, strict=False):  # a call may return several values
                if isinstance(name, ast.Name) and name.id.isupper():
                    is_plain = all(isinstance(n, ast.Constant | ast.BinOp | ast.operator) for n in ast.walk(value))
                    number = eval(ast.unparse(value), {}) if is_plain else None
                    if isinstance(number, int):
                        yield name.id, number


def test_no_other_module_has_a_threshold() -> None:
    found = {name for tree in parsed(CONSTANT.search) for name, n in constants(tree) if n >= 100 and UNIT.search(name)}
    assert found == set(ELSEWHERE)


def test_thresholds_are_read_where_they_are_compared() -> None:
    nodes = [node for tree in parsed(lambda text: "thresholds" in text) for node in ast.walk(tree)]
    assert not [n for n in nodes if isinstance(n, ast.ImportFrom) and n.module == thresholds.__name__]
    read = {
        n.attr
        for n in nodes
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "thresholds"
    }
    assert read == {name for name in vars(thresholds) if name.isupper()}


def test_each_threshold_says_what_set_it() -> None:
    comments = re.findall(r"((?:^# .*\n)+)^[A-Z]", HOME.read_text(encoding="utf-8"), re.MULTILINE)
    sources = [" ".join(re.findall(r"\[(.*?)\]", c.replace("\n# ", " "))) for c in comments]
    assert [c for c, s in zip(comments, sources, strict=True) if not re.search(r"\d{4}|bench_|not measured", s)] == []
    named = {name for s in sources for name in re.findall(r"\b00\d\d\b|bench_\w+", s)}
    assert {n for n in named if n.startswith("00") and not list((ROOT / "docs/decisions").glob(f"{n}-*.md"))} == set()
    assert {n for n in named if n.startswith("b") and not (ROOT / "benchmarks" / f"{n}.py").exists()} == set()
