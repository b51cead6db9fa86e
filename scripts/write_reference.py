"""Write the pages of docs/reference from the code: `make reference`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from command_reference import commands_page
from error_reference import errors_page
from metadata_reference import metadata_page
from refusal_reference import refusals_page
from settings_reference import lake_page, pipeline_page
from strategy_reference import strategies_page

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "pipeline-settings.md": pipeline_page,
    "lake-settings.md": lake_page,
    "commands.md": commands_page,
    "metadata.md": metadata_page,
    "strategies.md": strategies_page,
    "refusals.md": refusals_page,
    "errors.md": errors_page,
}


def main() -> None:
    for name, text in PAGES.items():
        (FOLDER / name).write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
