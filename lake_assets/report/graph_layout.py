"""The tables of a lake as a graph: in columns from raw to aggregates, drawn without a library.

An arrow that skips columns passes through gaps in them, one for all such arrows from a table, and behind no table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from statistics import fmean

LAYERS = ("raw", "staging", "final", "agg")
# Pixels.
WIDTH, HEIGHT, _GAP_X, _GAP_Y, _TOP, _SIDE = 210, 44, 116, 14, 34, 8
# The height of a place where arrows pass through a column.
_BEND = 14
# How often the order in each column is improved; more changes little.
_SWEEPS = 6


@dataclass(frozen=True)
class Node:
    """A table in the graph.

    Attributes:
        x, y: its upper left corner.
        note: below its name.
        state: `good`, `late`, `silent`, `failing` or `foreign`, a table that no pipeline of the lake fills.
    """

    name: str
    x: int
    y: int
    note: str = ""
    state: str = "good"


@dataclass(frozen=True)
class Edge:
    """An arrow from a source to a table.

    Attributes:
        path: of the SVG.
        label: what the last step of the table did; only at the first arrow into it.
        x, y: the end of the label.
    """

    source: str
    table: str
    path: str
    label: str
    x: int
    y: int


@dataclass(frozen=True)
class Graph:
    """A drawn graph; sizes in pixels.

    Attributes:
        columns: the title of each column, and the middle of it.
    """

    width: int = 0
    height: int = 0
    columns: Sequence[tuple[str, int]] = ()
    nodes: Sequence[Node] = ()
    edges: Sequence[Edge] = field(default_factory=tuple)


# A table, or a place where arrows from a table pass through a column: the table and the column.
_Item = str | tuple[str, int]


def graph(
    sources: Mapping[str, Sequence[str]], notes: Mapping[str, str], states: Mapping[str, str], labels: Mapping[str, str]
) -> Graph:
    """Draw tables.

    Args:
        sources: by table, the tables that it reads.
        notes, states: by table, what a node shows.
        labels: by table, what its last step did.
    """
    everything = {name: [s for s in dict.fromkeys(of) if s != name] for name, of in sources.items()}
    depth = _depths(everything)
    if not depth:
        return Graph()
    columns = _columns(everything, depth)
    height = _TOP + max(sum(map(_height, items)) for items in columns) + _GAP_Y
    nodes: dict[str, Node] = {}
    bends: dict[_Item, tuple[int, int]] = {}
    for n, items in enumerate(columns):
        # Short columns are in the middle of the height.
        x, y = _SIDE + n * (WIDTH + _GAP_X), _TOP + (height - _TOP - sum(map(_height, items))) // 2
        for item in items:
            if isinstance(item, str):
                nodes[item] = Node(item, x, y, notes.get(item, ""), states.get(item, "foreign"))
            else:
                bends[item] = x, y + _BEND // 2
            y += _height(item)
    edges = [
        _edge(
            nodes[source],
            node,
            bends,
            range(depth[source] + 1, depth[node.name]),
            "" if n else labels.get(node.name, ""),
        )
        for node in nodes.values()
        for n, source in enumerate(everything.get(node.name, ()))
    ]
    width = 2 * _SIDE + len(columns) * WIDTH + (len(columns) - 1) * _GAP_X
    titles = [(_title(items), _SIDE + n * (WIDTH + _GAP_X) + WIDTH // 2) for n, items in enumerate(columns)]
    return Graph(width, height, titles, list(nodes.values()), edges)


def _height(item: _Item) -> int:
    return HEIGHT + _GAP_Y if isinstance(item, str) else _BEND


def _depths(sources: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the column of each table, and of each source: right of its sources, and not left of its layer."""
    depth: dict[str, int] = {}
    for name in _upstream_first(sources):
        layer = name.partition(".")[0]
        least = LAYERS.index(layer) if layer in LAYERS else 0
        depth[name] = max([least, *(depth[s] + 1 for s in sources.get(name, ()) if s in depth)])
    used = {d: n for n, d in enumerate(sorted(set(depth.values())))}
    return {name: used[d] for name, d in depth.items()}


def _columns(sources: Mapping[str, Sequence[str]], depth: Mapping[str, int]) -> list[list[_Item]]:
    """Return the items of each column, each in an order in which few arrows cross."""
    columns: list[list[_Item]] = [[] for _ in range(max(depth.values()) + 1)]
    neighbours: dict[_Item, list[_Item]] = {name: [] for name in depth}
    for name, d in depth.items():
        columns[d].append(name)
    for name, of in sources.items():
        for source in of:
            before: _Item = source
            for column in range(depth[source] + 1, depth[name]):
                bend = source, column
                if bend not in neighbours:
                    neighbours[bend] = []
                    columns[column].append(bend)
                neighbours[bend].append(before)
                neighbours[before].append(bend)
                before = bend
            neighbours[name].append(before)
            neighbours[before].append(name)
    for sweep in range(_SWEEPS):
        _improve(columns if sweep % 2 == 0 else columns[::-1], neighbours)
    return columns


def _upstream_first(sources: Mapping[str, Sequence[str]]) -> list[str]:
    try:
        return list(TopologicalSorter(sources).static_order())
    except CycleError:
        # Tables of several pipelines may read each other in a circle.
        return list(dict.fromkeys(n for name, of in sources.items() for n in (*of, name)))


def _improve(columns: Sequence[list[_Item]], neighbours: Mapping[_Item, Sequence[_Item]]) -> None:
    """Sort each column by the mean place of its neighbours."""
    place: dict[_Item, float] = {}
    for items in columns:
        for n, item in enumerate(items):
            place[item] = (n + 0.5) / len(items)
    for items in columns:
        means = {item: fmean(place[o] for o in neighbours[item]) for item in items if neighbours[item]}
        items.sort(key=lambda item: means.get(item, place[item]))
        place |= {item: (n + 0.5) / len(items) for n, item in enumerate(items)}


def _edge(
    source: Node, table: Node, bends: Mapping[_Item, tuple[int, int]], columns: Iterable[int], label: str
) -> Edge:
    """Draw an arrow, through the gaps of the columns between its ends."""
    x, y = source.x + WIDTH, source.y + HEIGHT // 2
    path = f"M{x},{y}"
    for bend_x, bend_y in (bends[source.name, n] for n in columns):
        path += f"{_curve(x, y, bend_x, bend_y)} H{bend_x + WIDTH}"
        x, y = bend_x + WIDTH, bend_y
    end_x, end_y = table.x, table.y + HEIGHT // 2
    path += _curve(x, y, end_x - 6, end_y)
    return Edge(source.name, table.name, path, label, end_x - 12, end_y - 6)


def _curve(x: int, y: int, to_x: int, to_y: int) -> str:
    bend = max(40, (to_x - x) // 2)
    return f" C{x + bend},{y} {to_x - bend},{to_y} {to_x},{to_y}"


def _title(items: Sequence[_Item]) -> str:
    """Return the layers of a column."""
    return ", ".join(dict.fromkeys(item.partition(".")[0] for item in items if isinstance(item, str)))
