"""What upkeep remembers of a table: nothing is lost if several processes write it at the same moment."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lake_assets import Lake
from lake_assets.lake import TableId
from lake_assets.lake.config import LakeConfig
from lake_assets.upkeep import upkeep_records
from lake_assets.upkeep.upkeep_records import ClaimNote, Done, Look

TABLE = TableId.parse("final.t")
WRITER = """
import sys
from pathlib import Path
from lake_assets import Lake
from lake_assets.lake import TableId
from lake_assets.lake.config import LakeConfig
from lake_assets.upkeep import upkeep_records
from lake_assets.upkeep.upkeep_records import Done

lake, me = Lake(LakeConfig(home=Path(sys.argv[1]))), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for n in range(8):
    upkeep_records.add(lake, TableId.parse("final.t"), [Done("combine", f"{me} {n}", 1.0, 0.1)], 2.0)
"""


@pytest.mark.long  # as threads, which take the lock as well as processes do
def test_entries_of_processes_that_write_at_the_same_moment_are_all_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([*command, str(n)], **pipes) for n in range(3)]  # type: ignore[call-overload]
    assert [w.stdout.readline() if w.stdout else "" for w in writers] == ["ready\n"] * 3
    for w in writers:
        w.communicate("go\n", timeout=60)
    assert [w.returncode for w in writers] == [0] * 3
    done = upkeep_records.read(Lake(LakeConfig(home=tmp_path)), TABLE, 2.0).done
    assert sorted(d.reason for d in done) == sorted(f"{me} {n}" for me in range(3) for n in range(8))


def test_entries_of_threads_and_of_other_kinds_are_all_kept(plain_lake: Lake) -> None:
    def work(me: int) -> None:
        for n in range(5):
            upkeep_records.add(plain_lake, TABLE, [Done("combine", f"{me} {n}", 1.0, 0.1)], 2.0)
            upkeep_records.looked(plain_lake, TABLE, Look(1.0, n, is_due=False))
            upkeep_records.note_claims(plain_lake, TABLE, lambda c: {**c, f"t{me}": ClaimNote(n, 1.0)}, 2.0)  # noqa: B023

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    found = upkeep_records.read(plain_lake, TABLE, 2.0)
    assert len(found.done) == 20
    assert found.claims == {f"t{n}": ClaimNote(4, 1.0) for n in range(4)}
    assert found.look == Look(1.0, 4, is_due=False)


def test_a_record_of_an_earlier_version_is_read(plain_lake: Lake) -> None:
    upkeep_records.add(plain_lake, TABLE, [Done("combine", "x", 1.0, 0.1)], 2.0)
    (file,) = (Path(plain_lake.config.home) / "upkeep").glob("*.json")
    file.write_text('{"table": "final.t", "seen": 1.0, "done": [], "look": null}')
    found = upkeep_records.read(plain_lake, TABLE, 2.0)
    assert (found.seen, found.claims) == (1.0, {})
