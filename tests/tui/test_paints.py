"""How often the screen is drawn: once for a key, and not at all where nothing has changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from gputui.tui.app import GputuiApp, SnapshotRead
from gputui.tui.pages.alerts.page import AlertsScreen
from gputui.tui.pages.gpu.page import GpuScreen
from gputui.tui.pages.overview.page import OverviewScreen
from gputui.tui.pages.processes.page import ProcessesScreen
from gputui.tui.pages.run.page import RunScreen
from gputui.tui.terminal.layer import DisplayLayer
from tests.tui.conftest import MakeApp
from tests.tui.filling import Filler


@dataclass
class Counted:
    """Pages that were drawn, and updates that were composed for the terminal."""

    drawn: list[str] = field(default_factory=list)
    composed: int = 0

    def clear(self) -> None:
        self.drawn.clear()
        self.composed = 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counts = Counted()

    def count_draws(page: Any) -> None:
        draw = page.draw

        def counting(screen: Any, width: int, height: int) -> None:
            counts.drawn.append(page.__name__)
            draw(screen, width, height)

        monkeypatch.setattr(page, "draw", counting)

    for page in (OverviewScreen, RunScreen, GpuScreen, ProcessesScreen, AlertsScreen):
        count_draws(page)
    display = DisplayLayer._display

    def counting_display(app: GputuiApp, screen: Any, update: Any) -> None:
        counts.composed += 1
        display(app, screen, update)

    monkeypatch.setattr(DisplayLayer, "_display", counting_display)
    return counts


async def settled(pilot: Pilot[Any]) -> None:
    for _ in range(3):
        await pilot.pause()


@pytest.mark.parametrize(
    ("opening", "page", "keys"),
    [
        ((), "OverviewScreen", ("down", "up", "pagedown", "end", "tab", "down", "tab", "up", "space", "o")),
        ((), "OverviewScreen", ("slash", "v", "down", "backspace", "escape")),
        (("enter",), "RunScreen", ("tab", "2", "down", "3", "down", "5")),
        (("i",), "GpuScreen", ("down", "up")),
        (("p",), "ProcessesScreen", ("down", "up", "o")),
        (("exclamation_mark",), "AlertsScreen", ("down", "up")),
    ],
)
async def test_a_key_draws_the_page_once(
    filler: Filler, make_app: MakeApp, counted: Counted, opening: Sequence[str], page: str, keys: Sequence[str]
) -> None:
    filler.overnight()
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press(*opening)
        await settled(pilot)
        for key in keys:
            counted.clear()
            await pilot.press(key)
            await settled(pilot)
            assert counted.drawn == [page], key


@pytest.mark.parametrize("opening", [(), ("i",), ("p",), ("exclamation_mark",)])
async def test_a_step_of_the_cursor_is_composed_once(
    filler: Filler, make_app: MakeApp, counted: Counted, opening: Sequence[str]
) -> None:
    filler.overnight()
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press(*opening)
        await settled(pilot)
        for key in ("down", "up"):
            counted.clear()
            await pilot.press(key)
            await settled(pilot)
            assert counted.composed <= 1, key


async def test_a_snapshot_in_which_nothing_has_changed_paints_nothing(
    filler: Filler, make_app: MakeApp, counted: Counted
) -> None:
    filler.overnight()
    app = make_app()
    async with app.run_test(size=(160, 48)) as pilot:
        await settled(pilot)
        counted.clear()
        app.post_message(SnapshotRead(replace(app.snapshot)))
        await settled(pilot)
        assert counted.drawn == ["OverviewScreen"]
        assert counted.composed == 0
