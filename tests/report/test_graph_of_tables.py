"""The graph of tables: sources left of what reads them, nothing over another, and no arrow behind a table."""

from __future__ import annotations

import random
import re

import pytest

from lake_assets.report.graph_layout import HEIGHT, LAYERS, WIDTH, Graph, graph


def draw(sources: dict[str, list[str]]) -> Graph:
    return graph(sources, {}, dict.fromkeys(sources, "good"), dict.fromkeys(sources, "1 row, 2 s"))


def check(drawn: Graph) -> None:
    boxes = [(n.x, n.y, n.x + WIDTH, n.y + HEIGHT) for n in drawn.nodes]
    for n, (left, top, right, bottom) in enumerate(boxes):
        assert left >= 0
        assert right <= drawn.width
        assert top >= 0
        assert bottom <= drawn.height
        for x, y, to_x, to_y in boxes[n + 1 :]:
            assert right <= x or to_x <= left or bottom <= y or to_y <= top
    at = {n.name: n for n in drawn.nodes}
    for e in drawn.edges:
        assert at[e.source].x + WIDTH < at[e.table].x
        # Where an arrow passes a column straight on, there is no table.
        for end_x, end_y, to_x in re.findall(r" (\d+),(\d+) H(\d+)", e.path):
            assert not [b for b in boxes if b[0] < int(to_x) and int(end_x) < b[2] and b[1] <= int(end_y) <= b[3]]


def test_nothing_and_one_table() -> None:
    assert draw({}) == Graph()
    drawn = draw({"raw.a": []})
    assert [(n.name, n.state) for n in drawn.nodes] == [("raw.a", "good")]
    check(drawn)


def test_layers_are_columns_and_a_model_of_a_model_is_right_of_it() -> None:
    drawn = draw({
        "raw.a": [], "staging.a": ["raw.a"], "final.a": ["staging.a"], "agg.x": ["final.a", "raw.a"],
        "agg.y": ["agg.x", "ext.dates", "final.a"],
    })  # fmt: skip
    check(drawn)
    at = {n.name: n for n in drawn.nodes}
    order = ["raw.a", "staging.a", "final.a", "agg.x", "agg.y"]
    assert [at[n].x for n in order] == sorted({n.x for n in drawn.nodes})
    assert at["ext.dates"].state == "foreign"
    # A label once for each table, at its first arrow.
    assert [e.table for e in drawn.edges if e.label] == ["staging.a", "final.a", "agg.x", "agg.y"]
    assert [t for t, _ in drawn.columns] == ["raw, ext", "staging", "final", "agg", "agg"]


def test_a_circle_is_drawn_somehow() -> None:
    drawn = draw({"agg.a": ["agg.b"], "agg.b": ["agg.a"], "agg.c": ["agg.c"]})
    assert {n.name for n in drawn.nodes} == {"agg.a", "agg.b", "agg.c"}


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"{layer}.t{n}" for layer in LAYERS for n in range(chance.randint(1, 12))]
    names += [f"lab.t{n}" for n in range(4)]
    sources = {n: chance.sample(names[:i], min(i, chance.randint(0, 3))) for i, n in enumerate(names)}
    drawn = draw(sources)
    check(drawn)
    assert {n.name for n in drawn.nodes} == set(names)
    assert len(drawn.edges) == sum(map(len, sources.values()))


def test_parallel_chains_do_not_cross() -> None:
    names = [f"t{n}" for n in range(20)]
    sources = {f"raw.{n}": [] for n in names}
    sources |= {f"staging.{n}": [f"raw.{n}"] for n in reversed(names)}
    at = {n.name: n.y for n in draw(sources).nodes}
    assert all(at[f"raw.{n}"] == at[f"staging.{n}"] for n in names)
