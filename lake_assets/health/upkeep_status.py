"""The upkeep of tables: what is due, and which consumers lose their claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lake_assets.errors import LakeError
from lake_assets.lake import LakeBase
from lake_assets.pipeline import Pipeline
from lake_assets.upkeep.attend import TableUpkeep, claims_at, looked, needs_a_look
from lake_assets.upkeep.claims import Claim
from lake_assets.upkeep.upkept_tables import policies


@dataclass(frozen=True)
class UpkeepStatus:
    """The upkeep of a table.

    Attributes:
        due: the kinds of actions that are due.
        claims: its consumers that are dead, or about to be.
    """

    due: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()


def upkeep_statuses(lake: LakeBase, pipelines: Sequence[Pipeline]) -> dict[str, UpkeepStatus]:
    """Return the upkeep of tables; of pipelines and tables that cannot be read, none."""
    found: dict[str, UpkeepStatus] = {}
    for pipeline in pipelines:
        try:
            wanted = policies(pipeline, lake)
        except LakeError:
            continue
        worth = needs_a_look(lake, wanted, heeds_quiet=False)
        for table, policy in wanted.items():
            at = looked(lake, table, policy) if table in worth else None
            if isinstance(at, TableUpkeep):
                due, claims = tuple(a.kind for a in at.due), at.claims
            elif table in worth:
                continue
            else:
                due, claims = (), claims_at(lake, table, policy) if policy.is_on else ()
            found[str(table)] = UpkeepStatus(due, tuple(c for c in claims if c.is_warning))
    return found
