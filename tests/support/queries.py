"""Random SELECTs over a few small tables, for models: each with one well-defined result.

Well-defined: windows order by every column in reach, so that only rows that are equal in all of them tie; floats are
multiples of 1/4, so that their sums do not depend on the order (those of averages do: `inexact`); nothing divides, so
that nothing divides by zero.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import sqlglot
from sqlglot import exp

from lake_assets.models.sql.sql_rewrite import qualify_as_where

# By table its columns: int, dec, str, date, bool, dbl and ts are families of types, as far as queries tell them apart.
TABLES: Mapping[str, Mapping[str, str]] = {
    "final.a": {"id": "int", "b": "int", "v": "int", "name": "str", "price": "dec", "ok": "bool"},
    "final.b": {"id": "int", "g": "str", "w": "int", "since": "date"},
    "final.c": {"k": "int", "a_id": "int", "x": "dbl", "moment": "ts", "kind": "str"},
    "final.d": {"day": "date", "g": "str", "rate": "dec", "n": "int"},
}
LITERALS: Mapping[str, Sequence[str]] = {
    "int": ["-1", "0", "1", "2", "3", "4", "7"],
    "dec": ["0.00", "1.50", "-2.25", "10.01", "99.99"],
    "str": ["''", "'n'", "'s'", "'x'", "'X'", "'ny'"],
    "date": ["DATE '2024-01-01'", "DATE '2024-01-31'", "DATE '2024-02-29'", "DATE '1999-12-31'"],
    "bool": ["true", "false"],
    "dbl": ["CAST(0.25 AS DOUBLE)", "CAST(-1.5 AS DOUBLE)", "CAST(8 AS DOUBLE)"],
    "ts": ["TIMESTAMP_NTZ '2024-01-01 00:00:00'", "TIMESTAMP_NTZ '2024-02-29 23:59:59.000001'"],
}
TYPES = {
    "int": "BIGINT", "dec": "DECIMAL(20,6)", "str": "STRING", "date": "DATE", "bool": "BOOLEAN", "dbl": "DOUBLE",
    "ts": "TIMESTAMP_NTZ",
}  # fmt: skip
JOINS = (
    "JOIN",
    "JOIN",
    "JOIN",
    "LEFT JOIN",
    "LEFT JOIN",
    "RIGHT JOIN",
    "FULL JOIN",
    "LEFT SEMI JOIN",
    "LEFT ANTI JOIN",
)


@dataclass(frozen=True)
class Query:
    """A SELECT.

    Attributes:
        sql: as a model is written.
        columns: output names with the family of their type.
        kinds: which constructs it has.
        not_duckdb: why DuckDB cannot be asked, because it is another result there by definition; empty: it can.
        inexact: sums and averages of averages, whose last digits depend on the order of the rows.
    """

    sql: str
    columns: tuple[tuple[str, str], ...]
    kinds: frozenset[str] = frozenset()
    not_duckdb: str = ""
    inexact: bool = False

    @property
    def for_spark(self) -> str:
        """The same without what Spark does not parse (QUALIFY), where that names no output columns. DuckDB takes it as it
        is, and checks this rewriting."""
        if "QUALIFY" not in self.sql:
            return self.sql
        query = sqlglot.parse_one(self.sql, dialect="spark")
        assert isinstance(query, exp.Query)
        return qualify_as_where(query).sql("spark")

    @property
    def for_duckdb(self) -> str:
        """The same in DuckDB's dialect.

        ROLLUP, CUBE and the empty grouping set give a grand total over no rows there, as the standard says, and none in
        Spark: so it is left out of them. `count_if` of no rows is NULL there and 0 in Spark: it is counted otherwise.
        """
        parsed = sqlglot.parse_one(self.sql, dialect="spark")
        for group in parsed.find_all(exp.Group):
            if group.find(exp.Rollup, exp.Cube, exp.GroupingSets):
                assert isinstance(group.parent, exp.Select)
                group.parent.having("count(*) > 0", copy=False)
        for counted in list(parsed.find_all(exp.CountIf)):
            counted.replace(exp.Count(this=exp.Case().when(counted.this.copy(), exp.Literal.number(1))))
        return parsed.sql("duckdb")


@dataclass(frozen=True)
class Column:
    """A column that an expression may name."""

    ref: str
    type: str

    @property
    def name(self) -> str:
        return self.ref.rsplit(".", 1)[-1]


Scope = list[Column]


def query(choose: random.Random, levels: int = 3) -> Query:
    """A random query of at most so many levels."""
    return _Maker(choose).top(choose.randint(1, levels))


def queries(seed: int, count: int, levels: int = 3) -> list[Query]:
    """So many queries, the same for the same seed."""
    choose = random.Random(seed)
    found: list[Query] = []
    while len(found) < count:
        made = query(choose, levels)
        # A model says of this that it cannot be had.
        if not ("QUALIFY" in made.sql and _OUTER_AFTER_SEMI.search(made.sql)):
            found.append(made)
    return found


_OUTER_AFTER_SEMI = re.compile(r"LEFT (SEMI|ANTI) JOIN.*(RIGHT|FULL) JOIN")


@dataclass
class _Maker:
    choose: random.Random
    aliases: int = 0
    ctes: list[tuple[str, str, Sequence[tuple[str, str]]]] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    not_duckdb: str = ""

    def top(self, levels: int) -> Query:
        sql, columns = self.select_or_set(levels)
        if self.ctes:
            self.kinds.add("cte")
            sql = f"WITH {', '.join(f'{name} AS ({text})' for name, text, _ in self.ctes)} {sql}"
        if "QUALIFY" not in sql and self.often(0.05):
            self.kinds.add("order by")
            sql += f" ORDER BY {columns[0][0]} NULLS LAST"
        called = re.findall(r"\b(?:sum|avg)\(", sql)
        inexact = "avg(" in called and len(called) > 1
        return Query(sql, tuple(columns), frozenset(self.kinds), self.not_duckdb, inexact)

    def often(self, share: float) -> bool:
        return self.choose.random() < share

    def alias(self, letter: str = "t") -> str:
        self.aliases += 1
        return f"{letter}{self.aliases}"

    # --- queries ------------------------------------------------------------------------------------------------

    def select_or_set(self, levels: int, want: Sequence[str] | None = None) -> tuple[str, Sequence[tuple[str, str]]]:
        if levels > 1 and self.often(0.25):
            return self.set_operation(levels - 1, want)
        return self.select(levels, want)

    def set_operation(self, levels: int, want: Sequence[str] | None) -> tuple[str, Sequence[tuple[str, str]]]:
        want = want or self.choose.choices(["int", "str", "date", "dec", "int"], k=self.choose.randint(1, 3))
        operation = self.choose.choice(
            ["UNION ALL", "UNION ALL", "UNION", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL"]
        )
        self.kinds.add(operation.lower())
        left, columns = self.select(levels, want)
        right, _ = self.select(levels, want)
        if "dec" in want and re.search(r"\b(sum|avg)\(", " ".join([left, right, *(text for _, text, _ in self.ctes)])):
            self.not_duckdb = "sums have 38 digits there, so that what is put beside them is rounded to their scale"
        # Each side is a SELECT of its own: what groups or orders windows in it stays in it.
        return f"SELECT * FROM ({left}) {self.alias()} {operation} SELECT * FROM ({right}) {self.alias()}", columns

    def select(self, levels: int, want: Sequence[str] | None) -> tuple[str, Sequence[tuple[str, str]]]:
        text, scope = self.sources(levels)
        where = f" WHERE {self.condition(scope, subqueries=True)}" if self.often(0.5) else ""
        body = f"{text}{where}"
        kind = self.choose.choices(
            [self.projection, self.distinct, self.grouped, self.total, self.sets, self.windowed, self.everything],
            [3, 1.5, 6, 1, 1 if want is None else 0, 2.5, 0.5 if want is None else 0],
        )[0]
        return kind(body, scope, want)

    def outputs(self, want: Sequence[str] | None, among: Sequence[str] = tuple(TYPES)) -> list[str]:
        return list(want) if want else self.choose.choices(among, k=self.choose.randint(1, 3))

    def projection(self, body: str, scope: Scope, want: Sequence[str] | None) -> tuple[str, Sequence[tuple[str, str]]]:
        self.kinds.add("projection")
        if want is None and self.often(0.6):
            picked = self.choose.sample(scope, min(len(scope), self.choose.randint(1, 4)))
            items = [(c.ref, c.type) for c in picked]
        else:
            items = [(self.value(t, scope), t) for t in self.outputs(want)]
        if self.often(0.15):
            items[-1] = self.scalar_subquery(scope, items[-1])
        return self.listed("SELECT", items, body)

    def distinct(self, body: str, scope: Scope, want: Sequence[str] | None) -> tuple[str, Sequence[tuple[str, str]]]:
        self.kinds.add("distinct")
        return self.listed("SELECT DISTINCT", [(self.value(t, scope), t) for t in self.outputs(want)], body)

    def everything(self, body: str, scope: Scope, want: Sequence[str] | None) -> tuple[str, Sequence[tuple[str, str]]]:
        names = [c.name for c in scope]
        if len(set(names)) < len(names):
            return self.projection(body, scope, want)
        self.kinds.add("star")
        return f"SELECT * FROM {body}", [(c.name, c.type) for c in scope]

    def grouped(self, body: str, scope: Scope, want: Sequence[str] | None) -> tuple[str, Sequence[tuple[str, str]]]:
        self.kinds.add("group by")
        if want:
            by = [t for t in want if self.often(0.5)] or list(want[:1])
            groups = {t: self.grouping(t, scope) for t in by}
            items = [(groups[t], t) if t in groups and self.often(0.7) else (self.aggregate(t, scope), t) for t in want]
            items = self.aggregates_of(items, groups, scope)
            keys = list(groups.values())
        else:
            types: dict[str, str] = {}
            for _ in range(self.choose.choice([1, 1, 2, 2, 3])):
                t = self.choose.choice([c.type for c in scope])
                types[self.grouping(t, scope)] = t
            keys = list(types)
            items = [(k, types[k]) for k in keys if self.often(0.92)]
            items += [(self.aggregate(t, scope), t) for t in self.outputs(None)]
            if self.often(0.1):
                self.kinds.add("window over groups")
                order = [self.aggregate("int", scope), *keys]
                items.append((f"row_number() OVER (PARTITION BY {keys[0]} ORDER BY {', '.join(order)})", "int"))
        text, columns = self.listed("SELECT", items, body)
        if self.often(0.04) and all(k in [e for e, _ in items] for k in keys) and "OVER" not in text:
            self.kinds.add("group by all")
            return f"{text} GROUP BY ALL", columns
        by_place = [k for k in keys if any(k == e for e, _ in items)] == keys and self.often(0.1)
        places = [str(1 + [e for e, _ in items].index(k)) for k in keys] if by_place else keys
        text += f" GROUP BY {', '.join(places)}"
        # Spark does not resolve an aggregate in HAVING that is not selected, beside a window.
        return text + ("" if "row_number() OVER (PARTITION BY" in text else self.having(scope, 0.25)), columns

    def aggregates_of(
        self, items: list[tuple[str, str]], groups: Mapping[str, str], scope: Scope
    ) -> list[tuple[str, str]]:
        """At least one aggregate, where there is none: a GROUP BY without is a DISTINCT."""
        if all(e in groups.values() for e, _ in items) and self.often(0.7):
            last = items[-1][1]
            items[-1] = (self.aggregate(last, scope), last)
        return items

    def total(self, body: str, scope: Scope, want: Sequence[str] | None) -> tuple[str, Sequence[tuple[str, str]]]:
        self.kinds.add("grand total")
        items = [(self.aggregate(t, scope), t) for t in self.outputs(want)]
        text, columns = self.listed("SELECT", items, body)
        return text + self.having(scope, 0.15), columns

    def sets(self, body: str, scope: Scope, want: Sequence[str] | None) -> tuple[str, Sequence[tuple[str, str]]]:
        keys = self.choose.sample(scope, min(len(scope), self.choose.randint(1, 3)))
        refs = [k.ref for k in keys]
        kind = self.choose.choice(["ROLLUP", "CUBE", "GROUPING SETS"])
        self.kinds.add(kind.lower())
        if kind == "GROUPING SETS":
            chosen = [self.choose.sample(refs, self.choose.randint(0, len(refs))) for _ in range(2)] + [refs[:1]]
            groups = ", ".join(f"({', '.join(s)})" for s in dict.fromkeys(tuple(s) for s in chosen))
            # A key that is in no set could not be selected.
            refs = [r for r in refs if any(r in s for s in chosen)]
        else:
            groups = ", ".join(refs)
        items = [(k.ref, k.type) for k in keys if k.ref in refs]
        items += [(self.aggregate(t, scope, sets=True), t) for t in self.outputs(None)]
        if self.often(0.6):
            items.append((f"grouping({refs[0]})", "int"))
        text, columns = self.listed("SELECT", items, body)
        return f"{text} GROUP BY {kind} ({groups})", columns

    def windowed(self, body: str, scope: Scope, want: Sequence[str] | None) -> tuple[str, Sequence[tuple[str, str]]]:
        self.kinds.add("window")
        types = self.outputs(want)
        items = [(self.value(t, scope, depth=0), t) for t in types]
        place = self.choose.randrange(len(items))
        items[place] = (self.window(types[place], scope), types[place])
        if want is None:
            items += [(c.ref, c.type) for c in self.choose.sample(scope, min(len(scope), 2))]
        text, columns = self.listed("SELECT", items, body)
        if self.often(0.35):
            self.kinds.add("qualify")
            first = columns[place][0] if types[place] == "int" and self.often(0.5) else None
            # A column of a source with that name would be meant in one engine, the output in another.
            first = first if first not in [c.name for c in scope] else None
            text += f" QUALIFY {first or self.window('int', scope, ranking=True)} <= {self.choose.randint(1, 2)}"
        return text, columns

    def listed(self, verb: str, items: Sequence[tuple[str, str]], body: str) -> tuple[str, Sequence[tuple[str, str]]]:
        names: list[str] = []
        for n, (expression, _) in enumerate(items, 1):
            own = expression.rsplit(".", 1)[-1]
            plain = expression.count(".") == 1 and own.isidentifier() and own not in names and own[:1] != "o"
            plain = plain and self.often(0.5)
            names.append(own if plain else f"o{n}")
        fields = ", ".join(f"{e} AS {n}" for (e, _), n in zip(items, names, strict=True))
        return f"{verb} {fields} FROM {body}", [(n, t) for n, (_, t) in zip(names, items, strict=True)]

    def having(self, scope: Scope, share: float) -> str:
        # A column of USING has no table's name: see `test_found.py`.
        scope = [c for c in scope if "." in c.ref]
        if not scope or not self.often(share):
            return ""
        self.kinds.add("having")
        t = self.choose.choice(["int", "int", "dec"])
        operator, literal = self.choose.choice([">", "<", ">=", "<>"]), self.choose.choice(LITERALS[t])
        return f" HAVING {self.aggregate(t, scope)} {operator} {literal}"

    # --- sources ------------------------------------------------------------------------------------------------

    def sources(self, levels: int) -> tuple[str, Scope]:
        text, scope = self.source(levels)
        for _ in range(self.choose.choices([0, 1, 2], [5, 5, 1.5])[0]):
            right, columns = self.source(levels)
            if self.often(0.03):
                self.kinds.add("cross join")
                text, scope = f"{text} CROSS JOIN {right}", scope + columns
                continue
            kind = self.choose.choice(JOINS)
            self.kinds.add(kind.lower())
            shared = sorted({c.name for c in scope} & {c.name for c in columns})
            shared = [n for n in shared if [c.name for c in scope].count(n) == 1 and n[0] != "o"]
            types = {c.name: c.type for c in scope}
            shared = [n for n in shared if (n, types[n]) in [(c.name, c.type) for c in columns]]
            if shared and "USING" not in text and not kind.endswith(("SEMI JOIN", "ANTI JOIN")) and self.often(0.3):
                self.kinds.add("using")
                n = self.choose.choice(shared)
                text += f" {kind} {right} USING ({n})"
                scope = [Column(n, types[n]), *(c for c in scope + columns if c.name != n)]
                # A further join by the bare name would be ambiguous in one engine, not in the other.
                break
            text += f" {kind} {right} ON {self.on(scope, columns)}"
            scope = scope if kind in ("LEFT SEMI JOIN", "LEFT ANTI JOIN") else scope + columns
        return text, scope

    def source(self, levels: int) -> tuple[str, Scope]:
        alias = self.alias()
        if levels == 1 or self.often(0.45):
            table = self.choose.choice(list(TABLES))
            return f"{table} {alias}", [Column(f"{alias}.{c}", t) for c, t in TABLES[table].items()]
        if self.ctes and self.often(0.4):
            name, _, columns = self.choose.choice(self.ctes)
            return f"{name} {alias}", [Column(f"{alias}.{c}", t) for c, t in columns]
        text, columns = self.select_or_set(levels - 1)
        scope = [Column(f"{alias}.{c}", t) for c, t in columns]
        if self.often(0.4):
            name = self.alias("w")
            self.ctes.append((name, text, columns))
            return f"{name} {alias}", scope
        self.kinds.add("subquery")
        return f"({text}) {alias}", scope

    def on(self, left: Scope, right: Scope) -> str:
        pairs = [(a, b) for a in left for b in right if a.type == b.type and a.type in ("int", "str", "date")]
        small = [p for p in pairs if p[0].type == "int"]
        if not pairs:
            return self.condition(left + right)
        a, b = self.choose.choice(small if small and self.often(0.7) else pairs)
        aside = random.Random(f"{a.ref} {b.ref} {self.aliases}")  # the other choices stay as they were
        if aside.random() < 0.1:
            self.kinds.add("join by inequality")
            return f"{a.ref} {aside.choice(['<', '>='])} {b.ref}"
        equality = f"{a.ref} {'<=>' if self.often(0.08) else '='} {b.ref}"
        return f"{equality} AND {self.condition(left + right)}" if self.often(0.25) else equality

    # --- conditions ---------------------------------------------------------------------------------------------

    def condition(self, scope: Scope, *, subqueries: bool = False, depth: int = 1) -> str:
        if subqueries and self.often(0.35):
            return self.subquery_condition(scope)
        if depth and self.often(0.35):
            both = [self.condition(scope, depth=depth - 1) for _ in range(2)]
            return f"({both[0]} {self.choose.choice(['AND', 'OR'])} {both[1]})"
        c = self.choose.choice(scope)
        literal = self.choose.choice(LITERALS[c.type])
        others = [o for o in scope if o.type == c.type and o != c]
        options = [f"{c.ref} {self.choose.choice(['=', '<>', '<', '>='])} {literal}", f"{c.ref} IS NULL"]
        options += [f"{c.ref} IS NOT NULL", f"NOT (coalesce({c.ref}, {literal}) = {literal})"]
        if c.type in ("int", "str"):
            listed = ", ".join(self.choose.sample(LITERALS[c.type], 2) + ["NULL"] * self.often(0.15))
            options.append(f"{c.ref} {self.choose.choice(['IN', 'NOT IN'])} ({listed})")
        if c.type in ("int", "date", "dec"):
            options.append(f"{c.ref} BETWEEN {literal} AND {self.choose.choice(LITERALS[c.type])}")
        if c.type == "str":
            # Not 'n%': Iceberg 1.12 fails on a prefix where a file's partition value is NULL.
            options.append(f"{c.ref} LIKE '%n%'")
        if c.type == "bool":
            options += [c.ref, f"NOT {c.ref}"]
        if others:
            options.append(f"{c.ref} {self.choose.choice(['=', '<', '<>', '<=>'])} {self.choose.choice(others).ref}")
        return self.choose.choice(options)

    def subquery_condition(self, scope: Scope) -> str:
        table = self.choose.choice(list(TABLES))
        alias = self.alias("x")
        inner = [Column(f"{alias}.{c}", t) for c, t in TABLES[table].items()]
        pairs = [(o, i) for o in scope for i in inner if o.type == i.type and o.type in ("int", "str", "date")]
        if not pairs:
            return self.condition(scope)
        outer, own = self.choose.choice(pairs)
        more = f" AND {self.condition(inner)}" if self.often(0.4) else ""
        kind = self.choose.choice(["exists", "exists", "not exists", "in", "in", "not in", "scalar"])
        self.kinds.add(kind if kind != "scalar" else "scalar subquery")
        if kind.endswith("exists"):
            return f"{kind.upper()} (SELECT 1 FROM {table} {alias} WHERE {own.ref} = {outer.ref}{more})"
        if kind.endswith("in"):
            where = f" WHERE {self.condition(inner)}" if more else ""
            second = [(o, i) for o, i in pairs if i != own]
            if second and self.often(0.3):
                self.kinds.add("correlated in")
                o, i = self.choose.choice(second)
                where += f"{' AND' if where else ' WHERE'} {i.ref} = {o.ref}"
            return f"{outer.ref} {kind.upper()} (SELECT {own.ref} FROM {table} {alias}{where})"
        counted = f"(SELECT count(*) FROM {table} {alias} WHERE {own.ref} = {outer.ref}{more})"
        return f"{counted} {self.choose.choice(['>', '=', '<'])} {self.choose.choice(['0', '1', '2'])}"

    def scalar_subquery(self, scope: Scope, otherwise: tuple[str, str]) -> tuple[str, str]:
        table = self.choose.choice(list(TABLES))
        alias = self.alias("x")
        inner = [Column(f"{alias}.{c}", t) for c, t in TABLES[table].items()]
        pairs = [(o, i) for o in scope for i in inner if o.type == i.type and o.type in ("int", "str", "date")]
        found = [c for c in inner if c.type == otherwise[1] and c.type != "bool"]
        if not pairs or not found:
            return otherwise
        self.kinds.add("scalar subquery")
        outer, own = self.choose.choice(pairs)
        what = f"{self.choose.choice(['max', 'min'])}({self.choose.choice(found).ref})"
        return f"(SELECT {what} FROM {table} {alias} WHERE {own.ref} = {outer.ref})", otherwise[1]

    # --- values -------------------------------------------------------------------------------------------------

    def value(self, kind: str, scope: Scope, depth: int = 1) -> str:
        """An expression of a type over single rows."""
        there = [c.ref for c in scope if c.type == kind]
        if there and (not depth or self.often(0.6)):
            return self.choose.choice(there)
        made: list[str] = []
        if depth:
            strings, dates = ([c.ref for c in scope if c.type == t] for t in ("str", "date"))
            for s in self.choose.sample(strings, min(1, len(strings))):
                made += [f"length({s})"] if kind == "int" else []
                made += [f"upper({s})", f"{s} || 'n'", f"coalesce({s}, 'none')"] if kind == "str" else []
            for d in self.choose.sample(dates, min(1, len(dates))):
                made += [f"year({d})", f"month({d})"] if kind == "int" else []
                made += [f"CAST(date_add({d}, 1) AS DATE)"] if kind == "date" else []
            for own in self.choose.sample(there, min(1, len(there))):
                made += [f"{own} + 1", f"{own} % 2", f"abs({own})"] if kind == "int" else []
                made += [f"{own} + 1.25", f"-{own}"] if kind == "dec" else []
                made += [f"{own} + {own}"] if kind == "dbl" else []
                other = self.choose.choice(LITERALS[kind])
                made += [f"CASE WHEN {self.condition(scope, depth=0)} THEN {own} ELSE {other} END"]
                made += [f"greatest({own}, {other})", f"nullif({own}, {other})"] if kind != "bool" else []
            made += [f"({self.condition(scope, depth=0)})"] if kind == "bool" else []
        if made:
            return self.choose.choice(made)
        if there:
            return self.choose.choice(there)
        return f"CAST({self.choose.choice([*LITERALS[kind], 'NULL'])} AS {TYPES[kind]})"

    def grouping(self, kind: str, scope: Scope) -> str:
        there = [c.ref for c in scope if c.type == kind]
        if there and self.often(0.75):
            return self.choose.choice(there)
        made = self.value(kind, scope)
        # A constant would be taken for the place of a column.
        names = any(c.ref in made for c in scope)
        return made if names and not made.startswith("CAST(") else self.some(scope, kind)

    def some(self, scope: Scope, kind: str) -> str:
        there = [c.ref for c in scope if c.type == kind]
        if there:
            return self.choose.choice(there)
        return f"CASE WHEN {scope[0].ref} IS NULL THEN CAST(NULL AS {TYPES[kind]}) ELSE {LITERALS[kind][0]} END"

    def aggregate(self, kind: str, scope: Scope, *, sets: bool = False) -> str:
        def of(t: str) -> list[str]:
            return [c.ref for c in scope if c.type == t]

        own = of(kind)
        made: list[str] = []
        if kind == "int":
            any_column = self.choose.choice(scope).ref
            made += ["count(*)", "count(*)", f"count({any_column})", f"count(DISTINCT {any_column})"]
            made += [f"count_if({self.condition(scope, depth=0)})"]
            if own:
                c = self.choose.choice(own)
                made += [f"sum({c})", f"sum({c})", f"min({c})", f"max({c})", f"sum(DISTINCT {c})"]
        elif kind == "bool":
            made += [f"{f}({self.condition(scope, depth=0)})" for f in ("bool_or", "bool_and")]
        elif kind == "dbl":
            for t in ("int", "dbl"):
                for c in self.choose.sample(of(t), min(1, len(of(t)))):
                    made += [f"avg({c})", f"avg({c})", *([f"sum({c})"] if t == "dbl" else [])]
                    made += [f"percentile({c}, {self.choose.choice(['0.5', '0.25', '0.9'])})"]
            made += [f"{f}({c})" for f in ("min", "max") for c in own[:1]]
        else:
            made += [f"{f}({self.choose.choice(own)})" for f in ("min", "max") if own]
            if kind == "dec" and own:
                c = self.choose.choice(own)
                made += [f"sum({c})", f"sum({c})", f"avg({c})", f"CAST(avg({c}) AS DECIMAL(20,6))"]
        if not made:
            return f"max({self.some(scope, kind)})"
        chosen = self.choose.choice(made)
        self.kinds.add(chosen.split("(")[0] + (" distinct" if "DISTINCT" in chosen else ""))
        if chosen.startswith("percentile"):
            self.not_duckdb = "percentile interpolates in another order of operations: other last digits"
        if chosen.startswith("avg") and kind == "dec":
            self.not_duckdb = "avg of decimals is a decimal in Spark, a double in DuckDB"
        if self.often(0.12) and not sets and not chosen.startswith("CAST"):
            self.kinds.add("filter")
            chosen += f" FILTER (WHERE {self.condition(scope, depth=0)})"
        return chosen

    def window(self, kind: str, scope: Scope, *, ranking: bool = False) -> str:
        # Without PARTITION BY now and then: the whole table is one window.
        by = self.choose.sample(scope, min(len(scope), self.choose.choices([0, 1, 2], [1, 8, 4])[0]))
        partition = f"PARTITION BY {', '.join(c.ref for c in by)}" if by else ""
        order = [c.ref for c in self.choose.sample(scope, len(scope))]
        order[0] += self.choose.choice(["", " DESC", " DESC NULLS LAST", " NULLS LAST"])
        ordered = f"ORDER BY {', '.join(order)}"
        own = [c.ref for c in scope if c.type == kind]
        if ranking or (kind == "int" and self.often(0.4)):
            self.kinds.add("ranking")
            called = self.choose.choice(["row_number()", "row_number()", "rank()", "dense_rank()", "ntile(2)"])
            return f"{called} OVER ({partition} {ordered})"
        if own and self.often(0.5):
            self.kinds.add("lag, lead, first, last")
            c = self.choose.choice(own)
            called = self.choose.choice([f"lag({c})", f"lead({c}, 2)", f"first_value({c})"])
            return f"{called} OVER ({partition} {ordered})"
        aggregate = self.windowed_aggregate(kind, scope)
        if self.often(0.5):
            return f"{aggregate} OVER ({partition})"
        frame = self.choose.choice(
            ["", "ROWS BETWEEN 1 PRECEDING AND CURRENT ROW", "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING"]
        )
        return f"{aggregate} OVER ({partition} {ordered} {frame})"

    def windowed_aggregate(self, kind: str, scope: Scope) -> str:
        own = [c.ref for c in scope if c.type == kind]
        if kind == "int":
            return self.choose.choice(["count(*)", *(f"sum({c})" for c in own[:2])])
        if kind in ("dec", "dbl") and own:
            return f"{self.choose.choice(['sum', 'min', 'max'])}({self.choose.choice(own)})"
        return f"{self.choose.choice(['min', 'max'])}({self.some(scope, kind)})"
