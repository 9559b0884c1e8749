"""Makes the pictures of the documentation from the screens of a demo that stands still: ``make screenshots``.

Needs rsvg-convert (Debian: librsvg2-bin), Pillow (it comes with the trainer) and the font DejaVu Sans Mono
(fonts-dejavu-core).
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from PIL import Image
from textual.pilot import Pilot

from docs.still_demo import make_still_demo
from gputui.core.config import Workspace, locate
from gputui.runs.processes import HostProcess, ProcessReader
from gputui.store.hardware import GpuView
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.settings import Settings
from tests.ui.tui.conftest import StillFeed

IMAGES = Path(__file__).resolve().parent / "images"
WIDTH_PIXELS = 1400
PALETTE_COLOURS = 64


@dataclass(frozen=True, slots=True)
class Picture:
    """A screen of so many columns and rows after some keys."""

    columns: int
    rows: int
    keys: tuple[str, ...] = ()


PICTURES: dict[str, Picture] = {
    "overview": Picture(120, 42),
    "overview-80x24": Picture(80, 24),
    "run": Picture(150, 48, ("down", "enter")),
    "study": Picture(150, 36, ("S",)),
}

HOME = Path(tempfile.gettempdir()) / "gputui-pictures"

NOW = 1_795_230_764.0  # 2026-11-21 03:12:44 UTC

READS = 20

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


async def settle(pilot: Pilot[int], app: GputuiApp) -> None:
    """Wait until nothing is read any more."""
    await pilot.pause(0.1)
    for _ in range(3):
        # Charts that were not asked for before come with the next reading.
        cast("StillFeed", app.feed).refresh()
        await pilot.pause(0.1)


class StillProcesses(ProcessReader):
    """Processes of runs as procfs would show them."""

    def read(self, gpus: Sequence[GpuView]) -> Mapping[int, HostProcess]:
        listed = [process for gpu in gpus for process in gpu.processes or () if process.run_id is not None]
        return {
            process.pid: HostProcess(
                process.pid,
                31_399,
                process.start_ticks or 1,
                state="R",
                user=process.user,
                command=process.command or "",
                cpu_percent=98.0 - (process.rank or 0),
                memory_bytes=(9 + (process.rank or 0)) << 30,
                run_id=process.run_id,
                rank=process.rank,
                running_seconds=19_800.0,
            )
            for process in listed
        }


@contextlib.contextmanager
def still_home(home: Path = HOME) -> Iterator[Workspace]:
    """The home of the demo, in a new folder. By its default, no picture tells anything about the machine."""
    home.mkdir()
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, home)
        stack.enter_context(contextlib.chdir(home))
        workspace = locate(home)
        workspace.create()
        make_still_demo(workspace, NOW)
        (workspace.profiles / ".venv").symlink_to(sys.prefix)
        for profile in workspace.profiles.glob("*.yaml"):
            profile.write_text(f"{profile.read_text()}python: .venv/bin/python\n")
        yield workspace


@contextlib.asynccontextmanager
async def shown(workspace: Workspace, what: Picture) -> AsyncIterator[GputuiApp]:
    """The app with the screen of a picture."""
    feed = StillFeed(workspace, NOW)
    feed.use_processes(StillProcesses(workspace.runs))
    snapshot = feed.read()
    for _ in range(READS):
        # Curves of ended runs are read a few at a time.
        snapshot = feed.read()
    app = GputuiApp(workspace, feed, snapshot, host_name="ws-kepler", settings=Settings(theme="dark"))
    async with app.run_test(size=(what.columns, what.rows)) as pilot:
        for key in what.keys:
            await pilot.press(key)
            await pilot.pause()
        await settle(pilot, app)
        yield app


async def picture(workspace: Workspace, name: str) -> None:
    """Save a screen."""
    async with shown(workspace, PICTURES[name]) as app:
        drawing = app.export_screenshot(title="gputui")
    save(drawing, name)


def save(drawing: str, name: str) -> None:
    """Write a screen that was exported as SVG to a picture of that name."""
    drawing = re.sub(r"@font-face \{.*?\}", "", drawing, flags=re.DOTALL)
    drawing = drawing.replace("Fira Code", "DejaVu Sans Mono").replace("font-size: 20px", f"font-size: {FONT_SIZE}px")
    drawing = TEXT.sub(place_braille, drawing)
    drawing = drawing.replace("<text ", '<text xml:space="preserve" ')
    IMAGES.mkdir(exist_ok=True)
    drawn = subprocess.run(
        ["rsvg-convert", "--width", str(WIDTH_PIXELS)], input=drawing.encode(), check=True, capture_output=True
    ).stdout
    # Few colours are in it; a palette makes the file a third as large.
    Image.open(io.BytesIO(drawn)).quantize(PALETTE_COLOURS).save(IMAGES / f"{name}.png", optimize=True)


def main() -> None:
    """All pictures, or those named on the command line."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    with still_home() as workspace:
        for name in sys.argv[1:] or PICTURES:
            asyncio.run(picture(workspace, name))


if __name__ == "__main__":
    main()
