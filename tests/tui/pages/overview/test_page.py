"""The overview under a pilot: the focus, the queue, the quarantine, marks and orders; and the page of a GPU."""

from __future__ import annotations

import pytest

from gputui.store import commands
from gputui.tui.actions.reasons import NO_RUN
from gputui.tui.app import GputuiApp
from gputui.tui.dialogs.confirm import ConfirmScreen
from gputui.tui.pages.gpu.page import GpuScreen
from gputui.tui.pages.overview.gpus import row_at
from gputui.tui.pages.run.page import RunScreen
from gputui.tui.pages.study.page import StudyScreen
from tests.texts import mentions
from tests.tui.conftest import MakeApp
from tests.tui.filling import Filler, uuid
from tests.tui.test_screens import SMALL, asked, feed_of, overview, text

LARGE = (200, 50)


@pytest.fixture
def app(filler: Filler, make_app: MakeApp) -> GputuiApp:
    filler.overnight()
    return make_app()


async def test_tab_moves_the_focus_and_arrows_move_in_it(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        assert overview(app).focus_at.section == "runs" and "▸● vit-b16-1" in text(app, "runs")
        await pilot.press("tab")
        assert "▸03:12:14    lr-sweep-3" in text(app, "events") and "›● vit-b16-1" in text(app, "runs")
        await pilot.press("up", "up", "up")
        assert "▸03:02:11  ✗ vit-b16-1" in text(app, "events")
        await pilot.press("tab", "j", "j", "k")
        assert "▸ 1   96" in text(app, "gpus") and "▸" not in text(app, "events")
        await pilot.press("G")
        assert "▸ 7 ✗ lost" in text(app, "gpus")
        await pilot.press("g", "shift+tab")
        assert overview(app).focus_at.section == "events"
        await pilot.press("tab", "tab")
        assert overview(app).focus_at.section == "runs" and overview(app).table.cursor == "vit-b16-1"


async def test_a_letter_after_the_key_chooses_the_order(app: GputuiApp, filler: Filler) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("o", "l")
        assert overview(app).table.order == "loss"
        await pilot.press("o", "s")
        assert overview(app).table.order == "state" and isinstance(app.screen, type(overview(app)))
        # Later the letter is its own key again, and after any other key too.
        await pilot.press("o", "down", "s")
        assert isinstance(app.screen, ConfirmScreen) and app.settings.sort == "newest"
        await pilot.press("n")
        assert asked(filler) == []


async def test_actions_are_about_what_the_cursor_stands_on(app: GputuiApp, filler: Filler) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("shift+tab", "s")  # GPU 0: gpt2-124m's
        assert isinstance(app.screen, ConfirmScreen)
        await pilot.press("n", "down", "down", "down", "down", "s")
        assert NO_RUN in text(app, "message")  # GPU 4 is free
        await pilot.press("tab", "tab", "home", "enter")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen) and app.screen.run_id == "vit-b16-1"
        assert asked(filler) == []


async def test_without_gpus_and_events_the_focus_stays(filler: Filler, make_app: MakeApp) -> None:
    filler.agent(problem="No NVIDIA driver found.")
    app = make_app()
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("tab", "down", "shift+tab")
        assert overview(app).focus_at.section == "runs"
        await pilot.press("i")
        assert "There is no GPU." in text(app, "message")
        await pilot.press("C")
        assert "No GPU is in quarantine." in text(app, "message")


