"""The upkeep of tables: what is due, for which consumers changes wait, and which of them lose their claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lake_assets.errors import LakeError
from lake_assets.lake import LakeBase
from lake_assets.pipeline import Pipeline
from lake_assets.upkeep.attend import TableUpkeep, claims_at, looked, needs_a_look
from lake_assets.upkeep.claims import Claim, warning_age
from lake_assets.upkeep.upkept_tables import policies


@dataclass(frozen=True)
class UpkeepStatus:
    """The upkeep of a table.

    Attributes:
        due: the kinds of actions that are due.
        consumers: its consumers, whether changes wait for them or not.
        claims: of these, those that are dead, or about to be, or have waited for longer than alerts allow.
    """

    due: tuple[str, ...] = ()
    consumers: tuple[Claim, ...] = ()
    claims: tuple[Claim, ...] = ()


def upkeep_statuses(lake: LakeBase, pipelines: Sequence[Pipeline]) -> dict[str, UpkeepStatus]:
    """Return the upkeep of tables; of pipelines and tables that cannot be read, none."""
    found: dict[str, UpkeepStatus] = {}
    alerts = lake.config.signals.alerts
    limit = alerts.consumer_seconds if alerts is not None else None
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
            told = (c for c in claims if c.is_warning or (limit is not None and c.waited > limit))
            found[str(table)] = UpkeepStatus(due, tuple(claims), tuple(told))
    return found


@dataclass(frozen=True)
class Waiting:
    """A consumer of a table.

    Attributes:
        claim: what it is, and since when changes wait for it.
        pipeline: the pipeline that looks after the table, or after the claims of its own tables to it.
        limit: how long changes wait for it, in seconds, before people are told; None: for ever.
    """

    claim: Claim
    pipeline: str
    limit: float | None


def consumers_of(lake: LakeBase, pipelines: Sequence[Pipeline]) -> Iterator[Waiting]:
    """Yield the consumers of the tables that pipelines look after, without what they keep; reads loaded metadata."""
    for pipeline in pipelines:
        try:
            wanted = policies(pipeline, lake)
        except LakeError:  # the status of the pipeline says so
            continue
        for table, policy in wanted.items():
            if policy.is_on:
                claims = claims_at(lake, table, policy, costs=False)
                yield from (Waiting(c, pipeline.name, warning_age(policy)) for c in claims)
