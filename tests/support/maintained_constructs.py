"""Queries with rare constructs, by the strategy that maintains them."""

from __future__ import annotations

# Over the tables of `tests/support/queries.py`.
BY_STRATEGY = {
    "retract": (
        # Rows that belong to no table.
        "WITH params AS (SELECT 2 AS least, 'n' AS skipped) SELECT a.id, a.v * p.least AS z FROM final.a CROSS JOIN params p WHERE a.name <> p.skipped",
        "WITH params AS (SELECT 1 AS least) SELECT b, count(*) AS n, sum(v) AS s FROM final.a WHERE v >= (SELECT least FROM params) GROUP BY b",
        "SELECT id, (SELECT 5) AS five, v + (SELECT 0.5) AS more FROM final.a",
        "SELECT x.name, count(*) AS n, sum(a.v * x.f) AS s FROM final.a JOIN (VALUES (1, 2, 'one'), (2, 3, 'two'), (3, NULL, 'two')) AS x(k, f, name) ON a.b = x.k GROUP BY x.name",
        "SELECT id, 'a' AS origin, v FROM final.a UNION ALL SELECT -1, 'none', NULL UNION ALL SELECT -2, 'none', 1.5",
        "SELECT a.id, s.n FROM final.a JOIN (SELECT explode(sequence(0, 3)) AS n) s ON s.n < a.v",
        # LATERAL, and functions as tables.
        "SELECT a.id, e.c FROM final.a a, LATERAL explode(split(a.name, '')) e(c)",
        "SELECT a.id, e.p, e.c FROM final.a a LEFT JOIN LATERAL posexplode(array(a.b, a.v)) e(p, c) ON true WHERE a.ok",
        "SELECT a.id, l.g, l.twice FROM final.a a, LATERAL (SELECT b.g, b.w * 2 AS twice FROM final.b b WHERE b.id = a.b AND b.w > a.v) l",
        "SELECT r.id, a.name FROM range(4) r JOIN final.a a ON a.b = r.id",
        "SELECT id, regexp_extract(name, '(n)(y)?', 1) AS first FROM final.a",
        # UNPIVOT.
        "SELECT * FROM final.d UNPIVOT (val FOR col IN (rate, n))",
        "SELECT col, count(*) AS n FROM final.d UNPIVOT INCLUDE NULLS (val FOR col IN (rate AS r, n)) AS u GROUP BY col",
        "SELECT * FROM (SELECT id, b, v, price FROM final.a) UNPIVOT ((x, y) FOR what IN ((b, v) AS bv, (v, b)))",
        "SELECT u.id, u.what, b.g FROM (SELECT id, b, v FROM final.a) UNPIVOT (x FOR what IN (b, v)) u JOIN final.b ON b.id = u.x",
        # Windows of time.
        "SELECT window.start AS s, count(*) AS n, sum(k) AS t FROM final.c GROUP BY window(moment, '1 day')",
        "SELECT window.start AS s, window.end AS e, count(*) AS n FROM final.c GROUP BY window(moment, '10 days', '4 days')",
        "SELECT window.start AS s, count(*) AS n FROM final.d GROUP BY window(day, 86400000000)",
        "SELECT k, window(moment, '2 days', '1 day').start AS s, x FROM final.c",
        "SELECT id, window(timestamp_seconds(v), '2 seconds') AS w FROM final.a",
    ),
    "keys": (
        # Rows that belong to no table.
        "SELECT a.id, x.name FROM final.a LEFT JOIN VALUES (1, 'one'), (2, 'two'), (CAST(NULL AS INT), 'none') AS x(k, name) ON a.b = x.k",
        "SELECT x.k, count(a.id) AS n, max(a.v) AS m FROM (VALUES (1), (2), (99)) AS x(k) LEFT JOIN final.a a ON a.b = x.k GROUP BY x.k",
        "WITH spine AS (SELECT explode(sequence(DATE '2024-01-30', DATE '2024-02-02')) AS day) SELECT s.day, count(d.g) AS n FROM spine s LEFT JOIN final.d ON d.day = s.day GROUP BY s.day",
        "SELECT id FROM final.a WHERE name IN (SELECT x.c FROM (VALUES ('n'), ('ny')) x(c))",
        "SELECT id FROM final.a WHERE b NOT IN (SELECT x.c FROM VALUES (1), (2) AS x(c))",
        "SELECT id, (SELECT 1 WHERE 1 > 2) AS none FROM final.a",
        "SELECT b FROM final.a EXCEPT SELECT 1",
        "SELECT a.id, x.k FROM final.a FULL JOIN (VALUES (1), (-7)) AS x(k) ON a.b = x.k",
        # Joins by inequality.
        "SELECT a.id, b.g FROM final.a LEFT JOIN final.b ON b.w <= a.v AND a.v < b.w + 2",
        "SELECT id FROM final.a WHERE EXISTS (SELECT 1 FROM final.b WHERE b.w > a.v)",
        "SELECT id, v FROM final.a WHERE NOT EXISTS (SELECT 1 FROM final.d WHERE d.n BETWEEN a.b AND a.v)",
        "SELECT c.a_id, c.moment, d.day, d.n FROM final.c LEFT JOIN final.d ON d.day <= c.moment QUALIFY row_number() OVER (PARTITION BY c.a_id, c.moment ORDER BY d.day DESC, d.n, d.g, d.rate) = 1",
        "SELECT b.g, count(a.id) AS n, max(a.v) AS m FROM final.b LEFT JOIN final.a ON a.v > b.w GROUP BY b.g",
        # Subqueries within expressions.
        "SELECT id FROM final.a WHERE b IN (SELECT id FROM final.b) OR v > 3",
        "SELECT id FROM final.a WHERE (b IN (SELECT id FROM final.b WHERE w > 1) OR ok) AND (name = 'n' OR EXISTS (SELECT 1 FROM final.c WHERE c.a_id = a.id))",
        "SELECT id, CASE WHEN EXISTS (SELECT 1 FROM final.b WHERE b.id = a.b) THEN 'known' WHEN v IN (SELECT w FROM final.b) THEN 'weight' ELSE 'none' END AS k FROM final.a",
        "SELECT id, NOT EXISTS (SELECT 1 FROM final.b WHERE b.id = a.b AND b.w > 1) AS missing FROM final.a",
        "SELECT b, sum(IF(v IN (SELECT w FROM final.b), 1, 0)) AS n FROM final.a GROUP BY b",
        "SELECT b, count(*) FILTER (WHERE EXISTS (SELECT 1 FROM final.b WHERE b.id = a.b)) AS n FROM final.a GROUP BY b",
        "SELECT id FROM final.a WHERE (b, v) IN (SELECT id, w FROM final.b) OR id = 3",
        "SELECT id FROM final.a WHERE EXISTS (SELECT 1 FROM final.b WHERE b.id = a.b) OR NOT EXISTS (SELECT 1 FROM final.d WHERE d.n = a.v)",
        # LATERAL, and functions as tables.
        "SELECT a.id, l.m, l.n FROM final.a a, LATERAL (SELECT max(b.w) AS m, count(*) AS n FROM final.b b WHERE b.id = a.b) l",
        "SELECT a.id, l.x FROM final.a a LEFT JOIN LATERAL (SELECT b.w AS m FROM final.b b WHERE b.id = a.b) l(x) ON true",
        "SELECT r.n, count(a.id) AS c FROM range(-1, 4) AS r(n) LEFT JOIN final.a a ON a.v = r.n GROUP BY r.n",
        "SELECT e.col, p.pos, count(a.id) AS c FROM explode(sequence(1, 3)) e JOIN posexplode(array(1, 2, 9)) p ON p.col = e.col LEFT JOIN final.a a ON a.b = e.col GROUP BY e.col, p.pos",
        "SELECT b, last(v, true) AS k FROM final.a GROUP BY b HAVING count(DISTINCT v) <= 1",
        # Subqueries beside aggregates and in HAVING.
        "SELECT b, count(*) AS n FROM final.a GROUP BY b HAVING count(*) > (SELECT min(n) FROM final.d)",
        "SELECT b, sum(v) AS s, sum(v) / (SELECT sum(w) FROM final.b) AS share FROM final.a GROUP BY b",
        "SELECT a.b, a.v % 2 AS odd, count(*) AS n FROM final.a GROUP BY a.b, a.v % 2 HAVING a.v % 2 = 1 OR count(*) >= (SELECT count(*) FROM final.b a WHERE a.id = a.w) + (SELECT 1)",
        "SELECT b, sum(v) AS v FROM final.a GROUP BY b HAVING b NOT IN (SELECT id FROM final.b WHERE id IS NOT NULL) AND sum(v) > 1",
        "SELECT b, ok FROM final.a GROUP BY b, ok HAVING EXISTS (SELECT 1 FROM final.b x WHERE x.id = a.b) AND NOT ok IN (SELECT w > 1 FROM final.b)",
        "SELECT DISTINCT count(*) AS n, (SELECT max(n) FROM final.d) AS m FROM final.a GROUP BY b",
        "SELECT b, count(*) AS n, rank() OVER (PARTITION BY count(*) % 2 ORDER BY sum(v), b) + (SELECT max(n) FROM final.d) AS r, sum(IF(v IN (SELECT w FROM final.b), 1, 0)) AS m FROM final.a GROUP BY b",
        # PIVOT.
        "SELECT * FROM (SELECT b, ok, v FROM final.a) PIVOT (sum(v) AS s FOR ok IN (true AS t, false AS f))",
        "SELECT * FROM final.b PIVOT (count(*) AS n, max(w) AS m FOR g IN ('n', 's' AS z))",
        "SELECT p.g, x FROM (SELECT * FROM (SELECT g, n, rate FROM final.d) PIVOT (sum(rate) FOR n IN (1 AS x, 2))) p WHERE x > 0",
        "SELECT id, `1`, n_2 FROM (SELECT id, b, v FROM final.a) q PIVOT (coalesce(sum(q.v + 1), 0) FOR b IN (1, 2 AS n_2))",
        "SELECT * FROM (SELECT ok, v FROM final.a) PIVOT (sum(v) AS s, avg(v) AS m, count(DISTINCT v) AS d FOR ok IN (true AS t, false AS f))",
        "SELECT * FROM (SELECT b, name, ok, v FROM final.a) PIVOT (max(name) FOR (ok, v) IN ((true, 1) AS t, (false, 2) AS f))",
        "SELECT p.day, b.g, p.n FROM (SELECT * FROM (SELECT day, n, g FROM final.d) PIVOT (count(g) FOR n IN (1 AS n, -1 AS m))) p JOIN final.b ON b.since = p.day",
        "SELECT * FROM (SELECT price, v, b FROM final.a) PIVOT (min(v) AS v FOR price IN (1.5 AS x, 10.01 AS y, 1 AS z))",
        # Windows of time.
        "SELECT window(moment, '12 hours') AS w, kind, max(x) AS m FROM final.c GROUP BY window(moment, '12 hours'), kind",
        "SELECT kind, window.end AS e, count(x) AS n, count(*) AS m FROM final.c WHERE k > 0 GROUP BY kind, window(moment, '1 week', '1 week', '3 days 1 hour')",
        "SELECT window(moment, '36 hours') AS w, count(*) AS n FROM final.c GROUP BY 1",
        "SELECT window.start AS s, kind, min(k) AS n FROM final.c GROUP BY kind, window(moment, '2 days', '1 day', '5 hours') HAVING count(*) > 1 AND window.end > TIMESTAMP_NTZ '2000-01-01 00:00:00'",
        "SELECT s, sum(n) AS n FROM (SELECT window.start AS s, kind, count(*) AS n FROM final.c GROUP BY window(moment, '1 day'), kind) GROUP BY s",
        "SELECT w.start AS s, n FROM (SELECT window(moment, '1 day') AS w, count(*) AS n FROM final.c GROUP BY 1)",
        "SELECT window.start AS s, kind, count(*) AS n FROM final.c GROUP BY ROLLUP (window(moment, '1 day'), kind)",
        "SELECT window.start AS s, kind, row_number() OVER (PARTITION BY window.start ORDER BY kind) AS n FROM final.c GROUP BY window(moment, '3 days'), kind",
        "SELECT d.g, l.s, count(*) AS n FROM final.d JOIN (SELECT DISTINCT window(since, '30 days', '7 days').start AS s, g FROM final.b) l ON l.g = d.g GROUP BY d.g, l.s",
    ),
    "full": (
        # Subqueries beside aggregates: a total of the same rows, or grouping sets.
        "SELECT b, sum(v) * 100.0 / (SELECT sum(v) FROM final.a) AS share FROM final.a GROUP BY b",
        "SELECT count(*) - (SELECT count(*) FROM final.b) AS more FROM final.a HAVING count(*) > (SELECT max(n) FROM final.d)",
        "SELECT b, sum(v) AS s FROM final.a GROUP BY b HAVING sum(v) > (SELECT avg(s) FROM (SELECT sum(v) AS s FROM final.a GROUP BY b) t)",
        "SELECT b, ok, count(*) / (SELECT max(n) FROM final.d) AS s FROM final.a GROUP BY ROLLUP (b, ok)",
        # PIVOT over values whose comparison or result depends on Spark's types.
        "SELECT * FROM (SELECT b, ok, v, name FROM final.a) PIVOT (max(name) AS m, count(v) AS n FOR ok IN (true AS t, false AS f))",
        "SELECT * FROM (SELECT id FROM final.a), (SELECT g, w FROM final.b) PIVOT (sum(w) AS s FOR g IN ('n' AS n, 's' AS s))",
        "SELECT * FROM (SELECT kind, x, k FROM final.c) PIVOT (sum(k) AS s FOR x IN (0.5 AS h, 1.5 AS o))",
        # Windows of time whose rows do not follow from one row, or elsewhere than in SELECT, GROUP BY and HAVING.
        "SELECT k, session_window.start AS s, count(*) AS n FROM final.c GROUP BY k, session_window(moment, '1 day')",
        "SELECT k FROM final.c WHERE window(moment, '1 day').start > TIMESTAMP_NTZ '2024-01-01 00:00:00'",
        "SELECT k, window(moment, '1 day').start AS s, count(*) OVER (PARTITION BY kind) AS n FROM final.c",
        # Subqueries within expressions whose null counts, or without equalities.
        "SELECT id FROM final.a WHERE NOT (b IN (SELECT id FROM final.b) OR v > 3)",
        "SELECT id, b IN (SELECT id FROM final.b) AS known FROM final.a",
        "SELECT id, CASE ok WHEN b IN (SELECT id FROM final.b) THEN 1 END AS k FROM final.a",
        "SELECT id, EXISTS (SELECT 1 FROM final.b WHERE b.id < a.b) AS k FROM final.a",
        # LATERAL subqueries that are not joins.
        "SELECT a.id, l.m FROM final.a a LEFT JOIN LATERAL (SELECT b.w AS m FROM final.b b WHERE b.id = a.b) l ON l.m > 1",
        "SELECT a.id, l.m FROM final.a a, LATERAL (SELECT b.w + a.v AS m FROM final.b b WHERE b.id = a.b) l",
        "SELECT a.id, l.m FROM final.a a, LATERAL (SELECT DISTINCT b.w AS m FROM final.b b WHERE b.id = a.b) l",
    ),
}
