"""Looking back: the whole screen as it was, moving along the record, and what is refused meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot

from gputui.runs import processes
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.dialogs.questions import FormScreen
from gputui.ui.tui.pages.overview.page import OverviewScreen
from gputui.ui.tui.widgets.pane import Pane
from tests.homes import Home
from tests.stories import history, overnight
from tests.texts import mentions
from tests.ui.tui.conftest import MakeApp
from tests.ui.tui.screens import SMALL, WIDE, feed_of, text


def screen_text(app: GputuiApp) -> str:
    return "\n".join(pane.text for pane in app.screen.query(Pane) if pane.size.height)


async def read_all(pilot: Pilot[Any], app: GputuiApp) -> None:
    """A page asks for more once it knows what there is, such as the metrics of compared runs."""
    for _ in range(2):
        feed_of(app).refresh()
        await pilot.pause()


@pytest.fixture
def app(home: Home, make_app: MakeApp) -> GputuiApp:
    overnight(home)
    history(home, 1500, every=10)
    for run_id, ago in (("gpt2-124m-1", 5400.0), ("vit-b16-1", 11_000.0), ("resnet50-2", 9000.0)):
        home.transition(run_id, None, "queued", "launched", ago + 2)
        home.transition(run_id, "queued", "starting", "attempt 1", ago)
        home.transition(run_id, "starting", "running", "its first step was seen", ago - 4)
    home.transition("resnet50-2", "running", "failed", "KeyError 'labels'", 4000.0)
    for ago, origin, target in (
        (633.0, "running", "recovering"), (620.0, "recovering", "queued"), (586.0, "queued", "starting"),
        (580.0, "starting", "running"),
    ):  # fmt: skip
        home.transition("vit-b16-1", origin, target, "GPU 7 was lost", ago)
    return make_app()


async def test_the_whole_screen_is_as_it_was(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        assert "◀" not in screen_text(app)
        assert "12:44" in text(app, "head")
        await pilot.press("down", "down")
        page = app.screen
        assert isinstance(page, OverviewScreen)
        assert page.table.cursor == "lr-sweep-3"
        app.perform("time_back_far")
        await pilot.pause()
        head = text(app, "head")
        assert mentions(head, "◀ 03:11:04 · 1 min ago", "L live")
        assert text(app, "notice").splitlines()[0].endswith(" now")
        # The GPUs' samples, the runs' steps and the queue are those of then.
        assert "gpt2-124m r0" not in text(app, "gpus")
        assert "71.2" not in text(app, "gpus")
        assert "3 780/6 000" in text(app, "runs")
        assert "lr-sweep" not in screen_text(app)
        assert "queued behind 1 run" not in screen_text(app)
        assert "resnet50-2" in text(app, "runs")
        assert "1 h ago" in text(app, "runs")
        await pilot.press("L")
        assert "◀" not in screen_text(app)
        assert "lr-sweep" in text(app, "runs")
        assert "4 120/6 000" in text(app, "runs")
        assert page.table.cursor == "lr-sweep-3"


async def test_steps_go_on_and_end_in_the_present(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        for name, expected in (
            ("time_back", "03:12:34"), ("time_back", "03:12:24"), ("time_back_far", "03:10:44"),
            ("time_forth", "03:10:54"), ("time_forth_far", "03:12:34"),
        ):  # fmt: skip
            app.perform(name)
            await pilot.pause()
            assert f"◀ {expected}" in text(app, "head")
        await pilot.press("greater_than_sign")
        assert "◀" not in text(app, "head")
        assert app.moment is None
        await pilot.press("greater_than_sign")
        assert mentions(text(app, "message"), "present already")


async def test_jumping_from_event_to_event(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("left_square_bracket")
        assert "◀ 03:12:14" in text(app, "head")
        assert "queued behind 1 run" in text(app, "events")
        await pilot.press("left_square_bracket", "left_square_bracket")
        assert "◀ 03:02:1" in text(app, "head")
        assert "10 min ago" in text(app, "head")
        assert "fell off the bus" in text(app, "events")
        assert "training again" not in text(app, "events")
        assert mentions(text(app, "runs"), "↻ vit-b16-1 ", " recovering ↻1")
        await pilot.press("right_square_bracket")
        assert "◀ 03:02:58" in text(app, "head")
        assert "training again" in text(app, "events")
        await pilot.press("right_square_bracket", "right_square_bracket")
        assert "after this" in text(app, "message")
        assert "◀ 03:12:14" in text(app, "head")


async def test_typing_a_time(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("t")
        assert isinstance(app.screen, FormScreen)
        assert "for example 03:12" in text(app, "form")
        await pilot.press(*"3:05x")
        assert "'3:05x' is not a time" in text(app, "form")
        await pilot.press("enter")
        assert isinstance(app.screen, FormScreen)
        await pilot.press("backspace")
        assert mentions(text(app, "form"), "Sat 21 Nov 2026 03:05:00", "7 min 44 s")
        await pilot.press("enter")
        assert isinstance(app.screen, OverviewScreen)
        assert "◀ 03:05:00 · 7 min ago" in text(app, "head")
        await pilot.press("t", *"-20s", "escape")
        assert "◀ 03:05:00" in text(app, "head")
        await pilot.press("L")
        assert "◀" not in text(app, "head")


async def test_what_would_change_the_present_is_refused_in_words(app: GputuiApp, home: Home) -> None:
    async with app.run_test(size=SMALL) as pilot:
        app.perform("time_back_far")
        await pilot.pause()
        for key in ("s", "r", "delete", "n"):
            await pilot.press(key)
            assert isinstance(app.screen, OverviewScreen)
            assert mentions(text(app, "message"), "03:11:04", "present", "L ")
        assert home.connection.execute("SELECT count(*) FROM commands").fetchone() == (0,)


async def test_the_page_of_a_run_is_as_it_was(app: GputuiApp) -> None:
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("enter")
        assert "attempt 3" in text(app, "head")
        assert "left GPU 7 out" in screen_text(app)
        await pilot.press("t", *"3:01", "enter")
        assert "◀ 03:01:00" in text(app, "head")
        assert "attempt 2" in text(app, "head")
        assert "GPU 7 was lost" not in screen_text(app)
        assert "CUDA ran out of memory" in screen_text(app)
        await pilot.press("escape")
        assert "◀ 03:01:00" in text(app, "head")
        assert isinstance(app.screen, OverviewScreen)


async def test_every_page_looks_back(app: GputuiApp, monkeypatch: pytest.MonkeyPatch) -> None:
    # The processes of this machine would change meanwhile.
    monkeypatch.setattr(processes, "READ_AGAIN_SECONDS", float("inf"))
    async with app.run_test(size=WIDE) as pilot:
        for keys in ("p", "exclamation_mark", "i", "space j space c"):
            await pilot.press(*keys.split())
            page = app.screen
            assert not isinstance(page, OverviewScreen), keys
            await read_all(pilot, app)
            before = screen_text(app)
            await pilot.press("left_square_bracket", "left_square_bracket")
            assert app.screen is page
            assert mentions(text(app, "head"), "◀ 03:02:58 · 9 min ago", "L live"), keys
            assert text(app, "notice").splitlines()[0].endswith(" now"), keys
            await pilot.press("L")
            await read_all(pilot, app)
            assert screen_text(app) == before, keys
            await pilot.press("escape")
