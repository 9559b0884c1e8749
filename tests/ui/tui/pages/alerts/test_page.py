"""The strip and the page of alerts: what they show, every key, and looking back."""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot

from gputui.store import alerts
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.dialogs.questions import FormScreen
from gputui.ui.tui.layout.strips import alert_strip, alert_words
from gputui.ui.tui.pages.alerts.page import AlertsScreen
from gputui.ui.tui.pages.overview.page import OverviewScreen
from gputui.ui.views.snapshot import Snapshot
from tests.homes import NOW, Home, uuid
from tests.stories import bad_night, overnight
from tests.texts import mentions
from tests.ui.tui.conftest import MakeApp, StillFeed
from tests.ui.tui.screens import SMALL, commands_of, text, wait_for


@pytest.fixture
def app(home: Home, make_app: MakeApp) -> GputuiApp:
    overnight(home)
    bad_night(home)
    return make_app()


async def open_alerts(pilot: Pilot[Any], app: GputuiApp) -> AlertsScreen:
    await pilot.press("exclamation_mark")
    await pilot.pause()
    assert isinstance(app.screen, AlertsScreen)
    return app.screen


def test_there_is_a_strip_only_with_news(home: Home) -> None:
    def strip(now: float = NOW) -> object:
        return alert_strip(Snapshot(now, alerts=tuple(alerts.lasting(home.connection))), 80)

    home.alert("disk", "The disk is full", acknowledged_by="me")
    home.alert("shm", "/dev/shm is full", silenced_for=60.0)
    home.alert("gpu_hot", "GPU 3 is hot", cleared_ago=5.0)
    assert strip() is None
    assert strip(NOW + 61) is not None, "the silence is over"


@pytest.mark.parametrize(
    ("rule", "value", "limit", "now", "phrase"),
    [
        ("gpu_hot", 84.0, 82.0, {"temperature": 85}, "GPU 2 at 85 °C (limit 82 °C); throttles at 87 °C"),
        ("gpu_hot", 84.0, 82.0, {"temperature": 81}, "GPU 2 was 84 °C, now 81 °C (limit 82 °C)"),
        ("gpu_hot", 84.0, 82.0, {"temperature": 78}, "GPU 2 was 84 °C, now 78 °C (limit 82 °C), clearing"),
        ("gpu_hot", 84.0, 82.0, {"temperature": None}, "GPU 2 at 84 °C (limit 82 °C); throttles at 87 °C"),
        ("gpu_memory", 97.0, 95.0, {"memory_gib": 78.4}, "GPU 2 memory 98 % used (limit 95 %)"),
        ("gpu_memory", 97.0, 95.0, {"memory_gib": 8.0}, "GPU 2 memory was 97 %, now 10 % (limit 95 %), clearing"),
        ("gpu_throttled", 40.0, 20.0, {}, "GPU 2 was throttled for 40 % of the last minute"),
    ],
)
def test_an_alert_tells_the_value_of_the_frame(
    home: Home, rule: str, value: float, limit: float, now: dict[str, Any], phrase: str
) -> None:
    raised = {
        "gpu_hot": "GPU 2 at 84 °C (limit 82 °C); throttles at 87 °C",
        "gpu_memory": "GPU 2 memory 97 % used (limit 95 %)",
        "gpu_throttled": "GPU 2 was throttled for 40 % of the last minute",
    }
    home.agent()
    home.gpus(3)
    home.sample(2, **now)
    home.alert(rule, raised[rule], subject="GPU 2", subject_id=uuid(2), value=value, threshold=limit)
    snapshot = StillFeed(home.workspace).read()
    [alert] = snapshot.alerts
    assert alert_words(alert, snapshot) == phrase
    strip = alert_strip(snapshot, 120)
    assert strip is not None
    since = ", since 03:00:44" if rule == "gpu_throttled" or now.get("temperature", 0) is None else ""
    assert f"1 warning  {phrase}{since}  " in "".join(part for part, _ in strip)


