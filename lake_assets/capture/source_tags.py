"""Tags that keep snapshots from expiring: of the pipeline's own tables, and of sources that other programs write."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update.snapshot import ManageSnapshots
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lake_assets.errors import InvalidNameError
from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.metadata_commits import MovedError, now_ms
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.runtime.processes import OWNER, is_gone, owner

# The prefix of tags on tables that are only read.
PREFIX = "consumer."
PROTECT_PROPERTY = "lake-assets.protect"
log = logging.getLogger(__name__)
_CAPTURE = re.compile(rf"{re.escape(PREFIX)}capture\.({OWNER})\.")
# Who tags a snapshot for longer is a consumer; jobs, captures and backfills are over sooner.
_LASTING_DAYS = 3650
# Tables of others that could not be tagged: one warning a process says enough.
_refused: set[str] = set()


def set_tags(lake: LakeBase, table: Table, tags: Mapping[str, int], days: int) -> None:
    """Create tags at snapshots, or move existing ones, in one commit if the catalog can; they expire after `days`.

    Tags that are over are dropped with the same commit, since not every `expire_snapshots` drops them.

    Raises:
        InvalidNameError: the table has a branch of this name.
        MovedError: the table no longer has one of the snapshots.
        CommitFailedException: every attempt lost a race.
    """
    if branches := [tag for tag in tags if tag in table.metadata.refs and not is_tag(table, tag)]:
        raise InvalidNameError(f"{'.'.join(table.name())} has a branch called {', '.join(branches)}, which stays")
    over = [tag for tag in table.metadata.refs if tag not in tags and _is_over(table, tag)]
    if refs.can_commit(lake.catalog):
        refs.set_tags(table, tags, days, drop=over)
        return
    drop_tags(lake, table, over)
    for tag, snapshot in tags.items():
        # The age of a tag is that of its snapshot.
        age = refs.age_of(table, snapshot, days)
        if table.format_version < 3:
            _change(lake, table, lambda change, t=tag, s=snapshot, a=age: change.create_tag(s, t, max_ref_age_ms=a))
        else:
            version = f"AS OF VERSION {int(snapshot)} RETAIN {age // refs.DAY_MS} DAYS"
            _alter(lake, table, f"CREATE OR REPLACE TAG {quote(tag)} {version}")


def drop_tags(lake: LakeBase, table: Table, tags: Iterable[str]) -> None:
    """Drop tags, as far as they exist; a branch of this name stays.

    Raises:
        MovedError, CommitFailedException: see `set_tags`.
    """
    tags = [tag for tag in tags if is_tag(table, tag)]
    if not tags:
        return
    if refs.can_commit(lake.catalog):
        refs.drop(table, *tags)
        return
    for tag in tags:
        if table.format_version >= 3:
            _alter(lake, table, f"DROP TAG IF EXISTS {quote(tag)}")
        else:
            _change(lake, table, lambda change, t=tag: change.remove_tag(t))


def drop_tags_at(lake: LakeBase, table: Table, tags: Mapping[str, int]) -> list[str]:
    """Drop tags that are still at these snapshots, and no consumer has moved meanwhile; return them.

    Raises:
        MovedError, CommitFailedException: see `set_tags`.
    """
    if refs.can_commit(lake.catalog):
        return refs.drop_at(table, {tag: at for tag, at in tags.items() if is_tag(table, tag)})
    unmoved = [tag for tag, at in tags.items() if is_tag(table, tag) and table.metadata.refs[tag].snapshot_id == at]
    drop_tags(lake, table, unmoved)
    return unmoved


@retry(
    retry=retry_if_exception_type(CommitFailedException),
    wait=wait_random_exponential(multiplier=0.05, max=2),
    stop=stop_after_attempt(8),
    reraise=True,
)
def _change(lake: LakeBase, table: Table, change: Callable[[ManageSnapshots], object]) -> None:
    """Change tags through PyIceberg, which needs no Spark, and does not write format v3."""
    with lake.table(TableId.parse(table.name())).manage_snapshots() as changes:
        change(changes)


def is_of_others(table: Table) -> bool:
    """Whether another program owns a table."""
    return PIPELINE_PROPERTY not in table.properties


def is_protected(lake: LakeBase, table: Table) -> bool:
    """Whether the snapshots of a source are to be tagged: those of other programs' tables, unless that is declared off.

    Declared by `protect: false` in the lake's configuration, or by the table's owner as a property.
    """
    is_declared_off = not lake.config.protect or table.properties.get(PROTECT_PROPERTY, "").lower() == "false"
    return not (is_of_others(table) and is_declared_off)


def keep(lake: LakeBase, table: Table, tags: Mapping[str, int], days: int) -> None:
    """Keep snapshots of a source by tags for `days`, if the source is protected and its catalog allows it.

    Never fails: a tag is a precaution. What a catalog or a storage refuses is logged; then the table's own retention
    applies. Snapshots that have expired are left out.
    """
    name = ".".join(table.name())
    new = {
        tag: snapshot
        for tag, snapshot in tags.items()
        if table.snapshot_by_id(snapshot) and not _is_kept(table, tag, snapshot, days)
    }
    if not new or not is_protected(lake, table):
        return
    try:
        set_tags(lake, table, new, days)
    except (MovedError, CommitFailedException) as e:
        log.info("%s: the tags %s are not set for now: %s", name, ", ".join(new), e)
    except Exception as e:  # catalogs and stores refuse in many ways
        if not is_of_others(table):
            log.warning("%s: the tags %s are not set (%s: %s)", name, ", ".join(new), type(e).__name__, e)
        elif name not in _refused:
            _refused.add(name)
            log.warning(
                "%s belongs to another program, and its snapshots cannot be tagged (%s: %s). Have its owner keep "
                "snapshots for longer than this pipeline may be delayed. `protect: false` in the lake's configuration "
                "ends this warning",
                name, type(e).__name__, e,
            )  # fmt: skip


def _is_kept(table: Table, tag: str, snapshot: int, days: int) -> bool:
    """Whether a tag keeps a snapshot for `days`, or for a day less: so it is renewed once a day, or never if it is to
    stay for years."""
    ref = table.metadata.refs.get(tag)
    if ref is None or ref.snapshot_id != snapshot:
        return False
    if ref.max_ref_age_ms is None or ref.max_ref_age_ms >= _LASTING_DAYS * refs.DAY_MS:
        return True
    return ref.max_ref_age_ms >= refs.age_of(table, snapshot, days - 1)


def release(lake: LakeBase, name: TableId, tags: Callable[[Table], Iterable[str]]) -> None:
    """Drop tags of a table that `keep` has set, chosen by its metadata; if that fails, they expire."""
    try:
        table = lake.find(name)
        existing = [tag for tag in tags(table) if tag in table.metadata.refs] if table is not None else []
        if table is not None and existing:
            drop_tags(lake, table, existing)
    except Exception as e:  # as in `keep`
        log.info("%s: tags stay until they expire: %s", name, e)


def of_dead_captures(table: Table) -> list[str]:
    """Return the tags of open captures whose process has ended."""
    return [tag for tag in table.metadata.refs if (match := _CAPTURE.match(tag)) and is_gone(match[1])]


def of_capture(*, lasts: bool) -> str:
    """Return the beginning of the tags of one open capture of this process, or of one that lasts beyond it."""
    return f"{PREFIX}capture.{'lasting' if lasts else owner()}.{uuid.uuid4().hex[:12]}"


def is_consumer(table: Table, tag: str) -> bool:
    """Whether a table's tag is that of a consumer, and not of a running job, an open capture or a backfill."""
    if not tag.startswith(PREFIX) or not is_tag(table, tag):
        return False
    ref = table.metadata.refs[tag]
    return ref.max_ref_age_ms is None or ref.max_ref_age_ms >= refs.age_of(table, ref.snapshot_id, _LASTING_DAYS)


def _is_over(table: Table, tag: str) -> bool:
    """Whether a tag of `keep` has expired, as Iceberg counts: from its snapshot on."""
    if not tag.startswith(PREFIX) or not is_tag(table, tag):
        return False
    ref = table.metadata.refs[tag]
    snapshot = table.snapshot_by_id(ref.snapshot_id)
    if ref.max_ref_age_ms is None or snapshot is None:
        return False
    return now_ms() - snapshot.timestamp_ms > ref.max_ref_age_ms


def is_tag(table: Table, name: str) -> bool:
    """Whether a table has a tag of this name, and not a branch."""
    ref = table.metadata.refs.get(name)
    return ref is not None and ref.snapshot_ref_type == SnapshotRefType.TAG


def days_until(seconds: float) -> int:
    """Return the whole days of a tag that is needed for some seconds, and for a week at least."""
    return max(7, 1 + timedelta(seconds=max(seconds, 0)).days)


def _alter(lake: LakeBase, table: Table, change: str) -> None:
    lake.spark().sql(f"ALTER TABLE {lake.sql_name(TableId.parse(table.name()))} {change}")
