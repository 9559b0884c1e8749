"""The form for a run's labels, and where they are shown."""

from __future__ import annotations

from gputui.runs.labels import Labels, store_labels
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.dialogs.questions import FormScreen
from tests.homes import Home
from tests.stories import overnight
from tests.ui.tui.conftest import MakeApp
from tests.ui.tui.screens import SMALL, commands_of, wait_for


async def test_the_form_can_change_all_three(home: Home, app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("d")
        assert isinstance(app.screen, FormScreen)
        await pilot.press(*"base old", "tab", *"try", "space", "2", "tab", "ctrl+u", "enter")
        assert isinstance(app.screen, FormScreen)  # without a name there is nothing to save
        await pilot.press(*"best", "enter")
        await wait_for(pilot, lambda: bool(commands_of(home)))
        (command,) = commands_of(home)
        assert command[0] == "label"
        assert command[2] == {"name": "best", "add": ["base", "old"], "note": "try 2"}


async def test_the_form_leaves_alone_what_it_does_not_change(home: Home, make_app: MakeApp) -> None:
    """A tag that somebody added after it opened stays."""
    overnight(home)
    store_labels(home.connection, "vit-b16-1", Labels("vit-b16", ("base", "old"), "try 2"))
    app = make_app()
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("d", "enter")
        assert commands_of(home) == []
        await pilot.press("d", "ctrl+u", *"new", "space", *"base", "enter")
        await wait_for(pilot, lambda: len(commands_of(home)) == 1)
        await pilot.press("d", "shift+tab", "shift+tab", "ctrl+u", "enter")
        await wait_for(pilot, lambda: len(commands_of(home)) == 2)
        assert [args for _, _, args in commands_of(home)] == [{"add": ["new"], "remove": ["old"]}, {"note": ""}]
