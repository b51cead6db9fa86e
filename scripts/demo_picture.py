"""Record `lake-assets demo` as an animated SVG, docs/images/demo.svg: the README's picture.

    python scripts/demo_picture.py                  run the demo in a lake of its own, then write the picture
    python scripts/demo_picture.py --output FILE    write the picture of an output that was recorded before

What is seen is what the demo prints; some micro-batches and the times at its end are left out. The animation is CSS in
the file: whoever shows it needs neither scripts nor fonts. Without animation, the last scene is shown.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "images" / "demo.svg"
COLUMNS = 118
# Pixels of a character, and of the frame around the lines.
WIDE, HIGH, LEFT, TOP = 7.8, 18, 18, 50
# Seconds: of a line after another, of a scene when it is complete.
LINE, PAUSE = 0.09, 3.2
# The micro-batches that are shown.
SHOWN = ("cp1_seed", "cp2_ordinary", "cp4_drop_rename", "cp6_end")
PROMPT = "$ make demo"
# Of a terminal: by the number of the colour.
COLOURS = {1: "#ff7b72", 2: "#7ee787", 3: "#e3b341", 10: "#3fb950"}
PLAIN, DIM, BACKGROUND, BAR = "#e6edf3", "#8b949e", "#0d1117", "#161b22"
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="what the demo printed, with its colours")
    chosen = parser.parse_args()
    printed = chosen.output.read_text(encoding="utf-8") if chosen.output else recorded()
    PICTURE.write_text(picture(scenes(printed)), encoding="utf-8")
    print(f"wrote {PICTURE}: {PICTURE.stat().st_size:,} bytes")


def recorded() -> str:
    """Run the demo and return what it prints, with its colours."""
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "LAKE_HOME": home, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TTY_INTERACTIVE": "0"}
        command = [Path(sys.executable).parent / "lake-assets", "demo"]
        return subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, encoding="utf-8").stdout


def scenes(printed: str) -> list[list[Text]]:
    """Split what the demo printed: a scene for each micro-batch that is shown, and one for the result."""
    blocks: list[list[Text]] = [[]]
    for line in Text.from_ansi(printed).split("\n", allow_blank=True):
        if not line.plain.strip():
            blocks.append([])
        else:
            line.truncate(COLUMNS)
            blocks[-1].append(line)
    found = [b for b in blocks if b and b[0].plain.startswith(SHOWN)]
    cities = [b for b in blocks if b and b[0].plain.startswith("agg.city_population")]
    verdict = [line for b in blocks for line in b if line.plain.startswith("Every final table equals")]
    if len(found) != len(SHOWN) or not cities or not verdict:
        raise SystemExit("the demo has not printed what is shown of it; did it fail?")
    # The path of the lake is this machine's.
    verdict = [line[: line.plain.index(".") + 1] for line in verdict]
    return [*found, [*cities[0], Text(), *verdict]]


def picture(parts: Sequence[Sequence[Text]]) -> str:
    """Return the SVG of scenes."""
    rows = max(map(len, parts)) + 1
    width, height = round(COLUMNS * WIDE + 2 * LEFT), round(TOP + rows * HIGH + 8)
    starts = [0.0]
    for part in parts:
        starts.append(starts[-1] + len(part) * LINE + PAUSE)
    total, styles, bodies = starts[-1], list[str](), list[str]()
    for n, part in enumerate(parts):
        lines: list[str] = []
        for row, line in enumerate(part):
            name = f"l{n}_{row}"
            seen, gone = ((starts[n] + row * LINE) / total * 100, starts[n + 1] / total * 100)
            shown = f"{seen:.2f}%,{gone - 0.01:.2f}%{{opacity:1}}{gone:.2f}%,100%{{opacity:0}}"
            before = f"0%,{seen - 0.01:.2f}%{{opacity:0}}" if seen else ""
            styles.append(f"@keyframes {name}{{{before}{shown}}}#{name}{{animation-name:{name}}}")
            lines.append(f'<g id="{name}">{"".join(spans(line, row + 1))}</g>')
        is_last = n == len(parts) - 1
        bodies.append(f'<g class="{"last" if is_last else "scene"}">{"".join(lines)}</g>')
    moving = (
        f"g g{{animation:{total:.1f}s step-end infinite}}"
        "@media(prefers-reduced-motion:reduce){g g{animation:none!important}.scene{display:none}}"
    )
    buttons = "".join(f'<circle cx="{LEFT + 4 + 18 * n}" cy="17" r="5.5" fill="#30363d"/>' for n in range(3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="lake-assets demo in a terminal">'
        f"<style>text{{font:13px {FONT};fill:{PLAIN};white-space:pre}}.scene g{{opacity:0}}{moving}{''.join(styles)}"
        f"</style>"
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>'
        f'<path d="M0 8a8 8 0 0 1 8-8H{width - 8}a8 8 0 0 1 8 8V34H0Z" fill="{BAR}"/>{buttons}'
        f"{''.join(spans(Text(PROMPT, style='bold'), 0))}{''.join(bodies)}</svg>\n"
    )


def spans(line: Text, row: int) -> Iterator[str]:
    """Yield the words of a line, each at its place, as wide as in a terminal whatever the font is."""
    y, column = TOP + row * HIGH, 0
    styled = [Style.combine([_style(line.style), *(_style(s.style) for s in line.spans if s.start <= n < s.end)])
              for n in range(len(line))]  # fmt: skip
    start = 0
    while start < len(line):
        end = start
        while end < len(line) and styled[end] == styled[start] and line.plain[end : end + 2] != "  ":
            end += 1
        word, style = line.plain[start:end], styled[start]
        cells = cell_len(word)
        if word.strip():
            x, length = LEFT + column * WIDE, cells * WIDE
            yield f'<text x="{x:.1f}" y="{y}" textLength="{length:.1f}"{_attributes(style)}>{escape(word)}</text>'
        column += cells
        while end < len(line) and line.plain[end] == " ":
            end, column = end + 1, column + 1
        start = end


def _style(style: str | Style) -> Style:
    return Style.parse(style) if isinstance(style, str) else style


def _attributes(style: Style) -> str:
    number = style.color.number if style.color else None
    colour = COLOURS.get(number) if number is not None else DIM if style.dim else None
    rules = [f"fill:{colour}" if colour else "", "font-weight:bold" if style.bold else ""]
    return f' style="{";".join(filter(None, rules))}"' if any(rules) else ""


if __name__ == "__main__":
    main()
