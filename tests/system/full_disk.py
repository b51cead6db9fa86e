"""Fills disks under a lake, and empties them again. Not a test: `test_full_disk.py` starts it in a mount namespace.

usage: full_disk.py FOLDER

FOLDER is empty, and made a disk of its own here; it holds the lake, and Spark's temporary files on another one. Prints a
JSON object per run: which disk was full but for how many bytes, what failed as what, of what a webhook was told
meanwhile, and whether the table was right when there was room again.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

from lake_assets import Lake
from lake_assets.errors import LakeError
from lake_assets.lake.signal_settings import SignalSettings
from tests.support.http_receiver import Receiver, receiver
from tests.support.lakes import small_lake
from tests.support.oracle import bag, final_rows
from tests.support.people import CITIES, People

# Spark copies its jars to where it keeps temporary files.
LAKE_BYTES, TEMPORARY_BYTES = 64 << 20, 400 << 20
# Of the lake's disk a step finds no room for its note, for its first files, for its last ones.
ROOMS = (0, 3_000, 20_000, 60_000)


def disk(folder: Path, size: int) -> Path:
    """Make a folder a disk."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    return folder


@contextlib.contextmanager
def full(folder: Path, room: int) -> Generator[None]:
    """The disk of a folder has no more room than that."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    os.truncate(ballast, max(0, ballast.stat().st_size - room))
    try:
        yield
    finally:
        ballast.unlink()


def main() -> None:
    """Fill and run, empty and run."""
    folder = Path(sys.argv[1])
    home, temporary = disk(folder / "lake", LAKE_BYTES), disk(folder / "tmp", TEMPORARY_BYTES)
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    with receiver() as received:
        os.environ["ALERTS"] = received.url
        alerts = SignalSettings.model_validate({"alerts": {"webhook": {"env": "ALERTS"}}})
        lake = Lake(small_lake(home).config.model_copy(update={"signals": alerts}))
        fill(lake, home, temporary, received)


def fill(lake: Lake, home: Path, temporary: Path, received: Receiver) -> None:
    """Fill the disks of a lake one after the other."""
    people = People(lake, CITIES)
    people.land()
    if failed := {t: o.error for t, o in people.run().items() if o.status == "failed"}:
        sys.exit(f"before any disk was full: {failed}")
    for where, room in (*((home, r) for r in ROOMS), (temporary, 0)):
        people.land()
        before = len(received.bodies)
        with full(where, room):
            failed = {t: o for t, o in people.run().items() if o.status == "failed"}
        told = [b["kind"] for b in received.bodies[before:] if b["event"] == "began"]
        errors = {t: [type(o.exception).__name__, o.error] for t, o in failed.items()}
        left = {t: o.error for t, o in people.run().items() if o.status == "failed"}
        columns = ["id", "city", "age"]
        rows = lake.table("final.people").scan(selected_fields=tuple(columns)).to_arrow().to_pylist()
        is_right = bag([r[c] for c in columns] for r in rows) == final_rows(people.log, columns)
        named = all(isinstance(o.exception, LakeError) for o in failed.values())
        print(json.dumps({"disk": where.name, "room": room, "failed": errors, "named": named, "told": told,
                          "left": left, "right": is_right}), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
