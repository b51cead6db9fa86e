"""lake_assets keeps Iceberg tables up to date from what changed.

`Lake` is the Python entry point: a catalog, a Spark session, and captures of the changes between two snapshots.
`Pipeline` loads a declared pipeline and absorbs what is pending. The Dagster side is in `lake_assets.orchestration`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lake_assets.facade import Lake
    from lake_assets.lake import LakeConfig
    from lake_assets.models.python.model_inputs import Affected, Changes, Lookup
    from lake_assets.models.python.python_model import model
    from lake_assets.orchestration import CapturedJob, LakePipeline
    from lake_assets.pipeline import Pipeline

__all__ = ["Affected", "CapturedJob", "Changes", "Lake", "LakeConfig", "LakePipeline", "Lookup", "Pipeline", "model"]

_HOMES = {
    "Affected": "lake_assets.models.python.model_inputs",
    "CapturedJob": "lake_assets.orchestration",
    "Changes": "lake_assets.models.python.model_inputs",
    "Lookup": "lake_assets.models.python.model_inputs",
    "model": "lake_assets.models.python.python_model",
    "Lake": "lake_assets.facade",
    "LakeConfig": "lake_assets.lake",
    "LakePipeline": "lake_assets.orchestration",
    "Pipeline": "lake_assets.pipeline",
}
# These run steps: what the lake's settings declare is told of them.
_OBSERVED = {"LakePipeline", "Pipeline"}


def __getattr__(name: str) -> Any:
    # Imported on first use: `lake-assets --help` and Dagster's code location should not wait for PyIceberg.
    if name in _HOMES:
        from importlib import import_module

        if name in _OBSERVED:
            import_module("lake_assets.signals")
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    # Dagster's component registry lists a module's names and then reads each.
    return sorted({*globals(), *_HOMES})