async def test_marks_and_orders(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("space", "space")
        assert overview(app).marked_runs == ("vit-b16-1", "gpt2-124m-1") and "2 marked" in text(app, "runs")
        assert "◆● vit-b16-1" in text(app, "runs")
        await pilot.press("g", "space")
        assert overview(app).marked_runs == ("gpt2-124m-1",)
        await pilot.press("o")
        assert "RUNS newest first" in text(app, "runs")
        assert overview(app).shown_rows[0].run.run_id == "resnet50-2"
        await pilot.press("o", "o")
        losses = [row.progress.loss for row in overview(app).shown_rows]
        assert losses[:2] == sorted(loss for loss in losses if loss is not None) and losses[2:] == [None, None]
        await pilot.press("o", "o", "o", "o")
        assert text(app, "runs").startswith(" RUNS ─")


async def test_hundreds_of_runs_scroll_by_pages(app: GputuiApp, filler: Filler) -> None:
    for number in range(400):
        filler.run(f"old-{number:03}", "succeeded", ended_ago=10_000.0 + number)
    async with app.run_test(size=LARGE) as pilot:
        feed_of(app).refresh()
        await pilot.pause()
        await pilot.press("pagedown", "pagedown")
        cursor = overview(app).table.cursor
        assert cursor is not None and f"▸✓ {cursor}" in text(app, "runs")
        await pilot.press("pageup", "pageup")
        assert overview(app).table.cursor == "vit-b16-1"
        await pilot.press("end")
        assert "of 404" in text(app, "runs") and "▸✓ old-399" in text(app, "runs")


async def test_the_queue_is_paused_after_a_question_and_opened_without(app: GputuiApp, filler: Filler) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("P", "n", "P", "y")
        await pilot.pause(0.2)
        assert asked(filler) == [("queue_pause", None, {})]
        waiting = commands.pending(filler.connection)[0]
        commands.give_answer(filler.connection, waiting.command_id, "done", now=filler.now, result={"paused": True})
        filler.pause_queue("me", seconds_ago=5)
        feed_of(app).refresh()
        await pilot.pause()
        assert mentions(text(app, "message"), "no run starts")
        assert mentions(text(app, "runs"), "paused by me", "P ")
        await pilot.press("P")
        await pilot.pause(0.2)
        assert asked(filler)[-1] == ("queue_resume", None, {})


async def test_waiting_runs_move_and_others_do_not(app: GputuiApp, filler: Filler) -> None:
    filler.run("lr-sweep-4", "queued", name="lr-sweep", started_ago=None)
    filler.connection.execute("UPDATE runs SET priority = 5 WHERE run_id = 'lr-sweep-4'")
    feed_of(app).refresh()
    async with app.run_test(size=SMALL) as pilot:
        feed_of(app).refresh()
        await pilot.pause()
        assert "#1 priority 5 · next" in text(app, "runs") and "#2 · waits for 2 GPUs" in text(app, "runs")
        await pilot.press("plus")
        assert mentions(text(app, "message"), "waiting run")
        await pilot.press("down", "down", "minus")
        await pilot.pause(0.2)
        assert asked(filler) == [("queue_move", "lr-sweep-4", {"place": "down"})]
        waiting = commands.pending(filler.connection)[0]
        result = {"id": "lr-sweep-4", "state": "queued", "priority": 5, "position": 2}
        commands.give_answer(filler.connection, waiting.command_id, "done", now=filler.now, result=result)
        feed_of(app).refresh()
        await pilot.pause()
        assert mentions(text(app, "message"), "lr-sweep-4", "#2")
        await pilot.press("down", "plus")
        await pilot.pause(0.2)
        assert asked(filler)[-1] == ("queue_move", "lr-sweep-3", {"place": "up"})


async def test_a_gpu_leaves_quarantine_after_a_question(app: GputuiApp, filler: Filler) -> None:
    filler.quarantine(4, "XID 48: double bit ECC error")
    async with app.run_test(size=SMALL) as pilot:
        feed_of(app).refresh()
        await pilot.pause()
        await pilot.press("C")
        assert isinstance(app.screen, ConfirmScreen)
        await pilot.press("y")
        await pilot.pause(0.2)
        assert asked(filler) == [("clear_gpu", None, {"uuid": uuid(4)})]
        filler.quarantine(5, "the same")
        feed_of(app).refresh()
        await pilot.pause()
        await pilot.press("C")
        assert "choose one with tab" in text(app, "message")
        await pilot.press("shift+tab", "down", "down", "down", "down", "down", "C", "y")
        await pilot.pause(0.2)
        assert asked(filler)[-1] == ("clear_gpu", None, {"uuid": uuid(5)})


async def test_a_view_that_is_read_only_asks_for_nothing(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    filler.quarantine(4, "XID 48")
    app = make_app(readonly=True)
    async with app.run_test(size=SMALL) as pilot:
        for key in ("P", "C", "plus", "minus"):
            await pilot.press(key)
            assert "read only" in text(app, "message")
    assert asked(filler) == []


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_the_page_of_a_gpu(app: GputuiApp, filler: Filler, size: tuple[int, int]) -> None:
    filler.quarantine(4, "XID 48: double bit ECC error")
    async with app.run_test(size=size) as pilot:
        await pilot.press("shift+tab", "down", "enter")
        await pilot.pause()
        assert isinstance(app.screen, GpuScreen) and app.screen.uuid == uuid(1)
        assert "gpt2-124m-1 rank 1" in text(app, "body") and "throttles at 87°C" in text(app, "body")
        assert feed_of(app).interest.gpu_uuid == uuid(1)
        assert "utilisation" in text(app, "body") and ("min └┬-10" in text(app, "body")) == (size[0] > 80)
        await pilot.press("C")
        assert "No GPU is in quarantine." in text(app, "message")
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
        assert "GPU 4" in text(app, "head") and "quarantine    since" in text(app, "body")
        await pilot.press("enter")
        assert "There is no run" in text(app, "message")
        await pilot.press("C", "y")
        await pilot.pause(0.2)
        assert asked(filler) == [("clear_gpu", None, {"uuid": uuid(4)})]
        await pilot.press("shift+tab", "enter")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, GpuScreen) and feed_of(app).interest.gpu_uuid == uuid(3)
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is overview(app) and feed_of(app).interest.gpu_uuid is None


async def test_i_opens_the_gpu_of_the_run_under_the_cursor(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("i")
        await pilot.pause()
        assert isinstance(app.screen, GpuScreen) and app.screen.uuid == uuid(6)  # vit-b16's
        await pilot.press("backspace")
        assert app.screen is overview(app)


async def test_an_event_of_a_gpu_leads_to_its_page(app: GputuiApp, filler: Filler) -> None:
    filler.connection.execute(
        "INSERT INTO events (at, severity, subject, message) VALUES (?, 'error', 'GPU 3', 'XID 31: page fault')",
        (filler.now,),
    )
    filler.connection.execute(
        "INSERT INTO events (at, severity, message) VALUES (?, 'info', 'the queue was paused')", (filler.now,)
    )
    async with app.run_test(size=SMALL) as pilot:
        feed_of(app).refresh()
        await pilot.pause()
        await pilot.press("tab", "enter")
        assert "about no run or GPU" in text(app, "message").replace("\n", " ")
        await pilot.press("up", "enter")
        await pilot.pause()
        assert isinstance(app.screen, GpuScreen) and app.screen.uuid == uuid(3)


async def test_cards_stand_where_there_is_room(app: GputuiApp) -> None:
    async with app.run_test(size=LARGE) as pilot:
        assert "0 gpt2-124m-1 r0" in text(app, "cards") and text(app, "cards").count("utilisation") == 8
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert text(app, "cards") == ""


async def test_clicks_choose_gpus_and_events_and_open_them(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.click("#events", offset=(5, 1))
        assert "▸03:02:11  ✗ vit-b16-1" in text(app, "events")
        await pilot.click("#events", offset=(5, 0))
        assert overview(app).focus_at.section == "events"
        await pilot.click("#gpus", offset=(5, 3))
        assert "▸ 2   12" in text(app, "gpus")
        await pilot.click("#gpus", offset=(5, 5), times=2)
        await pilot.pause()
        assert isinstance(app.screen, GpuScreen) and app.screen.uuid == uuid(4)


@pytest.mark.parametrize(
    ("cell", "found"), [((5, 0), None), ((5, 1), 0), ((5, 8), 7), ((45, 1), 8), ((45, 8), 15), ((45, 9), None)]
)
def test_cells_of_two_columns(cell: tuple[int, int], found: int | None) -> None:
    assert row_at(16, 80, 9, 0, *cell) == found


def test_cells_of_rows_that_scroll() -> None:
    assert [row_at(16, 60, 6, 9, 5, y) for y in range(6)] == [None, 9, 10, 11, 12, None]
    assert [row_at(2, 60, 6, 0, 5, y) for y in range(4)] == [None, 0, 1, None]


async def test_ended_trials_of_a_study_share_a_row_that_opens_it(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    filler.study()
    app = make_app()
    async with app.run_test(size=LARGE) as pilot:
        table = overview(app)
        (stands_for,) = table.folded_trials.values()
        ended = {row.run.run_id for row in app.snapshot.runs if row.run.study_id and row.run.state.is_over}
        assert {row.run.run_id for row in stands_for} == ended and len(ended) > 2
        assert ended & set(table.row_ids) == {stands_for[0].run.run_id}
        (line,) = [line for line in text(app, "runs").splitlines() if "trials:" in line]
        assert f"{len(ended)} trials" in line and "pruned" in line and "stopped" not in line
        table.point_at(stands_for[0].run.run_id)
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, StudyScreen) and app.screen.study_id == stands_for[0].run.study_id
        await pilot.press("escape", "slash", *stands_for[1].run.run_id, "enter")
        assert stands_for[1].run.run_id in table.row_ids and not table.folded_trials
