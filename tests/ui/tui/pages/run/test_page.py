"""The page of a run: every key, in every section."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from textual.pilot import Pilot

from gputui.core.config import Workspace
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.layout.chart_settings import ChartMemory, ChartView, from_kept, to_keep
from gputui.ui.tui.pages.run.page import RunScreen
from gputui.ui.tui.settings import Settings
from gputui.ui.tui.widgets.pane import Pane
from tests.texts import mentions
from tests.ui.tui.conftest import MakeApp
from tests.ui.tui.filling import Filler
from tests.ui.tui.test_screens import feed_of, text, until

SMALL, MIDDLE = (80, 24), (120, 36)


def page_of(app: GputuiApp) -> RunScreen:
    assert isinstance(app.screen, RunScreen)
    return app.screen


def write_log(workspace: Workspace, rank: int, content: str, stream: str = "stdout") -> Path:
    folder = workspace.run_dir("vit-b16-1") / f"attempts/3/nodes/0/ranks/x/attempt_0/{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stream}.log"
    path.write_text(content)
    return path


async def press(pilot: Pilot[int], *keys: str) -> None:
    for key in keys:
        await pilot.press(key)
        await pilot.pause()


def head(app: GputuiApp) -> str:
    return text(app, "charts").splitlines()[0]


# --- sections


async def test_the_page_shows_one_section_at_a_time_at_80_columns(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter")
        assert "vit-b16-1 · ● running ↻2" in text(app, "head")
        assert "loss" in text(app, "charts") and "learning rate" in text(app, "charts")
        sections = [("2", "ranks", "r0"), ("3", "log", "LOG"), ("4", "story", "CUDA ran out"), ("5", "params", "384"),
                    ("1", "charts", "loss")]  # fmt: skip
        for key, pane, word in sections:
            await press(pilot, key)
            assert word in text(app, pane)
            shown = [p.id for p in app.screen.query(Pane) if p.is_on_screen and p.size.height and p.size.width]
            assert {"charts", "ranks", "log", "story", "params"} & set(shown) == {pane}
        await press(pilot, "tab")
        assert page_of(app).section == "ranks"
        await press(pilot, "shift+tab", "shift+tab")
        assert page_of(app).section == "params"


# --- charts


async def test_the_crosshair_moves_over_all_charts_and_names_its_place(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "left")
        assert head(app).startswith(" │ step 9 440")
        for line in (3, 12, 18):
            assert "│" in text(app, "charts").splitlines()[line][8:]
        await press(pilot, "h", "left")
        here = page_of(app).charts.view.cursor
        assert here is not None and here < 9440
        await press(pilot, "l", "right", "right")
        assert page_of(app).charts.view.cursor == 9440
        await press(pilot, "g")
        assert head(app).startswith(" │ step 0")
        asked = feed_of(app).interest.charts
        assert asked is not None and {"utilization", "power", "temperature"} <= set(asked.hardware)
        await press(pilot, "escape")
        assert page_of(app).charts.view.cursor is None and "x step" in head(app)
        await press(pilot, "left", "G")
        assert page_of(app).charts.view.cursor is None


async def test_zooming_and_panning_ask_for_the_window(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "plus")
        asked = feed_of(app).interest.charts
        assert asked is not None and asked.window is not None
        assert asked.window[0] > 0 and asked.window[1] >= 9440 and "to" in head(app)  # the newest stays in sight
        await press(pilot, "shift+left")
        moved = feed_of(app).interest.charts
        assert moved is not None and moved.window is not None and moved.window[0] < asked.window[0]
        await press(pilot, "shift+right", "shift+right", "shift+right")
        assert page_of(app).charts.view.viewport.end is None
        await press(pilot, "equals_sign", "0")
        reset = feed_of(app).interest.charts
        assert reset is not None and reset.window is None


async def test_smoothing_axes_logarithm_and_pins_are_kept_while_the_program_runs(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "m", "m", "m")
        app.perform("smoothing_previous")
        await pilot.pause()
        assert "smoothing 0.8" in head(app) and "loss  ~" in text(app, "charts")
        assert "learning rate  ~" not in text(app, "charts")  # it is set, not measured
        await press(pilot, "y")
        assert text(app, "charts").splitlines()[1].rstrip().endswith("log")
        await press(pilot, "down", "down", "down", "asterisk")
        assert "*learning rate" in text(app, "charts").splitlines()[1]
        await press(pilot, "x")
        asked = feed_of(app).interest.charts
        assert asked is not None and asked.axis == "time" and "x time" in head(app)
        await press(pilot, "escape", "enter")
        assert "smoothing 0.8" in head(app) and "*learning rate" in text(app, "charts") and "x time" in head(app)
        await press(pilot, "asterisk")
        assert "*" not in text(app, "charts")
        await press(pilot, "x", "x")
        # Nobody wrote an epoch: that axis is passed over.
        assert "x step" in head(app)


async def test_the_filter_narrows_while_typing(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "slash", "g", "r", "a", "d")
        assert " filter grad" in head(app) and "1 of" in head(app)
        assert "gradient norm" in text(app, "charts") and "loss" not in text(app, "charts")
        await press(pilot, "enter")
        assert "/grad" in head(app)
        await press(pilot, "slash", "ctrl+u", "tilde", "left_parenthesis")
        assert "not a regular expression" in head(app) and "loss" in text(app, "charts")
        await press(pilot, "ctrl+u", "z", "z", "enter")
        assert mentions(text(app, "charts"), "No metric", "filter")
        await press(pilot, "escape")
        assert "loss" in text(app, "charts") and page_of(app).section == "charts"  # as the sentence had promised
        await press(pilot, "slash", "g", "escape")
        assert "loss" in text(app, "charts")


# --- the log


async def test_the_log_follows_scrolls_and_changes_rank(app: GputuiApp, workspace: Workspace) -> None:
    for rank in (0, 1):
        lines = "".join(f"rank {rank} line {number} \x1b[31mred\x1b[0m\n" for number in range(100))
        path = write_log(workspace, rank, lines)
    path = path.parent.parent / "0" / "stdout.log"
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "3")
        assert text(app, "log").endswith("rank 0 line 99 red") and "following" in text(app, "log")
        await press(pilot, "up", "k", "pageup")
        assert "lines below" in text(app, "log") and "line 99" not in text(app, "log")
        with path.open("a") as file:
            file.write("one more\ntwo more\n")
        feed_of(app).refresh()
        await press(pilot, "f")
        assert text(app, "log").endswith("two more")
        await press(pilot, "home")
        assert "rank 0 line 0 red" in text(app, "log")
        await press(pilot, "o")
        assert "LOG rank 1" in text(app, "log") and text(app, "log").endswith("rank 1 line 99 red")
        await press(pilot, "O")
        assert "LOG rank 0" in text(app, "log")


# --- what is kept, and files


async def test_the_chart_in_focus_is_written_as_it_is_seen(app: GputuiApp, workspace: Workspace) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "m", "left", "E")
        folder = workspace.run_dir("vit-b16-1") / "charts"
        await until(pilot, lambda: "Wrote" in text(app, "message"))
        assert "Wrote" in text(app, "message") and "vit-b16-1/charts" in text(app, "message")
        numbers = (folder / "loss-step.csv").read_text()
        assert "\nloss," in numbers and "loss (measured)" in numbers and "loss (redone)" in numbers
        picture = (folder / "loss-step.svg").read_text()
        assert "vit-b16-1: loss" in picture and "restart" not in picture
        folder.joinpath("loss-step.svg").unlink()
        folder.joinpath("loss-step.svg").mkdir()
        await press(pilot, "E")
        await until(pilot, lambda: "cannot be written" in text(app, "message"))
        assert mentions(text(app, "message"), "chart", "cannot be written")


def test_how_charts_are_looked_at_is_kept_for_the_next_start() -> None:
    kept: list[ChartView] = []
    memory = ChartMemory(ChartView(), kept.append)
    mine = ChartView("two", "time", 0.9, ("lr",), frozenset({"loss"}), "l*")
    memory.keep("a", mine)
    assert memory.of("a") == mine and memory.of("b") == ChartView("two", "time", 0.9, ("lr",))
    assert from_kept(Settings(**to_keep(kept[-1]))) == memory.of("b")
    memory.keep("a", replace(mine, filter_text=""))
    assert len(kept) == 1
    assert from_kept(Settings(chart_layout="?", chart_axis="", chart_smoothing="7")) == ChartView()


# --- by rank


async def test_a_metric_is_split_by_rank_and_the_straggler_stands_out(app: GputuiApp, workspace: Workspace) -> None:
    async with app.run_test(size=MIDDLE) as pilot:
        await press(pilot, "down", "enter", "slash", *"step_t", "enter")
        app.perform("by_rank")
        await pilot.pause()
        first = text(app, "charts").splitlines()[1]
        assert "step time by rank" in first and "r0 0.3000" in first and "r2 slow 0.4500" in first
        asked = feed_of(app).interest.charts
        assert asked is not None and asked.ranked == ("step_time",)
        await press(pilot, "right", "right")
        assert "r2 slow 0.4500" in text(app, "charts").splitlines()[1]
        await press(pilot, "E")
        await until(pilot, lambda: "Wrote" in text(app, "message"))
        written = (workspace.run_dir("gpt2-124m-1") / "charts" / "step_time-step.csv").read_text()
        assert all(f"\nstep_time rank {rank}," in written for rank in range(4))
        app.perform("by_rank")
        await pilot.pause()
        assert "by rank" not in text(app, "charts") and feed_of(app).interest.charts is not None
        assert feed_of(app).interest.charts.ranked == ()  # type: ignore[union-attr]


# --- a failed run


def failed_at_start(filler: Filler, workspace: Workspace) -> None:
    filler.agent()
    filler.gpus(2)
    filler.run("bert-1", "failed", gpus=(0, 1), started_ago=3600.0, ended_ago=3580.0,
               reason="rank 1 raised an exception (KeyError: 'labels', data.py:17); not retried")  # fmt: skip
    filler.attempt("bert-1", 1, "failed", gpus=(0, 1), started_ago=3599.0, ended_ago=3580.0, code=1)
    filler.incident("bert-1", 1, "user_exception", "rank 1 raised an exception (KeyError: 'labels', data.py:17)",
                    seconds_ago=3580.0, rank=1, reason="not retried", verdict="stop")  # fmt: skip
    for rank in (0, 1):
        folder = workspace.run_dir("bert-1") / f"attempts/1/nodes/0/ranks/x/attempt_0/{rank}"
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(f"hello of rank {rank}\n")
        error = "Traceback (most recent call last):\n  File 'data.py', line 17\nKeyError: 'labels'\n" if rank else ""
        (folder / "stderr.log").write_text(error + "shutting down\n" * 60 if rank else "")


async def test_a_failed_run_says_why_first_and_once(filler: Filler, make_app: MakeApp, workspace: Workspace) -> None:
    failed_at_start(filler, workspace)
    app = make_app()
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter")
        banner = text(app, "banner")
        assert "KeyError: 'labels', data.py:17" in banner and "not retried" in banner
        assert "e traceback   3 log   " in banner
        await press(pilot, "4")
        everything = "\n".join(pane.text for pane in app.screen.query(Pane))
        assert everything.count("data.py:17") == 1


async def test_a_failed_run_opens_on_the_log_of_its_rank_and_without_charts_that_has_their_room(
    filler: Filler, make_app: MakeApp, workspace: Workspace
) -> None:
    failed_at_start(filler, workspace)
    app = make_app()
    async with app.run_test(size=MIDDLE) as pilot:
        await press(pilot, "enter")
        for _ in range(5):
            feed_of(app).refresh()
            await pilot.pause()
        page = page_of(app)
        log = page.panes["log"]
        assert page.section == "log" and not page.charts.pane.display
        assert log.size.width == 120 and log.size.height >= 18
        lines = text(app, "log").splitlines()
        assert "LOG rank 1 stderr" in lines[0] and "Traceback" in lines[1] and "KeyError" in lines[3]
        assert "PARAMETERS" in text(app, "params") and "exited with code 1" in text(app, "story")
