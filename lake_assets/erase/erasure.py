"""Carry out an erasure: delete, let everything downstream follow, rewrite files, expire history, and look for the keys.

Each part can be repeated: a process that is killed leaves the plan in the lake's home, and the next one goes through
all parts again. Old snapshots go last, once every table has absorbed the deletions; no snapshot is expired that a
table downstream still has to start from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from lake_assets.capture import icdc, source_tags
from lake_assets.capture.icdc_metadata import PREFIX as ICDC
from lake_assets.erase import erased_errors
from lake_assets.erase.clean_heads import ERASE, carried, clean_head, marks_at_heads, removed_files, stale_readers
from lake_assets.erase.erase_plan import ErasePlan, TablePlan, events_of, matching, others_refs
from lake_assets.erase.erase_record import forget_plan, report_of, save_plan, save_report
from lake_assets.erase.key_columns import KeySource, readers, source_of
from lake_assets.erase.key_values import frame
from lake_assets.erase.record_mentions import Mentions
from lake_assets.erase.value_scan import Finding, TableScan, Wanted, text_findings
from lake_assets.errors import ConcurrentWriteError, ErasureError, LakeError
from lake_assets.formats.event_model import INDEX, POSITION
from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.ingest.raw import file_ledger
from lake_assets.ingest.raw_tables import ARRIVED_PROPERTY
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.counts import plural
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.file_deletion import delete_file
from lake_assets.lake.metadata.metadata_commits import MovedError
from lake_assets.lake.metadata.row_counts import UPKEEP_PROPERTY, summary_of
from lake_assets.lake.rows_in_memory import rows_in_memory
from lake_assets.pipeline.step_retries import absorb
from lake_assets.pipeline.table_graph import Spec
from lake_assets.tables import leftovers, standing_failures, table_lock
from lake_assets.tables.batch_limits import LEFT
from lake_assets.tables.snapshot_retention import consumer_name, keep_sources
from lake_assets.tables.writing.side_tables import delete_matches
from lake_assets.upkeep.services import expire_snapshots, rewrite_deleted_rows

# Properties of commits that no table downstream has to follow: what it made of the rows is deleted there too.
_QUIET = {UPKEEP_PROPERTY: ERASE, ARRIVED_PROPERTY: "{}"}
# How often everything is gone through, if other writers commit meanwhile.
_PASSES = 4
_LISTED = 5


@dataclass
class Erasure:
    """One erasure.

    Attributes:
        specs: the tables of all pipelines that read the records, upstream first.
        is_dropping_refs: whether branches and tags of others, and with them their snapshots, are dropped.
        report: called with what is being done.
    """

    lake: LakeBase
    specs: Sequence[Spec]
    plan: ErasePlan
    is_dropping_refs: bool = False
    report: Callable[[str], None] = field(default=lambda text: None)

    def check(self) -> None:
        """Raise ErasureError if something has to be settled before anything is erased."""
        blocked = [*self.plan.blocked, *self._refs_of_others()]
        if blocked:
            raise ErasureError("nothing was erased:\n" + "\n".join(f"- {b}" for b in blocked))

    def _refs_of_others(self) -> list[str]:
        if self.is_dropping_refs:
            return []
        found: list[str] = []
        for t in self.plan.tables:
            table = self.lake.find(t.name)
            if table is not None and (names := others_refs(self.lake, table, readers(self.lake, [t.name]))):
                found.append(
                    f"{t.table}: {', '.join(names)} hold old snapshots: drop these branches, tags and consumers, or "
                    "repeat with --drop-refs"
                )
        return found

    def run(self) -> dict[str, Any]:
        """Erase, and return the report, which is stored in the lake's home.

        Raises:
            ErasureError: it cannot be begun, or not be completed yet; says what to do. It can be repeated.
        """
        self.check()
        save_plan(self.lake, self.plan)
        problems: list[str] = []
        source = source_of(self.lake, self.specs, TableId.parse(self.plan.table))
        for _ in range(_PASSES):
            try:
                self._pass(source)
                problems = self._expire()
            except (ConcurrentWriteError, MovedError, CommitFailedException) as e:
                problems = [str(e)]
                continue
            if not problems:
                break
        else:
            raise ErasureError(
                f"rows are deleted, and old snapshots are still needed: {'; '.join(problems)}. Run the pipeline until "
                "nothing is pending, and repeat the command: it goes on from here"
            )
        self.report("removing the keys from the records of errors")
        journal = erased_errors.remove_keys(self.lake, self.plan.key_tuples, {t.table for t in self.plan.tables})
        self.report("looking for the keys in all files")
        findings, files = self._scan(source)
        events = events_of(self.lake, source).where(f"{POSITION} > {int(self.plan.last)}")
        new = events.join(frame(self.lake.spark(), self.plan.key_tuples, source.types), [*source.key], "left_semi")
        report = report_of(self.plan, findings, files, new.count(), journal)
        save_report(self.lake, report)
        forget_plan(self.lake, self.plan)
        return report

    # --- deleting, rewriting ----------------------------------------------------------------------------------------

    def _pass(self, source: KeySource) -> None:
        """Delete from each table, upstream first, and rewrite its files; everything downstream absorbs it."""
        lake, touched = self.lake, {t.name: t for t in self.plan.tables}
        raw = source.raw.table
        for spec in self.specs:
            if spec.table == raw:
                for t in self.plan.tables:
                    if t.kind in ("raw", "rejected", "dump"):
                        self._clean(t, source, None)
                self._move_ledger(raw)
            elif not isinstance(spec, RawSpec) and lake.exists(spec.table) and self._reads(spec, touched.keys()):
                self._follow(spec)
                if spec.table in touched:
                    self._clean(touched[spec.table], source, spec)
                else:
                    with table_lock.waited_for(self.lake, spec.table):
                        clean_head(lake, spec.table, marks_at_heads(lake, lake.table(spec.table), spec, touched.keys()))

    def _reads(self, spec: Spec, touched: Any) -> bool:
        return spec.table in touched or not touched.isdisjoint(spec.sources)

    def _follow(self, spec: Spec) -> None:
        """Absorb all pending changes of a table.

        Raises:
            ErasureError: its step fails.
        """
        self.report(f"{spec.table}: absorbing changes")
        try:
            while LEFT in absorb(self.lake, spec).details:
                pass
        except ConcurrentWriteError:
            raise
        except LakeError as e:
            raise ErasureError(
                f"{spec.table} cannot follow, so old snapshots of its sources have to stay for now: {e}\nThen repeat "
                "the command: it goes on from here"
            ) from e

    def _clean(self, t: TablePlan, source: KeySource, spec: Spec | None) -> None:
        """Delete the rows of a table that hold a key, if no step does, rewrite its worn files, and clean its head."""
        lake, name = self.lake, t.name
        if not lake.exists(name):
            return
        with table_lock.waited_for(self.lake, name):
            self.report(f"{name}: deleting rows and rewriting files")
            leftovers.drop_branches(lake, name, lake.table(name))
            if t.kind != "model" and (t.kind != "own" or t.columns):
                self._delete(t, source)
            if lake.table(name).current_snapshot() is not None:
                rewrite_deleted_rows(lake, name)
            names = {t.name for t in self.plan.tables}
            clean_head(lake, name, marks_at_heads(lake, lake.table(name), spec, names) if spec is not None else {})

    def _delete(self, t: TablePlan, source: KeySource) -> None:
        lake, keys = self.lake, self.plan.key_tuples
        if lake.table(t.name).current_snapshot() is None:
            return
        if t.kind == "rejected":
            self._delete_rejects(t, source)
        rows = matching(lake, t.name, t.kind, t.columns, source, keys, self.plan.positions)
        if rows is None or not rows.limit(1).count():
            return
        if t.kind in ("raw", "rejected"):
            delete_matches(
                lake, t.name, rows.select("position").distinct(), ["position"], _QUIET if t.kind == "raw" else {}
            )
        elif t.kind == "dump":
            delete_matches(lake, t.name, rows.select("row").distinct(), ["row"])
        elif t.kind == "staging":
            events = events_of(lake, source).join(frame(lake.spark(), keys, source.types), [*source.key], "left_semi")
            match = [POSITION, *([INDEX] if INDEX in lake.spark().table(lake.sql_name(t.name)).columns else [])]
            events = events.where(f"{POSITION} <= {int(self.plan.last)}")
            delete_matches(lake, t.name, events.select(*match).distinct(), match, _QUIET)
        else:
            delete_matches(lake, t.name, rows.select(*(quote(c) for c in t.columns)).distinct(), t.columns)

    def _delete_rejects(self, t: TablePlan, source: KeySource) -> None:
        """Delete rejected records that mention a key, though raw no longer has them, as after a rollback."""
        mentions, lake = Mentions(source.names, self.plan.key_tuples), self.lake
        rows = lake.spark().table(lake.sql_name(t.name)).select("position", "source_table", "record").collect()
        about = (None, str(source.staging.source_table))
        found = sorted({r["position"] for r in rows if r["source_table"] in about and mentions.are_in(r["record"])})
        known = {*self.plan.positions, *self.plan.others}
        found = [p for p in found if p <= self.plan.last and p not in known]
        if found:
            listed = rows_in_memory(lake.spark(), [(p,) for p in found], "position bigint")
            delete_matches(lake, t.name, listed, ["position"])

    def _move_ledger(self, raw: TableId) -> None:
        """Let the ledger of landed files start from raw's head: without it, erased files would be landed again."""
        name = file_ledger.ledger_of(raw)
        if self.lake.exists(name):
            file_ledger.catch_up(self.lake, raw)
            with table_lock.waited_for(self.lake, name):
                table = self.lake.table(name)
                clean_head(self.lake, name, marks_at_heads(self.lake, table, None, (raw,)))

    # --- history ----------------------------------------------------------------------------------------------------

    def _expire(self) -> list[str]:
        """Expire all snapshots but the current one of each table; return what keeps that from being done now."""
        problems: list[str] = []
        icdc.sweep(self.lake)
        for t in self.plan.tables:
            if self.lake.exists(t.name):
                with table_lock.waited_for(self.lake, t.name):
                    problems += self._expired(t.name)
        return problems

    def _expired(self, name: TableId) -> list[str]:
        lake, table = self.lake, self.lake.table(name)
        head = table.current_snapshot()
        if head is None:
            return []
        targets = readers(lake, [name])
        ledger = file_ledger.ledger_of(name)
        if removed_files(table) or not carried(table).items() <= summary_of(head).items():
            return [f"{name} has new commits"]
        if stale := stale_readers(lake, name, [*targets, *([ledger] if lake.exists(ledger) else [])]):
            return [f"{', '.join(stale)} have not absorbed {name}"]
        for target in targets:
            if source_tags.PREFIX + consumer_name(target) in table.metadata.refs:
                keep_sources(lake, target, [name])
        table = lake.table(name)
        others = others_refs(lake, table, targets)
        if others and not self.is_dropping_refs:
            raise ErasureError(f"{name}: {', '.join(others)} hold old snapshots: drop them, or repeat with --drop-refs")
        # Nobody is at work, or on another machine: then the step finds its branch gone, and starts again.
        dead = [*source_tags.of_dead_captures(table), *leftovers.step_branches(table)]
        if drop := [r for r in (*others, *dead) if r in table.metadata.refs]:
            refs.drop(table, *drop)
        table = lake.table(name)
        if kept := [r for r, ref in table.metadata.refs.items() if ref.snapshot_id != head.snapshot_id]:
            return [f"{name}: {', '.join(kept)} name other snapshots than the current one"]
        if old := [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != head.snapshot_id]:
            self.report(f"{name}: expiring {plural(len(old), 'snapshot')}")
            expire_snapshots(lake, name, old)
        return []

    # --- proof ------------------------------------------------------------------------------------------------------

    def _scan(self, source: KeySource) -> tuple[list[Finding], int]:
        """Look for the keys in all files; remove the files that no snapshot names and that hold one."""
        findings: list[Finding] = []
        files = 0
        for t in self.plan.tables:
            table = self.lake.find(t.name)
            if table is None:
                continue
            scan = TableScan(table, self._wanted(t, source, table))
            found = scan.findings()
            if self._remove(t, table, found):
                scan = TableScan(self.lake.table(t.name), self._wanted(t, source, table))
                found = scan.findings()
            findings += found
            files += scan.files
        texts = Wanted((), self.plan.key_tuples).texts
        for t in self.plan.tables:
            standing_failures.forget(self.lake, t.name)
        in_home = text_findings(self.lake.config.home, texts, self._outside_home())
        in_journal, read = erased_errors.findings(self.lake, self.plan.key_tuples)
        return [*findings, *in_journal, *in_home, *self._open_captures()], files + read

    def _wanted(self, t: TablePlan, source: KeySource, table: Table) -> Wanted:
        keys = self.plan.key_tuples
        if t.kind in ("raw", "rejected"):
            return Wanted(
                (), keys, (), Mentions(source.names, keys), str(source.staging.source_table),
                frozenset(self.plan.positions), self.plan.last, frozenset(self.plan.others),
            )  # fmt: skip
        if t.kind == "dump":
            return Wanted((), keys, records=Mentions(source.names, keys), text="row")
        if t.kind == "staging":
            existing = {c.lower(): c for c in table.schema().column_names}
            columns = [next((existing[n] for n in names if n in existing), "") for names in source.names]
            return Wanted(columns if all(columns) else (), keys, source.names, last=self.plan.last)
        return Wanted(t.columns, keys)

    def _remove(self, t: TablePlan, table: Table, found: Sequence[Finding]) -> bool:
        """Remove files with keys that nothing needs; return whether there were some.

        A file that a step of this package has written without committing it is not published any more: main has moved
        since. Files that are younger than the erasure stay.
        """
        old = {e.metadata_file for e in table.metadata.metadata_log} - {table.metadata_location}
        removable = [
            f
            for f in found
            if not f.where.startswith("cannot")
            and (f.path in old or (not f.is_named and f.written_at < self.plan.began))
        ]
        for f in removable:
            self.report(f"{t.table}: removing {f.path}, which no snapshot names")
            with contextlib.suppress(FileNotFoundError):
                delete_file(table.io, f.path)
        return bool(removable)

    def _outside_home(self) -> list[str]:
        landing = [str(s.landing.path) for s in self.specs if s.landing is not None and s.landing.path]
        return [*landing, (self.lake.config.warehouse or "").removeprefix("file://")]

    def _open_captures(self) -> list[Finding]:
        """Return the ICDC tables of captures that are still open over a touched table: they name its old files."""
        names = {t.table for t in self.plan.tables}
        found: list[Finding] = []
        for name in self.lake.tables(icdc.NAMESPACE):
            table = self.lake.find(name)
            if table is not None and table.properties.get(f"{ICDC}source") in names:
                found.append(Finding(table.metadata_location, f"{name}, an open capture", True, 0.0))
        return found
