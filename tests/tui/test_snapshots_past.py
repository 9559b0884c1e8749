"""Pictures of looking back, and of what is said when something is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from gputui.tui.app import GputuiApp
from gputui.tui.data.snapshot import Moment
from tests.tui.conftest import MakeApp
from tests.tui.filling import NOW, Filler

SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 50)], ids=["80x24", "120x36", "200x50"])
Compare = Callable[..., bool]


@pytest.fixture
def app(filler: Filler, make_app: MakeApp) -> GputuiApp:
    filler.overnight()
    filler.history(1500, every=10)
    return make_app()


@SIZES
def test_the_overview_of_a_past_moment(snap_compare: Compare, app: GputuiApp, size: tuple[int, int]) -> None:
    assert snap_compare(app, press=["left_square_bracket", "left_square_bracket"], terminal_size=size)


@SIZES
def test_a_run_at_a_past_moment(snap_compare: Compare, app: GputuiApp, size: tuple[int, int]) -> None:
    async def open_it(pilot: Pilot[Any]) -> None:
        await pilot.press("enter")
        app.look_back(Moment(NOW - 700))
        await pilot.pause()

    assert snap_compare(app, run_before=open_it, terminal_size=size)


def test_a_moment_without_a_recording(snap_compare: Compare, filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    for table in ("host_samples", "gpu_samples"):
        filler.connection.execute(f"DELETE FROM {table} WHERE at > ? AND at < ?", (NOW - 300, NOW - 100))
    app = make_app()

    async def go(pilot: Pilot[Any]) -> None:
        app.look_back(Moment(NOW - 200))
        await pilot.pause()

    assert snap_compare(app, run_before=go, terminal_size=(80, 24))


def test_typing_a_time(snap_compare: Compare, app: GputuiApp) -> None:
    assert snap_compare(app, press=["t", *"3:05"], terminal_size=(80, 24))
