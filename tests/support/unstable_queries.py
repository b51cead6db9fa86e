"""Queries whose values depend on the order of rows, and checks for their possible results."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TABLES = (
    "CREATE TABLE final.t (id BIGINT, g INT, v INT, x DOUBLE) USING iceberg "
    "TBLPROPERTIES ('format-version' = '3', 'write.distribution-mode' = 'none')",
    "CREATE TABLE final.c (g INT, name STRING, y DOUBLE) USING iceberg "
    "TBLPROPERTIES ('format-version' = '3', 'write.distribution-mode' = 'none')",
)
COLUMNS = "id", "g", "v", "x"
# Sums of the first differ in the last digits, those of the second in all of them.
MAGNITUDES: Mapping[str, Sequence[float]] = {
    "alike": (0.1, 0.2, 0.3, 0.7, 1.1, 2.3, 1e-3, 4.7),
    "mixed": (1e16, -1e16, 1.0, 1e-3, 3.3, -7e15, 1e8, 0.1),
}

Rows = Sequence[Any]
Check = Callable[[Rows, Rows], None]
"""Of the rows of `t` and of the model's table."""


@dataclass(frozen=True)
class Rounded:
    """A query whose rows are always the same up to rounding.

    Attributes:
        sql: the query.
        floats: its columns that are rounded.
        is_set: whether rows that differ by rounding may be one or several.
    """

    sql: str
    floats: tuple[str, ...] = ("s",)
    is_set: bool = False


JOINED = "SELECT t.id, t.v, a.s FROM final.t t JOIN (SELECT g, {} AS s FROM final.t GROUP BY g) a ON t.g = a.g"
ROUNDED: Mapping[str, Rounded] = {
    "window": Rounded("SELECT id, sum(x) OVER (PARTITION BY g) AS s FROM final.t"),
    "window_of_groups": Rounded("SELECT g, v, sum(x) OVER (PARTITION BY g) AS s FROM final.t"),
    "deviation": Rounded("SELECT v, stddev(x) OVER (PARTITION BY g) AS s FROM final.t"),
    "variance": Rounded("SELECT id, g, var_pop(x) OVER (PARTITION BY g, v) AS s FROM final.t WHERE v > 0"),
    "average_joined": Rounded(JOINED.format("avg(x)")),
    "covariance_joined": Rounded(JOINED.format("covar_pop(x, v)")),
    "difference": Rounded("SELECT id, g, x - avg(x) OVER (PARTITION BY g) AS s FROM final.t"),
    "other_table": Rounded(
        "SELECT t.v, a.s FROM final.t t LEFT JOIN (SELECT g, sum(y) AS s FROM final.c GROUP BY g) a ON t.g = a.g"
    ),
    "both_summed": Rounded(
        "SELECT a.n, a.s, b.s AS r FROM (SELECT g, count(*) AS n, sum(x) AS s FROM final.t GROUP BY g) a FULL JOIN "
        "(SELECT g, sum(y) AS s FROM final.c GROUP BY g) b ON a.g = b.g",
        ("s", "r"),
    ),
    "keyed_both": Rounded(
        "SELECT a.g, a.n, a.s, b.s AS r FROM (SELECT g, count(*) AS n, sum(x) AS s FROM final.t GROUP BY g) a JOIN "
        "(SELECT g, sum(y) AS s FROM final.c GROUP BY g) b ON a.g = b.g",
        ("s", "r"),
    ),
    "no_key_shown": Rounded("SELECT sum(x) AS s, count(*) AS n FROM final.t GROUP BY g"),
    "sum_of_sums": Rounded("SELECT v, sum(s) AS s FROM (SELECT g, v, sum(x) AS s FROM final.t GROUP BY g, v) GROUP BY v"),
    "distinct": Rounded("SELECT DISTINCT s FROM (SELECT g, sum(x) AS s FROM final.t GROUP BY g)", is_set=True),
    "distinct_with_key": Rounded("SELECT DISTINCT g, s FROM (SELECT g, sum(x) AS s FROM final.t GROUP BY g)"),
    "distinct_beside": Rounded(
        "SELECT DISTINCT v, s FROM (SELECT v, sum(x) OVER (PARTITION BY g) AS s FROM final.t)", is_set=True
    ),
    "grouped_by_sum": Rounded(
        "SELECT v, s FROM (SELECT v, sum(x) OVER (PARTITION BY g) AS s FROM final.t) GROUP BY v, s", is_set=True
    ),
    "united": Rounded(
        "SELECT v, sum(x) OVER (PARTITION BY v) AS s FROM final.t UNION ALL SELECT g, y FROM final.c", ("s",)
    ),
    "generated": Rounded(
        "SELECT id, e, s FROM (SELECT id, sum(x) OVER (PARTITION BY g) AS s FROM final.t) "
        "LATERAL VIEW explode(array(0, 1)) l AS e"
    ),
}  # fmt: skip

