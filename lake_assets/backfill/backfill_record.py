"""What the lake knows of a backfill: its plan, how far it is, who runs it, and what it published.

One JSON file per backfill in the lake's home. A file is replaced as a whole, so a reader never sees half of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from pyiceberg.table import Table

from lake_assets.capture import source_tags
from lake_assets.errors import BackfillError, BackfillNotFoundError, CorruptMetadataError
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.refs import BACKFILL_TAG
from lake_assets.pipeline.row_scope import EVERYTHING, RowScope
from lake_assets.runtime.private_files import make_private
from lake_assets.runtime.processes import is_gone, owner, user
from lake_assets.tables.outcome import Outcome
from lake_assets.tables.snapshot_retention import consumer_name

# How long a published backfill can be undone, unless declared otherwise.
KEEP_DAYS = 7
_FOLDER = "backfills"
_ID = re.compile(r"b[0-9a-f]{6}")

# `building` also if its process was killed; `publishing` during the commit, whose result only the tables know;
# `discarding` once files may be deleted.
State = Literal["building", "failed", "ready", "publishing", "published", "undone", "discarding", "discarded"]
OPEN: tuple[State, ...] = ("building", "failed", "ready", "publishing", "discarding")
Publish = Literal["auto", "manual"]
Redo = Literal["everything", "rows", "changes", "before"]


@dataclass(frozen=True)
class TableEstimate:
    """What a plan expected of a table.

    Attributes:
        rows: rows that change, from the share of its sources that is redone.
        seconds: time taken.
        runs: number of past backfills that `seconds` is taken from; 0: from a general rate.
    """

    rows: int
    seconds: float
    runs: int


@dataclass(frozen=True)
class TableRecord:
    """One table of a backfill.

    Attributes:
        table: its name.
        redo: what is redone: `everything`; chosen `rows`; what follows from the `changes` of its sources; or nothing,
            since the copy starts from the rows `before` another backfill.
        chunks: the pieces of work in order, each some rows to redo; one without a condition if all is one piece.
        begun, done: number of chunks that were begun, and that are finished.
        is_repeated: whether a chunk was begun again after a kill: what it had changed by then is in no count.
        strategy, why: how the changes were applied; of several pieces of work, by the last one that changed rows.
        start: the snapshot that the working copy was made of.
        metadata: the metadata file that the working copy was made of.
        inserted, updated, deleted: rows that changed in the working copy, without catching up.
        rows_read: rows that its sources were expected to hold in what is read.
        seconds, cpu_seconds: time taken, and seconds of one core that were used, without catching up.
        estimate: what the plan said; None: there was none.
        before, after: the table's snapshot before publishing, and the published one.
        redefined: whether columns or declaration changed with it.
        compared: what it changes, as it was compared last: numbers of rows, in all and by column, without values of
            rows, which an erasure would have to find; None: not yet.
    """

    table: str
    redo: Redo
    chunks: tuple[RowScope, ...] = (EVERYTHING,)
    begun: int = 0
    done: int = 0
    is_repeated: bool = False
    strategy: str = ""
    why: str = ""
    start: int | None = None
    metadata: str = ""
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    rows_read: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    estimate: TableEstimate | None = None
    before: int | None = None
    after: int | None = None
    redefined: bool = False
    compared: Mapping[str, Any] | None = None

    @property
    def name(self) -> TableId:
        """The table."""
        return TableId.parse(self.table)

    @property
    def is_done(self) -> bool:
        """Whether all of its work is finished."""
        return self.done >= len(self.chunks)

    def with_work(self, outcome: Outcome, cpu_seconds: float) -> Self:
        """Return the record after one more piece of work."""
        if self.redo == "before":
            # It counts what is taken back; what came since is absorbed, and in the table already.
            outcome = replace(outcome, inserted=0, updated=0, deleted=0)
        tells = not self.strategy or outcome.inserted + outcome.updated + outcome.deleted > 0
        return replace(
            self,
            done=self.done + 1,
            strategy=(tells and outcome.strategy) or self.strategy,
            why=(tells and outcome.why) or self.why,
            inserted=self.inserted + outcome.inserted,
            updated=self.updated + outcome.updated,
            deleted=self.deleted + outcome.deleted,
            seconds=self.seconds + outcome.seconds,
            cpu_seconds=self.cpu_seconds + cpu_seconds,
        )


@dataclass(frozen=True)
class BackfillRecord:
    """One backfill.

    Attributes:
        pipeline, file: the name of the pipeline, or of several (see `PipelineGroup`), and its YAML file; empty: it has
            none. Files of several are joined as in PATH.
        request: what was asked for, in words.
        tables: its tables, upstream first.
        publish: `auto`, as soon as it is ready, or `manual`.
        keep_days: how long it can be undone.
        process: who builds it, as `runtime.processes.owner` names processes; empty: nobody.
        created, changed, published: seconds since 1970; 0: not yet.
        by: user and machine.
        error: why it failed.
        run: the run of an orchestrator that began it; empty: none.
        undoes: the backfill that this one takes back; empty: none.
        way: how its tables were published, in words; empty: not yet, or no row differed.
        has_news: whether it also publishes changes of the sources that were pending, or came while it was built.
        is_clean: whether its working copies are removed, since it has ended.
        left_out: tables downstream that are not part of it, with reasons.
        is_unseen: whether it is the preview of a declaration that nobody was shown yet: if its process was killed,
            the next preview discards it.
    """

    id: str
    pipeline: str
    request: str
    tables: tuple[TableRecord, ...]
    state: State = "building"
    publish: Publish = "auto"
    keep_days: int = KEEP_DAYS
    process: str = ""
    created: float = field(default_factory=time.time)
    changed: float = field(default_factory=time.time)
    by: str = ""
    error: str = ""
    undoes: str = ""
    file: str = ""
    run: str = ""
    published: float = 0.0
    has_news: bool = False
    way: str = ""
    is_clean: bool = False
    is_unseen: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def files(self) -> list[Path]:
        """The YAML files of its pipelines."""
        return [Path(file) for file in self.file.split(os.pathsep)] if self.file else []

    @property
    def tag(self) -> str:
        """Name of the tag that keeps snapshots for it: those it starts from, then those from before it."""
        return f"{BACKFILL_TAG}{self.id}"

    def source_tag(self, source: Table, target: TableId | None = None) -> str:
        """Name of the tag that keeps snapshots of a source for it: the pinned one, or the one that a target absorbed.

        On tables of other programs it has another prefix, which does not make their main keep all snapshots: publishing
        only asks the backfill's own tables who has written to them.
        """
        tag = f"{source_tags.PREFIX}{self.tag}" if source_tags.is_of_others(source) else self.tag
        return tag if target is None else f"{tag}.{consumer_name(target)}"

    @property
    def is_open(self) -> bool:
        """Whether it may still be published."""
        return self.state in OPEN

    @property
    def ways_to_end(self) -> str:
        """How an open backfill comes to its end, by its state."""
        discard = f"discard it (`lake-assets discard {self.id}`)"
        if self.is_running and self.state != "ready" and is_gone(self.process) is None:
            return (
                f"wait until it has ended ({self.process_text}, not visible from here). If its machine or container "
                f"was restarted, `lake-assets discard {self.id}` says how to free it"
            )
        if self.is_running and self.state != "ready":
            return f"wait until it has ended, or end its process ({self.process_text})"
        match self.state:
            case "building" | "failed":
                return f"continue it (`lake-assets resume {self.id}`) or {discard}"
            case "publishing":
                return f"complete that (`lake-assets publish {self.id}`)"
            case "discarding":
                return f"complete that (`lake-assets discard {self.id}`)"
            case _:
                return f"publish it (`lake-assets publish {self.id}`) or {discard}"

    @property
    def changed_nothing(self) -> bool:
        """Whether it has ended without a row that differed: there is nothing to undo."""
        return self.state == "published" and all(t.after is None for t in self.tables)

    @property
    def redefined(self) -> str:
        """The tables whose columns or declaration changed with it."""
        return ", ".join(t.table for t in self.tables if t.redefined)

    @property
    def undo_text(self) -> str:
        """Whether it can be undone once it is published."""
        if changed := self.redefined:
            return (
                f"it cannot be undone, because the declaration of {changed} changed with it. A run by the former "
                "declaration would compute the tables by that again: where the pipeline is deployed as a copy, deploy "
                "the edited file before the next run"
            )
        return f"`lake-assets undo {self.id}` takes it back, for {self.keep_days} days"

    @property
    def is_running(self) -> bool:
        """Whether a process is at work on it; one that is not visible from here counts as running."""
        return bool(self.process) and not is_gone(self.process)

    @property
    def process_text(self) -> str:
        """The process that is at work on it, and who began it."""
        return f"process {self.process.split('_')[1]}; begun by {self.by}"

    def of(self, table: object) -> TableRecord:
        """Return the record of one of its tables."""
        return next(t for t in self.tables if t.table == str(table))

    def with_table(self, changed: TableRecord) -> Self:
        """Return the record with one table replaced."""
        return replace(self, tables=tuple(changed if t.table == changed.table else t for t in self.tables))


class Records:
    """The records of a lake."""

    def __init__(self, lake: LakeBase) -> None:
        self._folder = lake.config.home / _FOLDER

    def new_id(self) -> str:
        """Return an id that no backfill has."""
        while self.file_of(made := f"b{secrets.token_hex(3)}").exists():
            pass
        return made

    def create(self, record: BackfillRecord) -> BackfillRecord:
        """Store a new record, with the user and this process, unless another open backfill has one of its tables.

        Raises:
            BackfillError: another one has.
        """
        record = replace(record, by=f"{user()}@{socket.gethostname()}", process=owner())
        tables = {t.table for t in record.tables}
        with self.exclusive():
            for other in self.all():
                shared = tables.intersection(t.table for t in other.tables) if other.is_open else set[str]()
                if shared:
                    raise BackfillError(
                        f"{', '.join(sorted(shared))} is in the backfill {other.id} ({other.request}), which is "
                        f"{other.state}. First {other.ways_to_end}"
                    )
            self.save(record)
        return record

    @contextlib.contextmanager
    def exclusive(self) -> Generator[None]:
        """Let no other process of this machine claim, take over or settle a backfill within the context."""
        make_private(self._folder)
        with (self._folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed, also by a kill
            yield

    def save(self, record: BackfillRecord) -> None:
        """Replace a record."""
        make_private(self._folder)
        file = self.file_of(record.id)
        part = file.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(asdict(replace(record, changed=time.time())), indent=1))
        part.replace(file)

    def get(self, backfill: str) -> BackfillRecord:
        """Return a record.

        Raises:
            BackfillNotFoundError: there is no such backfill; lists the newest ones.
            CorruptMetadataError: its record cannot be read.
        """
        if not self.has(backfill):
            newest = ", ".join(r.id for r in self.all()[-5:])
            has = f"`lake-assets backfills` lists them, the newest are {newest}" if newest else "there is none yet"
            raise BackfillNotFoundError(f"no backfill {backfill}: {has}")
        return self._read(self.file_of(backfill))

    def has(self, backfill: str) -> bool:
        """Whether there is a record of a backfill, readable or not."""
        return bool(_ID.fullmatch(backfill)) and self.file_of(backfill).exists()

    def undo_of(self, backfill: str) -> BackfillRecord | None:
        """Return the backfill by which an undone one was undone."""
        return next((r for r in self.all() if r.undoes == backfill and r.state == "published"), None)

    def note_comparison(self, backfill: str, numbers: Mapping[str, Mapping[str, Any]]) -> None:
        """Store what a backfill that waits for a decision changes in its tables, by table; see `TableRecord`."""
        with self.exclusive():
            record = self.get(backfill)
            if record.state == "ready" and not record.process:
                tables = (replace(t, compared=numbers.get(t.table, t.compared)) for t in record.tables)
                self.save(replace(record, tables=tuple(tables)))

    def forget(self, backfill: str) -> None:
        """Delete a record, if there is one."""
        if self.has(backfill):
            self.file_of(backfill).unlink(missing_ok=True)

    def all(self) -> list[BackfillRecord]:
        """Return all records, oldest first."""
        return sorted(self._each(), key=lambda r: r.created)

    def _each(self) -> Iterator[BackfillRecord]:
        for file in self._folder.glob("b*.json"):
            if _ID.fullmatch(file.stem):
                yield self._read(file)

    def file_of(self, backfill: str) -> Path:
        """Return the file of a record."""
        return self._folder / f"{backfill}.json"

    def _read(self, file: Path) -> BackfillRecord:
        try:
            content: dict[str, Any] = json.loads(file.read_text())
            tables = tuple(_table(t) for t in content.pop("tables"))
            return BackfillRecord(**content, tables=tables)
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            raise CorruptMetadataError(
                f"the record of a backfill in {file} cannot be read ({e}). If a newer version of lake-assets wrote it, "
                f"update this one. If it was damaged, `lake-assets discard {file.stem}` deletes it and what is left of "
                "the backfill: tables that were not published are unchanged"
            ) from e


def joined(files: Iterable[Path]) -> str:
    """Return the YAML files of a backfill's pipelines as its record has them (see `BackfillRecord.files`)."""
    return os.pathsep.join(str(file.absolute()) for file in files)


def _table(stored: dict[str, Any]) -> TableRecord:
    chunks, estimate = stored.pop("chunks"), stored.pop("estimate", None)
    stored["estimate"] = TableEstimate(**estimate) if estimate else None
    return TableRecord(**stored, chunks=tuple(RowScope(c["where"], tuple(c["columns"]), c["label"]) for c in chunks))
