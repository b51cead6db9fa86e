"""What upkeep did to each table, as one file a table in the lake's home: when, why, what it gained and what it took."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from lake_assets.lake import LakeBase, TableId
from lake_assets.runtime.private_files import make_private, write_private
from lake_assets.tables import table_lock

log = logging.getLogger(__name__)
_FOLDER = "upkeep"
_KEPT = 50


@dataclass(frozen=True)
class Done:
    """One action that upkeep has carried out.

    Attributes:
        kind: what was done; see `upkeep_actions.Kind`.
        reason: why.
        at: when it ended, in seconds since 1970.
        seconds: how long it took.
        files: the files that it removed; for `expire` snapshots, for `records` and `events` rows.
        bytes: the bytes that it rewrote.
        error: why it failed; empty: it did not.
    """

    kind: str
    reason: str
    at: float
    seconds: float
    files: int = 0
    bytes: int = 0
    error: str = ""


@dataclass(frozen=True)
class Look:
    """The last time that a table's manifests were read.

    Attributes:
        at: when, in seconds since 1970.
        snapshot: the table's snapshot; None: it had none.
        is_due: whether something was due that need not wait.
    """

    at: float
    snapshot: int | None
    is_due: bool


@dataclass(frozen=True)
class ClaimNote:
    """What is remembered of a consumer that is behind; all times in seconds since 1970.

    Attributes:
        snapshot: the snapshot that it has absorbed. Another one: it has gone on, and the note is about the past.
        since: the time since which changes wait for it, as far as it is known.
        warned: when people were first told that it loses its claim; None: not yet.
        lost: when its tag was removed; None: it was not.
        is_gone: whether people were told that it does not exist any more, and not that it is behind.
    """

    snapshot: int
    since: float
    warned: float | None = None
    lost: float | None = None
    is_gone: bool = False


@dataclass(frozen=True)
class TableRecord:
    """What upkeep remembers of a table.

    Attributes:
        table: the table.
        seen: when it was first looked at, in seconds since 1970.
        done: its newest actions, and the newest one of each kind; oldest first.
        look: its last look; None: it was not looked at.
        claims: by tag, its consumers that are behind, or have lost their claims.
    """

    table: str
    seen: float
    done: tuple[Done, ...] = field(default_factory=tuple)
    look: Look | None = None
    claims: Mapping[str, ClaimNote] = field(default_factory=dict[str, ClaimNote])

    def last(self, kind: str) -> Done | None:
        """Return the last action of a kind."""
        return next((d for d in reversed(self.done) if d.kind == kind), None)

    def is_paused(self, kind: str, now: float) -> bool:
        """Whether a kind of action waits, because its last ones gained nothing or failed: each time twice as long.

        To tell people that consumers lose their claims gains nothing, and is of use.
        """
        useless = 0
        for d in reversed([d for d in self.done if d.kind == kind]):
            if not d.error and (d.files > 0 or kind == "claims"):
                break
            useless += 1
        last = self.last(kind)
        return bool(useless and last and now - last.at < 60 * 2 ** min(useless, 12))


def read(lake: LakeBase, table: TableId, now: float) -> TableRecord:
    """Return the record of a table; a new one if there is none, or it cannot be read."""
    try:
        content = json.loads(_file_of(lake, table).read_text(encoding="utf-8"))
        done = tuple(Done(**d) for d in content["done"])
        look = Look(**content["look"]) if content.get("look") else None
        claims = {tag: ClaimNote(**note) for tag, note in content.get("claims", {}).items()}
        # A clock that was set back must not pause upkeep until it has caught up.
        return TableRecord(
            str(table),
            min(float(content["seen"]), now),
            tuple(d for d in done if d.at <= now),
            look if look is not None and look.at <= now else None,
            # Times of claims are only compared with the clock: a clock that was set back must not change them.
            claims,
        )
    except FileNotFoundError:
        return TableRecord(str(table), now)
    except (OSError, ValueError, KeyError, TypeError) as e:
        log.warning("what upkeep did to %s is forgotten: %s", table, e)
        return TableRecord(str(table), now)


def add(lake: LakeBase, table: TableId, done: Iterable[Done], now: float) -> None:
    """Add actions to the record of a table. What prevents it is logged: the table is as it is."""

    def added(record: TableRecord) -> TableRecord:
        all_done = (*record.done, *done)
        # What is done rarely, such as the search for orphans, is not pushed out by what is done often.
        newest = {d.kind: n for n, d in enumerate(all_done)}
        kept = tuple(d for n, d in enumerate(all_done) if n >= len(all_done) - _KEPT or newest[d.kind] == n)
        return replace(record, done=kept)

    _change(lake, table, now, added)


def looked(lake: LakeBase, table: TableId, look: Look) -> None:
    """Note that a table was looked at."""
    _change(lake, table, look.at, lambda record: replace(record, look=look))


def note_claims(
    lake: LakeBase, table: TableId, change: Callable[[Mapping[str, ClaimNote]], Mapping[str, ClaimNote]], now: float
) -> None:
    """Change what is remembered of a table's consumers; nothing is written if nothing changes."""

    def changed(record: TableRecord) -> TableRecord:
        return replace(record, claims=dict(change(record.claims)))

    if changed(record := read(lake, table, now)).claims != record.claims:
        _change(lake, table, now, changed)


def _change(lake: LakeBase, table: TableId, now: float, change: Callable[[TableRecord], TableRecord]) -> None:
    """Replace the record of a table; other processes that change it meanwhile wait, and none of them is forgotten."""
    target = _file_of(lake, table)
    partial = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        make_private(target.parent)
        with table_lock.of_record(lake, table):
            write_private(partial, json.dumps(asdict(change(read(lake, table, now)))))
            partial.replace(target)
    except OSError as e:
        log.warning("what upkeep did to %s is not recorded: %s", table, e)


def _file_of(lake: LakeBase, table: TableId) -> Path:
    name = hashlib.sha256("\0".join(table.parts).encode()).hexdigest()[:24]
    return lake.config.home / _FOLDER / f"{name}.json"
