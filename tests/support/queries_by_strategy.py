"""Queries of every kind over two tables, by name, and the strategy that absorbs a change of any of them."""

from __future__ import annotations

A = "final.a a"
AB = "final.a a JOIN final.b b ON a.b = b.id"

RETRACT = {
    "joined": f"SELECT b.g, count(*) AS n, sum(a.v) AS s, count(a.v) AS vs FROM {AB} GROUP BY b.g",
    "sums_only": "SELECT b, sum(v) AS s FROM final.a GROUP BY b",
    "decimals": "SELECT b, sum(CAST(v AS DECIMAL(9,2))) AS s, count(name) AS n FROM final.a GROUP BY b",
    "filtered": "SELECT b, count(*) FILTER (WHERE v > 0) AS n, count_if(name = 'x') AS x, sum(v) FILTER (WHERE id > 3) AS s "
    "FROM final.a WHERE name IS NOT NULL GROUP BY b",
    "average": "SELECT b, sum(v) AS s, count(v) AS n, avg(v) AS m, sum(v) / count(v) AS again FROM final.a GROUP BY b",
    "total": "SELECT count(*) AS n, sum(v) AS s, sum(v) + count(*) AS t FROM final.a",
    "total_of_some": "SELECT sum(v) AS s FROM final.a WHERE b = 2",
    "itself": "SELECT x.v, count(*) AS n FROM final.a x JOIN final.a y ON x.b = y.b AND x.id < y.id GROUP BY x.v",
    "three": "SELECT x.b AS b, z.g, count(*) AS n FROM final.a x JOIN final.b z ON x.b = z.id JOIN final.a y ON y.v = x.v "
    "GROUP BY x.b, z.g",
    "two_keys": "SELECT b, v, count(*) AS n FROM final.a GROUP BY b, v",
    "only_keys": "SELECT v FROM final.a GROUP BY v",
    "computed": "SELECT lower(name) AS name, count(*) AS n FROM final.a WHERE v IS NULL OR v > 0 GROUP BY lower(name)",
    "wide": f"SELECT a.id, a.name, b.g, a.v + 1 AS w FROM {AB}",
    "crossed": "SELECT a.id, b.g FROM final.a a, final.b b WHERE a.v < b.id",
    "stacked": "SELECT id, name AS x FROM final.a WHERE v > 0 UNION ALL SELECT id, g FROM final.b UNION ALL "
    "SELECT b, name FROM final.a",
    "exploded": "SELECT a.id, w FROM final.a a LATERAL VIEW explode(split(name, '')) t AS w",
    "over_union": "SELECT g, count(*) AS n FROM (SELECT g FROM final.b UNION ALL SELECT name FROM final.a) GROUP BY g",
    "floats_kept": "SELECT id, CAST(v AS DOUBLE) * -1 AS d FROM final.a",
}
KEYS = {
    "extremes": f"SELECT b.g, min(a.v) AS low, max(a.name) AS m, count(DISTINCT a.v) AS d FROM {AB} GROUP BY b.g",
    "floats": "SELECT b, sum(CAST(v AS DOUBLE) / 3) AS s, avg(v) AS m FROM final.a GROUP BY b",
    "percentiles": "SELECT b, percentile(v, 0.5) AS p, stddev(v) AS d FROM final.a GROUP BY b",
    "having": "SELECT a.v AS v, b.g AS g, count(DISTINCT a.name) AS n FROM final.a a, final.b b WHERE a.b = b.id "
    "GROUP BY b.g, a.v HAVING count(*) > 1",
    "hidden_key": "SELECT count(*) AS n, max(v) AS m FROM final.a GROUP BY b",
    "key_computed": "SELECT b + 1 AS x, max(v) AS m FROM final.a GROUP BY b",
    "distinct": "SELECT DISTINCT b, v FROM final.a",
    "distinct_joined": f"SELECT DISTINCT b.g, a.v FROM {AB}",
    "left": "SELECT a.id, a.v, b.g FROM final.a a LEFT JOIN final.b b ON a.b = b.id",
    "left_more": "SELECT a.id, b.g FROM final.a a LEFT JOIN final.b b ON a.b = b.id AND b.g <> 's' AND a.v > 0",
    "right": "SELECT a.id, b.id AS b, b.g FROM final.a a RIGHT JOIN final.b b ON a.b = b.id",
    "full_join": "SELECT a.id, coalesce(a.b, b.id) AS k, b.g FROM final.a a FULL JOIN final.b b ON a.b = b.id",
    "left_counted": "SELECT b.g, count(a.id) AS n, sum(a.v) AS s FROM final.b b LEFT JOIN final.a a ON a.b = b.id GROUP BY b.g",
    "left_then_inner": "SELECT a.id, b.g, c.g AS h FROM final.a a LEFT JOIN final.b b ON a.b = b.id JOIN final.b c ON a.v = c.id",
    "semi": "SELECT a.id, a.v FROM final.a a LEFT SEMI JOIN final.b b ON a.b = b.id",
    "anti": "SELECT a.id, a.v FROM final.a a LEFT ANTI JOIN final.b b ON a.b = b.id AND b.g = 'n'",
    "exists": "SELECT g, count(*) AS n FROM final.b x WHERE EXISTS (SELECT 1 FROM final.a a WHERE a.b = x.id AND a.v > 0) "
    "GROUP BY g",
    "lonely": "SELECT g, count(*) AS n FROM final.b x WHERE NOT EXISTS (SELECT 1 FROM final.a a WHERE a.b = x.id) GROUP BY g",
    "in": "SELECT id, v FROM final.a WHERE b IN (SELECT id FROM final.b WHERE g = 'n')",
    "not_in": "SELECT id, v FROM final.a WHERE v NOT IN (SELECT v FROM final.a WHERE name = 'x')",
    "not_in_correlated": "SELECT x.id, x.v FROM final.a x WHERE x.v NOT IN (SELECT y.v FROM final.a y WHERE y.b = x.b AND y.id > x.id)",
    "in_groups": "SELECT id FROM final.a WHERE b IN (SELECT b FROM final.a GROUP BY b HAVING count(*) > 2)",
    "scalar": "SELECT x.id, x.g, (SELECT max(a.v) FROM final.a a WHERE a.b = x.id) AS m, "
    "(SELECT count(*) FROM final.a a WHERE a.b = x.id AND a.v > 0) AS n FROM final.b x",
    "windows": "SELECT id, b, v, rank() OVER (PARTITION BY b ORDER BY v DESC) AS r, count(*) OVER (PARTITION BY b) AS n FROM final.a",
    "named_window": "SELECT id, sum(v) OVER w AS s FROM final.a WINDOW w AS (PARTITION BY name, b)",
    "windows_of_two": "SELECT id, sum(v) OVER (PARTITION BY b) AS s, count(*) OVER (PARTITION BY name) AS n FROM final.a",
    "in_parentheses": "SELECT a.id, b.g FROM final.a a LEFT JOIN (final.b b JOIN final.a c ON b.id = c.v) ON a.b = b.id",
    "qualify": "SELECT b, id, v FROM final.a QUALIFY rank() OVER (PARTITION BY b ORDER BY v DESC, id) = 1",
    "rollup": "SELECT b, name, count(*) AS n, sum(v) AS s FROM final.a GROUP BY ROLLUP (b, name)",
    "cube": "SELECT b, name, grouping_id() AS i, grouping(b) AS gb, max(v) AS m FROM final.a GROUP BY CUBE (b, name)",
    "sets": "SELECT b, v, count(*) AS n FROM final.a GROUP BY b, v GROUPING SETS ((b, v), (b))",
    "with_rollup": "SELECT b, count(*) AS n FROM final.a GROUP BY b WITH ROLLUP",
    "union": "SELECT b AS x FROM final.a UNION SELECT id FROM final.b",
    "intersect": "SELECT b FROM final.a INTERSECT SELECT id FROM final.b",
    "intersect_all": "SELECT b FROM final.a INTERSECT ALL SELECT id FROM final.b",
    "except": "SELECT b, v FROM final.a EXCEPT SELECT id, 1 FROM final.b",
    "except_all": "SELECT b FROM final.a EXCEPT ALL SELECT id FROM final.b",
    "ctes": "WITH c AS (SELECT b, count(*) AS n FROM final.a GROUP BY b), d AS (SELECT n, count(*) AS bs FROM c GROUP BY n) "
    "SELECT c.b, c.n, d.bs FROM c JOIN d ON c.n = d.n",
    "groups_of_groups": "SELECT n, count(*) AS groups FROM (SELECT b, count(*) AS n FROM final.a GROUP BY b) GROUP BY n",
    "above_average": "SELECT a.id FROM final.a a JOIN (SELECT b, avg(v) AS m FROM final.a GROUP BY b) t ON a.b = t.b AND a.v >= t.m",
    "total_extreme": "SELECT min(v) AS low, max(id) AS high FROM final.a",
    "over_distinct": "SELECT g, count(*) AS n FROM (SELECT DISTINCT a.v, b.g FROM final.a a JOIN final.b b ON a.b = b.id) GROUP BY g",
    "continuous": "SELECT b, percentile_cont(0.5) WITHIN GROUP (ORDER BY v) AS p FROM final.a GROUP BY b",
}
FULL = {
    "ranked": "SELECT id, rank() OVER (ORDER BY v) AS r FROM final.a",
    "above_total": "SELECT id FROM final.a WHERE v > (SELECT avg(v) FROM final.a)",
    "top": "SELECT id, b, v, name FROM final.a ORDER BY v, id, b, name LIMIT 3",
    "exists_or": "SELECT id FROM final.a WHERE v = 1 OR EXISTS (SELECT 1 FROM final.b b WHERE b.id = 3)",
    "trimmed": "SELECT id, trim(BOTH FROM name) AS t FROM final.a",
}
ALL = {**RETRACT, **KEYS, **FULL}
