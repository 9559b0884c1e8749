"""Nothing from outside controls the terminal: every page, every key, with text as an enemy would write it."""

from __future__ import annotations

import re
import time
import unicodedata
from typing import Any

import pytest
from textual.pilot import Pilot

from gputui.config import Workspace
from gputui.tui.actions import actions_in
from gputui.tui.app import GputuiApp
from gputui.tui.terminal import sequences
from gputui.tui.widgets.page import ActionScreen
from tests.tui.conftest import MakeApp
from tests.tui.emulator import Terminal
from tests.tui.filling import Filler
from tests.tui.hostile import CORPUS, MARK, fill

# All that the screen itself ever writes beside text: colours, moves (backspace and return are two), "erase display" and
# the question for the cursor.
OURS = re.compile(r"\x1b\[[0-9;]*[mHABCDEFGJ]|\x1b\[6n|\x1b\[\?2026[hl]|[\r\x08]")

NOT_PRESSED = {"leave", "suspend"}
PENDING_SECONDS = 30.0


def check(frame: str) -> None:
    """Only text that takes room and our own sequences."""
    text = OURS.sub("", frame)
    for char in set(text):
        assert unicodedata.category(char) not in ("Cc", "Cf", "Co", "Cn", "Cs", "Zl", "Zp"), f"{char!r} in {frame!r}"


class Watched:
    """An app whose every frame is looked at."""

    def __init__(self, app: GputuiApp, size: tuple[int, int]) -> None:
        self.app = app
        self.terminal = Terminal(*size)
        self.seen = ""
        app.write_frame = self._take  # type: ignore[method-assign]
        app.write_sequence = check_told  # type: ignore[method-assign]
        app.repaint_terminal()

    def _take(self, frame: str) -> None:
        check(frame)
        self.terminal.feed(frame)

    async def look(self, pilot: Pilot[Any]) -> None:
        """What is shown is what was wanted: no text has moved the cursor. A frame that falls into a batch of updates is
        written a little later."""
        deadline = time.monotonic() + PENDING_SECONDS
        while self.app._cell_grid.is_pending and time.monotonic() < deadline:
            await pilot.pause(0.01)
        wrong = self.terminal.wrong_cells(self.app._cell_grid)
        assert not wrong, wrong[:3]
        self.seen += self.terminal.text


def check_told(sequence: str) -> None:
    """Titles, bells and what is copied: nothing inside of them ends them early."""
    whole = r"\x1b\](2;[^\x00-\x1f\x7f-\x9f]*\x1b\\|52;c;[A-Za-z0-9+/=]*\x07)|\x07|\x1b\[2[23];2t|\x1b\[\?100[06][hl]"
    assert re.fullmatch(f"({whole})*", sequence), repr(sequence)


async def press_everything(pilot: Pilot[Any], watched: Watched, scope: str) -> None:
    """Each action of a page, and back again."""
    app, way = watched.app, WAYS[scope]
    await pilot.press(*way)
    await pilot.pause()
    screen = app.screen
    assert isinstance(screen, ActionScreen) and scope == screen.SCOPE
    depth = len(app.screen_stack)
    await watched.look(pilot)
    for action in actions_in(screen.SCOPE):
        if action.name in NOT_PRESSED or not action.in_palette:
            continue  # what the palette leaves out only moves the cursor
        app.perform(action.name)
        await pilot.pause()
        watched.seen += watched.terminal.text
        for _ in range(3):
            if len(app.screen_stack) > depth:
                await pilot.press("escape")
                await pilot.pause()
        if app.screen is not screen:
            while len(app.screen_stack) > 1:
                app.pop_screen()
            await pilot.pause()
            await pilot.press(*way)
            await pilot.pause()
            screen = app.screen
            assert isinstance(screen, ActionScreen) and scope == screen.SCOPE
    await watched.look(pilot)


WAYS = {
    "overview": (),
    "run": ("enter",),
    "profiles": ("n",),
    "launch": ("n", "enter"),
    "alerts": ("exclamation_mark",),
    "gpu": ("i",),
    "compare": ("c",),
    "processes": ("p",),
    "studies": ("S",),
    "study_files": ("ctrl+n",),
}  # fmt: skip
"""How each page is reached from the overview."""


QUICK = ("overview", "run", "launch")


@pytest.mark.parametrize(
    "scope", [pytest.param(scope, marks=() if scope in QUICK else pytest.mark.long) for scope in WAYS]
)
async def test_no_text_controls_the_terminal(filler: Filler, make_app: MakeApp, scope: str) -> None:
    fill(filler)
    size = (130, 40)
    app = make_app()
    async with app.run_test(size=size) as pilot:
        watched = Watched(app, size)
        app.change(title=True, bell=True)
        await press_everything(pilot, watched, scope)
    assert MARK in watched.seen


def test_every_page_is_walked_over() -> None:
    from typing import get_args

    from gputui.tui.actions import Scope

    assert set(WAYS) == set(get_args(Scope))


async def test_markup_is_text(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    for text in CORPUS[:6]:
        filler.event(text, severity="warning")
    app = make_app()
    async with app.run_test(size=(200, 50)) as pilot:
        watched = Watched(app, (200, 50))
        await pilot.pause()
        assert "[bold red]not markup[/]" in watched.terminal.text
        assert "\u202e" not in watched.terminal.text


@pytest.mark.parametrize("text", CORPUS)
def test_titles_and_messages_are_harmless(text: str) -> None:
    check_told(sequences.title_sequence(text))
    check(sequences.copied_words("x", text, {}))


async def test_a_hostile_name_of_the_host_and_a_hostile_setting(
    filler: Filler, make_app: MakeApp, workspace: Workspace
) -> None:
    fill(filler)
    app = make_app()
    app.host_name = CORPUS[0]
    async with app.run_test(size=(100, 30)) as pilot:
        watched = Watched(app, (100, 30))
        app.change(title=True)
        app.say(CORPUS[1] + CORPUS[10], "error")
        await pilot.pause()
        await watched.look(pilot)
        assert watched.seen