RUNNING = "sum(v) OVER (PARTITION BY g ORDER BY v ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"


def _by(rows: Rows, column: str) -> dict[Any, list[Any]]:
    values: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        values[row[column]].append(row)
    return values


def _ids(rows: Rows) -> Counter[Any]:
    return Counter(r["id"] for r in rows)


def _order(row: Any) -> tuple[bool, int]:
    return (row["v"] is not None, row["v"] or 0)


def numbered(source: Rows, table: Rows) -> None:
    """Check that each partition is numbered from 1, in the order of v."""
    assert _bag(source, "id", "g", "v") == _bag(table, "id", "g", "v")
    for rows in _by(table, "g").values():
        rows.sort(key=lambda r: r["n"])
        assert [r["n"] for r in rows] == list(range(1, len(rows) + 1))
        assert rows == sorted(rows, key=_order)


def numbers_alone(source: Rows, table: Rows) -> None:
    """Check the same for a result without the partition column."""
    assert _ids(source) == _ids(table)
    sizes = Counter(r["g"] for r in source)
    assert Counter(r["n"] for r in table) == Counter(n + 1 for size in sizes.values() for n in range(size))


def first_of_each(source: Rows, table: Rows) -> None:
    """Check for one of the least rows of each partition."""
    groups = _by(source, "g")
    assert Counter(r["g"] for r in table) == Counter(list(groups))
    for row in table:
        least = min(map(_order, groups[row["g"]]))
        assert row["id"] in [r["id"] for r in groups[row["g"]] if _order(r) == least]


def one_of_the_group(source: Rows, table: Rows) -> None:
    """Check for one id of each group; none if all values that order its rows are null."""
    groups = _by(source, "g")
    assert Counter(r["g"] for r in table) == Counter(list(groups))
    for row in table:
        rows = groups[row["g"]]
        is_ordered = any(r["v"] is not None for r in rows)
        assert row["f"] in [r["id"] for r in rows] or (row["f"] is None and not is_ordered)


def one_for_all_of_the_group(source: Rows, table: Rows) -> None:
    """Check that each row has one id of its group, the same for the whole group."""
    groups = {g: rows for g, rows in _by(source, "g").items() if g is not None}
    assert _bag(table, "id") == _bag([r for rows in groups.values() for r in rows], "id")
    chosen: dict[Any, set[Any]] = defaultdict(set)
    by_id = {r["id"]: g for g, rows in groups.items() for r in rows}
    for row in table:
        chosen[by_id[row["id"]]].add(row["f"])
    for g, ids in chosen.items():
        assert len(ids) == 1
        assert ids <= {r["id"] for r in groups[g]}


def lists(source: Rows, table: Rows) -> None:
    """Check that each row has all ids of its group, in the same order for the whole group."""
    groups = {g: sorted(r["id"] for r in rows) for g, rows in _by(source, "g").items() if g is not None}
    assert Counter((r["id"], tuple(sorted(r["l"]))) for r in table) == Counter(
        (r["id"], tuple(groups[r["g"]])) for r in source if r["g"] is not None
    )


def running(source: Rows, table: Rows) -> None:
    """Check that sums grow by each row's own value, in the order of v."""
    assert _bag(source, "id", "g", "v") == _bag(table, "id", "g", "v")
    for rows in _by(table, "g").values():
        ordered = sorted((r for r in rows if r["v"] is not None), key=lambda r: r["n"])
        before = 0
        for row in ordered:
            assert row["n"] == before + row["v"]
            before = row["n"]
        assert [r["v"] for r in ordered] == sorted(r["v"] for r in ordered)


def placed(source: Rows, table: Rows) -> None:
    """Check that each position has as many rows as partitions of at least that size."""
    sizes = Counter(r["g"] for r in source)
    assert {r["n"]: r["c"] for r in table} == Counter(n + 1 for size in sizes.values() for n in range(size))


