"""Faults of disks, clocks, catalogs and other writers, and the advice of errors, followed as it stands there."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from lake_assets import Lake, cli
from lake_assets.errors import CorruptMetadataError, LakeError
from lake_assets.lake import caching_catalog
from lake_assets.tables.outcome import Outcome
from tests.support.clock import written_ahead
from tests.support.hostile_values import LINES
from tests.support.oracle import Rows, bag, final_rows
from tests.support.people import People
from tests.support.pipeline_files import write_pipeline
from tests.support.upkeep import forget_history

PARTS = ("metadata", "manifest list", "manifest", "data")
# A disk that is full, and how much of it is left to a run: what is written in the first moments of a step, or in others.
DISK_BYTES, ROOM = 96 << 20, (0, 2_000, 10_000, 40_000, 150_000)
ROUNDS = 8
_DROP = re.compile(r"[Dd]rop ([\w.]+)(?:, run the pipeline|: the next run)")


def path_of(location: str) -> Path:
    """The path of a file's location."""
    return Path(location.removeprefix("file://").removeprefix("file:"))


def files_of(lake: Lake, table: str, part: str) -> list[Path]:
    """The files of one kind that a table's current snapshot is made of."""
    loaded = lake.table(table)
    if part == "metadata":
        return [path_of(loaded.metadata_location)]
    snapshot = loaded.current_snapshot()
    if snapshot is None:
        return []
    if part == "manifest list":
        return [path_of(snapshot.manifest_list)]
    manifests = snapshot.manifests(loaded.io)
    if part == "manifest":
        return [path_of(m.manifest_path) for m in manifests]
    return sorted({path_of(e.data_file.file_path) for m in manifests for e in m.fetch_manifest_entry(loaded.io)})


