"""What the page of a backfill shows: its tables before and after, who reads them, what it cost, what can be done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from lake_assets.backfill.backfill_plan import confidence
from lake_assets.backfill.backfill_record import BackfillRecord, TableRecord
from lake_assets.backfill.comparison import TableComparison
from lake_assets.backfill.table_readers import Reader, Readers
from lake_assets.facade import Lake
from lake_assets.lake import TableId
from lake_assets.pipeline.table_graph import Spec, lookups_of
from lake_assets.report.amounts import moment, money
from lake_assets.report.backfill_sentences import next_steps, publication, verdict
from lake_assets.report.graph_layout import Graph, graph
from lake_assets.report.table_differences import TableDifferences, table_differences
from lake_assets.tables.pending_windows import known_marks

_REDONE = {
    "everything": "all rows",
    "rows": "the chosen rows",
    "changes": "what follows from its sources",
    "before": "back to the rows from before",
}


@dataclass(frozen=True)
class TableWork:
    """What was done to a table, and what was expected.

    Attributes:
        redone: which rows, in words.
        how: how they were computed, with the reason.
        changed: rows that the work changed, without catching up.
        expected_rows, expected_seconds: the plan's estimate; None: there was none.
        confidence: how far the seconds can be trusted; empty: there was no estimate.
        snapshots: the table's snapshots before and after publishing; None: not published, or no row differed.
    """

    table: str
    redone: str
    how: str
    chunks: tuple[int, int]
    rows_read: int
    changed: int
    expected_rows: int | None
    expected_seconds: float | None
    confidence: str
    seconds: float
    cpu_seconds: float
    snapshots: tuple[int | None, int] | None


@dataclass(frozen=True)
class BackfillReport:
    """The page of a backfill.

    Attributes:
        began, made_at: as text in UTC.
        verdict: how it stands, and how much it changes.
        attention: `warn` if it waits for somebody, `bad` if it has failed; else empty.
        readers: by table, what reads it and is not part of the backfill.
        money: the price of what was used; empty: no price is declared.
    """

    record: BackfillRecord
    began: str
    made_at: str
    verdict: str
    attention: str
    next_steps: Sequence[str]
    publication: Sequence[str]
    tables: Sequence[TableDifferences]
    work: Sequence[TableWork]
    readers: Sequence[tuple[str, Sequence[str]]]
    graph: Graph
    money: str

    @property
    def seconds(self) -> float:
        """Time of all work."""
        return sum(w.seconds for w in self.work)

    @property
    def cpu_seconds(self) -> float:
        """Seconds of one core."""
        return sum(w.cpu_seconds for w in self.work)

    @property
    def expected_seconds(self) -> float | None:
        """The plan's estimate for all tables; None: it is not known of each."""
        known = [w.expected_seconds for w in self.work if w.expected_seconds is not None]
        return sum(known) if len(known) == len(self.work) else None


def backfill_report(
    lake: Lake, record: BackfillRecord, comparisons: Sequence[TableComparison], specs: Sequence[Spec]
) -> BackfillReport:
    """Return what the page of a backfill shows; beside the comparison, it reads metadata only.

    Args:
        comparisons: see `compare`.
        specs: the tables of its pipelines.
    """
    declared = {str(s.table): s for s in specs}
    tables = [table_differences(c, partition_column(declared.get(c.table))) for c in comparisons]
    every = Readers(lake)
    own = {t.table for t in record.tables}
    readers = {t.table: [r for r in every.of(t.name) if r.name not in own] for t in record.tables}
    work = [_work(t) for t in record.tables]
    prices = lake.config.costs
    used = prices.money(sum(w.cpu_seconds for w in work), 0)
    return BackfillReport(
        record,
        moment(record.created),
        moment(datetime.now(UTC).timestamp()),
        verdict(record, tables),
        {"published": "", "ready": "warn"}.get(record.state, "bad"),
        next_steps(record),
        [lake.config.hidden(text) for text in publication(record)],
        tables,
        work,
        [(table, list(map(_reader_text, of))) for table, of in readers.items() if of],
        _graph(lake, declared, tables, readers),
        money(used, prices.currency) if prices.core_hour is not None else "",
    )


def partition_column(spec: Spec | None) -> str:
    """Return the column of a table's partitions; empty: it has none."""
    return spec.partitions.by if spec is not None and spec.partitions else ""


def _work(record: TableRecord) -> TableWork:
    estimate = record.estimate
    return TableWork(
        record.table,
        _REDONE[record.redo],
        ": ".join(filter(None, (record.strategy, record.why))),
        (record.done, len(record.chunks)),
        record.rows_read,
        record.inserted + record.updated + record.deleted,
        estimate.rows if estimate else None,
        estimate.seconds if estimate else None,
        confidence(estimate.runs) if estimate else "",
        record.seconds,
        record.cpu_seconds,
        (record.before, record.after) if record.after is not None else None,
    )


def _reader_text(reader: Reader) -> str:
    if reader.kind == "consumer":
        return f"the consumer {reader.name}"
    return f"{reader.name} (pipeline {reader.pipeline})" if reader.pipeline else reader.name


def _graph(
    lake: Lake,
    declared: Mapping[str, Spec],
    tables: Sequence[TableDifferences],
    readers: Mapping[str, Sequence[Reader]],
) -> Graph:
    """Draw the tables of a backfill between what they read and what reads them."""
    own = {t.table for t in tables}
    sources = {t.table: _sources(lake, declared.get(t.table), t.table) for t in tables}
    notes = {t.table: "no row differs" if t.is_equal else f"{t.counts} rows" for t in tables}
    states = {t.table: "same" if t.is_equal else "changed" for t in tables}
    for source in {s for of in sources.values() for s in of} - own:
        notes[source], states[source] = "read, not redone", "outside"
    for table, of in readers.items():
        for reader in of:
            sources.setdefault(reader.name, []).append(table)
            notes[reader.name], states[reader.name] = "follows by itself", "outside"
    return graph(sources, notes, states, {})


def _sources(lake: Lake, spec: Spec | None, table: str) -> list[str]:
    if spec is not None:
        return [str(s) for s in (*spec.sources, *lookups_of(spec))]
    return list(known_marks(lake.find(TableId.parse(table))))
