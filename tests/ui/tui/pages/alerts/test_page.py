"""The strip and the page of alerts: what they show, every key, and looking back."""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot

from gputui.store import alerts
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.data.snapshot import AlertsState
from gputui.ui.tui.dialogs.questions import FormScreen
from gputui.ui.tui.layout.strips import alert_strip
from gputui.ui.tui.pages.alerts.page import AlertsScreen
from gputui.ui.tui.pages.overview.page import OverviewScreen
from tests.texts import mentions
from tests.ui.tui.conftest import MakeApp
from tests.ui.tui.filling import NOW, Filler
from tests.ui.tui.test_screens import SMALL, asked, text, until


@pytest.fixture
def app(filler: Filler, make_app: MakeApp) -> GputuiApp:
    filler.overnight()
    filler.bad_night()
    return make_app()


async def opened(pilot: Pilot[Any], app: GputuiApp) -> AlertsScreen:
    await pilot.press("exclamation_mark")
    await pilot.pause()
    assert isinstance(app.screen, AlertsScreen)
    return app.screen


def test_there_is_a_strip_only_with_news(filler: Filler) -> None:
    def strip(now: float = NOW) -> object:
        return alert_strip(AlertsState(tuple(alerts.lasting(filler.connection))), now, 80)

    filler.alert("disk", "The disk is full", acknowledged_by="me")
    filler.alert("shm", "/dev/shm is full", silenced_for=60.0)
    filler.alert("gpu_hot", "GPU 3 is hot", cleared_ago=5.0)
    assert strip() is None
    assert strip(NOW + 61) is not None, "the silence is over"


# --- the page


async def test_new_ones_first_then_what_is_seen_then_what_is_over(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        page = await opened(pilot, app)
        shown = "disk gpu_hot data_wait xid_hardware gpu_parked slow_steps shm gradient_norm"
        assert [one.rule for one in page.listing.rows] == shown.split()
        await pilot.press("o")
        assert [one.rule for one in page.listing.rows][:3] == ["gpu_hot", "data_wait", "xid_hardware"]
        await pilot.press("o", "escape")
        assert isinstance(app.screen, OverviewScreen)


async def test_acknowledging_asks_the_agent(app: GputuiApp, filler: Filler) -> None:
    async with app.run_test(size=SMALL) as pilot:
        page = await opened(pilot, app)
        disk = page.current
        assert disk is not None
        await pilot.press("a")
        await until(pilot, lambda: len(asked(filler)) == 1)
        assert asked(filler) == [("alert_ack", None, {"ids": [disk.alert_id]})]
        assert page.current != disk, "the next one is under the cursor"
        await pilot.press("space", "A")
        await until(pilot, lambda: len(asked(filler)) == 3)
        assert ("alert_ack", None, {"ids": None}) in asked(filler)
        await pilot.press("j", "a")
        assert mentions(text(app, "message"), "me ", "acknowledged")
        await pilot.press("G", "a")
        assert "resolved" in text(app, "message")


async def test_silencing_asks_for_how_long(app: GputuiApp, filler: Filler) -> None:
    async with app.run_test(size=SMALL) as pilot:
        page = await opened(pilot, app)
        await pilot.press("j", "z")
        assert isinstance(app.screen, FormScreen)
        assert "GPU hot for GPU 3" in text(app, "form") and "until 04:12:44 (1 h)" in text(app, "form")
        await pilot.press("ctrl+u", "s", "o", "o", "n", "enter")
        assert "a time such as 30min" in text(app, "form")
        await pilot.press("ctrl+u", "2", "h", "tab")
        assert "GPU hot everywhere" in text(app, "form")
        await pilot.press("enter")
        await until(pilot, lambda: len(asked(filler)) == 1)
        assert asked(filler) == [("alert_silence", None, {"seconds": 7200.0, "rule": "gpu_hot"})]
        await pilot.press("z", "enter")
        await until(pilot, lambda: len(asked(filler)) == 2)
        alert = page.current
        assert alert is not None
        assert asked(filler)[1] == ("alert_silence", None, {"seconds": 3600.0, "id": alert.alert_id})
        await pilot.press("z", "escape")
        assert len(asked(filler)) == 2


def test_looking_back_does_not_know_what_came_later(filler: Filler) -> None:
    from gputui.ui.tui.data.machine import read_alerts

    filler.alert("disk", "The disk is full", seconds_ago=700, cleared_ago=100, acknowledged_by="me")
    then = read_alerts(filler.connection, True, NOW - 660)
    assert [one.lasts for one in then.last] == [True] and then.over == ()
    assert then.last[0].acknowledged_by is None
    seen = read_alerts(filler.connection, True, NOW - 600)
    assert seen.last[0].acknowledged_by == "me"
    after = read_alerts(filler.connection, True, NOW - 50)
    assert after.last == () and len(after.over) == 1
