"""Import users' Python files: each under a name of its own, and usable on Spark's Python workers."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_file(file: Path) -> ModuleType:
    """Import a file, with its folder on the path during the import.

    What it imports from its own folder is its own: another folder may have a file of the same name. So these modules
    are not kept in `sys.modules`, and the file imports them at its top.

    Raises:
        Exception: whatever the file raises.
    """
    # PySpark takes half a second to import, and not every command needs it.
    from pyspark import cloudpickle

    path = file.resolve()
    name = f"lake_assets_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    others = set(sys.modules)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
        for imported in sys.modules.keys() - others:
            origin = getattr(sys.modules[imported], "__file__", None)
            if origin and path.parent in Path(origin).parents:
                del sys.modules[imported]
    # Spark's Python workers cannot import the module, so its functions are serialized with their code.
    cloudpickle.register_pickle_by_value(module)
    return module
