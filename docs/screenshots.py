"""Makes the pictures of the documentation from the real screens over a made-up night: ``make screenshots``.

Needs rsvg-convert (Debian: librsvg2-bin) and the font DejaVu Sans Mono (fonts-dejavu-core).
"""

from __future__ import annotations

import asyncio
import html
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

from gputui.config import locate
from gputui.tui.app import GputuiApp
from tests.tui.conftest import StillFeed
from tests.tui.filling import Filler

IMAGES = Path(__file__).resolve().parent / "images"
WIDTH_PIXELS = 1400

# name → (columns, rows, keys pressed before the picture)
PICTURES: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "overview": (120, 30, ()),
    "run": (140, 42, ("enter",)),
    "overview-80x24": (80, 24, ()),
    "alerts": (120, 26, ("exclamation_mark",)),
}

# Rich draws each cell so wide, for Fira Code at size 20; DejaVu Sans Mono fills such a cell at this size.
CELL_WIDTH = 12.2
FONT_SIZE = CELL_WIDTH / 0.602

# Braille comes from another font, in another width: each such character is put in its place by itself.
TEXT = re.compile(r'<text class="([^"]*)" x="([^"]*)" y="([^"]*)" textLength="[^"]*"([^>]*)>([^<]*)</text>')
BRAILLE = re.compile("[\u2801-\u28ff]")


def place_braille(match: re.Match[str]) -> str:
    """A text element, as one element a character where it holds braille."""
    style, x, y, rest, content = match.groups()
    text = html.unescape(content)
    if not BRAILLE.search(text):
        return match.group(0)
    return "".join(
        f'<text class="{style}" x="{float(x) + index * CELL_WIDTH:.1f}" y="{y}"{rest}>{html.escape(character)}</text>'
        for index, character in enumerate(text)
        if not character.isspace()
    )


async def picture(name: str, columns: int, rows: int, keys: tuple[str, ...]) -> None:
    """Run the app over a filled store and save what it shows."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = locate(folder)
        workspace.create()
        filler = Filler(workspace)
        filler.overnight()
        if name == "alerts":
            filler.bad_night()
        feed = StillFeed(workspace)
        app = GputuiApp(workspace, feed, feed.read(), host_name="ws-kepler")
        async with app.run_test(size=(columns, rows)) as pilot:
            await pilot.press(*keys)
            await pilot.pause()
            drawing = app.export_screenshot(title="gputui")
        filler.close()
    drawing = re.sub(r"@font-face \{.*?\}", "", drawing, flags=re.DOTALL)
    drawing = drawing.replace("Fira Code", "DejaVu Sans Mono").replace("font-size: 20px", f"font-size: {FONT_SIZE}px")
    drawing = TEXT.sub(place_braille, drawing)
    drawing = drawing.replace("<text ", '<text xml:space="preserve" ')
    IMAGES.mkdir(exist_ok=True)
    subprocess.run(
        ["rsvg-convert", "--width", str(WIDTH_PIXELS), "--output", str(IMAGES / f"{name}.png")],
        input=drawing.encode(),
        check=True,
    )


def main() -> None:
    os.environ["TZ"] = "UTC"
    time.tzset()
    for name, (columns, rows, keys) in PICTURES.items():
        asyncio.run(picture(name, columns, rows, keys))


if __name__ == "__main__":
    main()
