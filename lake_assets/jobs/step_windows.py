"""The windows of a step: what is pending, or those of an interrupted step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyiceberg.table import Table

from lake_assets.jobs.step_notes import StepNote
from lake_assets.jobs.step_settings import StepSettings
from lake_assets.lake import TableId
from lake_assets.lake.metadata.watermark import Watermark
from lake_assets.tables.lost_history import started_again
from lake_assets.tables.pending_windows import Window, window_of

Choose = Callable[[dict[TableId, Window], dict[TableId, Table]], dict[TableId, Window]]


def pending_windows(
    settings: StepSettings, target: Table | None, sources: Mapping[TableId, Table], again: StepNote | None = None
) -> dict[TableId, Window]:
    """Return the pending window of each source. Reads metadata only.

    Args:
        settings: the step.
        target: its table; None: it does not exist yet.
        sources: its existing sources.
        again: the note of an interrupted step whose windows are run again.

    Raises:
        HistoryError: the history of a source is lost, and the step is declared to stop.
    """
    windows = {s: window_of(settings.table, target, s, table) for s, table in sources.items()}
    for source, window in windows.items():
        if again and (noted := again.windows.get(str(source))) and noted.uuid == window.head.uuid:
            mark = Watermark(noted.uuid, noted.start) if noted.start is not None else None
            windows[source] = Window(source, mark, noted.head)
    advice = (
        "With `{option}: rebuild` declared, the next step gives the job all that its sources hold; or drop "
        f"{settings.table}, if the job makes it again"
    )
    return started_again(settings, windows, advice=advice)
