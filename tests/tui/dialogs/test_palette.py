"""The palette over everything, and what a mere view may do."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from textual.pilot import Pilot

from gputui.config import Workspace
from gputui.tui.actions import Context, Scope, actions_in
from gputui.tui.app import GputuiApp
from gputui.tui.dialogs.confirm import ConfirmScreen
from gputui.tui.dialogs.palette import PaletteScreen, cost, ranked
from gputui.tui.dialogs.sheet import HelpScreen
from gputui.tui.pages.launch.page import LaunchScreen
from gputui.tui.widgets.pane import Pane
from tests.tui.conftest import MakeApp
from tests.tui.filling import Filler

SIZE = (100, 30)

CHANGES = {
    "stop", "restart", "resume", "remove", "launch", "clone", "start", "pause", "queue_pause", "move_up", "move_down",
    "signal", "acknowledge", "silence", "study_new",
}  # fmt: skip
"""Actions that change something outside of the screen."""


def test_beginnings_come_before_middles_and_those_before_letters() -> None:
    titles = ["Set bell: on", "The theme", "Theme dark", "Stop the run", "Themis", "Toggle heme"]
    found = ranked(titles, "theme", lambda title: (title, "", True))
    assert found[0] == "Theme dark"
    assert found[1] == "The theme"
    assert "Stop the run" not in found and "Set bell: on" not in found


def test_words_may_come_in_any_order_and_letters_may_be_left_out() -> None:
    assert cost("gpt open", "Open gpt2-124m-1") == cost("open gpt", "Open gpt2-124m-1") is not None
    assert cost("opgt", "Open gpt2-124m-1") is not None
    assert cost("tpg", "Open gpt2-124m-1") is None
    assert cost("metric", "Settings: theme, characters, mouse, bell, title, refresh rate") is None
    assert cost("oom", "Suspend to the shell; fg returns") is None
    assert cost("running", "Open gpt2-124m-1", "running") is not None


def test_what_is_not_possible_comes_after_its_equals() -> None:
    things = [("Stop one", False), ("Stop two", True)]
    assert ranked(things, "stop", lambda each: (each[0], "", each[1]))[0] == ("Stop two", True)
    assert ranked(things, "", lambda each: (each[0], "", each[1]))[0] == ("Stop two", True)


async def test_what_the_footer_calls_an_action_finds_it(filler: Filler, make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p", *"help", "enter")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)


async def test_why_an_action_is_not_possible_leaves_it_its_name(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+p", *"one place up")
        await pilot.pause()
        assert isinstance(app.screen, PaletteScreen)
        content = app.screen.content(74)
        [line] = [
            "".join(text for text, _ in line)
            for line in content.lines
            if "Move a waiting run one" in "".join(text for text, _ in line)
        ]
        assert "Move a waiting run one place up in the queue" in line and line.rstrip().endswith("…")


async def choose(pilot: Pilot[Any], words: str) -> None:
    await pilot.press("ctrl+p")
    palette = pilot.app.screen
    assert isinstance(palette, PaletteScreen)
    for _ in range(400):
        if any(choice.title.startswith("Launch ") for choice in palette._choices):
            break
        await pilot.pause(0.02)
    palette.on_paste(type("Paste", (), {"text": words, "stop": lambda self: None})())
    await pilot.press("enter")
    await pilot.pause()


async def test_settings_themes_copies_and_profiles_are_found(
    filler: Filler, make_app: MakeApp, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    filler.overnight()
    monkeypatch.chdir(workspace.profiles.parent)
    (workspace.profiles / "mine.yaml").write_text("name: mine\nlauncher: python\nscript: x.py\ngpus: 0\n")
    told: list[str] = []
    monkeypatch.setattr(GputuiApp, "write_sequence", lambda _, sequence: told.append(sequence))
    app = make_app()
    async with app.run_test(size=SIZE) as pilot:
        await choose(pilot, "theme light")
        assert app.settings.theme == "light"
        await choose(pilot, "set bell on")
        assert app.settings.bell
        await choose(pilot, "copy run")
        assert "\x1b]52;c;" in told[-1]
        await choose(pilot, "launch mine")
        assert isinstance(app.screen, LaunchScreen)


async def test_a_mere_view_changes_nothing(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    app = make_app(readonly=True)
    count = filler.connection.execute("SELECT count(*) FROM commands").fetchone()[0]
    async with app.run_test(size=SIZE) as pilot:
        for scope_keys in ("enter", "escape"):
            for action in actions_in("overview"):
                if action.name in CHANGES:
                    await pilot.press(action.keys[0])
                    await pilot.pause()
                    assert not isinstance(app.screen, ConfirmScreen | LaunchScreen), action.name
            await pilot.press(scope_keys)
        await choose(pilot, "stop the run")
        assert not isinstance(app.screen, ConfirmScreen)
        assert "read only" in app.screen.query_one("#message").text
    assert filler.connection.execute("SELECT count(*) FROM commands").fetchone()[0] == count


@pytest.mark.parametrize("scope", get_args(Scope))
def test_every_action_that_changes_something_says_no_to_a_mere_view(scope: Scope) -> None:
    for action in actions_in(scope):
        if action.name in CHANGES and scope != "launch":
            assert action.why_not(Context(scope, is_readonly=True)) == "This view is read only.", action.name


async def test_the_wheel_and_a_click_work_in_the_palette(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    app: GputuiApp = make_app()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("ctrl+p", *"gpt2")
        await pilot.pause()
        pane = app.screen.query_one("#palette")
        line = next(y for y, text in enumerate(pane.text.split("\n")) if "Open gpt2-124m-1" in text)
        await pilot.click("#palette", offset=(6, line))
        await pilot.pause()
        assert getattr(app.screen, "run_id", None) == "gpt2-124m-1"


async def test_what_was_chosen_last_stands_first(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("ctrl+p", *"theme dark", "enter")
        await pilot.pause()
        await pilot.press("ctrl+p", *"open gpt2", "enter")
        await pilot.pause()
        await pilot.press("escape", "ctrl+p")
        lines = app.screen.query_one("#palette", Pane).text.splitlines()
        assert "Open gpt2-124m-1" in lines[2] and "Theme dark" in lines[3]
