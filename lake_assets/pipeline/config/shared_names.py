"""Resolve source tables that would share a name in the lake: one of them gets the name, the others fail separately.

A pattern such as `*.*` matches tables without a declared name, and two schemas may have tables with the same name. The
conflict stops only the table that did not get the name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lake_assets.formats import SourceTable
from lake_assets.lake import TableId
from lake_assets.pipeline.config.stream_contents import StreamContents


@dataclass(frozen=True)
class Claim:
    """A source table and the names that its tables would have.

    Attributes:
        source: the source table.
        raw: the raw table with its records.
        staging, final: its tables; `final` is None for staging only.
        is_match: whether it matches a pattern, so its name was not declared.
    """

    source: SourceTable
    raw: TableId
    staging: TableId
    final: TableId | None
    is_match: bool

    @property
    def instead(self) -> TableId:
        """The name under which the table fails if another claim has its name."""
        return TableId(self.staging.namespace, f"{self.raw.name}.{self.source}")


def refused(contents: StreamContents, claims: Sequence[Claim], models: Collection[TableId]) -> dict[Claim, str]:
    """Return the claims whose name belongs to another table, each with that table.

    The claim that created the staging table keeps it. If there is no such table, tables declared by name win over
    matches of patterns, and among these the first.
    """
    by_name: dict[TableId, list[Claim]] = {}
    for claim in claims:
        by_name.setdefault(claim.staging, []).append(claim)
    refusals: dict[Claim, str] = {}
    for rivals in by_name.values():
        keeper = _keeper(contents, rivals) if len(rivals) > 1 else rivals[0]
        for claim in rivals:
            if claim.is_match and (model_names := {claim.staging, claim.final} & set(models)):
                refusals[claim] = f"{', '.join(map(str, model_names))} is a model of this pipeline"
            elif claim != keeper and (claim.is_match or keeper.is_match):
                refusals[claim] = f"{keeper.source} of {keeper.raw} has that name"
    return refusals


def _keeper(contents: StreamContents, rivals: Sequence[Claim]) -> Claim:
    if (made := contents.maker(rivals[0].staging)) and (
        makers := [c for c in rivals if str(c.source) == made["source"]]
    ):
        return next((c for c in makers if str(c.raw) in made["raw"]), makers[0])
    return next((c for c in rivals if not c.is_match), rivals[0])
