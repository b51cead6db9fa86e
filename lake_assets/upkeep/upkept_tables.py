"""The tables that upkeep looks after, each with its policy: those of a pipeline, and what belongs to its raw tables."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pyiceberg.table import Table

from lake_assets.capture.source_tags import is_of_others
from lake_assets.errors import PipelineError
from lake_assets.ingest.raw.file_ledger import ledger_of
from lake_assets.ingest.records.rejects import is_of_rejects, rejected_of
from lake_assets.journal import step_journal
from lake_assets.lake import LakeBase, TableId
from lake_assets.lake.metadata.watermark import PIPELINE_PROPERTY
from lake_assets.lake.names import nearest
from lake_assets.pipeline import Pipeline
from lake_assets.pipeline.config.retention_settings import retention_of
from lake_assets.pipeline.config.upkeep_places import policy_at
from lake_assets.pipeline.config.upkeep_settings import combined_policy
from lake_assets.sources.kept_dumps import kept_of
from lake_assets.tables.pending_windows import known_marks
from lake_assets.tables.upkeep_policy import UpkeepPolicy
from lake_assets.upkeep.claims import has_claims

log = logging.getLogger(__name__)
_warned: dict[tuple[Path, TableId], str] = {}


def policies(pipeline: Pipeline, lake: LakeBase) -> dict[TableId, UpkeepPolicy]:
    """Return the policy of each table of the lake that belongs to a pipeline.

    What belongs to a raw table, such as the ledger of its files, has that table's policy; other tables that no
    declaration names have the pipeline's, as has the journal of all steps. Of tables of other programs, only the
    claims of the pipeline's tables are looked after.
    """
    config = pipeline.config
    found = pipeline.declared.read(lake, alone=False)
    declared = {table: policy_at(config, place) for table, place in found.places.items()}
    for spec in found.specs:
        if retention := retention_of(spec, found.specs, declared[spec.table]):
            declared[spec.table] = replace(declared[spec.table], retention=retention)
    of_pipeline = combined_policy([config.upkeep])
    tables = {t: loaded for t in lake.all_tables() if (loaded := readable(lake, t)) is not None}
    own = {
        t: policy if t == leader else replace(policy, retention=None)
        for t, leader in _own(pipeline.name, tables).items()
        for policy in [declared.get(leader, of_pipeline)]
    }
    if step_journal.TABLE in tables:
        # Every run adds a small file to it.
        own[step_journal.TABLE] = of_pipeline
    of_claims = replace(of_pipeline, only_claims_of=frozenset([pipeline.name]))
    others = [t for t, loaded in tables.items() if is_of_others(loaded) and t not in own and has_claims(loaded)]
    return own | dict.fromkeys(others, of_claims)


def _own(pipeline: str, tables: Mapping[TableId, Table]) -> dict[TableId, TableId]:
    """Return the tables that a pipeline has filled, and those beside its raw tables, which name no pipeline; each with
    the table whose policy it has."""
    owned = [t for t, loaded in tables.items() if loaded.properties.get(PIPELINE_PROPERTY) == pipeline]
    beside = {
        b: t
        for t in owned
        for b in (ledger_of(t), rejected_of(t), kept_of(t))
        if b in tables and _is_beside(tables[b], b, t)
    }
    return {t: t for t in owned} | beside


def _is_beside(table: Table, name: TableId, raw: TableId) -> bool:
    """Whether a table is the ledger of a raw table, or has its rejected records or the rows of its last dump, and is
    not another one of its name."""
    if PIPELINE_PROPERTY in table.properties:
        return False
    return is_of_rejects(table) if name == rejected_of(raw) else str(raw) in known_marks(table)


def readable(lake: LakeBase, table: TableId) -> Table | None:
    """Return a table; None if it does not exist, or cannot be read: others must not wait for that.

    A process warns once of the same error of a table.
    """
    try:
        return lake.find(table)
    except Exception as e:  # broken metadata make PyIceberg raise many
        error = lake.config.hidden(str(e))
        if _warned.get((lake.config.home, table)) != error:
            _warned[lake.config.home, table] = error
            log.warning("nothing is done for %s: %s", table, error)
        return None


def of_pipelines(
    lake: LakeBase, pipelines: Sequence[Pipeline], select: Collection[str] | None = None
) -> dict[TableId, UpkeepPolicy]:
    """Return the policies of all tables of some pipelines, or of some of their tables.

    Raises:
        PipelineError: a selected table belongs to none of them.
    """
    wanted: dict[TableId, UpkeepPolicy] = {}
    for pipeline in pipelines:
        for table, policy in policies(pipeline, lake).items():
            wanted[table] = _together(wanted.get(table, policy), policy)
    if select is None:
        return wanted
    names = {str(t): t for t, policy in wanted.items() if not policy.only_claims_of}
    for name in select:
        if name not in names:
            there = lake.find(name)
            owner = there.properties.get(PIPELINE_PROPERTY) if there is not None else None
            raise PipelineError(_no_table(name, owner, list(names), is_there=there is not None))
    return {names[n]: wanted[names[n]] for n in select}


def _together(one: UpkeepPolicy, other: UpkeepPolicy) -> UpkeepPolicy:
    """Return the policy of a table of two pipelines; of another program's, consumers keep their claims for longer."""
    if not one.only_claims_of or not other.only_claims_of:
        return other if one.only_claims_of else one
    limits = [p.dead_after for p in (one, other) if p.dead_after is not None]
    return replace(
        one,
        is_on=one.is_on and other.is_on,
        dead_after=max(limits) if len(limits) == 2 else None,
        only_claims_of=one.only_claims_of | other.only_claims_of,
    )


def _no_table(name: str, owner: str | None, names: Sequence[str], *, is_there: bool) -> str:
    if owner:
        return f"{name} belongs to pipeline {owner!r}: name the file of that pipeline with --pipeline"
    if is_there:
        return f"{name} belongs to another program, which looks after it: upkeep changes no tables of others"
    return f"there is no table {name}{nearest(name, names)}: the tables are {', '.join(names) or 'none'}"
