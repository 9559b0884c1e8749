"""Looking back: the whole screen as it was, moving along the record, and what is refused meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from gputui.tui.app import GputuiApp, SnapshotRead
from gputui.tui.data import processes
from gputui.tui.data.snapshot import Moment
from gputui.tui.dialogs.moment import MomentScreen
from gputui.tui.pages.overview.page import OverviewScreen
from gputui.tui.widgets.pane import Pane
from tests.texts import mentions
from tests.tui.conftest import MakeApp, StillFeed
from tests.tui.filling import NOW, Filler
from tests.tui.test_screens import feed_of

SMALL = (80, 24)
WIDE = (160, 48)


def text(app: GputuiApp, pane: str) -> str:
    return app.screen.query_one(f"#{pane}", Pane).text


def whole(app: GputuiApp) -> str:
    return "\n".join(pane.text for pane in app.screen.query(Pane) if pane.size.height)


async def read_all(pilot: Pilot[Any], app: GputuiApp) -> None:
    """A page asks for more once it knows what there is, such as the metrics of compared runs."""
    for _ in range(2):
        feed_of(app).refresh()
        await pilot.pause()


@pytest.fixture
def app(filler: Filler, make_app: MakeApp) -> GputuiApp:
    filler.overnight()
    filler.history(1500, every=10)
    for run_id, ago in (("gpt2-124m-1", 5400.0), ("vit-b16-1", 11_000.0), ("resnet50-2", 9000.0)):
        filler.transition(run_id, None, "queued", "launched", ago + 2)
        filler.transition(run_id, "queued", "starting", "attempt 1", ago)
        filler.transition(run_id, "starting", "running", "its first step was seen", ago - 4)
    filler.transition("resnet50-2", "running", "failed", "KeyError 'labels'", 4000.0)
    for ago, origin, target in (
        (633.0, "running", "recovering"), (620.0, "recovering", "queued"), (586.0, "queued", "starting"),
        (580.0, "starting", "running"),
    ):  # fmt: skip
        filler.transition("vit-b16-1", origin, target, "GPU 7 was lost", ago)
    return make_app()


async def test_the_whole_screen_is_as_it_was(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        assert "◀" not in whole(app) and "12:44" in text(app, "head")
        await pilot.press("left_curly_bracket")
        head = text(app, "head")
        assert "◀ 03:11:04 · 1 min ago · L live" in head
        assert text(app, "notice").splitlines()[0].endswith(" now")
        # The GPUs' samples, the runs' steps and the queue are those of then.
        assert "gpt2-124m r0" not in text(app, "gpus") and "71.2" not in text(app, "gpus")
        assert "3 780/6 000" in text(app, "runs")
        assert "lr-sweep" not in whole(app) and "queued behind 1 run" not in whole(app)
        assert "resnet50-2" in text(app, "runs") and "1 h ago" in text(app, "runs")
        await pilot.press("L")
        assert "◀" not in whole(app) and "lr-sweep" in text(app, "runs")
        assert "4 120/6 000" in text(app, "runs")


async def test_ages_are_relative_to_the_moment(app: GputuiApp) -> None:
    async with app.run_test(size=WIDE) as pilot:
        app.look_back(Moment(NOW - 3980))
        await pilot.pause()
        assert "20 s ago" in text(app, "runs")
        app.look_back(Moment(NOW - 4010))
        await pilot.pause()
        assert "● resnet50-2" in text(app, "runs") and "KeyError" not in text(app, "runs")


async def test_steps_go_on_and_end_in_the_present(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        for key, expected in (
            ("less_than_sign", "03:12:34"), ("less_than_sign", "03:12:24"), ("left_curly_bracket", "03:10:44"),
            ("greater_than_sign", "03:10:54"), ("right_curly_bracket", "03:12:34"),
        ):  # fmt: skip
            await pilot.press(key)
            assert f"◀ {expected}" in text(app, "head")
        await pilot.press("greater_than_sign")
        assert "◀" not in text(app, "head") and app.time_travel.moment is None
        await pilot.press("greater_than_sign")
        assert mentions(text(app, "message"), "present already")


async def test_jumping_from_event_to_event(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("left_square_bracket")
        assert "◀ 03:12:14" in text(app, "head") and "queued behind 1 run" in text(app, "events")
        await pilot.press("left_square_bracket", "left_square_bracket")
        assert "◀ 03:02:1" in text(app, "head") and "10 min ago" in text(app, "head")
        assert "fell off the bus" in text(app, "events") and "training again" not in text(app, "events")
        assert "↻ vit-b16-1      recovering ↻1" in text(app, "runs")
        await pilot.press("right_square_bracket")
        assert "◀ 03:02:58" in text(app, "head") and "training again" in text(app, "events")
        await pilot.press("right_square_bracket", "right_square_bracket")
        assert "Nothing happened after this." in text(app, "message")
        assert "◀ 03:12:14" in text(app, "head")


async def test_before_the_first_event_there_is_nothing(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        for _ in range(6):
            await pilot.press("left_square_bracket")
        assert "Nothing happened before this." in text(app, "message")


async def test_typing_a_time(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("t")
        assert isinstance(app.screen, MomentScreen) and "for example 03:12" in text(app, "moment")
        await pilot.press(*"3:05x")
        assert "'3:05x' is not a time" in text(app, "moment")
        await pilot.press("enter")
        assert isinstance(app.screen, MomentScreen)
        await pilot.press("backspace")
        assert mentions(text(app, "moment"), "Sat 21 Nov 2026 03:05:00", "7 min 44 s")
        await pilot.press("enter")
        assert isinstance(app.screen, OverviewScreen) and "◀ 03:05:00 · 7 min ago" in text(app, "head")
        await pilot.press("t", *"-20s", "escape")
        assert "◀ 03:05:00" in text(app, "head")
        await pilot.press("t", *"now", "enter")
        assert "◀" not in text(app, "head")


async def test_a_time_before_the_record_begins_there(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("t", *"yesterday 12:00", "enter")
        assert "The record begins here" in text(app, "message") and "◀ 00:09:22" in text(app, "head")
        notice = " ".join(text(app, "notice").split())
        assert mentions(notice, "Nothing", "before Sat 21 Nov 2026 02:47:44")
        assert "Looking for GPUs" not in whole(app)


async def test_what_would_change_the_present_is_refused_in_words(app: GputuiApp, filler: Filler) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("left_curly_bracket")
        for key in ("s", "u", "x", "delete", "n"):
            await pilot.press(key)
            assert isinstance(app.screen, OverviewScreen)
            assert mentions(text(app, "message"), "03:11:04", "present", "L ")
        assert filler.connection.execute("SELECT count(*) FROM commands").fetchone() == (0,)


async def test_the_page_of_a_run_is_as_it_was(app: GputuiApp) -> None:
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("enter")
        assert "attempt 3" in text(app, "head") and "left GPU 7 out" in whole(app)
        await pilot.press("t", *"3:01", "enter")
        assert "◀ 03:01:00" in text(app, "head") and "attempt 2" in text(app, "head")
        assert "GPU 7 was lost" not in whole(app) and "CUDA ran out of memory" in whole(app)
        await pilot.press("escape")
        assert "◀ 03:01:00" in text(app, "head")
        assert isinstance(app.screen, OverviewScreen)


async def test_the_log_ends_where_it_did(app: GputuiApp) -> None:
    folder = app.workspace.run_dir("gpt2-124m-1") / "attempts" / "1" / "ranks" / "x" / "attempt_0" / "0"
    folder.mkdir(parents=True)
    lines = [f"2026-11-21 03:{minute:02}:00,000 INFO minute {minute}" for minute in range(13)]
    (folder / "stdout.log").write_text("\n".join(lines) + "\n")
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("j", "enter")
        assert "minute 12" in text(app, "log") and "following" in text(app, "log")
        await pilot.press("t", *"3:07", "enter")
        assert "minute 7" in text(app, "log") and "minute 8" not in text(app, "log")
        assert mentions(text(app, "log"), "written then")
        await pilot.press("L")
        assert "minute 12" in text(app, "log") and "written then" not in text(app, "log")


async def test_a_moment_before_a_run_was_launched_has_no_page_of_it(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("j", "j", "enter")
        assert "lr-sweep-3" in text(app, "head")
        await pilot.press("left_curly_bracket")
        assert "did not exist yet" in text(app, "head")
        await pilot.press("L")
        assert "queued" in text(app, "head")


@pytest.mark.parametrize(
    "keys", ["p", "exclamation_mark", "i", "space j space c"], ids=["processes", "alerts", "gpu", "compare"]
)
async def test_every_page_looks_back(app: GputuiApp, keys: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # What this machine itself does changes meanwhile.
    monkeypatch.setattr(processes, "AGAIN_SECONDS", float("inf"))
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press(*keys.split())
        page = app.screen
        assert not isinstance(page, OverviewScreen)
        await read_all(pilot, app)
        before = whole(app)
        await pilot.press("left_square_bracket", "left_square_bracket")
        assert app.screen is page
        assert "◀ 03:02:58 · 9 min ago · L live" in text(app, "head")
        assert text(app, "notice").splitlines()[0].endswith(" now")
        await pilot.press("L")
        await read_all(pilot, app)
        assert whole(app) == before


async def test_the_processes_are_those_of_then(app: GputuiApp, filler: Filler) -> None:
    then = [{"pid": 4711, "user": "bob", "command": "python old.py", "memory_bytes": 5 << 30, "kind": "C"}]
    filler.connection.execute("INSERT INTO gpu_process_sets VALUES (?, 1, ?)", (NOW - 700, json.dumps(then)))
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("p")
        assert "alice" in text(app, "body") and "old.py" not in text(app, "body")
        await pilot.press("left_square_bracket", "left_square_bracket")
        assert "4711" in text(app, "body") and "old.py" in text(app, "body") and "alice" not in text(app, "body")


async def test_where_nothing_was_recorded_is_said_and_stepped_over(app: GputuiApp, filler: Filler) -> None:
    for table in ("host_samples", "gpu_samples"):
        filler.connection.execute(f"DELETE FROM {table} WHERE at > ? AND at < ?", (NOW - 300, NOW - 100))
    async with app.run_test(size=SMALL) as pilot:
        app.look_back(Moment(NOW - 200))
        await pilot.pause()
        notice = " ".join(text(app, "notice").split())
        assert mentions(notice, "Nothing", "03:07:44 to 03:11:04")
        assert mentions(notice, "GPUs", "host", "at 03:07:44")
        await pilot.press("greater_than_sign")
        assert "◀ 03:11:04" in text(app, "head") and "Nothing was recorded" not in text(app, "notice")
        await pilot.press("less_than_sign")
        assert "◀ 03:07:44" in text(app, "head")
        line = text(app, "notice").splitlines()[0]
        assert "─ " in line and " ─" in line  # the gap in the time line


async def test_a_click_on_the_time_line_goes_there(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("less_than_sign")
        line = text(app, "notice").splitlines()[0]
        await pilot.click("#notice", offset=(line.index("┴"), 0))
        assert "◀ 03:02:5" in text(app, "head") or "◀ 03:03:0" in text(app, "head")
        shown = text(app, "head")
        await pilot.click("#notice", offset=(1, 0))  # beside it
        assert text(app, "head") == shown


async def test_a_database_that_cannot_be_read_is_told_while_looking_back(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        app.time_travel.moment = Moment(NOW - 60)  # asked for, and not read yet
        live = app.snapshot
        app.on_snapshot_read(SnapshotRead(replace(live, at=NOW + 1)))
        assert app.snapshot is live  # the present does not flash up meanwhile
        app.on_snapshot_read(SnapshotRead(replace(live, trouble="The database is locked by another program.")))
        await pilot.pause()
        assert "locked by another program" in text(app, "notice")


async def test_news_does_not_move_the_past(app: GputuiApp, filler: Filler) -> None:
    feed = app.feed
    assert isinstance(feed, StillFeed)
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("left_square_bracket")
        before = text(app, "events")
        filler.event("something new", seconds_ago=20.0)
        feed.refresh()
        await pilot.pause()
        assert text(app, "events") == before and "◀ 03:12:14" in text(app, "head")
        await pilot.press("right_square_bracket")
        assert "something new" in text(app, "events")


def test_the_shortest_stretch_that_holds_the_moment_is_shown() -> None:
    from gputui.tui.data.past import shown_from

    assert shown_from(NOW - 60, None, NOW) == NOW - 1200
    assert shown_from(NOW - 3000, NOW - 10**6, NOW) == NOW - 3600
    assert shown_from(NOW - 3500, NOW - 10**6, NOW) == NOW - 6 * 3600
    assert shown_from(NOW - 3500, NOW - 4000, NOW) == NOW - 4000
    assert shown_from(NOW - 10**9, NOW - 10**9, NOW) == NOW - 10**9