def _bag(rows: Rows, *columns: str) -> Counter[Any]:
    return Counter(tuple(r[c] for c in columns) for r in rows)


NUMBERED = "SELECT id, g, v, row_number() OVER (PARTITION BY g ORDER BY v) AS n FROM final.t"
ARBITRARY: Mapping[str, tuple[str, Check]] = {
    "numbered": (NUMBERED, numbered),
    "numbers_alone": (f"SELECT id, n FROM ({NUMBERED})", numbers_alone),
    "first_of_each": (f"SELECT id, g, v FROM ({NUMBERED}) WHERE n = 1", first_of_each),
    "first_of_group": ("SELECT g, first(id) AS f FROM final.t GROUP BY g", one_of_the_group),
    "first_joined": (
        "SELECT t.id, a.f FROM final.t t JOIN (SELECT g, first(id) AS f FROM final.t GROUP BY g) a ON t.g = a.g",
        one_for_all_of_the_group,
    ),
    "tied_max_by": ("SELECT g, min_by(id, v) AS f FROM final.t GROUP BY g", one_of_the_group),
    "lists": (
        "SELECT t.id, a.l FROM final.t t JOIN (SELECT g, collect_list(id) AS l FROM final.t GROUP BY g) a ON t.g = a.g",
        lists,
    ),
    "running": (f"SELECT id, g, v, {RUNNING} AS n FROM final.t", running),
    "placed": (f"SELECT n, count(*) AS c FROM ({NUMBERED}) GROUP BY n", placed),
}


def fill(choose: random.Random, magnitudes: Sequence[float]) -> list[str]:
    """Return statements that insert the first rows of both tables, in several files."""
    rows = [_row(choose, n, magnitudes) for n in range(1, 61)]
    inserts = [f"INSERT INTO final.t VALUES {', '.join(rows[n : n + 20])}" for n in range(0, 60, 20)]
    names = ", ".join(f"({g}, 'n{g % 3}', {choose.choice(magnitudes)!r}D)" for g in [*range(5), *range(5), 1, 2])
    return [*inserts, f"INSERT INTO final.c VALUES {names}"]


def _row(choose: random.Random, n: int, magnitudes: Sequence[float]) -> str:
    g = "NULL" if choose.random() < 0.04 else choose.randint(0, 5)
    v = "NULL" if choose.random() < 0.04 else choose.randint(1, 3)
    x = "NULL" if choose.random() < 0.04 else f"{choose.choice(magnitudes)!r}D"
    return f"({n}, {g}, {v}, {x})"


def changes(choose: random.Random, magnitudes: Sequence[float], new: Iterator[int]) -> list[str]:
    """Return statements of another writer between two runs: files rewritten in another order, and a few changes."""
    g, k = choose.randint(0, 5), choose.randint(1, 60)
    x = f"{choose.choice(magnitudes)!r}D"
    order = choose.choice(["x DESC NULLS LAST", "id DESC NULLS LAST", "v ASC NULLS LAST, x ASC NULLS LAST"])
    rewrite = (
        "CALL lake.system.rewrite_data_files(table => 'final.t', strategy => 'sort', "
        f"sort_order => '{order}', options => map('rewrite-all', 'true'))"
    )
    few = {
        f"INSERT INTO final.t VALUES {_row(choose, next(new), magnitudes)}, {_row(choose, next(new), magnitudes)}": 4,
        f"INSERT INTO final.t SELECT * FROM final.t WHERE id = {k}": 1,
        f"DELETE FROM final.t WHERE id = {k}": 4,
        f"DELETE FROM final.t WHERE g = {g} AND v = 1": 1,
        f"UPDATE final.t SET x = {x} WHERE id = {k}": 3,
        f"UPDATE final.t SET v = 2 WHERE id BETWEEN {k} AND {k + 3}": 2,
        f"UPDATE final.t SET g = {g} WHERE id = {k}": 2,
        f"UPDATE final.c SET y = {x} WHERE g = {g}": 2,
        f"INSERT INTO final.c VALUES ({g}, 'n1', {x})": 1,
        f"DELETE FROM final.c WHERE g = {g}": 0.5,
    }
    chosen = choose.choices(list(few), list(few.values()), k=choose.randint(1, 3))
    return [*([rewrite] if choose.random() < 0.7 else []), *dict.fromkeys(chosen)]
