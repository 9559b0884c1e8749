"""The page of a run: every key, in every section."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace
from textual.pilot import Pilot

from gputui.core.config import Workspace
from gputui.metrics.curves.model import ChartRequest
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.layout.chart_settings import ChartMemory, ChartView, from_settings, to_settings
from gputui.ui.tui.pages.run.page import RunScreen
from gputui.ui.tui.settings import Settings
from gputui.ui.tui.widgets.pane import Pane
from tests.homes import Home
from tests.texts import mentions
from tests.ui.tui.conftest import MakeApp
from tests.ui.tui.screens import feed_of, press, text, wait_for

SMALL = (80, 24)
MIDDLE = (120, 36)


def page_of(app: GputuiApp) -> RunScreen:
    assert isinstance(app.screen, RunScreen)
    return app.screen


def write_log(workspace: Workspace, rank: int, content: str, stream: str = "stdout") -> Path:
    folder = workspace.run_dir("vit-b16-1") / f"attempts/3/nodes/0/ranks/x/attempt_0/{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stream}.log"
    path.write_text(content)
    return path


def head(app: GputuiApp) -> str:
    return text(app, "charts").splitlines()[0]


def requested_charts(app: GputuiApp) -> ChartRequest:
    request = feed_of(app).interest.charts
    assert request is not None
    return request


def failed_at_start(home: Home, workspace: Workspace) -> None:
    home.agent()
    home.gpus(2)
    home.run("bert-1", "failed", gpus=(0, 1), started_ago=3600.0, ended_ago=3580.0,
               reason="rank 1 raised an exception (KeyError: 'labels', data.py:17); not retried")  # fmt: skip
    home.attempt("bert-1", 1, "failed", gpus=(0, 1), started_ago=3599.0, ended_ago=3580.0, code=1)
    home.incident("bert-1", 1, "user_exception", "rank 1 raised an exception (KeyError: 'labels', data.py:17)",
                    seconds_ago=3580.0, rank=1, reason="not retried", verdict="stop")  # fmt: skip
    for rank in (0, 1):
        folder = workspace.run_dir("bert-1") / f"attempts/1/nodes/0/ranks/x/attempt_0/{rank}"
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(f"hello of rank {rank}\n")
        error = "Traceback (most recent call last):\n  File 'data.py', line 17\nKeyError: 'labels'\n" if rank else ""
        (folder / "stderr.log").write_text(error + "shutting down\n" * 60 if rank else "")
    home.connection.execute("UPDATE attempts SET scanned_at = ended_at WHERE run_id = 'bert-1'")


async def open_failed(pilot: Pilot[int], app: GputuiApp) -> None:
    """Open the page of the run under the cursor, and let it read its log to the end."""
    await press(pilot, "enter")
    for _ in range(5):
        feed_of(app).refresh()
        await pilot.pause()


async def test_the_page_shows_one_section_at_a_time_at_80_columns(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter")
        assert "vit-b16-1 · ● running ↻2" in text(app, "head")
        sections = {"2": ("ranks", "r0"), "3": ("log", "LOG"), "4": ("story", "CUDA ran out"), "5": ("params", "384"),
                    "1": ("charts", "learning rate"), "tab": ("ranks", "r0")}  # fmt: skip
        for key, (pane, word) in sections.items():
            await press(pilot, key)
            assert word in text(app, pane)
            assert page_of(app).section == pane
            panes = [p.id for p in app.screen.query(Pane) if p.is_on_screen and p.size.height and p.size.width]
            assert {"charts", "ranks", "log", "story", "params"} & set(panes) == {pane}
        # The pane fills the page already: enter says so, and one escape leaves the page.
        await press(pilot, "5", "enter")
        assert mentions(text(app, "message"), "full page")
        await press(pilot, "escape")
        assert not isinstance(app.screen, RunScreen)


# --- charts


async def test_crosshair_and_zoom_ask_for_what_they_show(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "left")
        assert head(app).startswith(" │ step 9 440")
        await press(pilot, "escape", "right")
        assert head(app).startswith(" │ step 9 440"), "in both directions it begins at the newest"
        for line in (3, 12, 18):
            assert "│" in text(app, "charts").splitlines()[line][8:]
        places = []
        for key in ("h", "left", "l", "right", "right", "g"):
            await press(pilot, key)
            places.append(page_of(app).charts.view.cursor or 0.0)
        assert places[1] < places[0] < 9440 == places[4]
        assert head(app).startswith(" │ step 0")
        assert {"utilization", "power", "temperature"} <= set(requested_charts(app).hardware)
        for keys in (("escape",), ("left", "G")):
            await press(pilot, *keys)
            assert page_of(app).charts.view.cursor is None
            assert "x step" in head(app)
        windows = []
        for keys in (("plus",), ("shift+left",), ("shift+right",) * 3, ("equals_sign", "0")):
            await press(pilot, *keys)
            windows.append(requested_charts(app).window)
        assert windows[0] is not None
        assert windows[1] is not None
        assert windows[3] is None
        assert 0 < windows[1][0] < windows[0][0], "the newest stays in sight"
        assert windows[0][1] >= 9440, "the newest stays in sight"
        assert windows[2] == windows[0], "at the right end it follows again"
        for key, phrase in (
            ("0", "whole run"),
            ("shift+left", "whole run"),
            ("ctrl+right", None),
            ("o", "no other log"),
        ):
            await press(pilot, key)
            assert phrase is None or phrase in text(app, "message"), "what has no effect says why"


async def test_how_charts_are_looked_at_is_kept_while_the_program_runs(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "m", "m", "m")
        app.perform("smoothing_previous")
        await pilot.pause()
        assert "smoothing 0.8" in head(app)
        assert "loss  ~" in text(app, "charts")
        assert "learning rate  ~" not in text(app, "charts")  # it is set, not measured
        await press(pilot, "y")
        assert text(app, "charts").splitlines()[1].rstrip().endswith("log")
        await press(pilot, "down", "down", "down", "asterisk", "x")
        assert requested_charts(app).axis == "time"
        for keys in ((), ("escape", "enter")):
            await press(pilot, *keys)
            assert mentions(head(app), "x time", "smoothing 0.8")
            assert "*learning rate" in text(app, "charts").splitlines()[1]
        await press(pilot, "asterisk", "x", "x")
        # No epoch was recorded, so the axis of epochs is skipped.
        assert "*" not in text(app, "charts")
        assert "x step" in head(app)


async def test_the_filter_narrows_while_typing(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "slash", "g", "r", "a", "d")
        assert mentions(head(app), " filter grad", "1 of")
        assert "gradient norm" in text(app, "charts")
        assert "loss" not in text(app, "charts")
        await press(pilot, "enter")
        assert "/grad" in head(app)
        await press(pilot, "slash", "ctrl+u", "tilde", "left_parenthesis")
        assert "not a regular expression" in head(app)
        assert "loss" in text(app, "charts")
        await press(pilot, "enter")
        whole = "The filter ~( is not a regular expression: missing ), unterminated subpattern at position 0."
        assert whole in " ".join(text(app, "message").split())
        await press(pilot, "slash")
        await press(pilot, "ctrl+u", "z", "z", "enter")
        assert mentions(text(app, "charts"), "No metric", "filter")
        for keys in (("escape",), ("slash", "g", "escape")):
            await press(pilot, *keys)
            assert "loss" in text(app, "charts")
            assert page_of(app).section == "charts"


# --- the log


async def test_the_log_follows_scrolls_and_changes_rank(app: GputuiApp, workspace: Workspace) -> None:
    for rank in (1, 0):
        lines = "".join(f"rank {rank} line {number} \x1b[31mred\x1b[0m\n" for number in range(100))
        path = write_log(workspace, rank, lines)
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "3")
        assert text(app, "log").endswith("rank 0 line 99 red")
        assert "following" in text(app, "log")
        await press(pilot, "up", "k", "pageup")
        assert "lines below" in text(app, "log")
        assert "line 99" not in text(app, "log")
        with path.open("a") as file:
            file.write("one more\ntwo more\n")
        feed_of(app).refresh()
        log_lines = {"f": "two more", "home": "line 0 red", "o": "LOG rank 1", "1": "", "O": "LOG rank 0"}
        for key, phrase in log_lines.items():
            await press(pilot, key)
            assert phrase in text(app, "log")
        assert page_of(app).section == "log", "a key of the log reveals it"


# --- what is kept, and files


async def test_the_chart_in_focus_is_written_as_it_is_seen(app: GputuiApp, workspace: Workspace) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "m", "left", "E")
        folder = workspace.run_dir("vit-b16-1") / "charts"
        await wait_for(pilot, lambda: "Wrote" in text(app, "message"))
        assert "Wrote" in text(app, "message")
        assert "vit-b16-1/charts" in text(app, "message")
        numbers = (folder / "loss-step.csv").read_text()
        assert "\nloss," in numbers
        assert "loss (measured)" in numbers
        assert "loss (redone)" in numbers
        picture = (folder / "loss-step.svg").read_text()
        assert "vit-b16-1: loss" in picture
        assert "restart" not in picture
        folder.joinpath("loss-step.svg").unlink()
        folder.joinpath("loss-step.svg").mkdir()
        await press(pilot, "E")
        await wait_for(pilot, lambda: "cannot be written" in text(app, "message"))
        assert mentions(text(app, "message"), "chart", "cannot be written")


def test_how_charts_are_looked_at_is_kept_for_the_next_start() -> None:
    views: list[ChartView] = []
    memory = ChartMemory(ChartView(), views.append)
    mine = ChartView("two", "time", 0.9, pins=("lr",), logs=frozenset({"loss"}), is_log_x="l*")
    memory.keep("a", mine)
    assert memory.of("a") == mine
    assert memory.of("b") == ChartView("two", "time", 0.9, ("lr",))
    assert from_settings(Settings(**to_settings(views[-1]))) == memory.of("b")
    memory.keep("a", replace(mine, cursor=40.0))
    assert memory.of("a") == mine, "a crosshair is of one visit"
    memory.keep("a", replace(mine, filter_text=""))
    assert len(views) == 1


# --- by rank


async def test_a_metric_is_split_by_rank_and_the_straggler_stands_out(app: GputuiApp, workspace: Workspace) -> None:
    async with app.run_test(size=MIDDLE) as pilot:
        await press(pilot, "down", "enter", "slash", *"step_t", "enter")
        app.perform("by_rank")
        await pilot.pause()
        assert "step time s by rank  r2 slow: 0.4500  0.3–0.4500" in text(app, "charts").splitlines()[1]
        assert requested_charts(app).ranked == ("step_time",)
        await press(pilot, "right", "right", "E")
        assert "r2 slow: 0.4500" in text(app, "charts").splitlines()[1]
        await wait_for(pilot, lambda: "Wrote" in text(app, "message"))
        written = (workspace.run_dir("gpt2-124m-1") / "charts" / "step_time-step.csv").read_text()
        assert all(f"\nstep_time rank {rank}," in written for rank in range(4))
        app.perform("by_rank")
        await pilot.pause()
        assert "by rank" not in text(app, "charts")
        assert requested_charts(app).ranked == ()


# --- a failed run


async def test_a_failed_run_says_why_once_and_opens_on_the_log_of_its_rank_that_has_the_charts_room(
    home: Home, make_app: MakeApp, workspace: Workspace
) -> None:
    failed_at_start(home, workspace)
    app = make_app()
    async with app.run_test(size=MIDDLE) as pilot:
        await open_failed(pilot, app)
        banner = text(app, "banner")
        page = page_of(app)
        assert mentions(banner, "KeyError: 'labels', data.py:17", "not retried", "e traceback   3 log   ")
        log = page.panes.sections["log"]
        assert page.section == "log"
        assert not page.charts.pane.display
        assert log.size.width == 120
        assert log.size.height >= 18
        lines = text(app, "log").splitlines()
        assert "LOG rank 1 stderr" in lines[0]
        assert "Traceback" in lines[1]
        assert "KeyError" in lines[3]
        assert "following" not in lines[0], "nothing follows in the log of an ended run"
        await press(pilot, "e")
        assert mentions(text(app, "message"), "traceback", "in view")
        assert "PARAMETERS" in text(app, "params")
        assert "exited with code 1" in text(app, "story")
        await press(pilot, "4")
        everything = "\n".join(pane.text for pane in app.screen.query(Pane))
        assert everything.count("data.py:17") == 1
        await press(pilot, "r")
        assert mentions(text(app, "confirm"), "r  resume", "no checkpoint", "▸ c  copy")


async def test_a_failed_run_without_a_traceback_opens_on_the_end_of_its_ranks_log_and_offers_no_traceback(
    home: Home, make_app: MakeApp, workspace: Workspace
) -> None:
    failed_at_start(home, workspace)
    attempt = workspace.run_dir("bert-1") / "attempts/1/nodes/0"
    (attempt / "ranks/x/attempt_0/1/stderr.log").write_text("")
    (attempt / "output.log").write_text("Traceback (most recent call last):\n  File 'run.py'\nChildFailedError: x\n")
    app = make_app()
    async with app.run_test(size=MIDDLE) as pilot:
        await open_failed(pilot, app)
        lines = text(app, "log").splitlines()
        assert "LOG rank 1 " in lines[0]
        assert "hello of rank 1" in lines[1]
        assert "traceback" not in text(app, "banner")
        assert "3 log" in text(app, "banner")
        await press(pilot, "e")
        assert mentions(text(app, "message"), "no traceback")


async def test_the_head_and_the_end_of_the_curve_are_of_one_moment(home: Home, make_app: MakeApp) -> None:
    """The curves are drawn anew once a second at most, and the head does not run ahead of them."""
    home.run("vit-1")
    home.attempt("vit-1", 1)
    app = make_app()
    async with app.run_test(size=(200, 50)) as pilot:
        await press(pilot, "enter")
        for step in range(1, 6):
            line = {"step": step, "time": home.now - 9 + step, "loss": 1.0 + step / 8}
            home.metrics("vit-1", 1, [line])
            feed_of(app).refresh()
            await pilot.pause()
            match = re.search(r"loss (\d\S*)", text(app, "head"))
            assert (match is None and step == 1) or (match is not None and f" {match[1]}" in text(app, "charts"))
        page_of(app).charts.pane._drawn_at = float("-inf")
        app.repaint()
        await pilot.pause()
        assert "loss 1.625" in text(app, "head")
        assert "1.625" in text(app, "charts")
