"""What upkeep does to a table: which actions are due by its policy, why, and what each gains and costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from lake_assets.lake import thresholds
from lake_assets.tables.upkeep_policy import UpkeepPolicy
from lake_assets.upkeep.claims import Claim
from lake_assets.upkeep.table_health import SmallFiles, TableHealth

# A table whose files cannot even be looked at fails with `look`.
Kind = Literal[
    "look", "combine", "deletes", "equality-deletes", "manifests", "expire", "orphans", "records", "events", "claims"
]
# What planning and committing an action costs besides the bytes that it rewrites, as bytes.
_FIXED_COST = 8 << 20
# Files of all sizes up to this one are rewritten together.
_TINY = 1 << 20


@dataclass(frozen=True)
class Action:
    """One action on one table.

    Attributes:
        table: the table.
        kind: what is done.
        reason: why it is due.
        files: about how many files it removes, deleted rows counted as files.
        bytes: about how many bytes it rewrites.
        claims: consumers that are told that they lose their claims, or lose them, for `claims`.
        limit: the size of the files that it rewrites, for `combine`: smaller ones; in bytes.
    """

    table: str
    kind: Kind
    reason: str
    files: float
    bytes: int
    limit: int = 0
    claims: tuple[Claim, ...] = ()

    @property
    def gain(self) -> float:
        """Files removed for each MiB rewritten."""
        return self.files / ((self.bytes + _FIXED_COST) / 2**20)


def due_actions(health: TableHealth, policy: UpkeepPolicy, since_orphans: float) -> list[Action]:
    """Return the actions that are due for a table, the most useful ones first.

    Args:
        since_orphans: seconds since its files were last compared with its snapshots, or the table was first seen.
    """
    if not policy.is_on:
        return []
    actions = [*_rewrites(health, policy), *_others(health, since_orphans)]
    return sorted(actions, key=lambda a: -a.gain)


def due_claims(table: str, claims: Sequence[Claim], policy: UpkeepPolicy) -> list[Action]:
    """Return what is due against consumers: to tell people that they are dead, and then to remove their claims."""
    due = tuple(c for c in claims if c.is_over or (c.is_warning and c.warned is None))
    if not due or not policy.is_on:
        return []
    lost = sum(c.is_over for c in due)
    return [Action(table, "claims", "; ".join(c.why for c in due), lost, 0, claims=due)]


def _rewrites(health: TableHealth, policy: UpkeepPolicy) -> Iterator[Action]:
    if health.since_watermark >= thresholds.SNAPSHOTS_KEPT // 2:
        # The commit with the watermark has to stay among the newest: the next step makes another one.
        return
    if n := health.equality_deletes:
        reason = f"{n} delete file{'s' if n > 1 else ''} of another writer name{'s' if n == 1 else ''} values"
        files = n + health.deleted_rows / thresholds.UPKEEP_ROWS_A_FILE
        yield Action(health.table, "equality-deletes", reason, files, health.bytes)
    share = health.small_files / max(health.files, 1)
    groups = _of_one_size([(g, why) for g in health.small if (why := _why_combine(g, policy))])
    if groups and share >= policy.small_files:
        count, size = sum(g.files for g, _ in groups), sum(g.bytes for g, _ in groups)
        removed = count - sum(-(-g.bytes // policy.target_file_size) for g, _ in groups)
        reason = f"{count:,} of {health.files:,} data files are small: {groups[0][1]}"
        yield Action(health.table, "combine", reason, removed, size, 1 + max(g.largest for g, _ in groups))
    if health.worn >= policy.commits or health.worn_rows >= thresholds.UPKEEP_ROWS_A_FILE:
        reason = f"{health.worn_rows:,} rows are deleted in {health.worn} of {health.files:,} data files"
        files = health.worn + health.worn_rows / thresholds.UPKEEP_ROWS_A_FILE
        yield Action(health.table, "deletes", reason, files, health.worn_bytes)


def _of_one_size(groups: Sequence[tuple[SmallFiles, str]]) -> list[tuple[SmallFiles, str]]:
    """Return the groups with the smallest files: the others come after them.

    One limit of size is for all partitions. With that of a group of large files, the large file of each partition that
    also has a few small ones would be rewritten with these.
    """
    most = max(_TINY, 4 * min((g.largest for g, _ in groups), default=0))
    return [(g, why) for g, why in groups if g.largest <= most]


def _why_combine(group: SmallFiles, policy: UpkeepPolicy) -> str:
    """Return why small files are combined now; empty: they wait for more."""
    if group.files >= policy.commits:
        return f"{group.files} together"
    if group.bytes >= policy.bytes:
        return f"{group.bytes / 2**20:,.0f} MiB together"
    if group.oldest is None:
        return f"{group.files}, some of them older than the table's snapshots"
    if group.oldest >= policy.age:
        return f"{group.files} for {policy.age / 3600:g} h"
    return ""


def _others(health: TableHealth, since_orphans: float) -> Iterator[Action]:
    if health.expirable >= thresholds.UPKEEP_EXPIRED_SNAPSHOTS:
        reason = f"nothing needs {health.expirable:,} of {health.snapshots:,} snapshots"
        yield Action(health.table, "expire", reason, health.expirable, health.metadata_bytes)
    many = health.manifests >= thresholds.UPKEEP_MANIFESTS
    if many and health.manifest_bytes < health.manifests * thresholds.MERGED_MANIFEST_BYTES / 4:
        reason = f"{health.manifests:,} manifests have {health.manifest_bytes / health.manifests / 1024:,.0f} KiB each"
        yield Action(health.table, "manifests", reason, health.manifests / 2, health.manifest_bytes)
    if health.may_delete and since_orphans >= thresholds.ORPHAN_SEARCH_SECONDS:
        reason = f"its files were last compared with its snapshots {since_orphans / 86_400:.0f} days ago"
        yield Action(health.table, "orphans", reason, 0, health.manifest_bytes)


def chosen(actions: Sequence[Action]) -> list[Action]:
    """Return the actions of several tables in the order in which they are worth doing."""
    return sorted(actions, key=lambda a: (-a.gain, a.table, a.kind))
