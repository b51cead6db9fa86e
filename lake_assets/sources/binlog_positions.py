"""Whether a server's binary log still has what follows a landed offset, and is the log that was read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# Runs a statement and returns its rows.
Ask = Callable[..., list[tuple[Any, ...]]]
_DIGITS = re.compile(r"\d+$")


def missing(ask: Ask, offset: Any, *, is_mariadb: bool) -> str:
    """Return what the server's log lacks after an offset of Debezium's; empty: nothing."""
    for _, at in (offset or {}).get("offsets", ()):
        # During the first snapshot, nothing but the snapshot is read, and it begins anew.
        if at.get("snapshot") or not at.get("file"):
            continue
        sizes = {str(row[0]): int(row[1]) for row in ask("SHOW BINARY LOGS")}
        gtids = str(at.get("gtids") or "")
        text = _other_log(at, sizes)
        if gtids and not text:
            text = _lost_gtids_of_mariadb(ask, gtids, min(sizes)) if is_mariadb else _lost_gtids(ask, gtids)
        if not text and at["file"] not in sizes and not gtids:
            text = f"the server has removed {at['file']}, which was not read to its end"
        if not text and is_mariadb and gtids and at["file"] in sizes:
            text = _no_event(ask, at, gtids)
        if text:
            return text
    return ""


def _other_log(at: Mapping[str, Any], sizes: Mapping[str, int]) -> str:
    """Return how the files differ from those that were read: names, numbers beyond the last one, a shorter file."""
    file, position = str(at["file"]), int(at.get("pos") or 0)
    there = f"its log is {_range(sizes)}"
    if not sizes:
        return f"the last change was read from {file}, and the server has no log"
    if _base(file) not in {_base(f) for f in sizes}:
        return f"the last change was read from {file}, and {there}: it is another server, or its log was renamed"
    if _number(file) > max(map(_number, sizes)):
        return f"the last change was read from {file}, and {there}: it is another server, or its log began anew"
    if position > sizes.get(file, position):
        return (
            f"the last change was read at {file}, byte {position:,}, and that file has {sizes[file]:,} bytes: it is "
            "another server, or its log began anew"
        )
    return ""


def _range(sizes: Mapping[str, int]) -> str:
    names = sorted(sizes, key=_number)
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _base(file: str) -> str:
    return _DIGITS.sub("", file)


def _number(file: str) -> int:
    match = _DIGITS.search(file)
    return int(match[0]) if match else 0


def sequences(gtids: str) -> dict[int, int]:
    """Return MariaDB's position by domain: `0-7-12,1-7-3` is {0: 12, 1: 3}."""
    parts = [g.strip().split("-") for g in gtids.split(",") if g.strip()]
    return {int(domain): int(number) for domain, _, number in parts}


def _lost_gtids_of_mariadb(ask: Ask, gtids: str, first: str) -> str:
    ((now, oldest),) = ask("SELECT @@gtid_binlog_pos, BINLOG_GTID_POS(%s, 4)", first)
    read, last, begin = sequences(gtids), sequences(str(now or "")), sequences(str(oldest or ""))
    if ahead := [d for d, n in read.items() if n > last.get(d, 0)]:
        return (
            f"transactions up to {gtids} were read, and the server's log ends at {now or 'none'} (domain {ahead[0]}): "
            "it is another server, or was restored"
        )
    if purged := [d for d, n in begin.items() if n > read.get(d, 0)]:
        return f"transactions up to {gtids} were read, and the log now begins after {oldest} (domain {purged[0]})"
    return ""


def _no_event(ask: Ask, at: Mapping[str, Any], gtids: str) -> str:
    """Return whether no event is where one was read: the log began anew, and has grown again.

    The transactions before it do not tell: whoever connects by GTID is told that the file is at its byte 4.
    """
    ((there,),) = ask("SELECT BINLOG_GTID_POS(%s, %s)", at["file"], int(at.get("pos") or 4))
    if there is not None:
        return ""
    return (
        f"the last change was read at {at['file']}, byte {at.get('pos')}, after the transactions {gtids}, and no event "
        "begins or ends there now: it is another server, or its log began anew"
    )


def _lost_gtids(ask: Ask, gtids: str) -> str:
    ((has_all, kept, purged),) = ask(
        "SELECT GTID_SUBSET(%s, @@gtid_executed), GTID_SUBSET(@@gtid_purged, %s), @@gtid_purged", gtids, gtids
    )
    if not has_all:
        return f"transactions up to {gtids} were read, and the server does not have all of them: it is another server"
    return "" if kept else f"transactions up to {gtids} were read, and the server has removed those up to {purged}"


def names_of_files(sizes: Sequence[tuple[Any, ...]]) -> tuple[int, int]:
    """Return the number of the log's files, and their bytes."""
    return len(sizes), sum(int(row[1]) for row in sizes)
