"""The real app under a pilot: every key and page, against a database filled by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gputui.core.config import Workspace
from gputui.store import commands
from gputui.ui.tui.actions.checks import NO_RUN
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.dialogs.palette import PaletteScreen
from gputui.ui.tui.dialogs.questions import ConfirmScreen
from gputui.ui.tui.dialogs.sheet import HelpScreen, SheetScreen
from gputui.ui.tui.pages.launch.page import LaunchScreen
from gputui.ui.tui.pages.overview.page import OverviewScreen
from gputui.ui.tui.pages.run.page import RunScreen
from gputui.ui.tui.widgets.dialog import Dialog
from gputui.ui.tui.widgets.pane import Pane
from tests.homes import Home
from tests.stories import overnight
from tests.texts import mentions
from tests.ui.tui.conftest import MakeApp
from tests.ui.tui.screens import (
    SMALL,
    WIDE,
    commands_of,
    feed_of,
    form_of,
    open_form,
    overview,
    screen_text,
    text,
    wait_for,
)

# --- the overview


async def test_the_first_frame_is_full(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        assert "gpt2-124m-1 r0" in text(app, "gpus")
        assert "vit-b16-1" in text(app, "runs")
        assert "fell off the bus" in text(app, "events")
        assert "/ ^p ? q" in text(app, "footer")
        heights = [pane.size.height for pane in app.screen.query(Pane)]
        assert sum(heights) == 24
        await pilot.resize_terminal(*WIDE)
        await wait_for(pilot, lambda: " 10 min " in text(app, "charts"))
        await pilot.pause()
        lower = app.screen.query_one("#lower").size.height
        beside = {"processes", "events"}
        assert lower + sum(pane.size.height for pane in app.screen.query(Pane) if pane.id not in beside) == 48
        assert lower > 10
        assert "sweep.py" in text(app, "processes")
        assert "EVENTS" in text(app, "events")


async def test_the_cursor_moves_and_stays_on_its_run(app: GputuiApp, home: Home) -> None:
    async with app.run_test(size=SMALL) as pilot:
        for key, cursor in (
            ("j", "gpt2-124m-1"), ("down", "lr-sweep-3"), ("k", "gpt2-124m-1"), ("up", "vit-b16-1"),
            ("up", "vit-b16-1"), ("G", "resnet50-2"), ("j", "resnet50-2"), ("g", "vit-b16-1"), ("end", "resnet50-2"),
            ("home", "vit-b16-1"),
        ):  # fmt: skip
            await pilot.press(key)
            assert overview(app).table.cursor == cursor
        home.end_run("vit-b16-1", "failed")
        feed_of(app).refresh()
        await pilot.pause()
        assert overview(app).table.cursor == "vit-b16-1"
        assert "▸✗ vit-b16-1" in text(app, "runs")


async def test_the_filter_narrows_the_table_while_typing(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("slash", "v", "i", "t")
        assert overview(app).row_ids == ["vit-b16-1"]
        await pilot.press("backspace", "backspace", "backspace", "q", "q")  # q is text here, not a key
        assert overview(app).row_ids == []
        assert "No run matches" in text(app, "runs")
        await pilot.press("escape")
        assert len(overview(app).row_ids) == 4
        await pilot.press("slash", "l", "r", "enter", "enter")
        assert isinstance(app.screen, RunScreen)
        assert app.screen.run_id == "lr-sweep-3"
        await pilot.press("escape")
        assert "/lr" in text(app, "runs")
        await pilot.press("escape")
        assert len(overview(app).row_ids) == 4


async def test_a_terminal_that_is_too_small_is_told(app: GputuiApp) -> None:
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.resize_terminal(30, 6)
        await wait_for(pilot, lambda: text(app, "notice") != "")
        assert mentions(text(app, "notice"), "30×6", "\n", "40×9")
        assert text(app, "gpus") == "" == text(app, "charts")
        await pilot.resize_terminal(160, 48)
        await wait_for(pilot, lambda: text(app, "notice") == "")
        assert "gpt2-124m-1 r0" in text(app, "gpus")
        assert " 10 min " in text(app, "charts")


@pytest.mark.parametrize("key", ["question_mark", "comma", "ctrl+p", "r", "t"])
async def test_a_terminal_grows_and_shrinks_below_a_dialog(app: GputuiApp, key: str) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press(key)
        dialog = app.screen
        assert isinstance(dialog, Dialog)
        for width, height in ((50, 12), (120, 36), (200, 50), (30, 6), (150, 40)):
            await pilot.resize_terminal(width, height)
            is_small = (width, height) == (30, 6)
            end = ("40×9.",) if is_small else (f"esc {dialog.keys[-1][1]}",)
            await wait_for(pilot, lambda end=end: screen_text(app).rstrip().endswith(end))
            await wait_for(pilot, lambda is_small=is_small: (dialog.pane.text == "") == is_small)
            assert app.screen is dialog, (width, height)
            assert ("╰" in screen_text(app)) != is_small, (width, height)
        await pilot.press("escape")
        assert app.screen is overview(app)


# --- a run's page


async def test_a_run_that_is_removed_while_its_page_is_open(app: GputuiApp, home: Home) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("G", "enter")
        await pilot.pause()
        assert "resnet50-2" in text(app, "head")
        home.connection.execute("DELETE FROM runs WHERE run_id = 'resnet50-2'")
        feed_of(app).refresh()
        await pilot.pause()
        assert "resnet50-2 · is gone" in text(app, "head")
        await pilot.press("s")
        assert NO_RUN in text(app, "message")
        await pilot.press("escape")
        assert isinstance(app.screen, OverviewScreen)


async def test_the_footer_has_the_keys_of_what_has_the_keyboard(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        page = text(app, "footer")
        for keys, footer, leave in (
            ("s", " y yes  ↵ n no", "enter"),
            ("r", " ↵ choose  esc back", "escape"),
            ("d", " tab field  ↵ save  esc back", "escape"),
            ("?", " ↑ ↓ scroll  esc close", "escape"),
            ("/vit", " ↵ keep  esc give up", "escape"),
        ):
            await pilot.press(*keys)
            assert overview(app).footer.text.rstrip() == footer
            await pilot.press(leave)
            assert text(app, "footer") == page
        await pilot.press("enter", "3", "slash")
        assert text(app, "footer") == " ↵ keep  esc give up"


# --- what changes a run


async def test_stopping_asks_first_and_shows_the_answer(app: GputuiApp, home: Home) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("s")
        assert isinstance(app.screen, ConfirmScreen)
        assert "Stop vit-b16-1?" in text(app, "confirm")
        assert "checkpoint" in text(app, "confirm")
        await pilot.press("x")  # no answer
        assert isinstance(app.screen, ConfirmScreen)
        for no in ("n", "enter", "escape"):
            await pilot.press(no)
            assert isinstance(app.screen, OverviewScreen)
            assert commands_of(home) == []
            await pilot.press("s")
        await pilot.press("n")
        await pilot.press("s", "y")
        await wait_for(pilot, lambda: len(commands_of(home)) == 1 and bool(feed_of(app).watched))
        assert commands_of(home) == [("stop", "vit-b16-1", {"now": False})]
        assert "Stop vit-b16-1…" in text(app, "message")
        result = {"id": "vit-b16-1", "state": "stopping"}
        commands.give_answer(home.connection, 1, "done", now=home.now, result=result)
        home.connection.execute("UPDATE runs SET state = 'stopping' WHERE run_id = 'vit-b16-1'")
        feed_of(app).refresh()
        await pilot.pause()
        assert text(app, "message").strip("· ") == "vit-b16-1: stopping"
        feed_of(app).refresh()
        await pilot.pause()
        assert "vit-b16-1: stopping" in text(app, "message")
        home.connection.execute("UPDATE runs SET state = 'stopped' WHERE run_id = 'vit-b16-1'")
        home.transition("vit-b16-1", "stopping", "stopped", "stop", 0)
        feed_of(app).refresh()
        await pilot.pause()
        assert "stopping" not in text(app, "message"), "the row says something later"


async def test_what_the_agent_does_not_answer_is_withdrawn(
    app: GputuiApp, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gputui.ui.tui.commands.patience_seconds", lambda _verb: 0.3)

    def state() -> tuple[str, str | None] | None:
        row = home.connection.execute("SELECT state, reason FROM commands").fetchone()
        return None if row is None else tuple(row)

    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("s", "y")
        await wait_for(pilot, lambda: bool(feed_of(app).watched))
        assert list(app.unanswered.values()) == ["Stop vit-b16-1"]
        await wait_for(pilot, lambda: state() == ("refused", "not answered in time"))
        feed_of(app).refresh()
        await pilot.pause()
        assert "Stop vit-b16-1: refused" in text(app, "message")
        assert not app.unanswered


async def test_a_refusal_is_shown_with_its_reason(app: GputuiApp, home: Home) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("G", "r", "r")
        await wait_for(pilot, lambda: bool(feed_of(app).watched))
        assert commands_of(home) == [("resume", "resnet50-2", {"set": {}})]
        commands.give_answer(home.connection, 1, "refused", now=1.0, reason="no valid checkpoint in /x")
        feed_of(app).refresh()
        await pilot.pause()
        assert mentions(text(app, "message"), "Resume resnet50-2: refused", "checkpoint in /x")
        await pilot.press("k")
        assert text(app, "message") == ""


async def test_restarting_removing_and_resuming_a_complete_run_ask_first(app: GputuiApp, home: Home) -> None:
    async with app.run_test(size=SMALL) as pilot:
        commands: list[tuple[str, str, dict[str, Any]]] = []
        for keys, verb in (("r0", "restart"), (["delete"], "rm")):
            await pilot.press("G", *keys)
            assert isinstance(app.screen, ConfirmScreen), keys
            await pilot.press("y")
            commands.append((verb, "resnet50-2", {}))
            await wait_for(pilot, lambda: len(commands_of(home)) == len(commands))
            assert commands_of(home) == commands
        home.end_run("resnet50-2", "succeeded")
        feed_of(app).refresh()
        await pilot.press("G", "r", "r")
        assert isinstance(app.screen, ConfirmScreen), "a complete run is resumed after a question"


async def test_a_store_that_is_not_there_is_told(app: GputuiApp, workspace: Workspace) -> None:
    async with app.run_test(size=SMALL) as pilot:
        workspace.database.rename(workspace.database.with_name("elsewhere"))
        await pilot.press("s", "y")
        await wait_for(pilot, lambda: "Cannot ask the agent" in text(app, "message"))
        assert not workspace.database.exists(), "asking makes no new store"


# --- help and palette


async def test_the_help_is_about_the_screen_behind_it(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        assert "Open the run or GPU" in text(app, "sheet")
        await pilot.press("down", "up", "pagedown", "escape")
        await pilot.press("enter", "question_mark")
        assert "Filter the charts" in text(app, "sheet")
        assert "Mark or unmark" not in text(app, "sheet")
        await pilot.press("escape")
        assert isinstance(app.screen, RunScreen)


async def test_a_key_of_another_page_says_what_it_does_there(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        for key, sentence in (
            ("E", "E does nothing here; on the run page: export the chart."),
            ("2", "2 does nothing here; on the run page: ranks."),
            ("dollar_sign", "$ does nothing here; ? lists the keys."),
        ):
            await pilot.press(key)
            assert sentence in text(app, "message")


async def test_the_palette_counts_what_matches_once_something_is_typed(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("ctrl+p")
        assert "Find · type a part of a name ──" in text(app, "palette")
        await pilot.press(*"lr-sweep-3")
        assert "Find · 1 found ──" in text(app, "palette")


async def test_the_palette_finds_actions_and_runs(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("ctrl+p", *"gpt2")
        assert isinstance(app.screen, PaletteScreen)
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        assert app.screen.run_id == "gpt2-124m-1"
        await pilot.press("colon", *"lr-sweep-3", "down", "up", "enter")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        assert app.screen.run_id == "lr-sweep-3"
        assert len(app.screen_stack) == 2
        assert feed_of(app).interest.run_id == "lr-sweep-3"
        assert "lr-sweep-3 · ◌ queued" in text(app, "head")
        await pilot.press("ctrl+p", *"zzzz", "enter")
        assert isinstance(app.screen, RunScreen)
        await pilot.press("escape", "ctrl+p", *"all gpus", "enter")
        assert overview(app).is_folded
        await pilot.press("ctrl+p", *"stop the run", "enter")
        assert isinstance(app.screen, ConfirmScreen)


# --- launching


async def test_launching_with_a_changed_parameter(app: GputuiApp, home: Home, profile: Path) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await open_form(pilot, app)
        await wait_for(pilot, lambda: form_of(app).plan is not None and form_of(app).plan.spec is not None)  # type: ignore[union-attr]
        assert "--steps 10" in text(app, "list")
        assert "how many steps" in text(app, "list")
        await pilot.press("down", "down", *"25")  # what is typed takes the place of the 10
        await wait_for(pilot, lambda: "--steps 25" in text(app, "list"))
        assert "was 10" in text(app, "list")
        await pilot.press("up", "down", "backspace", *"6", "home", "delete", "left", *"2")  # an editing key changes it
        await wait_for(pilot, lambda: "--steps 26" in text(app, "list"))
        await pilot.press("backspace", *"2")
        await pilot.press("enter")
        await wait_for(pilot, lambda: bool(feed_of(app).watched))
        assert isinstance(app.screen, OverviewScreen)
        [(verb, _, args)] = commands_of(home)
        assert verb == "run"
        assert args["name"] == "tiny"
        spec = json.loads((app.workspace.state / "inbox" / f"{args['ticket']}.json").read_text())
        assert spec["params"] == {"steps": 26, "lr": 0.5}
        home.run("tiny-1", "queued", started_ago=None)
        commands.give_answer(home.connection, 1, "done", now=1.0, result={"id": "tiny-1", "state": "queued"})
        feed_of(app).refresh()
        await pilot.pause()
        assert text(app, "message").strip("· ") == "tiny-1 queued"
        assert overview(app).table.cursor == "tiny-1"


async def test_mistakes_show_while_typing_and_keep_it_from_starting(app: GputuiApp, home: Home, profile: Path) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await open_form(pilot, app)
        await wait_for(pilot, lambda: form_of(app).plan is not None)
        await pilot.press("down", "down", "ctrl+u", *"lots")
        assert mentions(text(app, "list"), "✗", "whole number", "1 to 100")
        await pilot.press("enter")
        assert isinstance(app.screen, LaunchScreen)
        assert commands_of(home) == []
        await pilot.press("up", "up", "ctrl+u", *"99")
        await pilot.press("down", "down", "ctrl+u", *"5")
        await wait_for(pilot, lambda: "99" in (form_of(app).plan.blocked_by or "") if form_of(app).plan else False)  # type: ignore[union-attr]
        await pilot.press("enter")
        assert isinstance(app.screen, LaunchScreen)
        assert commands_of(home) == []


async def test_enter_typed_ahead_of_the_checks_waits_for_them(app: GputuiApp, home: Home, profile: Path) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await open_form(pilot, app)
        await wait_for(pilot, lambda: form_of(app).form.entry is not None)
        await pilot.press("down", "down", "ctrl+u", *"25", "enter")
        await wait_for(pilot, lambda: bool(commands_of(home)))
        assert isinstance(app.screen, OverviewScreen)


async def test_the_dry_run_shows_everything_and_starts_nothing(app: GputuiApp, home: Home, profile: Path) -> None:
    async with app.run_test(size=(120, 50)) as pilot:
        await open_form(pilot, app)
        await wait_for(pilot, lambda: form_of(app).plan is not None)
        await pilot.press("ctrl+d")
        assert isinstance(app.screen, SheetScreen)
        sheet = " ".join(text(app, "sheet").replace("│", " ").split())
        for word in ("command", "--steps 10", "GPUTUI_RUN_ID=RUN", "none, on the CPU", "✓ program"):
            assert word in sheet
        await pilot.press("escape", "escape", "escape")
        assert isinstance(app.screen, OverviewScreen)
        assert commands_of(home) == []


async def test_a_run_without_known_checkpoints_says_so_before_it_is_stopped_or_resumed(
    home: Home, make_app: MakeApp
) -> None:
    overnight(home)
    home.connection.execute("UPDATE runs SET spec = json_set(spec, '$.checkpoints', NULL)")
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        overview(app).select_run("vit-b16-1")
        await pilot.press("s")
        assert mentions(text(app, "confirm"), "only begin again")
        await pilot.press("escape")
        overview(app).select_run("resnet50-2")
        await pilot.press("r")
        assert mentions(text(app, "confirm"), "r  resume", "load a checkpoint")
