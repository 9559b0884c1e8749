"""The palette over everything, and what a mere view may do."""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot

from gputui.core.config import Workspace
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.dialogs.palette import KINDS, PaletteScreen, best_matches, match_distance, palette_choices
from gputui.ui.tui.pages.launch.page import LaunchScreen
from gputui.ui.tui.pages.overview.page import OverviewScreen
from gputui.ui.tui.pages.study.page import StudyScreen
from tests.homes import Home
from tests.stories import overnight, search
from tests.ui.tui.conftest import MakeApp
from tests.ui.tui.screens import wait_for

SIZE = (100, 30)


async def choose(pilot: Pilot[Any], text: str) -> None:
    await pilot.press("ctrl+p")
    palette = pilot.app.screen
    assert isinstance(palette, PaletteScreen)
    await wait_for(pilot, lambda: any(choice.title == "Launch mine" for choice in palette._choices))
    palette.on_paste(type("Paste", (), {"text": text, "stop": lambda self: None})())
    await pilot.press("enter")
    await pilot.pause()


def test_beginnings_come_before_middles_and_those_before_letters() -> None:
    titles = ["Set bell: on", "The theme", "Theme dark", "Stop the run", "Themis", "Toggle heme"]
    assert best_matches(titles, "theme", lambda title: (title, "", ()))[:2] == ["Theme dark", "The theme"]
    things = [("Stop one", 1), ("Stop two", 0)]
    for typed in ("stop", ""):
        assert best_matches(things, typed, lambda thing: (thing[0], "", (thing[1],)))[0] == ("Stop two", 0)
    assert match_distance("gpt open", "Open gpt2-124m-1") == match_distance("open gpt", "Open gpt2-124m-1") is not None
    assert match_distance("running", "Open gpt2-124m-1", "running") is not None
    for typed, title, is_found in (
        ("opgt", "Open gpt2-124m-1", True), ("lrsweep", "Study lr-sweep-1", True), ("tpg", "Open gpt2-124m-1", False),
        ("metric", "Settings: theme, characters, mouse, bell", False), ("oom", "Suspend to the shell", False),
    ):  # fmt: skip
        assert (match_distance(typed, title) is not None) == is_found, typed


async def test_settings_themes_copies_and_profiles_are_found(
    home: Home, make_app: MakeApp, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    overnight(home)
    monkeypatch.chdir(workspace.profiles.parent)
    (workspace.profiles / "mine.yaml").write_text("name: mine\nlauncher: python\nscript: x.py\ngpus: 0\n")
    sequences: list[str] = []
    monkeypatch.setattr(GputuiApp, "write_sequence", lambda _, sequence: sequences.append(sequence))
    app = make_app()
    async with app.run_test(size=SIZE) as pilot:
        await choose(pilot, "theme light")
        assert app.settings.theme == "light"
        await choose(pilot, "set bell on")
        assert app.settings.bell
        await choose(pilot, "copy the run's id")
        assert "\x1b]52;c;" in sequences[-1]
        await choose(pilot, "launch mine")
        await wait_for(pilot, lambda: isinstance(app.screen, LaunchScreen))


async def test_a_study_comes_before_its_trials(home: Home, make_app: MakeApp) -> None:
    overnight(home)
    search(home)
    app = make_app()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("ctrl+p", *"search")
        palette = app.screen
        assert isinstance(palette, PaletteScreen)
        assert [choice.title for choice in palette.matches][:1] == ["Study lr-search-1"]
        assert not any("Run lr-search" in choice.title for choice in palette.matches)
        await pilot.press("ctrl+u", *"lr-search-1")
        titles = [choice.title for choice in palette.matches]
        assert titles[0] == "Study lr-search-1"
        assert titles[1].startswith("Run lr-search-1")
        await pilot.press("enter")
        await wait_for(pilot, lambda: isinstance(app.screen, StudyScreen))


async def test_studies_runs_gpus_and_pages_come_before_actions(home: Home, make_app: MakeApp) -> None:
    overnight(home)
    search(home)
    home.quarantine(4, "XID 48")
    home.run("big-1", "queued", gpus=(0, 1), started_ago=None)
    app = make_app()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("ctrl+p")
        palette = app.screen
        assert isinstance(palette, PaletteScreen)
        await wait_for(pilot, lambda: any(choice.kind == "profile" for choice in palette.matches))
        kinds = [KINDS.index(choice.kind) for choice in palette.matches]
        assert kinds == sorted(kinds)
        assert set(kinds) == set(range(len(KINDS)))
        users = [choice.hint for choice in palette.matches if choice.kind == "GPU"]
        assert "quarantine" in users[4]
        assert not any("promised" in user for user in users)


async def test_an_action_that_does_nothing_with_the_marked_runs_is_not_offered(home: Home, make_app: MakeApp) -> None:
    overnight(home)
    home.run("old-1", "failed", ended_ago=5.0)
    app = make_app()
    async with app.run_test(size=SIZE) as pilot:
        table = app.screen
        assert isinstance(table, OverviewScreen)
        assert "Stop the run after a checkpoint" in {choice.title for choice in palette_choices(table)}
        table.point_at("old-1")
        await pilot.press("space")
        titles = {choice.title for choice in palette_choices(table)}
        assert "Stop the run after a checkpoint" not in titles
        assert "Remove the run" in titles
