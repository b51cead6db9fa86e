"""Settings of a stream of dumps: every mistake is named."""

from __future__ import annotations

from typing import Any

import pytest

from lake_assets.pipeline import PipelineConfig
from tests.support.dumps import stream


def config(*tables: Any, **settings: Any) -> PipelineConfig:
    declared = stream(stream_settings=settings)
    if tables:
        declared["tables"] = list(tables)
    return PipelineConfig.model_validate({"name": "p", "streams": [declared]})


def test_right_settings_are_accepted() -> None:
    config(complete="10m quiet", max_deleted="5%", max_changed=100)
    config(source={"table": "erp.users"})
    config({"table": "public.t", "key": "*"})


@pytest.mark.parametrize(
    ("tables", "settings", "text"),
    [
        (["public.*"], {}, "declare exactly one under `tables`, without a pattern"),
        (["public.a", "public.b"], {}, "declare exactly one under `tables`"),
        (["public.t"], {}, r"public.t: dumps do not name a key: declare `key`, or `key: '\*'`"),
        ([{"table": "public.t", "key": [["id"], ["a", "b"]]}], {}, "public.t: declare one `key`"),
        ([{"table": "public.t", "key": "id", "order_by": "at"}], {}, "`order_by` is not for `format: snapshot`"),
        ([], {"format": "debezium", "max_deleted": "5%"}, "`max_deleted` is for `format: snapshot`, and the format is"),
        ([], {"format": "debezium", "complete": "_OK", "max_changed": 1}, "`complete` and `max_changed` are for"),
        ([], {"complete": "soon and then"}, "does not say when a dump is complete"),
        ([], {"max_deleted": "many"}, "'many' is not a limit"),
        ([], {"source": {"table": "a.b"}, "complete": "_SUCCESS"}, "`complete` is for dumps in a folder"),
        ([], {"source": {"table": "a.b", "order": ["o"], "on_gap": "append"}}, "`on_gap` and `order` in `source` are"),
        ([], {"source": {"table": "a.b"}, "landing": "x"}, "from a folder .* or from a `source`"),
        ([], {"flag": "aws-dms"}, "`flag` is for `format: change-set`"),
        ([], {"name": "t_dump"}, "would be the list of rows of the last dump"),
    ],
)
def test_mistakes_are_named(tables: list[Any], settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        config(*tables, **settings)
