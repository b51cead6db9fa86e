"""All namespaces of a catalog: nested ones too, whatever the catalog lists at a time."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlparse

import pytest
from pyiceberg.schema import Schema
from pyspark.sql import DataFrame

from lake_assets import Changes, Lake, LakeConfig, Pipeline, model
from lake_assets.errors import TableNotFoundError
from lake_assets.health.lake_status import own_tables
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.pipeline import PipelineConfig

NESTED = [("agg",), ("agg", "daily"), ("agg", "daily", "deep"), ("final",), ("final", "shop"), ("final_x",)]


def test_nested_namespaces_of_a_sql_catalog_are_listed(plain_lake: Lake) -> None:
    for namespace in [("agg", "daily", "deep"), ("final", "shop"), ("final_x",)]:
        plain_lake.ensure_namespace(namespace)
    assert sorted(plain_lake.namespaces()) == NESTED


def test_status_and_hints_know_tables_in_nested_namespaces(plain_lake: Lake) -> None:
    plain_lake.ensure_namespace(("final", "shop"))
    plain_lake.ensure_namespace(("staging", "shop"))
    for table in ("final.shop.users", "staging.shop.users"):
        plain_lake.catalog.create_table(table, Schema(), properties={PIPELINE_PROPERTY: "p"})
    assert [str(t) for t in own_tables(plain_lake)] == ["staging.shop.users", "final.shop.users"]
    with pytest.raises(TableNotFoundError, match=r"did you mean final\.shop\.users"):
        plain_lake.table("finale.shop.users")


@model("agg.copied", write="overwrite")
def copied(users: Changes) -> DataFrame:
    return users.table


def test_a_parameter_of_a_python_model_names_a_table_in_a_nested_namespace(plain_lake: Lake) -> None:
    plain_lake.ensure_namespace(("final", "shop"))
    plain_lake.catalog.create_table("final.shop.users", Schema())
    (spec,) = Pipeline(PipelineConfig(name="p"), models=[copied]).specs(plain_lake)
    assert [str(s) for s in spec.sources] == ["final.shop.users"]


# --- servers ------------------------------------------------------------------------------------------------------


@contextmanager
def server(*, nested: str) -> Generator[str]:
    """A REST catalog that only lists namespaces; `nested`: `listed`, `ignored` (the top level again), or `refused`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlparse(self.path)
            parent = tuple(parse_qs(url.query).get("parent", [""])[0].split("\x1f")) if "parent" in url.query else ()
            level = parent if nested == "listed" else ()
            code, body = 200, json.dumps({"namespaces": [n for n in NESTED if n[:-1] == level]})
            if url.path.endswith("/config"):
                body = json.dumps({"defaults": {}, "overrides": {}})
            elif parent and nested == "refused":
                code = 400
                body = json.dumps({"error": {"message": "nested", "type": "BadRequestException", "code": 400}})
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()


@pytest.mark.parametrize("nested", ["listed", "ignored", "refused"])
def test_namespaces_of_a_rest_catalog_are_each_listed_once(tmp_path: Path, nested: str) -> None:
    with server(nested=nested) as uri:
        lake = Lake(LakeConfig(home=tmp_path, catalog={"type": "rest", "uri": uri}))
        assert sorted(lake.namespaces()) == (NESTED if nested == "listed" else [n for n in NESTED if len(n) == 1])
