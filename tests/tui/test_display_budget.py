"""What a busy screen may cost on the line: a budget in bytes for each second."""

import pytest

from tests.tui.display_apps import Dashboard
from tests.tui.terminal import Terminal

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
