"""What a busy screen may cost on the line: a budget in bytes for each second."""

import pytest

from gputui.tui.pages.run.page import RunScreen
from gputui.tui.widgets import pane as panes
from gputui.tui.widgets.pane import Pane
from tests.tui.conftest import MakeApp, StillFeed
from tests.tui.display_apps import Dashboard
from tests.tui.emulator import Terminal
from tests.tui.filling import Filler

TICKS = 20


@pytest.mark.parametrize(("size", "budget"), [((80, 24), 1500), ((200, 50), 2500)], ids=["80x24", "200x50"])
async def test_a_busy_dashboard_stays_within_its_bytes(
    size: tuple[int, int], budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("COLORTERM", raising=False)
    app = Dashboard()
    async with app.run_test(size=size) as pilot:
        app.terminal = Terminal(*size)
        app.repaint_terminal()
        app.tick()
        await pilot.pause(0.05)
        counters = app.display_counters
        bytes_before, frames_before = counters.bytes_written, counters.frames
        for _ in range(TICKS):
            app.tick()
            await pilot.pause(0.03)
        assert not app.problems
        assert counters.frames - frames_before >= TICKS
        per_tick = (counters.bytes_written - bytes_before) / TICKS
    assert 100 < per_tick < budget
    assert 0 < counters.last_paint_seconds < 0.5


@pytest.mark.parametrize(("size", "budget"), [((80, 24), 300), ((200, 50), 600)], ids=["80x24", "200x50"])
async def test_a_run_page_with_one_more_point_in_every_chart_writes_little(
    size: tuple[int, int], budget: int, monkeypatch: pytest.MonkeyPatch, filler: Filler, make_app: MakeApp
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(panes, "REDRAW_SECONDS", 0.0)
    filler.overnight()
    app = make_app()
    feed = app.feed
    assert isinstance(feed, StillFeed)
    async with app.run_test(size=size) as pilot:
        await pilot.press("down", "enter")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen) and app.screen.run_id == "gpt2-124m-1"
        bytes_before = app.display_counters.bytes_written
        charts = app.screen.query_one("#charts", Pane)
        step, changed = 4120, 0
        for _ in range(TICKS):
            filler.tick()
            step += 4
            filler.curve("gpt2-124m-1", 1, step, step, every=4, ranks=4)
            feed.now = filler.now
            before = charts.text
            feed.refresh()
            await pilot.pause()
            changed += charts.text != before
        assert changed > TICKS // 2
        assert 20 < (app.display_counters.bytes_written - bytes_before) / TICKS < budget
