"""Going from page to page: none is twice on the stack, escape leads back, and what opens from everywhere does."""

from __future__ import annotations

import threading

import pytest
from textual import events
from textual.pilot import Pilot
from textual.screen import Screen

from gputui.charts.cells import cell_width
from gputui.tui.actions import find
from gputui.tui.app import GputuiApp
from gputui.tui.data.snapshot import Interest
from gputui.tui.dialogs.settings import SettingsScreen
from gputui.tui.dialogs.sheet import HelpScreen
from gputui.tui.pages.alerts.page import AlertsScreen
from gputui.tui.pages.compare.page import CompareScreen
from gputui.tui.pages.gpu.page import GpuScreen
from gputui.tui.pages.launch import page as launch
from gputui.tui.pages.launch.choose import ChooseProfileScreen
from gputui.tui.pages.launch.form import Prefill
from gputui.tui.pages.overview.page import OverviewScreen
from gputui.tui.pages.processes.page import ProcessesScreen
from gputui.tui.pages.run.page import RunScreen
from gputui.tui.widgets.page import WHEEL_LINES
from gputui.tui.widgets.pane import Pane
from tests.tui.conftest import MakeApp
from tests.tui.filling import Filler, uuid
from tests.tui.test_screens import overview

MIDDLE, WIDE = (120, 36), (160, 48)


@pytest.fixture
def app(filler: Filler, make_app: MakeApp) -> GputuiApp:
    filler.overnight()
    return make_app()


def stack(app: GputuiApp) -> list[type[Screen[object]]]:
    return [type(screen) for screen in app.screen_stack]


def text(app: GputuiApp, pane: str) -> str:
    return app.screen.query_one(f"#{pane}", Pane).text


async def press(pilot: Pilot[int], *keys: str) -> None:
    for key in keys:
        await pilot.press(key)
        await pilot.pause()


async def wheel(pilot: Pilot[int], pane: str, *, down: bool) -> None:
    kind = events.MouseScrollDown if down else events.MouseScrollUp
    over = pilot.app.screen.query_one(f"#{pane}").region
    # As it comes from a terminal: a place, and nothing of what is there.
    x, y = over.x + 2, over.y + 1
    pilot.app.screen._forward_event(kind(None, x, y, 0, 1 if down else -1, 0, False, False, False, x, y))
    await pilot.pause()


# --- the stack


async def test_a_run_and_its_processes_do_not_pile_up(app: GputuiApp) -> None:
    async with app.run_test(size=MIDDLE) as pilot:
        await press(pilot, "enter", "p")
        for _ in range(2):
            await press(pilot, "slash", "v", "i", "t", "enter", "r")
            assert stack(app) == [OverviewScreen, RunScreen]
            assert app.feed.interest.run_id == "vit-b16-1" and "is gone" not in text(app, "head")
            await press(pilot, "p")
            assert stack(app) == [OverviewScreen, RunScreen, ProcessesScreen]
            assert app.feed.interest == Interest(processes=True)
        await press(pilot, "escape", "escape")
        assert stack(app) == [OverviewScreen]
        assert app.feed.interest == Interest()


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
        assert isinstance(page, ProcessesScreen) and page.table.grouping == "gpu"
        assert page.row_in_question is not None and 2 in page.row_in_question.gpus
        app.open_gpu(uuid(2))
        await pilot.pause()
        app.open_gpu(uuid(3))
        await pilot.pause()
        assert stack(app)[3:] == [ProcessesScreen, GpuScreen] and "GPU 3" in text(app, "head")
        assert app.feed.interest.gpu_uuid == uuid(3)
        for left in (4, 3, 2, 1):
            await press(pilot, "escape")
            assert len(app.screen_stack) == left


