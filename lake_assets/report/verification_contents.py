"""What `lake-assets verify` shows, in a terminal and on its page: whether a table is right, and what to do if not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from lake_assets.ingest.staging.exactness import reasons_of
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.counts import plural
from lake_assets.lake.metadata.row_counts import number, rows_in, summary_of
from lake_assets.pipeline.table_graph import ComputedSpec, JobSpec
from lake_assets.pipeline.verification import Difference, Verification
from lake_assets.report.amounts import moment, money
from lake_assets.report.row_values import shown_value
from lake_assets.report.table_differences import Cell


@dataclass(frozen=True)
class ComparedSnapshot:
    """A snapshot that was read.

    Attributes:
        committed: as text in UTC; empty: the table was empty.
        rows: None: unknown.
        is_current: whether the table has no newer snapshot.
    """

    table: str
    snapshot: int | None
    committed: str
    rows: int | None
    bytes: int
    is_current: bool


@dataclass(frozen=True)
class DifferingRow:
    """A row that is not as often in the table as it should be.

    Attributes:
        what: in words.
        cells: a cell differs if the neighbouring row is the other side of the same key, with another value.
    """

    what: str
    expected: int
    found: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class VerificationReport:
    """The result of `lake-assets verify`.

    Attributes:
        made_at: as text in UTC.
        verdict: the result in a sentence.
        attention: `bad` if rows differ, `warn` if that need not be wrong; else empty.
        rows: some of the differing rows, by key; `columns` are those of their cells.
        known: why the table is known not to be what its source is: both sides of the comparison have these rows.
        money: the price of what was used; empty: no price is declared.
    """

    result: Verification
    pipeline: str
    made_at: str
    verdict: str
    attention: str
    next_steps: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[DifferingRow]
    table: ComparedSnapshot
    sources: Sequence[ComparedSnapshot]
    known: Sequence[str]
    money: str

    @property
    def unshown(self) -> int:
        """Number of differing rows that are not among `rows`."""
        return self.result.different - len(self.rows)


def verification_report(lake: LakeBase, spec: ComputedSpec | JobSpec, result: Verification) -> VerificationReport:
    """Return what is to be shown of a verification; beside it, this reads metadata only."""
    prices = lake.config.costs
    return VerificationReport(
        result,
        spec.pipeline,
        moment(datetime.now(UTC).timestamp()),
        _verdict(result),
        "" if result.equal else "warn" if result.doubt else "bad",
        _next_steps(spec, result),
        list(result.differences[0].row) if result.differences else [],
        list(_rows(result)),
        _snapshot(lake, result.table, result.snapshot),
        [_snapshot(lake, source, snapshot) for source, snapshot in result.sources.items()],
        [lake.config.hidden(text) for text in reasons_of(lake, spec.table)],
        money(prices.money(result.cpu_seconds, 0), prices.currency) if prices.core_hour is not None else "",
    )


def _verdict(result: Verification) -> str:
    of = f" in a sample of {result.sample:.4%} of the keys" if result.sample < 1 else ""
    if result.equal:
        return f"equal: {plural(result.found, 'row')}{of}"
    return (
        f"{plural(result.different, 'row')} differ{'s' if result.different == 1 else ''}: computed again there are "
        f"{plural(result.expected, 'row')}, the table holds {result.found:,}{of}"
    )


def _next_steps(spec: ComputedSpec | JobSpec, result: Verification) -> list[str]:
    table = result.table
    if result.equal:
        return [f"`lake-assets verify {table}` compares all rows."] if result.sample < 1 else []
    steps: list[str] = []
    if result.doubt:
        steps.append(
            "Decide whether these rows are wrong: they may be valid results of the query. If they have to be the same "
            "in each computation, order or group by more columns."
        )
    if result.key:
        key = " ".join(f"--key {column}=VALUE" for column in result.key)
        steps.append(f"`lake-assets history {table} {key}` shows what made the versions of one of these rows.")
    if isinstance(spec, JobSpec):
        steps.append(f"`lake-assets rebuild {table}` runs the job over everything.")
    else:
        steps.append(
            f"`lake-assets backfill {table} --all --dry-run` says what computing the table again costs, with "
            "everything downstream. Without `--dry-run`, it replaces the rows that differ; with `--publish manual`, it "
            "waits for a decision before that."
        )
    return steps


def _rows(result: Verification) -> Iterator[DifferingRow]:
    rows = result.differences
    for n, row in enumerate(rows):
        near = (rows[m] for m in (n - 1, n + 1) if 0 <= m < len(rows))
        other = next((o for o in near if _is_other_side(row, o, result.key)), None)
        differing = {c for c, v in row.row.items() if other is not None and repr(v) != repr(other.row[c])}
        yield DifferingRow(
            _what(row, is_paired=other is not None),
            row.expected,
            row.found,
            tuple(Cell(shown_value(result.table, c, v), differs=c in differing) for c, v in row.row.items()),
        )


def _is_other_side(row: Difference, other: Difference, key: Sequence[str]) -> bool:
    is_opposite = (row.expected > row.found) != (other.expected > other.found)
    return bool(key) and is_opposite and all(repr(row.row[k]) == repr(other.row[k]) for k in key)


def _what(row: Difference, *, is_paired: bool) -> str:
    if row.expected and row.found:
        return "too few" if row.expected > row.found else "too many"
    if is_paired:
        return "as computed" if row.expected else "in the table"
    return "missing in the table" if row.expected else "only in the table"


def _snapshot(lake: LakeBase, name: str, snapshot: int | None) -> ComparedSnapshot:
    table = lake.find(TableId.parse(name))
    at = table.snapshot_by_id(snapshot) if table is not None and snapshot is not None else None
    if table is None or at is None:
        return ComparedSnapshot(name, snapshot, "", 0 if snapshot is None else None, 0, is_current=False)
    size = number(summary_of(at), "total-files-size")
    is_current = table.metadata.current_snapshot_id == snapshot
    return ComparedSnapshot(name, snapshot, moment(at.timestamp_ms / 1000), rows_in(table, at), size, is_current)
