"""Keys that come in one burst, as a slow line or a paste delivers them, do what they do one by one."""

from __future__ import annotations

from typing import Any

from textual import events
from textual.pilot import Pilot

from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.dialogs.palette import PaletteScreen
from gputui.ui.tui.dialogs.questions import FormScreen
from tests.ui.tui.screens import overview, wait_for

SIZE = (120, 36)
NAMED = {"/": "slash", "?": "question_mark", ":": "colon"}


def burst(app: GputuiApp, *keys: str) -> None:
    """Hand the app all keys before it has dealt with the first; one of a single character types it."""
    for key in keys:
        app.post_message(events.Key(NAMED.get(key, key), key if len(key) == 1 else None))


async def typed_into(
    pilot: Pilot[Any], app: GputuiApp, key: str, kind: type[FormScreen[float]] | type[PaletteScreen]
) -> str:
    """The text of a dialog after one burst behind the key that opens it."""
    burst(app, key, *"1930")

    def text() -> str:
        assert isinstance(app.screen, kind)
        return app.screen.edits[0].text

    await wait_for(pilot, lambda: isinstance(app.screen, kind) and len(text()) >= 4)
    return text()


async def test_a_dialog_takes_what_follows_the_key_that_opens_it(app: GputuiApp) -> None:
    async with app.run_test(size=SIZE) as pilot:
        for key, kind in (("t", FormScreen), ("ctrl+p", PaletteScreen)):
            assert await typed_into(pilot, app, key, kind) == "1930"
            await pilot.press("escape")
        burst(app, "t", "escape", "/", *"abc")
        await wait_for(pilot, lambda: overview(app).table.filter_text == "abc")
