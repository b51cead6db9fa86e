"""Views of changes over a Spark Connect server, in two sessions. Not a test: tests start it.

The environment configures the lake. Prints one JSON object: what SQL of the lake's own session reads through a view and
a shared one, what a session that knows no lake reads through the shared one, and the ICDC tables and views that are
left once both views are closed.
"""

from __future__ import annotations

import json

from pyspark.sql import SparkSession

from lake_assets import Lake
from lake_assets.runtime.connect_tokens import with_token


def main() -> None:
    """Make a table of three snapshots and read the changes of the last two."""
    lake = Lake.load()
    spark, table = lake.spark(), lake.sql_name("n.t")
    lake.ensure_namespace(("n",))
    spark.sql(
        f"CREATE TABLE {table} (id INT, v STRING) USING iceberg TBLPROPERTIES ('format-version'='3', "
        "'write.update.mode'='merge-on-read', 'write.delete.mode'='merge-on-read')"
    )
    for statement in (
        "INSERT INTO {} VALUES (1, 'a'), (2, 'b')",
        "UPDATE {} SET v = 'c' WHERE id = 2",
        "DELETE FROM {} WHERE id = 1",
    ):
        spark.sql(statement.format(table))
    first = lake.table("n.t").metadata.snapshots[0].snapshot_id
    stranger = SparkSession.builder.remote(with_token(lake.config.spark.remote or "")).create()
    found: dict[str, list[list[object]]] = {}
    with (
        lake.changes_view("changed", "n.t", first, keys=["id"]) as view,
        lake.changes_view("it's shared", "n.t", first, keys=["id"], shared=True) as shared,
    ):
        for name, session, sql in (
            ("own", spark, f"SELECT * FROM {view.name}"),
            ("shared", spark, f"SELECT * FROM {shared.name}"),
            ("stranger", stranger, "SELECT * FROM global_temp.`it's shared`"),
        ):
            found[name] = sorted(list(row) for row in session.sql(sql).collect())
    left = [str(t) for t in lake.tables("icdc")]
    views = [row.viewName for row in stranger.sql("SHOW VIEWS IN global_temp").collect()]
    print(json.dumps({**found, "left": [*left, *views]}))


if __name__ == "__main__":
    main()
