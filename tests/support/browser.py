"""Debian's Chromium, driven by Playwright: Dagster's pages as people see them, light and dark."""

from __future__ import annotations

import contextlib
import importlib
import shutil
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Milliseconds in which a page shows something: several processes start at the same time.
PATIENCE = 120_000
# Animations and layouts of the graph are over after so many milliseconds.
SETTLED = 3_000


@dataclass
class Browser:
    """One page, and where its pictures go."""

    page: Any
    base: str
    pictures: Path

    def open(self, path: str, *texts: str) -> None:
        """Go to a page, and wait until it shows these texts."""
        self.page.goto(self.base + path)
        self.shows(*texts)

    def shows(self, *texts: str) -> None:
        """Wait for texts."""
        for text in texts:
            self.page.get_by_text(text).first.wait_for(timeout=PATIENCE)

    @property
    def text(self) -> str:
        """All text of the page."""
        return self.page.inner_text("body")

    def size(self, width: int, height: int) -> None:
        """Make the window so large; a graph shows more of its nodes in a larger one."""
        self.page.set_viewport_size({"width": width, "height": height})

    def picture(self, name: str, *, beside: int = 0, below: int = 0, right: int = 0) -> None:
        """Take pictures, `NAME.png` light and `NAME-dark.png`.

        Args:
            beside, below, right: pixels at the left, the top and the right of the window that are left out.
        """
        window = self.page.viewport_size
        clip = {
            "x": beside, "y": below, "width": window["width"] - beside - right, "height": window["height"] - below
        }  # fmt: skip
        for scheme, ending in (("light", ""), ("dark", "-dark")):
            self.page.emulate_media(color_scheme=scheme)
            self.page.wait_for_timeout(SETTLED)
            self.page.screenshot(path=str(self.pictures / f"{name}{ending}.png"), clip=clip)
        self.page.emulate_media(color_scheme="light")


@contextlib.contextmanager
def browser(port: int, pictures: Path) -> Generator[Browser]:
    """Start Chromium without a window."""
    chromium = shutil.which("chromium")
    assert chromium, "chromium is not installed: apt-get install chromium"
    playwright = importlib.import_module("playwright.sync_api")
    pictures.mkdir(parents=True, exist_ok=True)
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = started.new_context(viewport={"width": 1280, "height": 800}).new_page()
        page.set_default_timeout(PATIENCE)
        try:
            yield Browser(page, f"http://127.0.0.1:{port}", pictures)
        except BaseException:
            page.screenshot(path=str(pictures / "failed.png"))
            raise
        finally:
            started.close()
