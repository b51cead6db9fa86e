"""Settings and Python names that the documentation of an earlier version names."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from lake_assets import Pipeline

NAMES = {
    "lake_assets": "Lake LakeConfig LakePipeline Pipeline",
    "lake_assets.capture.icdc": "leftovers sweep",
    "lake_assets.definitions": "defs",
    "lake_assets.errors": "AuditFailedError CaptureWriteError ChangedInputError ConcurrentWriteError "
    "CorruptMetadataError DefinitionChangedError KeyMissingError LakeError MissingDataFileError ModelError "
    "NotAnAncestorError PipelineError RejectedLimitError SchemaConflictError SnapshotExpiredError "
    "SnapshotNotFoundError TableClaimedError TableReplacedError TruncatedInputError UnsupportedCaptureError "
    "UnsupportedEventError WindowError",
    "lake_assets.launcher": "WarmRunLauncher",
    "lake_assets.orchestration": "LakePipeline LakePySparkResource build_definitions threads_executor",
    "lake_assets.pipeline": "Pipeline PipelineConfig",
}


def test_every_setting_of_an_earlier_version_loads() -> None:
    pipeline = Pipeline.load(Path(__file__).parent / "settings.yaml")
    assert [len(s.tables) for s in pipeline.config.streams] == [15, 0, 0, 1, 1, 1]
    assert [m.name for m in pipeline.config.models] == ["agg.cities", "agg.weeks", "agg.running", "agg.ranked"]


@pytest.mark.parametrize("module", NAMES)
def test_names_in_an_earlier_versions_documentation_can_be_imported(module: str) -> None:
    imported = import_module(module)
    missing = [name for name in NAMES[module].split() if not hasattr(imported, name)]
    assert missing == []
