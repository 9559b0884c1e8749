"""Every key of the table of actions, pressed on its own page: it leads to its action, and that is carried out."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
from textual.pilot import Pilot

from gputui.tui.actions import Scope, actions_in, find
from gputui.tui.app import GputuiApp
from gputui.tui.pages.launch.form import Prefill
from gputui.tui.pages.launch.page import LaunchScreen
from gputui.tui.widgets.page import ActionScreen
from tests.tui.conftest import MakeApp
from tests.tui.filling import Filler, uuid

RUN = "vit-b16-1"

LEAVING = ("leave", "suspend", "mouse")
"""Carried out they would end the test, or its terminal; tests of their own do that."""

OPENING: dict[Scope, Callable[[GputuiApp], object]] = {
    "overview": lambda app: None,
    "run": lambda app: app.open_run(RUN),
    "profiles": lambda app: app.navigation.do_launch(),
    "launch": lambda app: app.push_screen(LaunchScreen(Prefill("tiny"))),
    "alerts": lambda app: app.navigation.do_alerts(),
    "gpu": lambda app: app.open_gpu(uuid(0)),
    "compare": lambda app: app.compare(None, [RUN, "gpt2-124m-1"]),
    "processes": lambda app: app.navigation.do_processes(),
    "studies": lambda app: app.navigation.do_studies(),
    "study_files": lambda app: app.navigation.do_study_new(),
}


async def go_to(app: GputuiApp, pilot: Pilot[int], scope: Scope) -> ActionScreen:
    """The page anew, in the present, with nothing above or below it but the overview."""
    while len(app.screen_stack) > 1:
        app.pop_screen()
    app.time_travel.do_live()
    OPENING[scope](app)
    await pilot.pause()
    assert isinstance(app.screen, ActionScreen) and scope == app.screen.SCOPE
    return app.screen


def takes_text(page: ActionScreen) -> bool:
    """Whether a filter, a search or a name is typed, so that keys are text."""
    return page.line is not None


@pytest.mark.parametrize("scope", get_args(Scope))
async def test_every_key_leads_to_its_action(
    scope: Scope, filler: Filler, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    filler.overnight()
    filler.bad_night()
    filler.study()
    (filler.workspace.profiles / "tiny.yaml").write_text("name: tiny\nlauncher: command\nscript: x.py\ngpus: 0\n")
    performed: list[str] = []
    carry_out = GputuiApp.perform

    def perform(app: GputuiApp, name: str) -> None:
        # What the app does is the same on every page: once is enough, as it is for a second key.
        page = app.navigation.page
        is_own = (
            any(hasattr(each, f"do_{name}") for each in (page, *page.parts)) or find(name, scope).scopes[0] == scope
        )
        if is_own and name not in LEAVING and name not in performed:
            carry_out(app, name)
        performed.append(name)

    monkeypatch.setattr(GputuiApp, "perform", perform)
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        page = await go_to(app, pilot, scope)
        for action in actions_in(scope):
            for key in action.keys:
                before = len(performed)
                await pilot.press(key)
                assert performed[before:] == [action.name], f"{key} on {scope}"
                if app.screen is page and takes_text(page):
                    await pilot.press("escape")
                if app.screen is not page or app.time_travel.moment is not None:
                    page = await go_to(app, pilot, scope)
