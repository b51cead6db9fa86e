"""A store that does not answer holds up its own stream alone."""

from __future__ import annotations

import json
from pathlib import Path

from lake_assets import Lake, Pipeline
from lake_assets.orchestration.sensing.pending_scan import scan
from lake_assets.pipeline.config.pipeline_config import PipelineConfig
from tests.support.object_store import Bucket


def test_a_store_that_denies_access_is_a_pending_step_of_its_stream_alone(bucket: Bucket, tmp_path: Path) -> None:
    lake: Lake = bucket.lake(tmp_path)
    streams = [
        {"name": "a", "format": "change-set", "landing": f"{bucket.url}/in", "tables": ["x.a"]},
        {"name": "b", "format": "change-set", "landing": "s3://no-such-bucket/in", "tables": ["x.b"]},
        {"name": "c", "format": "change-set", "landing": "in", "tables": ["x.c"]},
    ]
    specs = Pipeline(PipelineConfig.model_validate({"name": "p", "streams": streams})).specs(lake)
    raw = [s for s in specs if s.table.namespace == ("raw",)]
    steps = {str(s.table): str(s.table) for s in raw}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_bytes(json.dumps({"FLAG": "I", "id": 1}).encode() + b"\n")

    def pending() -> dict[str, str]:
        return {p.work.table: p.work.what for p in scan(lake, raw, steps, 0.0)}

    with bucket.server.failing(lambda r: ("403 Forbidden", "AccessDenied") if r.path.startswith(bucket.name) else None):
        found, again = pending(), pending()
    assert found["raw.a"].startswith("StorageUnavailableError: ")
    assert found["raw.b"].startswith("LandingFolderError: ")
    assert found["raw.c"] == f"1 file in {tmp_path}/in"
    assert found == again  # so that attempts of the same failure are counted
    assert set(pending()) == {"raw.b", "raw.c"}
