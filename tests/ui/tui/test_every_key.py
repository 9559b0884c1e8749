"""Every key of the table of actions, pressed on its page while every text is as an enemy would write it: it leads to
its action, that is carried out, and nothing from outside controls the terminal."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable
from typing import Any, get_args

import pytest
from textual.pilot import Pilot

from gputui.ui.tui.actions import Scope, actions_in, find
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.pages.launch.form import Prefill
from gputui.ui.tui.pages.launch.page import LaunchScreen
from gputui.ui.tui.terminal import features
from gputui.ui.tui.widgets.page import ActionScreen
from gputui.ui.tui.widgets.pane import Pane
from tests.homes import Home, uuid
from tests.stories import bad_night
from tests.ui.tui.conftest import MakeApp
from tests.ui.tui.emulator import Terminal, repaint
from tests.ui.tui.hostile import CORPUS, MARK, fill
from tests.ui.tui.screens import wait_for

# All that the screen itself ever writes beside text: colours, moves (backspace and return are two), "erase display" and
# the question for the cursor.
OURS = re.compile(r"\x1b\[[0-9;]*[mHABCDEFGJ]|\x1b\[6n|\x1b\[\?2026[hl]|[\r\x08]")

RUN = "vit-b16-1"

WORK = {"work", "comparing code"}
"""Threads that soon end. One that asks the agent waits long for its answer."""

LEAVING = ("leave", "suspend", "mouse")
"""Carried out they would end the test, or its terminal; tests of their own do that."""

RESTING = {
    "overview": "unmark",
    "run": "grave_only traceback follow beginning",
    "gpu": "up down page_up page_down",
    "launch": "field_next field_previous value_next value_previous",
}
"""There is nothing to do: no run is marked; a log has few lines, a page fits, a form has no profile."""

OPENING: dict[Scope, Callable[[GputuiApp], object]] = {
    "overview": lambda app: None,
    "run": lambda app: app.open_run(RUN),
    "profiles": lambda app: app.do_launch(),
    "launch": lambda app: app.push_screen(LaunchScreen(Prefill("tiny"))),
    "alerts": lambda app: app.do_alerts(),
    "gpu": lambda app: app.open_gpu(uuid(0)),
    "compare": lambda app: app.compare(None, [RUN, "gpt2-124m-1"]),
    "processes": lambda app: app.do_processes(),
    "studies": lambda app: app.do_studies(),
    "study_files": lambda app: app.do_study_new(),
}


def check(frame: str) -> None:
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
        repaint(app)

    def _take(self, frame: str) -> None:
        check(frame)
        self.terminal.feed(frame)

    async def look(self, pilot: Pilot[Any]) -> None:
        """Assert that the wanted cells are shown: no text has moved the cursor. A frame that falls
        into a batch of updates is written a little later."""
        await wait_for(pilot, lambda: not self.app._cell_grid.is_pending)
        wrong = self.terminal.wrong_cells(self.app._cell_grid)
        assert not wrong, wrong[:3]
        self.seen += self.terminal.text


def check_told(sequence: str) -> None:
    """Titles, bells and what is copied: nothing inside of them ends them early."""
    whole = r"\x1b\](2;[^\x00-\x1f\x7f-\x9f]*\x1b\\|52;c;[A-Za-z0-9+/=]*\x07)|\x07|\x1b\[2[23];2t|\x1b\[\?100[06][hl]"
    assert re.fullmatch(f"({whole})*", sequence), repr(sequence)


def look_of(app: GputuiApp) -> object:
    return [(type(screen), [pane._lines for pane in screen.query(Pane)]) for screen in app.screen_stack]


async def go_to(app: GputuiApp, pilot: Pilot[int], scope: Scope) -> ActionScreen:
    """The page anew, in the present, with nothing above or below it but the overview."""
    while len(app.screen_stack) > 1:
        app.pop_screen()
    app.do_live()
    OPENING[scope](app)
    await at_rest(pilot)
    assert isinstance(app.screen, ActionScreen)
    assert scope == app.screen.SCOPE
    return app.screen


async def at_rest(pilot: Pilot[int]) -> None:
    """Wait for what is done in threads and may open a page, or begin another thread."""
    for _ in range(3):
        await wait_for(pilot, lambda: not WORK & {thread.name for thread in threading.enumerate()})
        await pilot.pause()


@pytest.mark.parametrize("scope", get_args(Scope))
async def test_every_key_leads_to_its_action_and_no_text_controls_the_terminal(
    scope: Scope, home: Home, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(home)
    bad_night(home)
    (home.workspace.profiles / "tiny.yaml").write_text("name: tiny\nlauncher: command\nscript: x.py\ngpus: 0\n")
    performed: list[str] = []
    carried_out: set[str] = set()
    resting = set(RESTING.get(scope, "").split())
    carry_out = GputuiApp.perform

    def perform(app: GputuiApp, name: str) -> None:
        # What the app does is the same on every page: once is enough, as it is for a second key.
        page = app.page
        is_own = (
            any(hasattr(part, f"do_{name}") for part in (page, *page.parts)) or find(name, scope).scopes[0] == scope
        )
        if is_own and name not in LEAVING and name not in performed:
            carry_out(app, name)
            carried_out.add(name)
        performed.append(name)

    monkeypatch.setattr(GputuiApp, "perform", perform)
    app = make_app()
    app.host_name = CORPUS[0]
    async with app.run_test(size=(130, 40)) as pilot:
        watched = Watched(app, (130, 40))
        app.change(title=True, bell=True)
        page = await go_to(app, pilot, scope)
        await watched.look(pilot)
        for action in actions_in(scope):
            for key in action.keys:
                app.say("")
                before = len(performed)
                before_key = look_of(app)
                await pilot.press(key)
                await at_rest(pilot)
                assert performed[before:] == [action.name], f"{key} on {scope}"
                if action.name in carried_out - resting and look_of(app) == before_key:
                    # At the end of a list the action has no effect; after its opposite it must have one.
                    for namesake in actions_in(scope):
                        if namesake.phrase == action.phrase and namesake is not action:
                            carry_out(app, namesake.name)
                    before_key = look_of(app)
                    carry_out(app, action.name)
                    await wait_for(pilot, lambda before_key=before_key: look_of(app) != before_key)
                carried_out.discard(action.name)
                watched.seen += watched.terminal.text
                if app.screen is page and page.line is not None:
                    await pilot.press("escape")
                if app.screen is not page or app.moment is not None:
                    page = await go_to(app, pilot, scope)
        await watched.look(pilot)
    assert MARK in watched.seen


def test_titles_and_messages_are_harmless() -> None:
    for text in CORPUS:
        check_told(features.title_sequence(text))
        check(features.copied_sentence("x", text, {}))
