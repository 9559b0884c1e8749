"""The compare page, driven by keys."""

from __future__ import annotations

from typing import Any

import pytest

from gputui.runs.spec import RunSpec
from gputui.runs.submission import SPEC_FILE, write_private
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.dialogs.sheet import DiffScreen
from gputui.ui.tui.pages.compare.comparison import Comparison
from gputui.ui.tui.pages.compare.page import CompareScreen
from tests.homes import Home
from tests.ui.tui.conftest import MakeApp
from tests.ui.tui.screens import text, wait_for

RATES = (0.1, 0.03, 0.01)


@pytest.fixture
def app(home: Home, make_app: MakeApp) -> GputuiApp:
    home.agent()
    for number, rate in enumerate(RATES, 1):
        run = f"sweep-{number}"
        ended_ago = None if number == 1 else 60.0 * number
        home.run(
            run, "running" if number == 1 else "succeeded", name="sweep",
            params={"lr": rate, "batch_size": 64 if number < 3 else 32, "depth": 12},
            ended_ago=ended_ago,
        )  # fmt: skip
        home.attempt(run, 1, "running" if number == 1 else "succeeded")
        home.metrics(
            run, 1,
            [{"step": step, "time": home.now - 1000 + step, "loss": 8.0 / (1 + step * rate),
              "val/accuracy": step * rate / 100, "epoch": step / 100} for step in range(0, 400, 4)],
        )  # fmt: skip
    return make_app()


def compared(app: GputuiApp) -> CompareScreen:
    assert isinstance(app.screen, CompareScreen)
    return app.screen


async def open_comparison(app: GputuiApp, pilot: Any) -> CompareScreen:
    await pilot.press("c")
    await pilot.pause()
    return compared(app)


async def test_runs_of_a_profile_lie_over_each_other_with_what_differs(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await open_comparison(app, pilot)
        assert "3 runs" in text(app, "head")
        assert "· loss" in text(app, "head")
        table = text(app, "runs")
        assert "LR" in table
        assert "BATCH_SIZE" in table
        assert "DEPTH" not in table
        assert all(f"sweep-{number}" in table and str(rate) in table for number, rate in enumerate(RATES, 1))
        assert "0.1970" in table  # 8 / (1 + 396 × 0.1)
        charts = text(app, "charts")
        ends = [f"{mark} sweep-{number}" for number, mark in enumerate("●■▲", 1)]
        assert all(end in charts for end in ends), "each curve ends with its run's name"
        headings = []
        for name in ("group", "group", "group", "sort", "reverse"):
            app.perform(name)
            await pilot.pause()
            headings.append(text(app, "head").split("loss")[1].split("  ")[0])
        assert headings == [
            " · grouped by lr",
            " · grouped by batch_size",
            "",
            " · sorted by best",
            " · sorted by best, reversed",
        ]


async def test_metrics_axes_smoothing_and_the_crosshair(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        page = await open_comparison(app, pilot)
        await pilot.press("tab")
        await pilot.pause()
        assert "val/accuracy" in text(app, "head")
        assert "MAX" in text(app, "runs")
        await pilot.press("shift+tab", "m", "y")
        await pilot.pause()
        assert "smoothing 0.8" in text(app, "charts")
        assert text(app, "charts").splitlines()[1].endswith("log│")
        await pilot.press("slash", *"acc")
        assert "filter acc" in text(app, "charts")
        assert "1 of 3 charts" in text(app, "charts")
        await pilot.press("enter")
        assert "val/accuracy" in text(app, "head")
        await pilot.press("left")
        before = page.charts.view.cursor
        assert before is not None
        assert "│ step " in text(app, "charts").splitlines()[0]
        await pilot.press("left")
        here = page.charts.view.cursor
        assert here is not None
        assert here < before
        await pilot.press("plus")
        assert page.charts.view.viewport.span is not None
        await pilot.press("shift+left", "shift+right", "minus", "0", "escape")
        assert page.charts.view.cursor is None
        assert page.charts.view.viewport.span is None
        await pilot.press("shift+left")
        assert "show the whole run" in text(app, "message")
        await pilot.press("x")
        await pilot.pause()
        assert "x time" in text(app, "charts")
        assert any("⠀" < char <= "⣿" for char in text(app, "charts"))


async def test_the_code_of_two_runs_is_compared(app: GputuiApp, home: Home) -> None:
    for number, rate in enumerate(("0.1", "0.2", None), 1):
        diff = f"diff --git a/train.py b/train.py\n--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-lr = 1\n+lr = {rate}\n"
        code = None if rate is None else {"commit": "0" * 40, "branch": "main", "changed_files": 1, "diff": diff}
        folder = home.workspace.run_dir(f"sweep-{number}")
        folder.mkdir(parents=True, exist_ok=True)
        spec = RunSpec(name="sweep", launcher="python", program=("x.py",), python="python", workdir="/", code=code)
        write_private(folder / SPEC_FILE, spec.to_json())
    async with app.run_test(size=(80, 24)) as pilot:
        page = await open_comparison(app, pilot)
        page.comparison = Comparison.of(("sweep-1", "sweep-2"))
        page.changed()
        page.point_at("sweep-2")
        await pilot.press("e")
        await wait_for(pilot, lambda: isinstance(app.screen, DiffScreen))
        styles = {part: style for line in app.screen.lines(76) for part, style in line}  # type: ignore[attr-defined]
        assert styles["+lr = 0.2"] == "good"
        await pilot.press("escape")
        page.comparison = Comparison.of(("sweep-1", "sweep-3"))
        page.changed()
        page.point_at("sweep-3")
        await pilot.press("e")
        await wait_for(pilot, lambda: "sweep-3" in text(app, "message"))
        assert app.screen is page
