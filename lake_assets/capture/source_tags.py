"""Tags that keep snapshots from expiring: of the pipeline's own tables, and of sources that other programs write."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import timedelta

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from lake_assets.lake import LakeBase, TableId, quote
from lake_assets.lake.metadata import refs
from lake_assets.lake.metadata.metadata_commits import MovedError, now_ms
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY

# The prefix of tags on tables that are only read.
PREFIX = "consumer."
PROTECT_PROPERTY = "lake-assets.protect"
log = logging.getLogger(__name__)
# Tables of others that could not be tagged: one warning a process says enough.
_refused: set[str] = set()


def set_tags(lake: LakeBase, table: Table, tags: Mapping[str, int], days: int) -> None:
    """Create tags at snapshots, or move existing ones, in one commit if the catalog can; they expire after `days`.

    Raises:
        MovedError: the table no longer has one of the snapshots.
        CommitFailedException: every attempt lost a race.
    """
    if refs.can_commit(lake.catalog):
        refs.set_tags(table, tags, days)
        return
    for tag, snapshot in tags.items():
        version = f"AS OF VERSION {int(snapshot)} RETAIN {days} DAYS"
        _alter(lake, table, f"CREATE OR REPLACE TAG {quote(tag)} {version}")


def drop_tags(lake: LakeBase, table: Table, tags: Iterable[str]) -> None:
    """Drop tags, as far as they exist.

    Raises:
        MovedError, CommitFailedException: see `set_tags`.
    """
    if refs.can_commit(lake.catalog):
        refs.drop(table, *tags)
        return
    for tag in tags:
        _alter(lake, table, f"DROP TAG IF EXISTS {quote(tag)}")


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

    A source of another program may refuse it, which is logged once: then its own retention applies.
    """
    new = {tag: snapshot for tag, snapshot in tags.items() if not _is_kept(table, tag, snapshot, days)}
    if not new or not is_protected(lake, table):
        return
    name = ".".join(table.name())
    try:
        set_tags(lake, table, new, days)
    except (MovedError, CommitFailedException) as e:
        log.info("%s: the tags %s are not set for now: %s", name, ", ".join(new), e)
    except Exception as e:
        if not is_of_others(table):
            raise
        # Catalogs and stores refuse in many ways, and no step depends on a tag of somebody else's table.
        if name not in _refused:
            _refused.add(name)
            log.warning(
                "%s belongs to another program, and its snapshots cannot be tagged (%s: %s). Let its owner keep them "
                "for longer than a run may be delayed, and declare `protect: false` in the lake's configuration",
                name, type(e).__name__, e,
            )  # fmt: skip


def _is_kept(table: Table, tag: str, snapshot: int, days: int) -> bool:
    """Whether a tag keeps a snapshot for `days`, or for a day less: so it is renewed once a day."""
    ref, made = table.metadata.refs.get(tag), table.snapshot_by_id(snapshot)
    if ref is None or made is None or ref.snapshot_id != snapshot:
        return False
    ends = made.timestamp_ms + (ref.max_ref_age_ms or 0)
    return ref.max_ref_age_ms is None or ends >= now_ms() + (days - 1) * refs.DAY_MS


def release(lake: LakeBase, table: Table, tags: Iterable[str]) -> None:
    """Drop tags that `keep` has set; if that fails, they expire."""
    existing = [tag for tag in tags if tag in table.metadata.refs]
    try:
        if existing:
            drop_tags(lake, table, existing)
    except Exception as e:  # as in `keep`
        log.info("%s: the tags %s stay until they expire: %s", ".".join(table.name()), ", ".join(existing), e)


def days_until(seconds: float) -> int:
    """Return the whole days of a tag that is needed for some seconds, and for a week at least."""
    return max(7, 1 + timedelta(seconds=max(seconds, 0)).days)


def _alter(lake: LakeBase, table: Table, change: str) -> None:
    lake.spark().sql(f"ALTER TABLE {lake.sql_name(TableId.parse(table.name()))} {change}")