async def test_the_comparison_that_a_run_was_opened_from_is_gone_back_to(app: GputuiApp) -> None:
    async with app.run_test(size=MIDDLE) as pilot:
        await press(pilot, "space", "space", "c", "tab", "down")
        page = app.screen
        assert isinstance(page, CompareScreen)
        run, compared, metric = page.run_in_question, page.comparison.run_ids, page.comparison.metric
        assert run is not None and len(compared) == 2
        await press(pilot, "enter", "c")
        assert app.screen is page and page.comparison.run_ids == compared and page.comparison.metric == metric
        assert page.run_in_question is not None and page.run_in_question.run_id == run.run_id
        # A run that is not among them begins another comparison, on the same page.
        app.open_run("lr-sweep-3")
        await pilot.pause()
        await press(pilot, "c")
        assert app.screen is page and page.comparison.run_ids[0] == "lr-sweep-3"
        assert page.run_in_question is not None and page.run_in_question.run_id == "lr-sweep-3"
        assert stack(app) == [OverviewScreen, CompareScreen]


async def test_a_run_opened_from_another_takes_its_place(app: GputuiApp) -> None:
    async with app.run_test(size=MIDDLE) as pilot:
        await press(pilot, "enter")
        app.open_run("gpt2-124m-1")
        await pilot.pause()
        assert stack(app) == [OverviewScreen, RunScreen] and app.feed.interest.run_id == "gpt2-124m-1"
        await press(pilot, "p", "end")
        app.open_run("gpt2-124m-1")
        await pilot.pause()
        assert stack(app) == [OverviewScreen, RunScreen]


async def test_the_list_of_past_alerts_is_kept_below_the_page_of_a_run(app: GputuiApp) -> None:
    async with app.run_test(size=MIDDLE) as pilot:
        await press(pilot, "exclamation_mark")
        app.open_run("vit-b16-1")
        await pilot.pause()
        assert app.feed.interest.alerts and app.feed.interest.run_id == "vit-b16-1"
        await press(pilot, "exclamation_mark")
        assert stack(app) == [OverviewScreen, AlertsScreen] and app.feed.interest == Interest(alerts=True)


async def test_the_launch_form_leaves_the_run_below_it_as_it_is(app: GputuiApp) -> None:
    async with app.run_test(size=MIDDLE) as pilot:
        await press(pilot, "enter", "n")
        assert isinstance(app.screen, ChooseProfileScreen) and app.feed.interest.run_id == "vit-b16-1"
        await press(pilot, "escape")
        assert "is gone" not in text(app, "head") and "reading" not in text(app, "head")


# --- what opens from everywhere


@pytest.mark.parametrize("name", ["settings", "theme", "help", "palette"])
def test_what_is_about_the_whole_program_is_possible_on_every_page(name: str) -> None:
    assert {"overview", "run", "gpu", "processes", "alerts", "compare"} <= {*find(name, "overview").scopes}


async def test_the_settings_open_from_every_page(app: GputuiApp) -> None:
    async with app.run_test(size=MIDDLE) as pilot:
        for page, key in (
            (OverviewScreen, None), (RunScreen, "enter"), (CompareScreen, "c"), (ProcessesScreen, "p"),
            (AlertsScreen, "exclamation_mark"),
        ):  # fmt: skip
            await press(pilot, *([key] if key else []), "comma")
            assert isinstance(app.screen, SettingsScreen), page
            await press(pilot, "escape")
            assert isinstance(app.screen, page)


async def test_in_the_form_a_comma_is_text_and_f2_opens_the_settings(app: GputuiApp) -> None:
    async with app.run_test(size=MIDDLE) as pilot:
        await press(pilot, "n", "comma")
        assert isinstance(app.screen, ChooseProfileScreen)
        await press(pilot, "f2")
        assert isinstance(app.screen, SettingsScreen)
        await press(pilot, "f2")
        assert isinstance(app.screen, ChooseProfileScreen)


# --- the mouse


