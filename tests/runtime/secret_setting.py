"""Opens Spark with a secret setting and prints where it can be seen. Not a test: tests start it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from lake_assets.lake import LakeBase, LakeConfig, SparkConfig

conf = {"spark.hadoop.fs.s3a.secret.key": os.environ["SECRET_FOR_TEST"], "spark.ui.enabled": "false"}
config = LakeConfig(home=Path(sys.argv[1]), spark=SparkConfig(master="local[1]", driver_memory="600m", conf=conf))
spark: Any = LakeBase(config).spark()
report = [
    p.read_bytes().decode(errors="replace") for p in Path("/proc").glob("[0-9]*/cmdline") if p.parent.name != "self"
]
mine = [s for s in report if "deploy.SparkSubmit" in s and "java" in s and "secret_setting.py" not in s]
print(
    json.dumps(
        {
            "value": spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key"),
            "memory": spark.conf.get("spark.driver.memory"),
            "jvms": len(mine),
            "shown": [s for s in report if os.environ["SECRET_FOR_TEST"] in s],
        }
    )
)