def test_the_alerts_of_the_host_follow_its_values_and_are_past_when_over(home: Home) -> None:
    home.agent()
    home.host()
    home.alert("disk", "State disk 96 % full (limit 95 %)", value=96.0, threshold=95.0)
    home.alert("shm", "/dev/shm 93 % full (limit 90 %)", cleared_ago=60.0, value=93.0, threshold=90.0)
    snapshot = StillFeed(home.workspace).read()
    [disk] = snapshot.alerts
    assert alert_words(disk, snapshot) == "State disk was 96 %, now 71 % (limit 95 %), clearing"
    [shm] = alerts.cleared(home.connection, 1)
    assert alert_words(shm, snapshot) == "/dev/shm was 93 % (limit 90 %)"


# --- the page


async def test_new_ones_first_then_what_is_seen_then_what_is_over(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        page = await open_alerts(pilot, app)
        rules = "disk gpu_hot data_wait xid_hardware gpu_parked slow_steps shm gradient_norm"
        assert [row.rule for row in page.listing.rows] == rules.split()
        await pilot.press("o")
        assert [row.rule for row in page.listing.rows][:3] == ["gpu_hot", "data_wait", "xid_hardware"]
        await pilot.press("o", "escape")
        assert isinstance(app.screen, OverviewScreen)


async def test_acknowledging_asks_the_agent(app: GputuiApp, home: Home) -> None:
    async with app.run_test(size=SMALL) as pilot:
        page = await open_alerts(pilot, app)
        disk = page.current
        assert disk is not None
        await pilot.press("a")
        await wait_for(pilot, lambda: len(commands_of(home)) == 1)
        assert commands_of(home) == [("alert_ack", None, {"ids": [disk.alert_id]})]
        assert page.current != disk, "the next one is under the cursor"
        await pilot.press("space", "A")
        await wait_for(pilot, lambda: len(commands_of(home)) == 3)
        assert ("alert_ack", None, {"ids": None}) in commands_of(home)
        await pilot.press("j", "a")
        assert mentions(text(app, "message"), "me ", "acknowledged")
        await pilot.press("G", "a")
        assert "resolved" in text(app, "message")


async def test_silencing_asks_for_how_long(app: GputuiApp, home: Home) -> None:
    async with app.run_test(size=SMALL) as pilot:
        page = await open_alerts(pilot, app)
        await pilot.press("j", "z")
        assert isinstance(app.screen, FormScreen)
        assert "GPU hot for GPU 3" in text(app, "form")
        assert "until 04:12:44 (1 h)" in text(app, "form")
        await pilot.press("ctrl+u", "s", "o", "o", "n", "enter")
        assert "30min" in text(app, "form")
        await pilot.press("ctrl+u", "2", "h", "tab")
        assert "GPU hot everywhere" in text(app, "form")
        await pilot.press("enter")
        await wait_for(pilot, lambda: len(commands_of(home)) == 1)
        assert commands_of(home) == [("alert_silence", None, {"seconds": 7200.0, "rule": "gpu_hot"})]
        await pilot.press("z", "enter")
        await wait_for(pilot, lambda: len(commands_of(home)) == 2)
        alert = page.current
        assert alert is not None
        assert commands_of(home)[1] == ("alert_silence", None, {"seconds": 3600.0, "id": alert.alert_id})
        await pilot.press("z", "escape")
        assert len(commands_of(home)) == 2


def test_looking_back_does_not_know_what_came_later(home: Home) -> None:
    from gputui.ui.tui.data.machine import resolved_alerts

    home.alert("disk", "The disk is full", seconds_ago=700, cleared_ago=100, acknowledged_by="me")
    [alert] = alerts.lasting(home.connection, NOW - 660)
    assert alert.lasts
    assert alert.acknowledged_by is None
    assert resolved_alerts(home.connection, NOW - 660) == ()
    [alert] = alerts.lasting(home.connection, NOW - 600)
    assert alert.acknowledged_by == "me"
    assert alerts.lasting(home.connection, NOW - 50) == []
    assert len(resolved_alerts(home.connection, NOW - 50)) == 1