async def test_the_wheel_acts_on_the_section_under_the_pointer(app: GputuiApp) -> None:
    async with app.run_test(size=MIDDLE) as pilot:
        overview = app.screen
        assert isinstance(overview, OverviewScreen) and overview.focus_at.section == "runs"
        await wheel(pilot, "gpus", down=True)
        assert overview.focus_at.section == "gpus" and overview.focus_at.gpu == uuid(WHEEL_LINES)
        run = overview.table.cursor
        await wheel(pilot, "runs", down=True)
        assert overview.focus_at.section == "runs" and overview.table.cursor != run
        await wheel(pilot, "host", down=True)
        assert overview.focus_at.section == "runs"


async def test_on_a_runs_page_the_wheel_scrolls_what_is_under_it_and_leaves_the_focus(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        await press(pilot, "enter", "3")
        page = app.screen
        assert isinstance(page, RunScreen)
        whole = text(app, "story")
        await wheel(pilot, "story", down=False)
        assert page.section == "log" and text(app, "story") != whole and "lines below" in text(app, "story")
        await wheel(pilot, "story", down=True)
        assert text(app, "story") == whole
        await wheel(pilot, "charts", down=False)
        assert page.section == "log" and page.charts.viewport.span is not None
        await wheel(pilot, "log", down=False)
        assert page.charts.viewport.span is not None and text(app, "story") == whole


async def test_in_the_comparison_a_click_chooses_and_a_second_one_opens(app: GputuiApp) -> None:
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "space", "space", "c")
        page = app.screen
        assert isinstance(page, CompareScreen)
        await pilot.click("#runs", offset=(6, 3))
        await pilot.pause()
        chosen = page.run_in_question
        assert chosen is not None and chosen.run_id == page.comparison.run_ids[1]
        await wheel(pilot, "runs", down=False)
        assert page.run_in_question is not None and page.run_in_question.run_id == page.comparison.run_ids[0]
        await wheel(pilot, "charts", down=False)
        assert page.charts.viewport.span is not None
        await pilot.click("#charts", offset=(60, 4))
        await pilot.pause()
        assert page.charts.cursor is not None
        await pilot.click("#runs", offset=(6, 3), times=2)
        await pilot.pause()
        assert isinstance(app.screen, RunScreen) and app.screen.run_id == chosen.run_id


async def test_the_wheel_scrolls_the_help(app: GputuiApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "question_mark")
        first = text(app, "sheet")
        await wheel(pilot, "sheet", down=True)
        assert isinstance(app.screen, HelpScreen) and text(app, "sheet") != first
        await wheel(pilot, "sheet", down=False)
        assert text(app, "sheet") == first


async def test_a_head_begins_with_the_pages_that_escape_leads_back_through(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    app = make_app()
    async with app.run_test(size=(140, 36)) as pilot:
        run_id = overview(app).table.cursor
        await pilot.press("enter")
        await pilot.pause()
        assert text(app, "head").startswith(f" gputui › {run_id} ·")
        await pilot.press("c")
        await pilot.pause()
        assert text(app, "head").startswith(f" gputui › {run_id} › Compare")
        assert cell_width(text(app, "head")) <= 140
    narrow = make_app()
    async with narrow.run_test(size=(80, 24)) as pilot:
        await pilot.press("enter")
        await pilot.pause()
        assert "gputui ›" not in text(narrow, "head")


async def test_a_form_whose_profile_is_gone_closes_with_the_dialog_above_it(
    app: GputuiApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read = threading.Event()
    monkeypatch.setattr(launch, "read_profiles", lambda *_: may_read.wait() and ())
    async with app.run_test(size=MIDDLE) as pilot:
        form = launch.LaunchScreen(Prefill("gone", run_id="vit-b16-1"))
        app.push_screen(form)
        await press(pilot, "f1")
        assert stack(app) == [OverviewScreen, launch.LaunchScreen, HelpScreen]
        may_read.set()
        for _ in range(500):
            await pilot.pause(0.02)
            if app.message[0]:
                break
        assert stack(app) == [OverviewScreen]
