"""What tests of the screen look at and press: panes and commands of an app, the lines of a drawing, snapshots."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

from textual.pilot import Pilot

from gputui.core.config import Workspace
from gputui.core.text import cell_width
from gputui.metrics.draw.parts import Line
from gputui.store.database import open_reader
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.data.reader import SnapshotReader
from gputui.ui.tui.pages.launch.page import ChooseProfileScreen, LaunchScreen
from gputui.ui.tui.pages.overview.page import OverviewScreen
from gputui.ui.tui.widgets.pane import Pane
from gputui.ui.views.snapshot import Interest, Snapshot
from tests.homes import NOW, Home
from tests.ui.tui.conftest import StillFeed

SMALL = (80, 24)
WIDE = (160, 48)


def text(app: GputuiApp, pane: str) -> str:
    return app.screen.query_one(f"#{pane}", Pane).text


def screen_text(app: GputuiApp) -> str:
    """All lines of the screen with its dialogs, as the terminal shows them."""
    lines = (app._cell_grid.line(y) for y in range(app._cell_grid.height))
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def overview(app: GputuiApp) -> OverviewScreen:
    screen = app.screen_stack[0]
    assert isinstance(screen, OverviewScreen)
    return screen


def form_of(app: GputuiApp) -> LaunchScreen:
    assert isinstance(app.screen, LaunchScreen)
    return app.screen


def feed_of(app: GputuiApp) -> StillFeed:
    assert isinstance(app.feed, StillFeed)
    return app.feed


def commands_of(home: Home) -> list[tuple[str, str | None, dict[str, Any]]]:
    """The commands that were sent, always in the name of this process."""
    rows = home.connection.execute("SELECT verb, run_id, args FROM commands ORDER BY command_id").fetchall()
    commands = [(verb, run_id, json.loads(args)) for verb, run_id, args in rows]
    assert all(args.pop("asker")["pid"] == os.getpid() for _, _, args in commands)
    return commands


async def wait_for(pilot: Pilot[Any], is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it did not come to this"
        await pilot.pause(0.02)


async def press(pilot: Pilot[int], *keys: str) -> None:
    for key in keys:
        await pilot.press(key)
        await pilot.pause()


async def open_form(pilot: Pilot[Any], app: GputuiApp, typed: str = "") -> None:
    """Through the list of profiles to the form of the first one that fits."""
    await pilot.press("n")
    choosing = app.screen
    assert isinstance(choosing, ChooseProfileScreen)
    await wait_for(pilot, lambda: choosing.rows is not None)
    await pilot.press(*typed, "enter")
    await pilot.pause()


def text_of(lines: Iterable[Line]) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def widths(lines: Iterable[Line]) -> set[int]:
    return {sum(cell_width(text) for text, _ in line) for line in lines}


def styles_of(line: Sequence[tuple[str, str]], word: str) -> set[str]:
    return {style for text, style in line if word in text}


def read(workspace: Workspace, run_id: str | None = None, now: float = NOW) -> Snapshot:
    with closing(open_reader(workspace.database)) as connection:
        return SnapshotReader(workspace).read(connection, now, Interest(run_id))
