"""Creates a temporary folder of a JVM and waits for the end of its input. Not a test: tests start it."""

from __future__ import annotations

import sys

from lake_assets.runtime.jvm_folders import new_folder

folder = new_folder()
(folder / "blockmgr").mkdir()
(folder / "blockmgr" / "rows").write_text("secret")
print(folder, flush=True)
sys.stdin.read()
