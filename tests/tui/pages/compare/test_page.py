"""The compare page, driven by keys."""

from __future__ import annotations

from typing import Any

import pytest

from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, write_private
from gputui.tui.app import GputuiApp
from gputui.tui.data.snapshot import Interest
from gputui.tui.dialogs.sheet import DiffScreen
from gputui.tui.pages.alerts.page import AlertsScreen
from gputui.tui.pages.compare.comparison import Comparison
from gputui.tui.pages.compare.page import CompareScreen
from gputui.tui.pages.overview.page import OverviewScreen
from gputui.tui.pages.run.page import RunScreen
from tests.texts import mentions
from tests.tui.conftest import MakeApp
from tests.tui.filling import Filler
from tests.tui.test_screens import overview, text, until
from tests.tui.test_snapshots import Compare

RATES = (0.1, 0.03, 0.01)


@pytest.fixture
def app(filler: Filler, make_app: MakeApp) -> GputuiApp:
    filler.agent()
    for number, rate in enumerate(RATES, 1):
        run = f"sweep-{number}"
        filler.run(
            run, "running" if number == 1 else "succeeded", name="sweep",
            params={"lr": rate, "batch_size": 64 if number < 3 else 32, "depth": 12},
            ended_ago=None if number == 1 else 60.0 * number,
        )  # fmt: skip
        filler.attempt(run, 1, "running" if number == 1 else "succeeded")
        filler.metrics(
            run, 1,
            [{"step": step, "time": filler.now - 1000 + step, "loss": 8.0 / (1 + step * rate),
              "val/accuracy": step * rate / 100, "epoch": step / 100} for step in range(0, 400, 4)],
        )  # fmt: skip
    return make_app()


def compared(app: GputuiApp) -> CompareScreen:
    assert isinstance(app.screen, CompareScreen)
    return app.screen


async def opened(app: GputuiApp, pilot: Any) -> CompareScreen:
    await pilot.press("c")
    await pilot.pause()
    return compared(app)


