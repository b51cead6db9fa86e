"""The files of the pipelines that have run over a lake, as notes in its home.

By them, commands find the declarations of tables, wherever these are; and a pipeline of a user's own is not taken for a
shipped one of the same name.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path

from lake_assets.lake import LakeBase
from lake_assets.runtime.private_files import make_private, write_private

log = logging.getLogger(__name__)
_FOLDER = "pipelines"
_PACKAGE = Path(__file__).parents[1]
# What this process has noted, by home and name: a note is written once.
_noted: dict[tuple[str, str], Path] = {}


def note_file(lake: LakeBase, pipeline: str, file: Path) -> None:
    """Note the file of a pipeline that runs. What prevents the note is logged: no run fails because of it."""
    file, key = file.absolute(), (str(lake.config.home), pipeline)
    if _noted.get(key) == file:
        return
    note = lake.config.home / _FOLDER / f"{hashlib.sha256(pipeline.encode()).hexdigest()[:32]}.json"
    text = json.dumps({"pipeline": pipeline, "file": str(file)})
    try:
        if file.is_relative_to(_PACKAGE):  # shipped ones are found without, wherever the package is installed
            note.unlink(missing_ok=True)
        elif not note.is_file() or note.read_text(encoding="utf-8") != text:
            make_private(note.parent)
            partial = note.with_name(f".{note.name}.{os.getpid()}")
            write_private(partial, text)
            partial.replace(note)
    except OSError as e:
        log.warning("pipeline %s: other commands do not find its file: %s", pipeline, e)
    _noted[key] = file


def noted_files(lake: LakeBase) -> dict[str, Path]:
    """Return the files of the pipelines that have run, by the pipelines' names; some may no longer exist."""
    found: dict[str, Path] = {}
    for note in sorted((lake.config.home / _FOLDER).glob("*.json")):
        try:
            content = json.loads(note.read_text(encoding="utf-8"))
            found[content["pipeline"]] = Path(content["file"])
        except (OSError, ValueError, TypeError, KeyError) as e:  # removed meanwhile, or of another version
            log.info("%s is not read: %s", note, e)
    return found
