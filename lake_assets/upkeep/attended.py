"""What became of upkeep's actions, for people."""

from __future__ import annotations

from dataclasses import dataclass

from lake_assets.upkeep.upkeep_actions import Action
from lake_assets.upkeep.upkeep_records import Done

# What an action removes, if not files.
_THINGS = {"expire": "snapshots", "records": "records", "events": "events", "claims": "claims"}


@dataclass(frozen=True)
class Attended:
    """What became of one action.

    Attributes:
        action: the action.
        done: what it did; None: it was left for later.
        why_not: why it was left.
    """

    action: Action
    done: Done | None
    why_not: str = ""

    @property
    def text(self) -> str:
        """The action and what became of it, in a line."""
        action, done = self.action, self.done
        what = f"{action.table}: {action.kind}, since {action.reason}"
        if done is None:
            return f"{what}: left for later, since {self.why_not}"
        if done.error:
            return f"{what}: {done.error}"
        if action.kind == "claims" and not done.files:
            return f"{what}: to be lost later"
        rewritten = f", {done.bytes / 2**20:,.1f} MiB rewritten" if done.bytes else ""
        return f"{what}: {done.files:,} {_THINGS.get(action.kind, 'files')} fewer{rewritten}, {done.seconds:.1f} s"