async def test_runs_of_a_profile_lie_over_each_other_with_what_differs(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await opened(app, pilot)
        assert "3 runs" in text(app, "head") and "loss by step" in text(app, "head")
        table = text(app, "runs")
        assert "lr" in table and "batch_size" in table and "depth" not in table
        assert all(f"sweep-{number}" in table and str(rate) in table for number, rate in enumerate(RATES, 1))
        assert "0.1970" in table  # 8 / (1 + 396 × 0.1)
        charts = text(app, "charts")
        ends = [f"{mark} sweep-{number}" for number, mark in enumerate("●■▲", 1)]
        assert all(end in charts for end in ends), "each curve ends with its run's name"


async def test_the_first_metrics_are_a_grid_or_one(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        page = await opened(app, pilot)
        await pilot.pause()
        assert "▸loss" in text(app, "charts") and "val/accuracy" in text(app, "charts")
        await pilot.press("tab")
        await pilot.pause()
        assert "▸val/accuracy" in text(app, "charts") and " loss" in text(app, "charts")
        await pilot.press("v")
        await pilot.pause()
        assert "val/accuracy" in text(app, "charts") and "loss" not in text(app, "charts")
        await pilot.press("v")
        await pilot.pause()
        await pilot.click("#charts", offset=(12, 3))
        assert page.comparison.metric == "loss", "a click chooses the chart"
        assert page.charts.cursor is not None


async def test_x_is_cut_to_the_shortest_run_by_a_key(filler: Filler, make_app: MakeApp) -> None:
    filler.agent()
    for name, last in (("sweep-1", 396), ("sweep-2", 8)):
        filler.run(name, "failed", name="sweep", ended_ago=30.0)
        filler.attempt(name, 1, "failed")
        filler.metrics(name, 1, [{"step": step, "time": filler.now, "loss": 9.0} for step in range(0, last + 1, 4)])
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        page = await opened(app, pilot)
        await pilot.pause()
        whole = page.charts.extent
        await pilot.press("w")
        await pilot.pause()
        cut = page.charts.extent
        assert whole is not None and cut is not None and (whole.newest, cut.newest) == (396, 8)
        assert "cut to the shortest" in text(app, "head")
        await pilot.press("w")
        assert page.charts.extent == whole


async def test_a_run_has_its_colour_whatever_it_is_compared_with(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        page = await opened(app, pilot)
        assert page.comparison.drawn[:3] == ("sweep-1", "sweep-2", "sweep-3")
        await pilot.press("escape")
        await pilot.pause()
        app.compare(None, ("sweep-3", "sweep-2"))
        await pilot.pause()
        assert compared(app).comparison.drawn[:3] == (None, "sweep-2", "sweep-3")


async def test_marked_runs_only(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        overview(app).select_run("sweep-1")
        await pilot.press("space")
        overview(app).select_run("sweep-3")
        await pilot.press("space")
        page = await opened(app, pilot)
        assert set(page.comparison.run_ids) == {"sweep-1", "sweep-3"}


async def test_order_group_hide_and_leave_out(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        page = await opened(app, pilot)
        await pilot.press("o")
        assert page.comparison.sort == "best"
        places = [text(app, "runs").index(f"sweep-{number}") for number in (1, 2, 3)]
        assert places == sorted(places)
        await pilot.press("O")
        places = [text(app, "runs").index(f"sweep-{number}") for number in (1, 2, 3)]
        assert places == sorted(places, reverse=True)
        await pilot.press("b", "b")
        assert "batch_size 64 · 2 runs · best 0.1970" in text(app, "runs")
        await pilot.press("b")
        assert page.comparison.group is None
        await pilot.press("home", "space")
        hidden = page.comparison.hidden
        assert len(hidden) == 1 and "●" not in text(app, "runs").splitlines()[2][:6]
        await pilot.press("d")
        assert len(page.comparison.run_ids) == 2 and not page.comparison.hidden


async def test_a_sweep_of_many_runs(app: GputuiApp, filler: Filler) -> None:
    for number in range(4, 13):
        filler.run(f"sweep-{number}", "succeeded", name="sweep", params={"lr": number / 10}, ended_ago=99.0)
    async with app.run_test(size=(120, 36)) as pilot:
        app.feed.refresh()  # type: ignore[attr-defined]
        await pilot.pause()
        await pilot.press(*["space"] * 12)  # each marks a run and goes on to the next
        page = await opened(app, pilot)
        assert "12 runs, 6 shown" in text(app, "head")
        assert all(f"sweep-{number} " in text(app, "runs") for number in range(1, 13))
        await pilot.press("end", "space")
        assert "hide one first" in text(app, "message") and page.comparison.curve_count == 6
        last = page.comparison.cursor
        await pilot.press("home", "space", "end", "space")
        assert last in page.comparison.drawn and page.comparison.curve_count == 6


async def test_metrics_axes_smoothing_and_the_crosshair(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        page = await opened(app, pilot)
        await pilot.press("tab")
        assert page.comparison.metric == "val/accuracy"
        await pilot.pause()
        assert "max" in text(app, "runs")
        await pilot.press("shift+tab", "m", "y")
        await pilot.pause()
        assert "smoothing 0.8" in text(app, "head") and "log y" in text(app, "head")
        await pilot.press("slash", *"acc")
        assert "val/accuracy" in text(app, "head")
        await pilot.press("enter")
        assert page.comparison.metric == "val/accuracy"
        await pilot.press("left")
        assert page.charts.cursor is not None and " at step " in text(app, "charts").splitlines()[0]
        before = page.charts.cursor
        await pilot.press("left")
        assert page.charts.cursor < before
        await pilot.press("plus")
        assert page.charts.viewport.span is not None
        await pilot.press("shift+left", "shift+right", "minus", "0", "escape")
        assert page.charts.cursor is None and page.charts.viewport.span is None
        await pilot.press("x")
        await pilot.pause()
        assert "by time" in text(app, "head")
        assert any(char in text(app, "charts") for char in "⣀⠤⠒⠉⡠⠔")


async def test_to_a_run_and_back_home(app: GputuiApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        page = await opened(app, pilot)
        await pilot.press("down", "enter")
        assert isinstance(app.screen, RunScreen)
        await pilot.press("escape")
        assert app.screen is page
        await pilot.pause()
        assert app.feed.interest.compared == page.comparison.run_ids
        await pilot.press("escape")
        assert isinstance(app.screen, OverviewScreen) and app.feed.interest.compared == ()


async def test_runs_that_are_gone(app: GputuiApp, filler: Filler) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        page = await opened(app, pilot)
        filler.connection.execute("DELETE FROM attempts")
        filler.connection.execute("DELETE FROM runs")
        app.feed.refresh()  # type: ignore[attr-defined]
        await pilot.pause()
        assert mentions(text(app, "runs"), "None of these runs")
        await pilot.press("o", "b", "space", "enter", "right", "plus", "tab", "down")
        assert app.screen is page


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_picture(snap_compare: Compare, app: GputuiApp, size: tuple[int, int]) -> None:
    async def sorted_and_smoothed(pilot: Any) -> None:
        await opened(app, pilot)
        for key in ("o", "m"):
            await pilot.press(key)
            # What the key asks of the feed is drawn before the next one comes.
            await pilot.pause()

    assert snap_compare(app, run_before=sorted_and_smoothed, terminal_size=size)


async def test_from_the_page_of_a_run_to_its_like_and_back(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        run_id = app.screen.run_id
        screen = await opened(app, pilot)
        assert screen.comparison.run_ids[0] == run_id and len(screen.comparison.run_ids) == 3
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen) and app.screen.run_id == run_id
        assert app.feed.interest.run_id == run_id
        assert "is gone" not in text(app, "head")


async def test_a_run_is_looked_at_again_below_a_gpu_page_that_was_opened_from_the_palette(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        run_id = app.screen.run_id
        app.open_gpu("GPU-none")
        await pilot.pause()
        app.feed.look_at(Interest(gpu_uuid="GPU-none"))
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen) and app.feed.interest.run_id == run_id


async def test_alerts_and_processes_are_a_key_away(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        for keys in (["c", "exclamation_mark"], ["enter", "p", "exclamation_mark"]):
            await pilot.press(*keys)
            await pilot.pause()
            assert isinstance(app.screen, AlertsScreen)
            while len(app.screen_stack) > 1:
                await pilot.press("escape")
                await pilot.pause()


async def test_the_x_axis_is_logarithmic_for_all_runs(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("space", "space", "c", "ctrl+x")
        await pilot.pause()
        assert "log x" in text(app, "head") and "step, log" in text(app, "charts")
        assert app.feed.interest.charts is not None and app.feed.interest.charts.is_log
        page = compared(app)
        await pilot.press("right", "plus")
        assert (
            page.charts.cursor == 1.0
            and page.charts.extent is not None
            and page.charts.viewport.window(page.charts.extent)[0] == 1.0
        )


async def test_what_the_runs_differ_in_is_a_key_away_on_a_narrow_screen(app: GputuiApp) -> None:
    async with app.run_test(size=(66, 24)) as pilot:
        await opened(app, pilot)
        table = text(app, "runs")
        assert "2 more parameters: i" in table and "batch_size" not in table and table.count("★") == 1
        await pilot.press("i")
        await pilot.pause()
        assert "batch_size 32 · sweep-3" in text(app, "sheet") and "batch_size 64" in text(app, "sheet")


async def test_sorted_by_a_parameter(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        page = await opened(app, pilot)
        await pilot.press("o", "o", "o", "o", "o")
        assert page.comparison.sort_param == "lr" and "by lr" in text(app, "head")
        places = [text(app, "runs").index(f"sweep-{number}") for number in (3, 2, 1)]
        assert places == sorted(places)  # the smallest rate first


async def test_the_code_of_two_runs_is_compared(app: GputuiApp, filler: Filler) -> None:
    for number, rate in enumerate(("0.1", "0.2", None), 1):
        diff = f"diff --git a/train.py b/train.py\n--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-lr = 1\n+lr = {rate}\n"
        code = None if rate is None else {"commit": "0" * 40, "branch": "main", "changed_files": 1, "diff": diff}
        folder = filler.workspace.run_dir(f"sweep-{number}")
        folder.mkdir(parents=True, exist_ok=True)
        spec = RunSpec(name="sweep", launcher="python", program=("x.py",), python="python", workdir="/", code=code)
        write_private(folder / SPEC_FILE, spec.to_json())
    async with app.run_test(size=(80, 24)) as pilot:
        page = await opened(app, pilot)
        page.comparison = Comparison.of(("sweep-1", "sweep-2"))
        page.changed()
        page.point_at("sweep-2")
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, DiffScreen))
        styles = {part: style for line in app.screen.lines(76) for part, style in line}  # type: ignore[attr-defined]
        assert styles["++lr = 0.2"] == "good"
        await pilot.press("escape")
        page.comparison = Comparison.of(("sweep-1", "sweep-3"))
        page.changed()
        page.point_at("sweep-3")
        await pilot.press("e")
        await until(pilot, lambda: "sweep-3" in text(app, "message"))
        assert app.screen is page
