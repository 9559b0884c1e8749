"""The page of a run: every key, in every section."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from gputui.charts.chart import Line
from gputui.config import Workspace
from gputui.store.metrics.intake import Intake
from gputui.tui.app import GputuiApp
from gputui.tui.layout.chart_settings import ChartMemory, ChartSettings, from_kept, to_keep
from gputui.tui.pages.overview.page import OverviewScreen
from gputui.tui.pages.run.head import from_top
from gputui.tui.pages.run.page import RunScreen
from gputui.tui.settings import Settings
from gputui.tui.widgets.pane import Pane
from tests.texts import mentions
from tests.tui.conftest import MakeApp, StillFeed
from tests.tui.filling import Filler

SMALL, MIDDLE, WIDE = (80, 24), (120, 36), (160, 48)


@pytest.fixture
def app(filler: Filler, make_app: MakeApp) -> GputuiApp:
    filler.overnight()
    return make_app()


def feed_of(app: GputuiApp) -> StillFeed:
    assert isinstance(app.feed, StillFeed)
    return app.feed


def text(app: GputuiApp, pane: str) -> str:
    return app.screen.query_one(f"#{pane}", Pane).text


def page_of(app: GputuiApp) -> RunScreen:
    assert isinstance(app.screen, RunScreen)
    return app.screen


def write_log(workspace: Workspace, rank: int, content: str, stream: str = "stdout") -> Path:
    folder = workspace.run_dir("vit-b16-1") / "attempts" / "3" / "ranks" / "x" / "attempt_0" / str(rank)
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


@pytest.mark.parametrize("key", ["escape", "backspace"])
async def test_the_way_back(app: GputuiApp, key: str) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "l")
        assert isinstance(app.screen, RunScreen)
        await press(pilot, key)
        assert isinstance(app.screen, OverviewScreen)
        assert feed_of(app).interest.run_id is None


@pytest.mark.parametrize("size", [MIDDLE, WIDE])
async def test_wide_screens_show_everything_side_by_side(app: GputuiApp, size: tuple[int, int]) -> None:
    async with app.run_test(size=size) as pilot:
        await press(pilot, "enter")
        for pane, word in (
            ("charts", "gradient norm"), ("params", "PARAMETERS"), ("params", "CHECKPOINTS"), ("ranks", "RANKS"),
            ("story", "TIMELINE"), ("story", "2 incidents cost"), ("log", "LOG"),
        ):  # fmt: skip
            assert word in text(app, pane)
            assert app.screen.query_one(f"#{pane}").size.height > 0
        charts, side = app.screen.query_one("#charts"), app.screen.query_one("#side")
        assert charts.size.width + side.size.width == size[0]
        await press(pilot, "4", "enter")  # the timeline on the whole page
        assert app.screen.query_one("#story").size.width == size[0] and not app.screen.query_one("#charts").display
        assert "XID 79: GPU has fallen" in text(app, "story")  # with its evidence
        await press(pilot, "escape")
        assert app.screen.query_one("#charts").display and isinstance(app.screen, RunScreen)


async def test_sections_scroll(app: GputuiApp) -> None:
    async with app.run_test(size=(80, 9)) as pilot:
        await press(pilot, "enter", "4")
        assert "lines before" in text(app, "story")
        await press(pilot, "pageup", "k", "home")
        assert text(app, "story").startswith(" 00:09:22 queued") and "lines below" in text(app, "story")
        await press(pilot, "down", "G")
        assert "attempt 3 from step 8 000" in text(app, "story")
        await press(pilot, "5", "down", "pagedown")
        assert "above" in text(app, "params")
        await press(pilot, "g")
        assert "batch_size" in text(app, "params")


# --- charts


async def test_only_what_is_shown_is_asked_for(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter")
        asked = feed_of(app).interest.charts
        assert asked is not None and asked.names == ("loss", "samples_per_s", "lr", "grad_norm")
        assert asked.hardware == ("utilization",) and asked.window is None and asked.bins >= 160
        await press(pilot, "enter")  # one chart on the whole page
        asked = feed_of(app).interest.charts
        assert asked is not None and asked.names == ("loss",) and not asked.hardware
        assert "samples" not in text(app, "charts")


async def test_charts_are_chosen_paged_and_laid_out(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter")
        assert "▸loss" in text(app, "charts") and "charts 1–5 of" in head(app)
        await press(pilot, "down", "j")
        assert "▸GPU util" in text(app, "charts")
        await press(pilot, "pagedown")
        assert "charts 6–10 of" in head(app) and "▸loss" not in text(app, "charts")
        await press(pilot, "pageup", "up", "k")
        assert "▸loss" in text(app, "charts")
        await press(pilot, "v")
        assert "samples/s" in text(app, "charts") and "gradient" not in text(app, "charts")
        await press(pilot, "v")
        assert "samples/s" not in text(app, "charts") and "charts 1–1 of" in head(app)
        await press(pilot, "v")
        assert "gradient" in text(app, "charts")


async def test_the_crosshair_moves_over_all_charts_and_names_its_place(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "left")
        assert head(app).startswith(" │ step 9 440")
        for line in (3, 12, 18):
            assert "│" in text(app, "charts").splitlines()[line][8:]
        await press(pilot, "h", "left")
        here = page_of(app).charts.cursor
        assert here is not None and here < 9440
        await press(pilot, "l", "right", "right")
        assert page_of(app).charts.cursor == 9440
        await press(pilot, "g")
        assert head(app).startswith(" │ step 0")
        asked = feed_of(app).interest.charts
        assert asked is not None and {"utilization", "power", "temperature"} <= set(asked.hardware)
        await press(pilot, "escape")
        assert page_of(app).charts.cursor is None and "x step" in head(app)
        await press(pilot, "left", "G")
        assert page_of(app).charts.cursor is None


async def test_a_run_without_a_step_has_its_charts_over_time(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "G", "enter", "1")
        assert page_of(app).run_id == "resnet50-2"
        assert "x time · no step known" in head(app) and "reading…" not in text(app, "charts")
        await press(pilot, "left", "ctrl+left", "plus", "minus", "shift+left", "E", "y", "asterisk")
        assert page_of(app).charts.cursor is not None
        await press(pilot, "end", "x")
        assert page_of(app).charts.settings.axis == "time" and head(app).strip() == "x time"


async def test_what_a_script_writes_cannot_drive_the_terminal(app: GputuiApp, filler: Filler) -> None:
    hostile = "lo\x1b]0;x\x07ss [b]\u202e\u200b"
    filler.metrics("vit-b16-1", 3, [{"step": 9441, "time": filler.now, "rank": 0, hostile: 1.0}])
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "slash", *"ss", "space", "enter")
        shown = text(app, "charts")
        assert "ss [b]" in shown and "\x1b" not in shown and "\u202e" not in shown and "\u200b" not in shown


async def test_the_crosshair_goes_from_one_thing_that_happened_to_the_next(app: GputuiApp) -> None:
    async with app.run_test(size=MIDDLE) as pilot:
        await press(pilot, "enter", "ctrl+left")
        assert page_of(app).charts.cursor is not None
        seen = [head(app)]
        for _ in range(3):
            await press(pilot, "ctrl+left")
            seen.append(head(app))
        await press(pilot, "ctrl+right")
        assert head(app) == seen[-2]
        assert any("GPU 7 was lost" in line for line in seen) and any("CUDA ran out of m" in line for line in seen)


async def test_zooming_and_panning_ask_for_the_window(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "plus")
        asked = feed_of(app).interest.charts
        assert asked is not None and asked.window is not None
        start, end = asked.window
        assert start > 0 and end >= 9440  # the newest stays in sight
        assert "to" in head(app)
        await press(pilot, "shift+left")
        assert page_of(app).charts.viewport.end is not None
        moved = feed_of(app).interest.charts
        assert moved is not None and moved.window is not None and moved.window[0] < start
        await press(pilot, "shift+right", "shift+right", "shift+right")
        assert page_of(app).charts.viewport.end is None
        await press(pilot, "minus")
        assert page_of(app).charts.viewport.span is None
        await press(pilot, "plus", "equals_sign", "0")
        reset = feed_of(app).interest.charts
        assert reset is not None and reset.window is None
        await press(pilot, "home", "plus", "plus")
        window = feed_of(app).interest.charts
        assert window is not None and window.window is not None and window.window[0] <= 0  # around the crosshair


async def test_smoothing_axes_logarithm_and_pins_are_kept_while_the_program_runs(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "m", "m", "m", "M")
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


async def test_a_click_chooses_a_chart_and_a_moment(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "2", "1")
        await pilot.click("#charts", offset=(60, 18))
        await pilot.pause()
        assert "▸gradient norm" in text(app, "charts") and head(app).startswith(" │ step")
        page = page_of(app)
        page.wheel(page.charts.pane, -3)
        assert page.charts.viewport.span is not None
        assert page.copyable()[0].text.startswith("│ step")


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
        seen = text(app, "log").splitlines()[-1]
        with path.open("a") as file:
            file.write("one more\ntwo more\n")
        feed_of(app).refresh()
        await pilot.pause()
        assert text(app, "log").splitlines()[-1] == seen  # what is read does not run away
        await press(pilot, "pagedown", "down", "j")
        await press(pilot, "f")
        assert text(app, "log").endswith("two more")
        await press(pilot, "home")
        assert "rank 0 line 0 red" in text(app, "log")
        await press(pilot, "right")
        assert "rank 0 line 0 red" in text(app, "log")  # nothing lies beyond the edge
        await press(pilot, "r")
        assert "LOG rank 1" in text(app, "log") and text(app, "log").endswith("rank 1 line 99 red")
        await press(pilot, "R")
        assert "LOG rank 0" in text(app, "log")


async def test_behind_a_long_progress_bar_older_lines_are_read(app: GputuiApp, workspace: Workspace) -> None:
    bar = "".join(f"\r{number:>6}/20000 |{'#' * 20}|" for number in range(20_000))
    write_log(workspace, 0, "".join(f"line {number}\n" for number in range(50)) + bar)
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "3")
        feed_of(app).refresh()
        await pilot.pause()
        shown = text(app, "log").splitlines()
        assert "19999/20000" in shown[-1]
        assert shown[-2].strip() == "line 49" and len(shown) > 15


async def test_the_log_is_searched_and_cut_to_what_is_grave(app: GputuiApp, workspace: Workspace) -> None:
    body = "".join(f"line {n}\n" + (f"WARNING loader {n} is slow\n" if n % 100 == 0 else "") for n in range(400))
    write_log(workspace, 0, body + "Traceback (most recent call last):\n  File 'x'\nValueError: no\nlast line\n")
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "full_stop")
        assert mentions(text(app, "message"), "Nothing", "search")
        await press(pilot, "3", "slash", *"loader")
        assert " search loader" in text(app, "log") and "4 of 4" in text(app, "log")
        await press(pilot, "enter")
        assert "/loader: 4 of 4" in text(app, "log") and "▸WARNING loader 300 is slow" in text(app, "log")
        assert feed_of(app).interest.is_log_deep
        await press(pilot, "semicolon")
        assert "▸WARNING loader 200 is slow" in text(app, "log")
        await press(pilot, "full_stop", "full_stop")
        assert "▸WARNING loader 0 is slow" in text(app, "log")  # around the end
        assert page_of(app).copyable()[0].text == "WARNING loader 0 is slow"
        await press(pilot, "escape")
        assert "loader:" not in text(app, "log") and isinstance(app.screen, RunScreen)
        await press(pilot, "w", "f")
        lines = text(app, "log").splitlines()
        assert "warnings and errors only" in lines[0] and lines[-1] == " ValueError: no" and len(lines) == 8
        await press(pilot, "w")
        assert text(app, "log").endswith("last line")


# --- checkpoints


async def test_the_newest_checkpoint_is_checked_when_asked(app: GputuiApp, workspace: Workspace) -> None:
    folder = workspace.run_dir("vit-b16-1") / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "step_9000.pt").write_bytes(b"no archive at all")
    feed = feed_of(app)
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "5")
        feed.wait_for_checkpoints()
        feed.refresh()
        await pilot.pause()
        assert "step 9 000" in text(app, "params") and "✗ has no .sha256" in text(app, "params")
        await press(pilot, "1", "V")
        assert feed.interest.checkpoint_to_check == "step_9000.pt" and page_of(app).section == "params"


async def test_the_crosshair_leads_to_its_moment(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "left", "left", "left")
        at = page_of(app).charts.cursor_at
        assert at is not None and time.strftime("%H:%M:%S", time.localtime(at)) in head(app)
        await press(pilot, "t")
        assert (
            app.time_travel.moment is not None
            and abs(app.time_travel.moment.at - at) < 1e-6
            and app.snapshot.past is not None
        )
        assert "◀" in text(app, "head") + text(app, "notice")
        await press(pilot, "L", "escape", "t")
        assert not isinstance(app.screen, RunScreen)  # without a crosshair a moment is asked for


# --- what is kept, and files


async def test_the_chart_in_focus_is_written_as_it_is_seen(app: GputuiApp, workspace: Workspace) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter", "m", "left", "E")
        folder = workspace.run_dir("vit-b16-1") / "charts"
        for _ in range(200):
            if "Wrote" in text(app, "message"):
                break
            await pilot.pause(0.02)
        assert "Wrote" in text(app, "message") and "vit-b16-1/charts" in text(app, "message")
        numbers = (folder / "loss-step.csv").read_text()
        assert "loss (smoothed)" in numbers and "loss (measured)" in numbers and "loss (redone)" in numbers
        picture = (folder / "loss-step.svg").read_text()
        assert "vit-b16-1: loss" in picture and "restart" not in picture
        folder.joinpath("loss-step.svg").unlink()
        folder.joinpath("loss-step.svg").mkdir()
        await press(pilot, "E")
        for _ in range(200):
            if "cannot be written" in text(app, "message"):
                break
            await pilot.pause(0.02)
        assert mentions(text(app, "message"), "chart", "cannot be written")


def test_how_charts_are_looked_at_is_kept_for_the_next_start() -> None:
    kept: list[ChartSettings] = []
    memory = ChartMemory(ChartSettings(), kept.append)
    mine = ChartSettings("two", "time", 0.9, ("lr",), frozenset({"loss"}), "l*")
    memory.keep("a", mine)
    assert memory.of("a") == mine and memory.of("b") == ChartSettings("two", "time", 0.9, ("lr",))
    assert from_kept(Settings(**to_keep(kept[-1]))) == memory.of("b")
    memory.keep("a", replace(mine, filter_text=""))
    assert len(kept) == 1
    assert from_kept(Settings(chart_layout="?", chart_axis="", chart_smoothing="7")) == ChartSettings()


async def test_lines_that_are_no_metrics_are_told(app: GputuiApp, filler: Filler) -> None:
    filler.connection.execute("UPDATE metric_sources SET rejected_count = 2 WHERE run_id = 'vit-b16-1'")
    filler.connection.commit()
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter")
        assert mentions(head(app), "2 lines could not") and text(app, "notice") == ""
        known = page_of(app).page
        assert known is not None
        app.snapshot = replace(app.snapshot, page=replace(known, intake=Intake(0, 120, "no step", '{"iter": 1}')))
        page_of(app).paint()
        await pilot.pause()
        said = " ".join(text(app, "notice").split())
        assert mentions(said, "▲ None", "120", "(no step)", '{"iter": 1}')


async def test_the_x_axis_is_logarithmic_and_linear_again(app: GputuiApp, workspace: Workspace) -> None:
    async with app.run_test(size=MIDDLE) as pilot:
        await press(pilot, "enter", "v", "v", "ctrl+x")
        charts = page_of(app).charts
        assert "x step · log x, without 0" in head(app) and "step, log" in text(app, "charts")
        asked = feed_of(app).interest.charts
        assert asked is not None and asked.is_log and asked.window is None
        await press(pilot, "right")
        assert charts.cursor == 1.0  # the first place that there is
        await press(pilot, "right")
        assert charts.cursor == 30.0  # what was measured next
        await press(pilot, "plus")
        asked = feed_of(app).interest.charts
        assert asked is not None and asked.window is not None
        start, end = asked.window
        assert start == pytest.approx(30**0.5) and end / start == pytest.approx(100)
        await press(pilot, "shift+right")
        assert charts.viewport.window(charts._extent)[0] == pytest.approx(start * 10**0.5)  # type: ignore[arg-type]
        await press(pilot, "E")
        written = workspace.run_dir("vit-b16-1") / "charts" / "loss-step.svg"
        for _ in range(200):
            if "Wrote" in text(app, "message"):
                break
            await pilot.pause(0.02)
        assert ">step, log<" in written.read_text()
        await press(pilot, "0", "ctrl+x")
        assert "log" not in head(app) and "step, log" not in text(app, "charts")


async def test_a_click_on_a_logarithmic_axis_puts_the_crosshair_there(app: GputuiApp) -> None:
    async with app.run_test(size=MIDDLE) as pilot:
        await press(pilot, "enter", "enter", "ctrl+x")
        line = next(line for line in text(app, "charts").splitlines() if "step, log" in line)
        await pilot.click("#charts", offset=(line.index("┬100"), 12))
        await pilot.pause()
        cursor = page_of(app).charts.cursor
        assert cursor is not None and cursor == pytest.approx(100.0, rel=0.1)


# --- by rank


async def test_a_metric_is_split_by_rank_and_the_straggler_stands_out(app: GputuiApp, workspace: Workspace) -> None:
    async with app.run_test(size=MIDDLE) as pilot:
        await press(pilot, "down", "enter", "slash", *"step_t", "enter", "b")
        first = text(app, "charts").splitlines()[1]
        assert "step time by rank" in first and "r0 0.3000" in first and "r2 slow 0.4500" in first
        asked = feed_of(app).interest.charts
        assert asked is not None and asked.ranked == ("step_time",)
        await press(pilot, "right", "right")
        assert "r2 slow 0.4500" in text(app, "charts").splitlines()[1]
        await press(pilot, "E")
        for _ in range(200):
            if "Wrote" in text(app, "message"):
                break
            await pilot.pause(0.02)
        written = (workspace.run_dir("gpt2-124m-1") / "charts" / "step_time-step.csv").read_text()
        assert all(f"\nstep_time rank {rank}," in written for rank in range(4))
        await press(pilot, "b")
        assert "by rank" not in text(app, "charts") and feed_of(app).interest.charts is not None
        assert feed_of(app).interest.charts.ranked == ()  # type: ignore[union-attr]


async def test_what_cannot_be_split_by_rank_says_why(app: GputuiApp) -> None:
    async with app.run_test(size=MIDDLE) as pilot:
        await press(pilot, "enter", "b")
        assert "This run has one rank" in text(app, "message")
        await press(pilot, "escape", "down", "enter", "b")
        assert mentions(text(app, "message"), "one rank", "loss", "step_time")
        await press(pilot, "slash", *"gpu", "enter", "b")
        assert "show each GPU already" in text(app, "message")
        assert "by rank" not in text(app, "charts")


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
        folder = workspace.run_dir("bert-1") / "attempts" / "1" / "ranks" / "x" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(f"hello of rank {rank}\n")
        error = "Traceback (most recent call last):\n  File 'data.py', line 17\nKeyError: 'labels'\n" if rank else ""
        (folder / "stderr.log").write_text(error + "shutting down\n" * 60 if rank else "")


@pytest.mark.parametrize("size", [(80, 24), (120, 36)], ids=["80x24", "120x36"])
async def test_a_failed_run_says_why_first_and_once(
    filler: Filler, make_app: MakeApp, workspace: Workspace, size: tuple[int, int]
) -> None:
    failed_at_start(filler, workspace)
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await press(pilot, "enter")
        banner = text(app, "banner")
        assert "KeyError: 'labels', data.py:17" in banner and "not retried" in banner
        for key in ("e traceback", "3 log", "X restart", "N launch with changes"):
            assert key in banner
        await press(pilot, "4")
        everything = "\n".join(pane.text for pane in app.screen.query(Pane))
        assert everything.count("data.py:17") == 1


async def test_without_metrics_the_log_has_the_place_of_the_charts(
    filler: Filler, make_app: MakeApp, workspace: Workspace
) -> None:
    failed_at_start(filler, workspace)
    app = make_app()
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "enter")
        page = page_of(app)
        for _ in range(3):
            feed_of(app).refresh()
            await pilot.pause()
        # The launcher and rank 0 have logs, too; the traceback is that of rank 1.
        assert "rank 1 stderr" in text(app, "log_beside") and "KeyError" in text(app, "log_beside")
        assert not page.charts.pane.display and not page.log_part.below.display
        await press(pilot, "1")
        assert page.charts.pane.display and "rank 1 stderr" in text(app, "log")
        await press(pilot, "2")
        assert not page.charts.pane.display


async def test_a_key_goes_to_the_traceback_of_the_rank_that_failed(
    filler: Filler, make_app: MakeApp, workspace: Workspace
) -> None:
    failed_at_start(filler, workspace)
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "enter", "e")
        for _ in range(5):
            feed_of(app).refresh()
            await pilot.pause()
        assert page_of(app).section == "log"
        lines = text(app, "log").splitlines()
        assert "rank 1 stderr" in lines[0] and "Traceback" in lines[1] and "KeyError" in lines[3]


async def test_a_run_that_did_not_fail_has_no_banner(app: GputuiApp) -> None:
    async with app.run_test(size=(120, 36)) as pilot:
        await press(pilot, "enter")
        assert app.screen.query_one("#banner").size.height == 0


# --- nothing jumps


async def test_the_column_beside_the_charts_shows_lines_and_whole_sentences(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    app = make_app()
    async with app.run_test(size=MIDDLE) as pilot:
        await press(pilot, "enter")
        for pane in ("params", "ranks", "story"):
            lines = [line.removeprefix("│ ").strip() for line in text(app, pane).splitlines()]
            told = [n for n, line in enumerate(lines) if line.startswith("…")]
            for number in told:
                # What is left out stands beside what is shown, never alone below a heading.
                beside = lines[number - 1] if number else ""
                behind = lines[number + 1] if number + 1 < len(lines) else ""
                assert (beside and "──" not in beside) or (behind and "──" not in behind), pane
        story = text(app, "story").splitlines()
        first = next(line for line in story if line.removeprefix("│ ").strip() and "──" not in line and "…" not in line)
        assert first.removeprefix("│ ").lstrip()[:2].isdigit() or first.removeprefix("│ ")[1:4].isalpha(), first


def test_a_single_line_of_room_shows_a_line_and_not_what_is_left_out() -> None:
    lines: list[Line] = [[(name, "text")] for name in ("one", "two", "three")]
    assert from_top(lines, 0, 10, 1) == [[("one", "text")]]
    assert [line[0][0].strip() for line in from_top(lines, 0, 10, 2)] == ["one", "… 2 more"]


async def test_the_first_chart_is_in_focus_until_another_is_chosen(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await press(pilot, "enter")
        charts = page_of(app).charts
        first = charts.focused_key
        assert first == "loss"
        # As before the first step: only the hardware has charts.
        await press(pilot, "slash", *"power", "enter")
        assert charts.focused_key not in (None, first)
        await press(pilot, "escape")
        assert charts.focused_key == first
        await press(pilot, "down")
        chosen = charts.focused_key
        await press(pilot, "x", "x")
        assert chosen != first and charts.focused_key == chosen


async def test_charts_are_over_time_until_there_is_a_step(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    filler.run("bert-1", "starting", gpus=(4,), started_ago=30)
    filler.attempt("bert-1", 1, "starting", gpus=(4,), started_ago=30)
    filler.metrics("bert-1", 1, [{"step": 0, "time": filler.now - 9, "total_steps": 60, "world_size": 1}])
    app = make_app()
    async with app.run_test(size=SMALL) as pilot:
        app.open_run("bert-1")
        await pilot.pause()
        await pilot.pause()
        shown = text(app, "charts")
        assert "x time · no step yet" in head(app) and "not recorded then" not in shown
        assert feed_of(app).interest.charts.axis == "time" and page_of(app).charts.settings.axis == "step"
        await press(pilot, "right")
        assert page_of(app).charts.cursor is not None
        filler.metrics("bert-1", 1, [{"step": 1, "time": filler.now - 2, "loss": 3.0}])
        feed_of(app).refresh()
        await pilot.pause()
        feed_of(app).refresh()
        await pilot.pause()
        assert head(app).startswith(" x step") and page_of(app).charts.cursor is None
