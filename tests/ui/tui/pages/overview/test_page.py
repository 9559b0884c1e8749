"""The overview under a pilot: the focus, the queue, the quarantine, marks and orders; and the page of a GPU."""

from __future__ import annotations

import pytest

from gputui.store import checkpoints, commands
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.pages.compare.page import CompareScreen
from gputui.ui.tui.pages.gpu.page import GpuScreen
from gputui.ui.tui.pages.overview.selection import Section
from gputui.ui.tui.pages.run.page import RunScreen
from gputui.ui.tui.pages.study.page import StudyScreen
from gputui.ui.views.snapshot import RunRow
from tests.homes import Home, uuid
from tests.ledgers import ledger_row
from tests.stories import overnight, search
from tests.texts import mentions
from tests.ui.tui.conftest import MakeApp
from tests.ui.tui.screens import SMALL, commands_of, feed_of, overview, text, wait_for

LARGE = (200, 50)


def marked_runs(app: GputuiApp) -> list[str]:
    return [run.run_id for run in overview(app).marked_runs]


async def test_tab_moves_the_focus_and_arrows_move_in_it(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        assert overview(app).focused_section == "runs"
        assert "▸● vit-b16-1" in text(app, "runs")
        await pilot.press("tab")
        assert "▸03:12:14   lr-sweep-3" in text(app, "events")
        assert "›● vit-b16-1" in text(app, "runs")
        await pilot.press("up", "up", "up")
        assert "▸03:02:11 ✗ vit-b16-1" in text(app, "events")
        await pilot.press("tab", "j", "j", "k")
        assert "▸ 1   96" in text(app, "gpus")
        assert "▸" not in text(app, "events")
        await pilot.press("G")
        assert "▸ 7 ✗ lost" in text(app, "gpus")
        await pilot.press("g", "shift+tab")
        assert overview(app).focused_section == "events"
        await pilot.press("tab", "tab")
        assert overview(app).focused_section == "runs"
        assert overview(app).table.cursor == "vit-b16-1"


async def test_what_is_asked_about_marked_runs_goes_to_each_that_it_can_be_done_with(
    app: GputuiApp, home: Home
) -> None:
    home.run("old-1", "failed", ended_ago=5.0)
    home.run("old-2", "succeeded", ended_ago=6.0)
    home.connection.execute("INSERT INTO run_sizes (run_id, size_bytes) VALUES ('old-1', ?)", (3 << 30,))
    async with app.run_test(size=SMALL) as pilot:
        feed_of(app).refresh()
        await pilot.pause()
        for run_id in ("old-1", "old-2", "vit-b16-1"):
            overview(app).point_at(run_id)
            await pilot.press("space")
        assert mentions(text(app, "footer"), "rerun 2", "stop 1")
        await pilot.press("delete")
        question = text(app, "confirm")
        assert mentions(question, "2 runs", "old-1", "3 GiB", "old-2")
        assert mentions(question, "Left out", "vit-b16-1 (not ended yet)")
        await pilot.press("n", "s", "n", "delete", "y")
        await wait_for(pilot, lambda: len(commands_of(home)) == 2 and len(feed_of(app).watched) == 2)
        assert commands_of(home) == [("rm", "old-1", {}), ("rm", "old-2", {})]
        # A refusal stays on the screen although the next command succeeds.
        first, second = commands.pending(home.connection)
        commands.give_answer(home.connection, first.command_id, "refused", now=home.now, reason="old-1 is held")
        result = {"id": "old-2", "state": "removed"}
        commands.give_answer(home.connection, second.command_id, "done", now=home.now, result=result)
        feed_of(app).refresh()
        await pilot.pause()
        assert mentions(text(app, "message"), "old-1 is held")
        await pilot.press("d", *"night", "enter", "y")
        await wait_for(pilot, lambda: len(commands_of(home)) == 5)
        assert [(verb, args) for verb, _, args in commands_of(home)[2:]] == [("label", {"add": ["night"]})] * 3
        await pilot.press("r", "r", "y")
        await wait_for(pilot, lambda: len(commands_of(home)) == 6)
        assert commands_of(home)[-1] == ("resume", "old-1", {"set": {}})
        await pilot.press("escape")
        assert marked_runs(app) == []
        assert "stop 1" not in text(app, "footer")


async def test_marks_and_orders(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("space", "space")
        assert marked_runs(app) == ["vit-b16-1", "gpt2-124m-1"]
        assert "2 marked" in text(app, "runs")
        assert "◆● vit-b16-1" in text(app, "runs")
        await pilot.press("g", "space")
        assert marked_runs(app) == ["gpt2-124m-1"]
        assert "esc unmark" in text(app, "footer")
        await pilot.press("escape")
        assert marked_runs(app) == []
        assert "unmark" not in text(app, "footer")
        await pilot.press("o")
        assert "RUNS newest first" in text(app, "runs")
        assert text(app, "message").strip().startswith("· Sorted by newest. A letter chooses another order: s state")
        assert overview(app).row_ids[0] == "resnet50-2"
        await pilot.press("o", "o")
        losses = [row.progress.loss for row in overview(app).entries if isinstance(row, RunRow)]
        assert losses[:2] == sorted(loss for loss in losses if loss is not None)
        assert losses[2:] == [None, None]
        await pilot.press("o", "o", "o", "o")
        assert text(app, "runs").startswith(" RUNS ─")


@pytest.mark.parametrize("marks", [("gpt2-124m-1",), ("gpt2-124m-1", "resnet50-2")])
@pytest.mark.parametrize("section", ["runs", "gpus"])
async def test_compare_takes_the_marked_runs_wherever_the_cursor_is(
    app: GputuiApp, section: Section, marks: tuple[str, ...]
) -> None:
    async with app.run_test(size=SMALL) as pilot:
        for run_id in marks:
            overview(app).point_at(run_id)
            await pilot.press("space")
        overview(app).point_at("vit-b16-1")
        compared = {*marks}
        if section == "runs" and len(marks) == 1:
            compared.add("vit-b16-1")
        if section == "gpus":
            await pilot.press("tab", "tab")
            overview(app).gpu_cursor = uuid(5)
            assert overview(app).run_in_question is None
        await pilot.press("c")
        await pilot.pause()
        assert isinstance(app.screen, CompareScreen)
        assert set(app.screen.comparison.run_ids) == compared
        assert app.screen.table.cursor in compared


async def test_a_filter_that_is_given_up_gives_the_cursor_back_and_one_that_is_kept_does_not(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("down", "down")
        before = overview(app).table.cursor
        for typed in ("vit", "matches none"):
            await pilot.press("slash", *typed.replace(" ", "_"))
            assert overview(app).table.cursor != before
            await pilot.press("escape")
            assert overview(app).table.cursor == before
            assert not overview(app).table.filter_text
        await pilot.press("slash", *"none", "enter", "escape")
        assert overview(app).table.cursor == before
        await pilot.press("slash", *"vit", "enter", "escape")
        assert overview(app).table.cursor == "vit-b16-1" != before


async def test_why_there_is_no_gpu_is_whole_at_every_width(home: Home, make_app: MakeApp) -> None:
    home.agent(problem=f"No driver ({'x' * 60}), or try simulated GPUs: gputui --demo")
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        for width in range(80, 128):
            await pilot.resize_terminal(width, 30)
            await wait_for(pilot, lambda width=width: app.size.width == overview(app).panes.gpus.size.width == width)
            assert "gputui --demo" in " ".join(text(app, "gpus").replace("│", " ").split()), width


async def test_the_queue_is_paused_after_a_question_and_opened_without(app: GputuiApp, home: Home) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("P", "n", "P", "y")
        await wait_for(pilot, lambda: len(commands_of(home)) == 1 and bool(feed_of(app).watched))
        assert commands_of(home) == [("queue_pause", None, {})]
        waiting = commands.pending(home.connection)[0]
        commands.give_answer(home.connection, waiting.command_id, "done", now=home.now, result={"paused": True})
        home.pause_queue("me", seconds_ago=5)
        feed_of(app).refresh()
        await pilot.pause()
        assert mentions(text(app, "message"), "No run starts")
        assert mentions(text(app, "head"), "queue paused", "P opens")
        await pilot.press("P")
        await wait_for(pilot, lambda: len(commands_of(home)) == 2)
        assert commands_of(home)[-1] == ("queue_resume", None, {})


async def test_waiting_runs_move_and_others_do_not(app: GputuiApp, home: Home) -> None:
    home.run("lr-sweep-4", "queued", name="lr-sweep", started_ago=None)
    home.connection.execute("UPDATE runs SET priority = 5 WHERE run_id = 'lr-sweep-4'")
    feed_of(app).refresh()
    async with app.run_test(size=SMALL) as pilot:
        feed_of(app).refresh()
        await pilot.pause()
        assert "#1 priority 5 · next" in text(app, "runs")
        assert "#2 · waits for 2 GPUs" in text(app, "runs")
        await pilot.press("plus")
        assert mentions(text(app, "message"), "waiting run")
        await pilot.press("down", "down", "minus")
        await wait_for(pilot, lambda: len(commands_of(home)) == 1 and bool(feed_of(app).watched))
        assert commands_of(home) == [("queue_move", "lr-sweep-4", {"place": "down"})]
        waiting = commands.pending(home.connection)[0]
        result = {"id": "lr-sweep-4", "state": "queued", "priority": 5, "position": 2}
        commands.give_answer(home.connection, waiting.command_id, "done", now=home.now, result=result)
        feed_of(app).refresh()
        await pilot.pause()
        assert mentions(text(app, "message"), "lr-sweep-4", "#2")
        await pilot.press("down", "plus")
        await wait_for(pilot, lambda: len(commands_of(home)) == 2)
        assert commands_of(home)[-1] == ("queue_move", "lr-sweep-3", {"place": "up"})


async def test_a_gpu_that_a_queued_run_gets_next_is_free_and_promised(app: GputuiApp, home: Home) -> None:
    async with app.run_test(size=LARGE) as pilot:
        assert "free" in text(app, "gpus")
        home.run("big-1", "queued", gpus=(0, 1), started_ago=None)
        feed_of(app).refresh()
        await wait_for(pilot, lambda: "promised to big-1" in text(app, "gpus"))
        assert mentions(text(app, "gpus"), "1 free, 1 promised")


async def test_the_page_of_a_gpu(app: GputuiApp, home: Home) -> None:
    home.quarantine(4, "XID 48: double bit ECC error")
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("shift+tab", "down", "enter")
        await pilot.pause()
        assert isinstance(app.screen, GpuScreen)
        assert app.screen.uuid == uuid(1)
        assert "gpt2-124m-1 rank 1" in text(app, "body")
        assert "throttles at 87°C" in text(app, "body")
        assert feed_of(app).interest.gpu_uuid == uuid(1)
        assert "utilisation" in text(app, "body")
        await pilot.press("C")
        assert "quarantine" in text(app, "message")
        await pilot.press("plus")
        await pilot.pause()
        assert feed_of(app).interest.gpu_span_seconds == 3600.0
        await pilot.press("plus", "minus", "minus", "minus")
        await pilot.pause()
        assert feed_of(app).interest.gpu_span_seconds == 600.0
        await pilot.press("pagedown", "down", "up", "pagedown", "pagedown")
        assert "DRIVER EVENTS (XID)" in text(app, "body")
        await pilot.press("pageup", "pageup", "pageup", "tab", "tab", "tab")
        await pilot.pause()
        assert "GPU 4" in text(app, "head")
        assert "quarantine    since" in text(app, "body")
        await pilot.press("enter")
        assert "There is no run" in text(app, "message")
        await pilot.press("C", "y")
        await wait_for(pilot, lambda: len(commands_of(home)) == 1 and bool(feed_of(app).watched))
        assert commands_of(home) == [("clear_gpu", None, {"uuid": uuid(4)})]
        app.do_quarantine_gpu()
        await pilot.pause()
        await pilot.press("enter", *"fan", "enter")
        await wait_for(pilot, lambda: len(commands_of(home)) == 2)
        assert commands_of(home)[1] == ("quarantine_gpu", None, {"uuid": uuid(4), "why": "fan"})
        await pilot.press("shift+tab", "enter")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, GpuScreen)
        assert feed_of(app).interest.gpu_uuid == uuid(3)
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is overview(app)
        assert feed_of(app).interest.gpu_uuid is None


async def test_a_filter_keeps_the_order_of_runs_and_studies(home: Home, make_app: MakeApp) -> None:
    search(home, state="finished")
    overnight(home)
    app = make_app()
    async with app.run_test(size=SMALL) as pilot:
        table = overview(app)
        whole = table.row_ids
        assert whole.index("study lr-search-1") > 0
        await pilot.press("slash", *"r")
        visible = [row_id for row_id in table.row_ids if row_id in whole]
        assert visible == [row_id for row_id in whole if row_id in visible]
        assert "study lr-search-1" in visible


async def test_ended_trials_of_a_study_share_a_row_that_opens_it(home: Home, make_app: MakeApp) -> None:
    overnight(home)
    search(home)
    app = make_app()
    async with app.run_test(size=LARGE) as pilot:
        table = overview(app)
        rows = [row.run for row in app.snapshot.runs if row.run.study_id]
        ended, running = ({run.run_id for run in rows if run.state.is_over == over} for over in (True, False))
        assert len(ended) > 2
        assert running
        assert not ended & set(table.row_ids)
        study = table.row_ids.index("study lr-search-1")
        assert set(table.row_ids[study + 1 : study + 1 + len(running)]) == running
        (line,) = [line for line in text(app, "runs").splitlines() if "lr-search-1 " in line]
        assert "12/40 trials" in line
        assert "30%" in line
        assert "best " in line
        assert "2 running" in line
        table.point_at("study lr-search-1")
        # No key reaches a trial that no line shows.
        assert table.run_in_question is None
        assert table.study_in_question == "lr-search-1"
        await pilot.press("delete", "d", "plus", "space", "c")
        assert app.screen is table
        assert not table.marked_runs
        await pilot.press("s", "y", "P", "r", "e", *"12", "enter")
        await wait_for(pilot, lambda: len(commands_of(home)) == 3)
        study = {"study": "lr-search-1"}
        assert commands_of(home) == [
            ("study_stop", None, study),
            ("study_pause", None, study),
            ("study_extend", None, {**study, "trials": 12}),
        ]
        trial = min(ended)
        table.point_at(trial)
        table.keep_cursor()
        assert table.study_in_question == "lr-search-1"
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, StudyScreen)
        assert app.screen.study_id == "lr-search-1"
        await pilot.press("escape", "slash", *"lr-search", "enter")
        assert table.row_ids[0] == "study lr-search-1"
        assert set(table.row_ids) > ended
        assert "✂ lr-search" in text(app, "runs")
        assert "■ lr-search" not in text(app, "runs")
        await pilot.press("escape", "slash", *trial, "enter")
        assert trial in table.row_ids
        assert "study lr-search-1" not in table.row_ids
        await pilot.press("r", "r")
        assert "Resume" in text(app, "confirm")
        await pilot.press("n")
        assert app.screen is table
        assert len(commands_of(home)) == 3


@pytest.mark.parametrize(("state", "chosen", "refused"), [
    ("finished", "▸ e  extend", "is finished; extend it"), ("stopped", "▸ r  resume", None),
    ("running", "▸ e  extend", "is running."), ("failed", "▸ e  extend", "has failed; extend it"),
])  # fmt: skip
async def test_the_menu_of_a_study_has_the_cursor_on_what_is_accepted(
    home: Home, make_app: MakeApp, state: str, chosen: str, refused: str | None
) -> None:
    overnight(home)
    search(home, state=state)
    app = make_app()
    async with app.run_test(size=LARGE) as pilot:
        overview(app).point_at("study lr-search-1")
        await pilot.press("r")
        menu = text(app, "confirm")
        assert chosen in menu
        if refused is not None:
            assert refused in menu


async def test_a_resume_names_the_step_that_it_goes_on_from(home: Home, make_app: MakeApp) -> None:
    home.run("vit-1", "failed", ended_ago=60)
    home.attempt("vit-1", 1, "failed", ended_ago=60)
    rows = [ledger_row(str(step), step=step, verdict=verdict) for step, verdict in ((249, "valid"), (299, "invalid"))]
    checkpoints.save(home.connection, "vit-1", (), rows)
    app = make_app()
    async with app.run_test(size=LARGE) as pilot:
        await pilot.press("r")
        assert "▸ r  resume   from step 249" in text(app, "confirm")
