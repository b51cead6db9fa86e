"""A job that spark-submit runs: each of its commits carries the watermark."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from lake_assets import Lake, Pipeline
from lake_assets.lake.metadata.watermark import read_marks
from lake_assets.lake.spark_session import session_conf
from tests.support.daily_job import DAILY, PLAYS, play, rows_of

JOB = """
import os, sys
from lake_assets import Lake, LakeConfig
from lake_assets.jobs import current_step

step, media = current_step(), Lake(LakeConfig(home=os.environ["HOME_OF_LAKE"]))
plays = media.spark().table("lake." + step.sources["raw.playback"].after).where(f"day >= '{sys.argv[1]}'")
if media.exists("agg.playback_daily"):
    plays.writeTo("lake.agg.playback_daily").append()
else:
    media.ensure_namespace(("agg",))
    plays.writeTo("lake.agg.playback_daily").create()
"""


def declared(media: Lake, folder: Path, *options: str) -> Pipeline:
    (folder / "daily.py").write_text(JOB)
    env = {"HOME_OF_LAKE": str(media.config.home), "PYTHONPATH": str(Path.cwd()), "PYSPARK_PYTHON": sys.executable}
    command = ["spark-submit", *options, "{spark_conf}", "daily.py", "{low.day|1970-01-01}"]
    job = {"table": DAILY, "inputs": [PLAYS], "ranges": ["day"], "lifetime": "1h", "env": env, "command": command}
    file = folder / "defs.yaml"
    file.write_text(json.dumps({"type": "lake_assets.CapturedJob", "attributes": job}))
    return Pipeline.load(file)


@pytest.mark.long
def test_a_submitted_job_commits_the_watermark_with_its_rows(
    media: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    (refused,) = declared(media, tmp_path).run(media)
    jars = session_conf(media.config)["spark.jars"]
    assert f"add `--jars {jars}` to its command" in str(refused.error)

    job = declared(media, tmp_path, "--jars", jars)
    for n in range(2, 4):
        (outcome,) = job.run(media)
        assert outcome.status == "absorbed", outcome.error
        assert rows_of(media) == rows_of(media, PLAYS)
        assert read_marks(media.table(DAILY))[PLAYS].snapshot == media.table(PLAYS).metadata.current_snapshot_id
        assert len(media.table(DAILY).history()) == n - 1  # no commit beside the job's
        play(media, (n, n, n))