class Faults:
    """Faults at random moments in the life of one pipeline, each with what its error advises.

    Attributes:
        done: what was done, for who looks at a failure.
        count: how often each fault was made.
        followed: advice that was followed.
    """

    def __init__(self, people: People, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.people, self.lake, self.choose = people, people.lake, people.choose
        self.done: list[str] = []
        self.count: Counter[str] = Counter()
        self.followed: list[str] = []
        self._kept: dict[Path, bytes] = {}
        self._catalog: Path | None = None
        self._folder, self._patch = folder, patch
        self._relief: list[Callable[[], object]] = []
        patch.setattr(Lake, "load", lambda: self.lake)
        patch.setattr(Lake, "load_existing", lambda: self.lake)

    # --- faults -------------------------------------------------------------------------------------------------

    @property
    def tables(self) -> list[str]:
        """The tables that are there."""
        return [str(t) for layer in ("raw", "staging", "final", "agg") for t in self.lake.tables(layer)]

    def clock_ahead(self) -> str:
        """Some tables, or all of them as when a clock is set back, were written by a clock that was ahead."""
        tables = self.choose.choice([self.tables, self.choose.sample(self.tables, 2)])
        ahead = timedelta(minutes=self.choose.choice([2, 90, 3_000]))
        for table in tables:
            written_ahead(self.lake, table, ahead, last=self.choose.randint(1, 3))
        return f"clock set back by {ahead} for {', '.join(tables)}"

    def broken_file(self) -> str:
        """A file of a table is gone, or was cut."""
        table, part = self.choose.choice(self.tables), self.choose.choice(PARTS)
        found = [f for f in files_of(self.lake, table, part) if f.exists()]
        if not found:
            return "nothing"
        file = self.choose.choice(found)
        content = file.read_bytes()
        self._kept[file] = content
        if self.choose.random() < 0.5:
            file.unlink()
            how = "is gone"
        else:
            file.write_bytes(content[: self.choose.choice([0, len(content) // 2, len(content) - 8])])
            how = "was cut"
        self._patch.setattr(caching_catalog, "_cache", caching_catalog.MetadataCache())  # as in a new process
        return f"{part} of {table} {how}: {file.name}"

    def rolled_back(self) -> str:
        """Somebody rolls a table back."""
        table = self.choose.choice([t for t in self.tables if "_" not in t])
        loaded = self.lake.table(table)
        there = [s.snapshot_id for s in loaded.metadata.snapshots]
        if len(there) < 2:
            return "nothing"
        to = self.choose.choice(there[-4:])
        self.people.sql(f"CALL lake.system.set_current_snapshot('{table}', {to})")
        return f"{table} rolled back to {to}"

    def expired(self) -> str:
        """Somebody expires all snapshots of a table, and the tags as well."""
        table = self.choose.choice([t for t in self.tables if "_" not in t])
        if self.lake.table(table).current_snapshot() is None:
            return "nothing"
        forget_history(self.lake, table)
        return f"history of {table} expired"

    def catalog_kept(self) -> str:
        """A backup of the catalog is made."""
        self._catalog = self._folder / "catalog.backup"
        here = sqlite3.connect(self.lake.config.home / "catalog.db")
        with closing(here), closing(sqlite3.connect(self._catalog)) as backup:
            here.backup(backup)
        return "catalog saved"

    def catalog_restored(self) -> str:
        """The catalog is as its backup; what its restoring asks for is done: `lake-assets repair`."""
        if self._catalog is None:
            return self.catalog_kept()
        backup = sqlite3.connect(self._catalog)
        with closing(backup), closing(sqlite3.connect(self.lake.config.home / "catalog.db")) as here:
            backup.backup(here)
        self._catalog = None
        if self.choose.random() < 0.7:
            self.command("repair")
            return "catalog restored, and repaired"
        return "catalog restored"

    def poison(self) -> str:
        """Lines that are no events, among them hostile ones."""
        lines = self.choose.sample(LINES, 6)
        self.people.feed.land_text("")
        last = max(self.people.feed.landing.iterdir())
        last.write_bytes(b"\n".join(lines) + b"\n")
        return f"poison {[line[:12] for line in lines]}"

    def catalog_locked(self) -> str:
        """Another process holds the catalog's lock for longer than anybody waits."""
        holder = sqlite3.connect(self.lake.config.home / "catalog.db", timeout=5, check_same_thread=False)
        mode = self.choose.choice(["EXCLUSIVE", "NORMAL"])
        holder.execute(f"PRAGMA locking_mode = {mode}")
        try:
            holder.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            holder.close()
            return "nothing"
        self._relief.append(holder.close)
        return f"catalog locked ({mode})"

    def disk_full(self) -> str:
        """The lake's disk has no room, or just a little."""
        home = self.lake.config.home
        if not home.is_mount():
            return "nothing"
        ballast, room = home / "ballast", self.choose.choice(ROOM)
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        os.truncate(ballast, max(0, ballast.stat().st_size - room))
        self._relief.append(lambda: ballast.unlink(missing_ok=True))
        return f"disk full but for {room} bytes"

    def any(self) -> None:
        """One fault."""
        names = ("clock_ahead", "broken_file", "broken_file", "rolled_back", "expired", "catalog_restored", "poison",
                 "catalog_locked", "disk_full")  # fmt: skip
        name = self.choose.choice(names)
        self.count[name] += 1
        self.done.append(getattr(self, name)())

    def any_while_running(self) -> None:
        """One fault in the middle of a run: before some statement of Spark's."""
        left, call = self.choose.randrange(6), SparkSession.sql

        def cross(session: SparkSession, *args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == -1:
                self.done.append(f"while {str(args[0]).split(chr(10))[0][:60]!r} was about to run:")
                self.any()
            return call(session, *args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SparkSession, "sql", cross)
            failed = self.run()
        if failed:
            self.follow(failed[0])

    # --- advice -------------------------------------------------------------------------------------------------

    def run(self) -> list[Outcome]:
        """Run; whatever fails has a name and says what to do."""
        try:
            outcomes = self.people.feed.pipeline.run(self.lake)
        except LakeError as e:
            outcomes = [Outcome("the run", "failed", error=f"{type(e).__name__}: {e}", exception=e)]
        failed = [o for o in outcomes if o.status == "failed"]
        for outcome in failed:
            message = f"{outcome.table}: {outcome.error}"
            self.done.append(f"  {message[:400]}")
            assert isinstance(outcome.exception, LakeError), f"{type(outcome.exception)}: {message}"
        return failed

    def settle(self) -> None:
        """Run and follow the advice of what failed, until nothing fails."""
        for _ in range(ROUNDS):
            failed = self.run()
            if not failed:
                assert not self._relief or self.relieve(), "unreachable"
                return
            for outcome in failed[:1]:
                self.follow(outcome)
        raise AssertionError("following the advice led nowhere")

    def relieve(self) -> bool:
        """Take back what hinders everybody: a lock, a full disk."""
        while self._relief:
            self._relief.pop()()
        return True

    def keep(self, files: Iterable[Path]) -> list[Path]:
        """A backup of files, which are returned."""
        found = list(files)
        self._kept |= {f: f.read_bytes() for f in found}
        return found

    def follow(self, outcome: Outcome, wanted: str = "") -> None:
        """Do one of the things that an error advises, whichever; or what is called `wanted`."""
        message = outcome.error or ""
        options: list[tuple[str, Callable[[], bool]]] = []
        for command in dict.fromkeys(re.findall(r"`lake-assets (rebuild [\w.]+)`", message)):
            options.append((command, lambda c=command: self.command(c)))
        if "`lake-assets repair`" in message:
            options.append(("repair", lambda: self.command("repair")))
        if re.search(r"restore (the file|it) from a backup", message, re.IGNORECASE):
            options.append(("restore", lambda: self._restore(message)))
        if "roll" in message and "back to a snapshot without it" in message:
            options.append(("roll back", lambda: self._roll_back(message)))
        if "make room" in message or "end that process" in message:
            options.append(("relieve", self.relieve))
        if "`lake-assets rebuild` that table" in message and (owner := self._owner(message)):
            options.append((f"rebuild {owner}", lambda: self.command(f"rebuild {owner}")))
        if "run again" in message and not options:
            options.append(("run again", lambda: True))
        if drop := _DROP.search(message):
            options.append(("drop", lambda: self._drop(drop[1])))
        assert options, f"no advice in {message}"
        self.choose.shuffle(options)
        for name, option in options:
            if wanted in name and option():
                self.followed.append(name)
                self.done.append(f"  followed: {name}")
                return
        raise AssertionError(f"nothing of the advice can be done: {message}")

    def command(self, command: str) -> bool:
        """Run a command of the product's; whether it did what it promised."""
        config = self.people.feed.pipeline.config.model_dump(exclude_defaults=True, mode="json")
        folder = self._folder / "pipelines" / "people"
        folder.mkdir(parents=True, exist_ok=True)
        write_pipeline(folder / "defs.yaml", config)
        self._patch.setenv("LAKE_PIPELINES", str(folder.parent))
        done = CliRunner().invoke(cli.application(), command.split())
        if done.exception and not isinstance(done.exception, SystemExit):
            assert isinstance(done.exception, LakeError), f"{command}: {done.exception!r}"
            self.done.append(f"  {command}: {done.exception}")
            drop = _DROP.search(str(done.exception))
            return drop is not None and self._drop(drop[1])
        self.done.append(f"  {command}: {done.output[:400]}")
        if command == "repair" and done.exit_code:
            for lost in re.findall(r"^([\w.]+)\s+lost", done.output, re.MULTILINE):
                self.command(f"repair {lost} --forget")
        return done.exit_code == 0 or command == "repair"

    def _restore(self, message: str) -> bool:
        found = [f for f in self._kept if f.name in message]
        for file in found:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self._kept.pop(file))
        return bool(found)

    def _roll_back(self, message: str) -> bool:
        """Roll the table that the named file belongs to back to its last snapshot without the file."""
        if (table := self._owner(message)) is None:
            return False
        loaded = self.lake.table(table)
        for entry in reversed(loaded.history()):
            snapshot = loaded.snapshot_by_id(entry.snapshot_id)
            if snapshot is not None and not any(p.name in message for p in all_files(loaded, snapshot)):
                self.people.sql(f"CALL lake.system.set_current_snapshot('{table}', {snapshot.snapshot_id})")
                return True
        return False

    def _owner(self, message: str) -> str | None:
        """The table in whose folder a named file is."""
        for table in self.tables:
            with contextlib.suppress(CorruptMetadataError):
                if f"{path_of(self.lake.table(table).location())}/" in message:
                    return table
        return None

    def _drop(self, table: str) -> bool:
        self.people.sql(f"DROP TABLE lake.{table}")
        return True

    def finish(self) -> None:
        """Everything is as a replay of the events in plain Python has it; the tables are read without Spark."""
        self.relieve()
        self.settle()
        try:
            self.compare()
        except (OSError, EOFError, ValueError):
            # A file that no step has had to read so far.
            for file in list(self._kept):
                self._restore(file.name)
            self.done.append("  at the end: every file is restored")
            self.settle()
            self.compare()

    def compare(self) -> None:
        """Compare the tables with what their events lead to, without Spark."""
        found = self._found()
        people = final_rows(self.people.log, ["id", "city", "age"])
        expected = {
            "final.people": people,
            "agg.cities": bag(Counter(city for _, city, _ in people.elements()).items()),
            "agg.ages": bag((city, age) for _, city, age in people.elements()),
        }
        for table, rows in found.items():
            assert rows == expected[table], (
                f"{table}: missing {expected[table] - rows}, too many {rows - expected[table]}"
            )
        assert self.people.feed.pipeline.pending(self.lake) == []

    def _found(self) -> dict[str, Rows]:
        columns = {"final.people": ("id", "city", "age"), "agg.cities": ("city", "n"), "agg.ages": ("city", "age")}
        declared = {"final.people", *(str(m["name"]) for m in self.people.models)}
        found: dict[str, Rows] = {}
        for table in declared & columns.keys():
            rows = self.lake.table(table).scan(selected_fields=columns[table]).to_arrow().to_pylist()
            found[table] = bag([row[c] for c in columns[table]] for row in rows)
        return found


def all_files(table: Any, snapshot: Any) -> Iterator[Path]:
    """The files that a snapshot is made of, as far as they can be read."""
    yield path_of(snapshot.manifest_list)
    try:
        for manifest in snapshot.manifests(table.io):
            yield path_of(manifest.manifest_path)
            for entry in manifest.fetch_manifest_entry(table.io):
                yield path_of(entry.data_file.file_path)
    except (OSError, ValueError):
        return


@contextlib.contextmanager
def small_disk(folder: Path) -> Generator[bool]:
    """Make `folder` a small file system of its own, where this user may; yields whether it is."""
    folder.mkdir()
    is_mounted = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], capture_output=True, check=False
        ).returncode
        == 0
    )
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
