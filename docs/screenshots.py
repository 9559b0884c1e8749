"""Makes the pictures of the documentation from the real screens over a made-up night: ``make screenshots``.

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
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from PIL import Image
from textual.pilot import Pilot

from gputui.core.config import Workspace, locate
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.pages.launch.page import LaunchScreen
from gputui.ui.tui.settings import Settings
from tests.ui.tui.conftest import StillFeed
from tests.ui.tui.filling import Filler

IMAGES = Path(__file__).resolve().parent / "images"
WIDTH_PIXELS = 1400
PALETTE_COLOURS = 64


@dataclass(frozen=True, slots=True)
class Picture:
    """A screen of so many columns and rows after some keys, in a theme."""

    columns: int
    rows: int
    keys: tuple[str, ...] = ()
    theme: str = "ansi"


PICTURES: dict[str, Picture] = {
    "overview": Picture(120, 34),
    "overview-80x24": Picture(80, 24),
    "overview-200x50": Picture(200, 50),
    "gpus-together": Picture(120, 34, ("a",)),
    "gpu": Picture(120, 34, ("i",)),
    "run": Picture(150, 44, ("enter", "m", "m", *["left"] * 6)),
    "run-80x24": Picture(80, 24, ("enter",)),
    "run-log": Picture(100, 30, ("enter", "3")),
    "compare": Picture(120, 34, ("space", "space", "c")),
    "study": Picture(150, 36, ("S",)),
    "processes": Picture(120, 34, ("p",)),
    "alerts": Picture(120, 30, ("exclamation_mark",)),
    "launch": Picture(120, 36, ("n", "enter")),
    "launch-target": Picture(120, 36, ("n", "enter", "down", *"lab")),
    "time-travel": Picture(120, 34, ("left_square_bracket", "left_square_bracket")),
    "palette": Picture(100, 30, ("ctrl+p", *"theme")),
    "settings": Picture(100, 30, ("comma",)),
    "theme-dark": Picture(100, 30, theme="dark"),
    "theme-light": Picture(100, 30, theme="light"),
    "theme-colour-blind": Picture(100, 30, theme="colour-blind"),
    "theme-mono": Picture(100, 30, theme="mono"),
}

SETTLE_SECONDS = 10.0

PROFILE = """\
name: vit-b16
description: Vision transformer, ImageNet-1k
launcher: torchrun
script: train.py
python: .venv/bin/python
gpus: 2
requires: {gpu_memory: 30GiB, disk: 20GiB}
params:
  batch_size: {default: 512, min: 1, help: samples per step and rank}
  grad_accum: 1
  lr: {default: 0.001, help: peak learning rate}
  gradient_checkpointing: false
metrics: {source: jsonl, path: "{run_dir}/metrics.jsonl"}
checkpoints: {dir: "{run_dir}/checkpoints", pattern: "step_*.pt", resume: "--resume {checkpoint}"}
"""

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


def fill(workspace: Workspace, *, has_targets: bool, has_study: bool) -> Filler:
    """The made-up night, with what each page shows of it."""
    filler = Filler(workspace)
    filler.overnight()
    filler.bad_night()
    if has_study:
        filler.study(trials=20)
    for run_id, attempt in (("vit-b16-1", 3), ("gpt2-124m-1", 1)):
        folder = workspace.run_dir(run_id) / "attempts" / str(attempt) / "ranks" / "x" / "attempt_0" / "0"
        folder.mkdir(parents=True)
        lines = [f"step {step} loss {1.9 + 40 / step:.3f} lr 9.8e-04 3021 img/s" for step in range(8010, 9441, 30)]
        lines.insert(20, "WARNING: data loader waited 0.4 s")
        (folder / "stdout.log").write_text("\n".join(lines) + "\n")
    (workspace.profiles / "vit-b16.yaml").write_text(PROFILE)
    (workspace.profiles / "train.py").touch()
    if has_targets:
        workspace.targets.write_text("lab: {kind: slurm, host: login.lab, partition: gpu, time: 4h}\n")
    # The form shows where the interpreter is; that of whoever makes the pictures is nobody's business.
    (workspace.profiles / ".venv").symlink_to(sys.prefix)
    return filler


async def settle(pilot: Pilot[object], app: GputuiApp) -> None:
    """Wait until nothing is read or checked any more."""
    end = time.monotonic() + SETTLE_SECONDS
    await pilot.pause(0.1)
    for _ in range(3):
        # Charts that were not asked for before come with the next reading.
        cast("StillFeed", app.feed).refresh()
        await pilot.pause(0.1)
    while isinstance(app.screen, LaunchScreen) and not app.screen.is_settled and time.monotonic() < end:
        await pilot.pause(0.05)
    await pilot.pause(0.1)


async def picture(name: str, what: Picture) -> None:
    """Run the app over a filled store and save what it shows."""
    with tempfile.TemporaryDirectory(prefix="night-") as folder, contextlib.chdir(folder):
        workspace = locate(folder)
        workspace.create()
        filler = fill(workspace, has_targets=name == "launch-target", has_study=name == "study")
        feed = StillFeed(workspace)
        settings = Settings(theme=what.theme)
        app = GputuiApp(workspace, feed, feed.read(), host_name="ws-kepler", settings=settings)
        async with app.run_test(size=(what.columns, what.rows)) as pilot:
            for key in what.keys:
                await pilot.press(key)
                await pilot.pause()
            await settle(pilot, app)
            drawing = app.export_screenshot(title="gputui")
        filler.close()
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
    for name in sys.argv[1:] or PICTURES:
        asyncio.run(picture(name, PICTURES[name]))


if __name__ == "__main__":
    main()
