"""The strip and the page of alerts: what they show, every key, and looking back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from gputui.store import alerts
from gputui.tui.app import GputuiApp
from gputui.tui.data.snapshot import AlertsState
from gputui.tui.dialogs.silence import SilenceScreen
from gputui.tui.layout.alerts import AlertsTable, alert_strip, row_of, shown_alerts, table_lines
from gputui.tui.pages.alerts.page import AlertsScreen
from gputui.tui.pages.overview.page import OverviewScreen
from gputui.tui.pages.run.page import RunScreen
from gputui.tui.widgets.pane import Pane
from tests.texts import mentions
from tests.tui.conftest import MakeApp, StillFeed
from tests.tui.filling import NOW, Filler
from tests.tui.test_screens import asked, text, until

SMALL = (80, 24)


@pytest.fixture
def app(filler: Filler, make_app: MakeApp) -> GputuiApp:
    filler.overnight()
    filler.bad_night()
    return make_app()


def page(app: GputuiApp) -> AlertsScreen:
    assert isinstance(app.screen, AlertsScreen)
    return app.screen


def rules_shown(app: GputuiApp) -> list[str]:
    return [one.rule for one in page(app).shown]


def plain(lines: list[Any]) -> list[str]:
    return ["".join(part for part, _ in line).rstrip() for line in lines]


# --- the strip


async def test_the_strip_counts_and_names_the_worst(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        strip = text(app, "alerts")
        assert "✗ 1 error  ▲ 2 warnings  State disk 96 % full" in strip
        assert "2 acked or silenced" in strip and "! alerts" in strip
        assert sum(pane.size.height for pane in app.screen.query(Pane)) == 36
        await pilot.click("#alerts")
        assert isinstance(app.screen, AlertsScreen)


async def test_there_is_no_strip_without_news(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    filler.alert("disk", "The disk is full", acknowledged_by="me")
    filler.alert("shm", "/dev/shm is full", silenced_for=60.0)
    filler.alert("gpu_hot", "GPU 3 is hot", cleared_ago=5.0)
    app = make_app()
    async with app.run_test(size=SMALL):
        assert text(app, "alerts") == ""
        assert app.screen.query_one("#alerts", Pane).size.height == 0


def test_a_silence_that_is_over_makes_news_again(filler: Filler) -> None:
    filler.alert("disk", "The disk is full", silenced_for=60.0)
    state = AlertsState(tuple(alerts.lasting(filler.connection)))
    assert alert_strip(state, NOW, 80) is None
    assert alert_strip(state, NOW + 61, 80) is not None


# --- the page


async def test_new_ones_first_then_what_is_seen_then_what_is_over(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("exclamation_mark")
        await pilot.pause()
        assert rules_shown(app) == [
            "disk", "gpu_hot", "data_wait", "xid_hardware", "gpu_parked", "slow_steps", "shm", "gradient_norm"
        ]  # fmt: skip
        shown = text(app, "alerts")
        assert "▸✗ 02:47:44  25 min      new      State disk" in shown
        assert "silenced GPU 5" in shown and "acked    GPU 7" in shown and " RESOLVED " in shown
        assert mentions(text(app, "detail"), "To do: ")
        assert sum(pane.size.height for pane in app.screen.query(Pane)) == 24
        await pilot.press("o")
        assert rules_shown(app)[:3] == ["gpu_hot", "data_wait", "xid_hardware"]
        await pilot.press("o", "escape")
        assert isinstance(app.screen, OverviewScreen)


async def test_the_cursor_moves_and_tells_of_its_alert(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("exclamation_mark")
        await pilot.pause()
        for key, rule in (
            ("j", "gpu_hot"), ("down", "data_wait"), ("k", "gpu_hot"), ("up", "disk"), ("up", "disk"),
            ("G", "gradient_norm"), ("j", "gradient_norm"), ("g", "disk"), ("end", "gradient_norm"), ("home", "disk"),
            ("pagedown", "gradient_norm"), ("pageup", "disk"),
        ):  # fmt: skip
            await pilot.press(key)
            alert = page(app).alert
            assert alert is not None and alert.rule == rule, key
        await pilot.press("j", "j", "j")
        assert mentions(text(app, "detail"), "by me", "03:03:11", "vit-b16-1")


async def test_many_alerts_scroll_under_the_cursor(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    for number in range(40):
        filler.alert("shm", f"number {number}", seconds_ago=9000 + number, cleared_ago=8000 + number)
    app = make_app()
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("exclamation_mark")
        await pilot.pause()
        assert "No active alerts" in text(app, "alerts")
        await pilot.press("G")
        assert "number 39" in text(app, "alerts") and "number 0" not in text(app, "alerts")


async def test_the_filter_takes_keys_as_text(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("exclamation_mark")
        await pilot.pause()
        await pilot.press("slash", "v", "i", "t")
        assert rules_shown(app) == ["xid_hardware", "slow_steps", "gradient_norm"]
        await pilot.press("space", *"norm", "enter")
        assert rules_shown(app) == ["gradient_norm"]
        await pilot.press("escape")
        assert len(rules_shown(app)) == 8 and isinstance(app.screen, AlertsScreen)
        await pilot.press("slash", "q", "q", "escape", "escape")
        assert isinstance(app.screen, OverviewScreen)


async def test_acknowledging_asks_the_agent(app: GputuiApp, filler: Filler) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("exclamation_mark")
        await pilot.pause()
        disk = page(app).alert
        assert disk is not None
        await pilot.press("a")
        await until(pilot, lambda: len(asked(filler)) == 1)
        assert asked(filler) == [("alert_ack", None, {"ids": [disk.alert_id]})]
        assert page(app).alert != disk, "the next one is under the cursor"
        await pilot.press("space", "A")
        await until(pilot, lambda: len(asked(filler)) == 3)
        assert ("alert_ack", None, {"ids": None}) in asked(filler)
        await pilot.press("j", "a")
        assert mentions(text(app, "message"), "me ", "acknowledged")
        await pilot.press("G", "a")
        assert "This alert is resolved." in text(app, "message")


async def test_what_the_agent_says_is_shown(app: GputuiApp, filler: Filler) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("exclamation_mark")
        await pilot.pause()
        await pilot.press("a")
        await until(pilot, lambda: len(asked(filler)) == 1)
        alerts.acknowledge(filler.connection, 1, now=NOW, actor="me")
        filler.connection.execute(
            "UPDATE commands SET state = 'done', result = ?", ('{"ids": [1], "text": "The disk … acknowledged"}',)
        )
        feed = app.feed
        assert isinstance(feed, StillFeed)

        def is_said() -> bool:
            feed.refresh()
            return "The disk … acknowledged" in text(app, "message")

        await until(pilot, is_said)
        assert "acked    State disk" in text(app, "alerts")


async def test_silencing_asks_for_how_long(app: GputuiApp, filler: Filler) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("exclamation_mark")
        await pilot.pause()
        await pilot.press("j", "z")
        assert isinstance(app.screen, SilenceScreen)
        assert "GPU hot for GPU 3" in text(app, "silence") and "until 04:12:44 (1 h)" in text(app, "silence")
        await pilot.press("ctrl+u", "s", "o", "o", "n", "enter")
        assert "a time such as 30min" in text(app, "silence")
        await pilot.press("ctrl+u", "2", "h", "tab")
        assert "GPU hot everywhere" in text(app, "silence")
        await pilot.press("enter")
        await until(pilot, lambda: len(asked(filler)) == 1)
        assert asked(filler) == [("alert_silence", None, {"seconds": 7200.0, "rule": "gpu_hot"})]
        await pilot.press("z", "enter")
        await until(pilot, lambda: len(asked(filler)) == 2)
        alert = page(app).alert
        assert alert is not None
        assert asked(filler)[1] == ("alert_silence", None, {"seconds": 3600.0, "id": alert.alert_id})
        await pilot.press("z", "escape")
        assert len(asked(filler)) == 2


async def test_a_read_only_view_changes_nothing(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    filler.bad_night()
    app = make_app(readonly=True)
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("exclamation_mark")
        await pilot.pause()
        for key in ("a", "A", "z"):
            await pilot.press(key)
            assert "read only" in text(app, "message"), key
        assert asked(filler) == []


async def test_the_run_and_back(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("exclamation_mark")
        await pilot.pause()
        await pilot.press("enter")
        assert "concerns no run" in text(app, "message")
        await pilot.press("j", "enter")
        assert isinstance(app.screen, RunScreen) and app.screen.run_id == "gpt2-124m-1"
        await pilot.pause()
        await pilot.press("exclamation_mark")
        assert isinstance(app.screen, AlertsScreen)
        assert sum(isinstance(screen, AlertsScreen) for screen in app.screen_stack) == 1
        await pilot.pause()
        assert len(rules_shown(app)) == 8, "the history is there again"


async def test_the_moment_of_an_alert(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("exclamation_mark")
        await pilot.pause()
        await pilot.press("j", "j", "t")
        await pilot.pause()
        assert isinstance(app.screen, OverviewScreen)
        assert app.snapshot.past is not None and app.snapshot.at == NOW - 412
        last = {one.rule for one in app.snapshot.alerts.last}
        assert last == {"disk", "xid_hardware", "data_wait", "gpu_parked"}, "the GPU got hot later"
        await pilot.press("exclamation_mark")
        await pilot.pause()
        await pilot.press("a")
        assert mentions(text(app, "message"), "present")
        await pilot.press("L")
        await pilot.pause()
        assert app.snapshot.past is None and "gpu_hot" in rules_shown(app)


def test_looking_back_does_not_know_what_came_later(filler: Filler) -> None:
    from gputui.tui.data.machine import read_alerts

    filler.alert("disk", "The disk is full", seconds_ago=700, cleared_ago=100, acknowledged_by="me")
    then = read_alerts(filler.connection, True, NOW - 660)
    assert [one.lasts for one in then.last] == [True] and then.over == ()
    assert then.last[0].acknowledged_by is None
    seen = read_alerts(filler.connection, True, NOW - 600)
    assert seen.last[0].acknowledged_by == "me"
    after = read_alerts(filler.connection, True, NOW - 50)
    assert after.last == () and len(after.over) == 1


async def test_a_click_chooses(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("exclamation_mark")
        await pilot.pause()
        await pilot.click("#alerts", offset=(20, 3))
        alert = page(app).alert
        assert alert is not None and alert.rule == "data_wait"


def test_every_line_of_the_table_leads_to_its_alert(filler: Filler) -> None:
    filler.bad_night()
    state = AlertsState(tuple(alerts.lasting(filler.connection)), tuple(alerts.cleared(filler.connection, 50)))
    listed = shown_alerts(state, AlertsTable(), NOW)
    assert len(listed) == 8
    for top in range(8):
        table = AlertsTable(top=top)
        lines = plain(table_lines(listed, table, NOW, 200, 40))
        for y, line in enumerate(lines):
            found = row_of(listed, table, y)
            is_heading = y == 0 or line.startswith(" RESOLVED")
            assert (found is None) == is_heading, (top, y, line)
            assert found is None or found.sentence in line


async def test_text_from_outside_is_harmless(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    filler.alert("gpu_parked", "GPU 5 has 22 GiB held by \x1b]0;owned\x07evil [bold]\u202e", subject="GPU 5")
    app = make_app()
    async with app.run_test(size=SMALL) as pilot:
        assert "\x1b" not in text(app, "alerts") and "\u202e" not in text(app, "alerts")
        await pilot.press("exclamation_mark")
        await pilot.pause()
        assert "\x1b" not in text(app, "alerts") and "[bold]" in text(app, "alerts")


Compare = Callable[..., bool]
SIZES = pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=["80x24", "200x50"])


@SIZES
def test_picture_of_the_page(snap_compare: Compare, app: GputuiApp, size: tuple[int, int]) -> None:
    async def open_it(pilot: Pilot[Any]) -> None:
        await pilot.press("exclamation_mark")
        await pilot.pause()

    assert snap_compare(app, run_before=open_it, terminal_size=size)


@SIZES
def test_picture_of_the_strip(snap_compare: Compare, app: GputuiApp, size: tuple[int, int]) -> None:
    assert snap_compare(app, terminal_size=size)


def test_picture_of_silencing(snap_compare: Compare, app: GputuiApp) -> None:
    async def open_it(pilot: Pilot[Any]) -> None:
        await pilot.press("exclamation_mark")
        await pilot.pause()
        await pilot.press("z")

    assert snap_compare(app, run_before=open_it, terminal_size=(80, 24))


def test_the_page_opens_fast_with_a_long_history(filler: Filler) -> None:
    for number in range(5000):
        filler.alert("shm", f"number {number}", seconds_ago=9000.0 + number, cleared_ago=8000.0 + number)
    began = time.thread_time()
    assert len(alerts.cleared(filler.connection, 200)) == 200
    assert time.thread_time() - began < 0.1


def test_a_frame_without_a_screen_tells_of_them(filler: Filler) -> None:
    from gputui.tui.data.reader import SnapshotReader
    from gputui.tui.data.snapshot import Interest
    from gputui.tui.data.snapshot_json import snapshot_shape
    from gputui.tui.pages.overview.frame import overview_frame

    filler.overnight()
    filler.bad_night()
    snapshot = SnapshotReader(filler.workspace).read(filler.connection, NOW, Interest())
    lines = plain(overview_frame(snapshot, 100, None, host_name="ws-kepler"))
    assert lines[1].startswith(" ✗ 1 error  ▲ 2 warnings  State disk 96 % full")
    assert "!" not in lines[1]
    shape = snapshot_shape(snapshot, running=False, home="/h")
    assert [one["rule"] for one in shape["alerts"]] == [
        "xid_hardware", "disk", "gpu_hot", "data_wait", "gpu_parked"
    ]  # fmt: skip
