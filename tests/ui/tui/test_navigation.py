"""Going from page to page: none is twice on the stack, and escape leads back."""

from __future__ import annotations

from textual.screen import Screen

from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.pages.compare.page import CompareScreen
from gputui.ui.tui.pages.gpu.page import GpuScreen
from gputui.ui.tui.pages.overview.page import OverviewScreen
from gputui.ui.tui.pages.processes.page import ProcessesScreen
from gputui.ui.tui.pages.run.page import RunScreen
from tests.homes import uuid
from tests.ui.tui.screens import press, text

MIDDLE = (120, 36)


def stack(app: GputuiApp) -> list[type[Screen[object]]]:
    return [type(screen) for screen in app.screen_stack]


async def test_each_kind_of_page_lies_on_the_stack_once(app: GputuiApp) -> None:
    async with app.run_test(size=MIDDLE) as pilot:
        await press(pilot, "c", "enter", "p", "exclamation_mark", "p")
        assert stack(app) == [OverviewScreen, CompareScreen, RunScreen, ProcessesScreen]
        await press(pilot, "exclamation_mark", "escape")
        app.open_gpu(uuid(2))
        await pilot.pause()
        await press(pilot, "p")
        assert stack(app) == [OverviewScreen, CompareScreen, RunScreen, ProcessesScreen]
        page = app.screen
        assert isinstance(page, ProcessesScreen)
        assert page.table.grouping == "gpu"
        assert page.current is not None
        assert 2 in page.current.gpus
        app.open_gpu(uuid(2))
        await pilot.pause()
        app.open_gpu(uuid(3))
        await pilot.pause()
        assert stack(app)[3:] == [ProcessesScreen, GpuScreen]
        assert "GPU 3" in text(app, "head")
        assert app.feed.interest.gpu_uuid == uuid(3)
        for depth in (4, 3, 2, 1):
            await press(pilot, "escape")
            assert len(app.screen_stack) == depth
