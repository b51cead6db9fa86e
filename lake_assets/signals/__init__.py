"""What a lake tells other systems: events of lineage, metrics, alerts. All of it is off unless it is declared.

What does not belong here: what a signal is about. That is read from the journal and from `health`.
"""

from __future__ import annotations

from collections.abc import Sequence

from lake_assets.lake import LakeBase
from lake_assets.pipeline import observed_steps


def observers_of(lake: LakeBase) -> Sequence[observed_steps.Observer]:
    """Return the observers that the settings of a lake declare."""
    settings = lake.config.signals
    found: list[observed_steps.Observer] = []
    # Imported when they are declared: their packages are optional, and take time to import.
    if settings.openlineage is not None:
        from lake_assets.signals.lineage.lineage_observer import observer_of

        found.append(observer_of(lake.config, settings.openlineage))
    if settings.alerts is not None:
        from lake_assets.signals.alerts.alert_evaluation import ALERTS

        found.append(ALERTS)
    return found


observed_steps.register(observers_of)
