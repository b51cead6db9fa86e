"""What is kept of an erasure in the lake's home: the plan until it is completed, and then the report.

The plan holds the keys, since a process that is killed loses them; only its owner can read it. The report has salted
hashes of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lake_assets.erase.erase_plan import ErasePlan
from lake_assets.erase.key_values import digest
from lake_assets.erase.value_scan import Finding
from lake_assets.errors import ErasureError
from lake_assets.lake import LakeBase
from lake_assets.runtime.private_files import make_private, write_private

FOLDER = "erasures"
_PLAN = ".plan.json"


def open_plan(lake: LakeBase) -> ErasePlan | None:
    """Return the plan of an erasure that was begun and is not completed.

    Raises:
        ErasureError: its file is broken.
    """
    for file in sorted(_folder(lake).glob(f"*{_PLAN}")):
        try:
            return ErasePlan.from_json(json.loads(file.read_text("utf-8")))
        except FileNotFoundError:
            continue
        except (ValueError, TypeError, KeyError) as e:
            raise ErasureError(
                f"{file} is not the plan of an erasure ({e}): delete the file, and repeat the command"
            ) from e
    return None


def unfinished(lake: LakeBase) -> str:
    """Return what is to be done about an erasure that was begun and is not completed; empty: there is none."""
    try:
        plan = open_plan(lake)
    except PermissionError:  # the plan is its owner's alone: others can neither see it nor go on with it
        return ""
    except ErasureError as e:
        return str(e)
    if plan is None:
        return ""
    return (
        f"the erasure {plan.id} of {plan.table} is not completed: unless its command is running, repeat it with the "
        f"same keys (they are in {plan_file(lake, plan)})"
    )


def plan_file(lake: LakeBase, plan: ErasePlan) -> Path:
    """Return the file of a plan that is not completed; it has the keys."""
    return _folder(lake) / f"{plan.id}{_PLAN}"


def save_plan(lake: LakeBase, plan: ErasePlan) -> None:
    """Store a plan, before anything is changed."""
    make_private(_folder(lake))
    _replace(plan_file(lake, plan), plan.to_json())


def forget_plan(lake: LakeBase, plan: ErasePlan) -> None:
    """Delete a plan, with the keys in it."""
    plan_file(lake, plan).unlink(missing_ok=True)


def report_of(
    plan: ErasePlan, findings: Sequence[Finding], files: int, new_events: int, journal: int
) -> dict[str, Any]:
    """Return the report of an erasure: what was touched, what is not covered, what the scan found; without keys."""
    salt = secrets.token_hex(16)
    lines: dict[str, list[int]] = {}
    for file, line in plan.landed:
        lines.setdefault(file, []).append(line)
    return {
        "id": plan.id,
        "began": plan.began,
        "ended": time.time(),
        "table": plan.table,
        "key_columns": plan.columns,
        "salt": salt,
        "keys": [digest(key, salt) for key in plan.key_tuples],
        "keys_asked_for": plan.asked,
        "records": len(plan.positions),
        "tables": [asdict(t) for t in plan.tables],
        "journal_records": journal,
        "landed_files": [{"file": file, "lines": sorted(n)} for file, n in sorted(lines.items())],
        "not_covered": plan.not_covered,
        "files_scanned": files,
        "findings": [{"path": _without_keys(f.path, plan), "where": _without_keys(f.where, plan)} for f in findings],
        "new_events": new_events,
        "is_proven": not findings,
    }


def _without_keys(text: str, plan: ErasePlan) -> str:
    """Return a path without the value of a partition by the key."""
    return "/".join("..." if any(part.endswith(f"={k[0]}") for k in plan.keys) else part for part in text.split("/"))


def save_report(lake: LakeBase, report: dict[str, Any]) -> Path:
    """Store a report in the lake's home; return its file."""
    file = _folder(lake) / f"{report['id']}.json"
    make_private(file.parent)
    _replace(file, report)
    return file


@contextlib.contextmanager
def alone(lake: LakeBase) -> Generator[None]:
    """Let no other process of this machine erase at the same time.

    Raises:
        ErasureError: one does.
    """
    make_private(_folder(lake))
    file = os.open(_folder(lake) / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise ErasureError("another process erases in this lake: wait until it is done, and repeat") from e
        yield
    finally:
        os.close(file)


def _folder(lake: LakeBase) -> Path:
    return Path(lake.config.home) / FOLDER


def _replace(file: Path, content: dict[str, Any]) -> None:
    """Write a file as a whole, so that no reader and no kill sees half of it."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    write_private(partial, json.dumps(content, indent=2))
    partial.replace(file)
