"""Runs several commands in one process. Not a test: tests start it.

usage: run_commands.py FILE

FILE has a command per line, as the JSON list of its words and its exit code; `{backfill}` stands for the newest backfill.
Everything else comes from the environment. Exit code 1, and which command ended otherwise on stderr.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from pathlib import Path

from lake_assets import Lake, LakeConfig, cli
from lake_assets.backfill.backfill_record import Records


def main() -> int:
    """Run the commands in turn."""
    for line in Path(sys.argv[1]).read_text().splitlines():
        words, expected = json.loads(line)
        if "{backfill}" in words:
            newest = Records(Lake(LakeConfig.load())).all()[-1].id
            words = [newest if w == "{backfill}" else w for w in words]
        print("---", *words, flush=True)
        sys.argv = ["lake-assets", *words]
        try:
            cli._run()  # pyright: ignore[reportPrivateUsage]  (`main` may end the process)
            code = 0
        except SystemExit as e:
            code = e.code or 0
        if code != expected:
            print(f"{words} ended with {code}", file=sys.stderr)
            return 1
    print("--- all commands have run", flush=True)
    return 0


if __name__ == "__main__":
    code = main()
    # Whatever keeps the process from ending is shown, and fails the test.
    faulthandler.dump_traceback_later(30, exit=True)
    cli._leave(code)  # pyright: ignore[reportPrivateUsage]
    sys.exit(code)
