"""The choice of a study to start: the files, their plans, and the start after a question."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.pages.study.choose import ChooseStudyScreen
from tests.homes import Home
from tests.ui.tui.screens import commands_of, text, wait_for

STUDY = """\
profile: tiny
space: {steps: [5, 10, 20]}
objective: {metric: loss, direction: minimize}
sampler: grid
"""


@pytest.fixture
def files(profile: Path) -> Path:
    folder = profile.parent.parent / "studies"
    folder.mkdir(exist_ok=True)
    (folder / "lengths.yaml").write_text(STUDY)
    (folder / "broken.yaml").write_text(STUDY.replace("profile: tiny", "profile: none-such"))
    return folder


def choosing(app: GputuiApp) -> ChooseStudyScreen:
    assert isinstance(app.screen, ChooseStudyScreen)
    return app.screen


async def test_a_study_is_started_from_its_file(home: Home, app: GputuiApp, files: Path) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("S", "ctrl+n", *"length")
        await wait_for(pilot, lambda: choosing(app).rows is not None)
        current = choosing(app).current
        assert current is not None
        assert (current.name, current.profile) == ("lengths", "tiny")
        await wait_for(pilot, lambda: "3 trials of tiny" in text(app, "detail"))
        assert "steps=5" in text(app, "detail")
        await pilot.press("enter", "y")
        await wait_for(pilot, lambda: bool(commands_of(home)))
        verb, _, args = commands_of(home)[0]
        assert verb == "study"
        assert args["spec"]["name"] == "lengths"
        assert args["source"] == STUDY


async def test_a_broken_file_says_what_is_wrong_and_is_not_started(home: Home, app: GputuiApp, files: Path) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("ctrl+n", *"broken")
        await wait_for(pilot, lambda: choosing(app).rows is not None)
        current = choosing(app).current
        assert current is not None
        assert "none-such" in current.problem
        await pilot.press("enter")
        await wait_for(pilot, lambda: "none-such" in text(app, "message"))
        assert choosing(app)
        assert commands_of(home) == []
