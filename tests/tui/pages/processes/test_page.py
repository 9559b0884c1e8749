"""The page of processes: its rows, and its keys under a pilot."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from gputui.runs.identity import read_stat
from gputui.runs.process_table import HostProcess, core_percents, core_times
from gputui.tui.actions.reasons import NO_PROCESS
from gputui.tui.app import GputuiApp
from gputui.tui.data.snapshot import ProcessSet, Snapshot
from gputui.tui.dialogs.sheet import SheetScreen
from gputui.tui.dialogs.signals import SignalScreen
from gputui.tui.pages.gpu.page import GpuScreen
from gputui.tui.pages.processes.page import ProcessesScreen, environment_texts
from gputui.tui.pages.processes.rows import ProcessRow, TableState, arranged, process_rows, short_command
from gputui.tui.pages.processes.view import table_lines, total_line
from gputui.tui.pages.run.page import RunScreen
from tests.texts import mentions
from tests.tui import filling, many_processes
from tests.tui.conftest import MakeApp
from tests.tui.filling import GIB, NOW, Filler
from tests.tui.pages.overview.test_render import read, text_of, widths
from tests.tui.test_screens import SMALL, feed_of, overview, text, until

LARGE = (200, 50)


@pytest.fixture
def app(filler: Filler, make_app: MakeApp) -> GputuiApp:
    many_processes.fill(filler)
    made = make_app()
    many_processes.give(made.feed)
    return made


async def open_page(pilot: Pilot[Any], app: GputuiApp) -> ProcessesScreen:
    await pilot.press("p")
    await pilot.pause()
    assert isinstance(app.screen, ProcessesScreen)
    return app.screen


@pytest.fixture
def snapshot(filler: Filler, make_app: MakeApp) -> Snapshot:
    many_processes.fill(filler)
    found = read(filler.workspace)
    return replace(found, processes=many_processes.StillProcesses().read(()))


# --- rows


def test_what_the_driver_and_procfs_know_of_a_process_is_one_row(snapshot: Snapshot) -> None:
    rows = process_rows(snapshot)
    assert len(rows) == many_processes.everything(snapshot.gpus) == len({row.key for row in rows})
    rank = next(row for row in rows if row.pid == 1002)
    assert (rank.gpus, rank.gpu_memory_bytes, rank.sm_percent, rank.cpu_percent) == ((2,), 62 * GIB, 92, 97.0)
    assert (rank.run_id, rank.rank, rank.parent_pid) == ("llama-1", 2, 101)
    worker = next(row for row in rows if row.pid == 2203)
    assert worker.gpus == () and worker.gpu_memory_bytes is None and worker.rank == 2
    stranger = next(row for row in rows if row.pid == 5041)
    assert stranger.run_id is None and stranger.cpu_percent is None


def test_a_pid_that_went_to_another_process_is_not_mixed_up(snapshot: Snapshot) -> None:
    other = HostProcess(1002, 1, 99_999, "R", "bob", "vim", 1.0, 5, None, None)
    assert snapshot.processes is not None
    hosts = {**snapshot.processes.hosts, 1002: other}
    rows = [row for row in process_rows(replace(snapshot, processes=ProcessSet(hosts))) if row.pid == 1002]
    assert [(row.start_ticks, row.cpu_percent) for row in rows] == [(1009, None), (99_999, 1.0)]


def test_a_process_on_two_gpus_is_one_row_with_their_sum(filler: Filler) -> None:
    filler.many_gpus(2)
    for index in (0, 1):
        filler.processes(index, {"pid": 7, "start_ticks": 3, "memory_bytes": GIB, "sm_percent": 10 + index})
    (row,) = process_rows(read(filler.workspace))
    assert (row.gpus, row.gpu_memory_bytes, row.sm_percent) == ((0, 1), 2 * GIB, 11)


def test_orders_put_what_is_unknown_last() -> None:
    rows = [
        ProcessRow(1, 1, cpu_percent=5.0, user="zoe"),
        ProcessRow(2, 1, cpu_percent=None, user=None),
        ProcessRow(3, 1, cpu_percent=9.0, user="amy"),
    ]

    def pids(**state: Any) -> list[int]:
        return [row.pid for group in arranged(rows, TableState(**state)) for row in group.rows]

    assert pids(order="cpu") == [3, 1, 2] and pids(order="cpu", is_reversed=True) == [1, 3, 2]
    assert pids(order="user") == [3, 1, 2] and pids(order="pid", is_reversed=True) == [3, 2, 1]


def test_the_tree_hangs_children_behind_their_parents(snapshot: Snapshot) -> None:
    (group,) = arranged(process_rows(snapshot), TableState(is_tree=True))
    rows = group.rows
    assert [(row.pid, row.tree) for row in rows[:4]] == [(100, ""), (101, "└ "), (1003, "  ├ "), (2300, "  │ ├ ")]
    assert rows[3 + many_processes.LOADERS - 1].tree == "  │ └ " and len(rows) == 298


def test_a_circle_of_parents_loses_nobody() -> None:
    rows = [ProcessRow(1, 1, parent_pid=2), ProcessRow(2, 1, parent_pid=1), ProcessRow(3, 1, parent_pid=3)]
    (group,) = arranged(rows, TableState(is_tree=True))
    assert {row.pid for row in group.rows} >= {3}


def test_groups_come_in_the_order_of_the_gpus(snapshot: Snapshot) -> None:
    groups = arranged(process_rows(snapshot), TableState(grouping="gpu"))
    assert [group.heading for group in groups] == [*(f"GPU {index}" for index in range(8)), "no GPU"]
    runs = arranged(process_rows(snapshot), TableState(grouping="run"))
    assert [(group.heading, len(group.rows)) for group in runs] == [("llama-1", 286), ("no run of ours", 12)]
    found = arranged(process_rows(snapshot), TableState(filter_text="alice gpu5 part", grouping="gpu"))
    assert [(group.heading, len(group.rows)) for group in found] == [("GPU 5", 3)]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("is_tree", [False, True])
def test_every_width_is_filled_exactly(snapshot: Snapshot, width: int, is_tree: bool) -> None:
    rows = process_rows(snapshot)
    state = TableState(is_tree=is_tree, grouping="run", cursor=rows[0].key)
    lines = table_lines(snapshot, arranged(rows, state), state, width, 30, listed=len(rows))
    assert widths([*lines, total_line(rows, snapshot, width)]) == {width} and len(lines) == 30
    assert "of 300" in text_of(lines)[0] or width <= 60


def test_hostile_commands_stay_text(filler: Filler) -> None:
    filler.many_gpus(1)
    filler.processes(0, {"pid": 7, "user": "\x1b]0;x\x07", "command": "\x1b[2Jrm \u202e-rf", "start_ticks": 3})
    snapshot = read(filler.workspace)
    rows = process_rows(snapshot)
    shown = "".join(text_of(table_lines(snapshot, arranged(rows, TableState()), TableState(), 120, 5, listed=1)))
    assert "\x1b" not in shown and "\u202e" not in shown and "\x07" not in shown


# --- the page


async def test_the_page_opens_sorts_groups_and_goes_back(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        page = await open_page(pilot, app)
        assert feed_of(app).interest.processes
        assert re.findall(r"\d+", text(app, "total"))[:3] == ["298", "286", "12"]
        assert text(app, "body").split("\n")[2].startswith("▸   1003 me")
        await pilot.press("o", "o")
        assert "by CPU" in text(app, "body") and page.shown_rows[0].pid == 1003
        await pilot.press("O")
        assert "upwards" in text(app, "body") and page.shown_rows[0].cpu_percent == 0.0
        await pilot.press("O", "v")
        assert "└ torchrun" in text(app, "body") or "as a tree" in text(app, "body")
        await pilot.press("b", "home")
        assert "GPU 0 · 1" in text(app, "body")
        await pilot.press("b", "home")
        assert "llama-1 · 286" in text(app, "body")
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is overview(app) and not feed_of(app).interest.processes


async def test_the_cursor_stays_on_its_process(app: GputuiApp) -> None:
    still = many_processes.give(app.feed)
    async with app.run_test(size=SMALL) as pilot:
        page = await open_page(pilot, app)
        await pilot.press("o", "o", "o", "o")  # by PID
        await pilot.press("pagedown", "down", "j", "k", "up")
        before = page.table.cursor
        assert before is not None
        del still.hosts[100]
        feed_of(app).refresh()
        await pilot.pause()
        assert page.table.cursor == before and "▸" in text(app, "body")
        del still.hosts[before[0]]
        feed_of(app).refresh()
        await pilot.pause()
        assert page.table.cursor != before and page.table.cursor is not None
        await pilot.press("G")
        assert page.table.cursor == page.shown_rows[-1].key and "▸" in text(app, "body")
        await pilot.press("pageup", "g")
        assert page.table.cursor == page.shown_rows[0].key


async def test_the_filter_is_typed_and_cleared(app: GputuiApp) -> None:
    async with app.run_test(size=LARGE) as pilot:
        page = await open_page(pilot, app)
        await pilot.press("slash", *"alice")
        assert len(page.shown_rows) == 12 and "filter" in text(app, "body")
        await pilot.press("space", *"gpu4", "enter")
        assert len(page.shown_rows) == 3 and "/alice gpu4: 3 of 298" in text(app, "body")
        await pilot.press("slash", "x", "x", "enter")
        assert mentions(text(app, "body"), "No process", "filter")
        await pilot.press("s")
        assert NO_PROCESS in text(app, "message")
        await pilot.press("escape")
        assert len(page.shown_rows) == 298
        await pilot.press("escape")
        assert app.screen is overview(app)


async def test_detail_run_and_click(app: GputuiApp) -> None:
    async with app.run_test(size=LARGE) as pilot:
        page = await open_page(pilot, app)
        await pilot.press("enter")
        assert isinstance(app.screen, SheetScreen)
        assert "llama-1 rank 3" in app.screen.query_one("#sheet").text  # type: ignore[attr-defined]
        await pilot.press("escape", "r")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen) and app.screen.run_id == "llama-1"
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is page and feed_of(app).interest.processes
        await pilot.click("#body", offset=(10, 5))
        assert page.table.cursor == page.shown_rows[3].key
        await pilot.click("#body", offset=(10, 4), times=2)
        await pilot.pause()
        assert isinstance(app.screen, SheetScreen)


async def test_a_gpus_page_leads_to_its_processes(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("shift+tab", "G", "i")
        await pilot.pause()
        assert isinstance(app.screen, GpuScreen)
        page = await open_page(pilot, app)
        row = page.row_in_question
        assert row is not None and row.gpus == (7,) and "GPU 7 · 3" in text(app, "body")


@pytest.mark.parametrize("key", ["escape", "n", "q"])
async def test_a_signal_asks_twice_and_can_be_called_off(app: GputuiApp, key: str, monkeypatch: Any) -> None:
    sent: list[object] = []
    monkeypatch.setattr("gputui.runs.user_signals.send", lambda *given: sent.append(given))
    async with app.run_test(size=SMALL) as pilot:
        await open_page(pilot, app)
        await pilot.press("s")
        assert isinstance(app.screen, SignalScreen)
        assert "rank 3 of llama-1" in app.screen.query_one("#confirm").text  # type: ignore[attr-defined]
        await pilot.press("y", "x")  # no signal is chosen yet
        assert isinstance(app.screen, SignalScreen)
        await pilot.press("k", "enter", "k")
        assert "Send KILL?" in app.screen.query_one("#confirm").text  # type: ignore[attr-defined]
        await pilot.press(key)
        await pilot.pause(0.1)
        assert isinstance(app.screen, ProcessesScreen) and sent == []


async def test_a_confirmed_signal_ends_a_real_process(app: GputuiApp) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        stat = read_stat(child.pid)
        assert stat is not None
        still = many_processes.give(app.feed)
        still.hosts = {
            child.pid: replace(many_processes.host_process(child.pid, 1, "sleeper"), start_ticks=stat.start_ticks)
        }
        async with app.run_test(size=SMALL) as pilot:
            await open_page(pilot, app)
            await pilot.press("slash", *"sleeper", "enter", "s", "t", "y")
            await until(pilot, lambda: "SIGTERM was sent" in text(app, "message"))
            assert child.wait(10) == -signal.SIGTERM
            await pilot.press("s", "t", "y")
            await until(pilot, lambda: "has ended" in text(app, "message"))
    finally:
        child.kill()
        child.wait()


async def test_a_pid_that_is_not_seen_here_is_refused_in_words(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        page = await open_page(pilot, app)
        await pilot.press("slash", *"5040", "enter")
        row = page.row_in_question
        assert row is not None and row.start_ticks is None and "[unseen]" in text(app, "body")
        await pilot.press("s", "k", "y")
        await until(pilot, lambda: "KILL was not sent" in text(app, "message"))
        assert "outside of ours" in text(app, "message").replace("\n", " ")


async def test_a_view_that_is_read_only_sends_nothing(filler: Filler, make_app: MakeApp) -> None:
    many_processes.fill(filler)
    app = make_app(readonly=True)
    many_processes.give(app.feed)
    async with app.run_test(size=SMALL) as pilot:
        await open_page(pilot, app)
        await pilot.press("s")
        assert "This view is read only." in text(app, "message")


async def test_a_past_moment_shows_the_sets_that_were_recorded_and_signals_nobody(
    app: GputuiApp, filler: Filler
) -> None:
    text_of_then = json.dumps([{"pid": 77, "user": "bob", "command": "old.py", "memory_bytes": GIB, "start_ticks": 5}])
    filler.connection.execute(
        "INSERT INTO gpu_process_sets SELECT ?, gpu_id, ? FROM gpus WHERE position = 2", (NOW - 500, text_of_then)
    )
    async with app.run_test(size=SMALL) as pilot:
        page = await open_page(pilot, app)
        assert len(page.shown_rows) == 298
        await pilot.press("left_curly_bracket")
        await pilot.pause()
        assert "◀" in text(app, "head")
        assert [(row.pid, row.gpus, row.user) for row in page.shown_rows] == [(77, (2,), "bob")]
        await pilot.press("s")
        assert "would change the present" in text(app, "message")
        await pilot.press("L")
        await pilot.pause()
        assert len(page.shown_rows) == 298


async def test_a_machine_without_processes_says_so(filler: Filler, make_app: MakeApp) -> None:
    filler.agent(problem="No NVIDIA driver found.")
    app = make_app()
    still = many_processes.give(app.feed)
    still.hosts = {}
    async with app.run_test(size=SMALL) as pilot:
        await open_page(pilot, app)
        assert "No process is on a GPU" in text(app, "body")


async def test_the_real_machine_is_read(
    filler: Filler, make_app: MakeApp, tmp_path: Path, until_there: Callable[[int], None]
) -> None:
    """Without anything still: this test's own child with the mark of a run."""
    filler.overnight()
    run_dir = filler.workspace.run_dir("vit-b16-1")
    mark = {"GPUTUI_RUN_ID": "vit-b16-1", "GPUTUI_RUN_DIR": str(run_dir), "RANK": "0"}
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], env={**os.environ, **mark})
    try:
        until_there(child.pid)
        app = make_app()
        async with app.run_test(size=LARGE) as pilot:
            page = await open_page(pilot, app)
            row = next(row for row in page.shown_rows if row.pid == child.pid)
            assert row.run_id == "vit-b16-1" and row.rank == 0 and (row.memory_bytes or 0) > 0
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def until_there() -> Callable[[int], None]:
    """Wait until a child has become the program that it was started for."""

    def wait(pid: int) -> None:
        end = time.monotonic() + 10
        while b"signal" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            assert time.monotonic() < end
            time.sleep(0.005)

    return wait


async def test_for_how_long_a_process_has_held_memory_for_nothing(filler: Filler, make_app: MakeApp) -> None:
    filler.overnight()
    stranger = {"pid": 777, "user": "alice", "command": "python sweep.py", "memory_bytes": 22 * GIB, "kind": "C"}
    filler.connection.execute(
        "INSERT INTO gpu_process_sets (at, gpu_id, processes) SELECT ?, gpu_id, ? FROM gpus WHERE uuid = ?",
        (NOW - 9000, json.dumps([stranger]), filling.uuid(5)),
    )
    filler.connection.execute(
        "UPDATE gpu_samples SET utilization_percent = 0 WHERE gpu_id = (SELECT gpu_id FROM gpus WHERE uuid = ?)",
        (filling.uuid(5),),
    )
    filler.sample(5, at=NOW - 7300, utilization=40.0, memory_gib=22.1)
    filler.sample(5, at=NOW - 7200, utilization=0.0, memory_gib=22.1)
    app = make_app()
    many_processes.give(app.feed)
    async with app.run_test(size=LARGE) as pilot:
        page = await open_page(pilot, app)
        row = next(line for line in text(app, "body").splitlines() if " 777 " in line)
        assert "[idle 2 h] [unseen] python sweep.py" in row
        assert text(app, "body").count("[idle") == 1  # the others compute
        await pilot.press("slash", *"idle", "enter")
        await pilot.pause()
        assert page.row_in_question is not None and page.row_in_question.pid == 777
        await pilot.press("enter")
        await pilot.pause()
        assert mentions(" ".join(text(app, "sheet").split()), "idle 2 h", "memory")


# --- commands, cores, environment, letters


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("/opt/env/bin/python3.11 -u -m trainer --task classify", "python -m trainer --task classify"),
        ("/usr/bin/python3 -I -S -X dev -W ignore train.py -u", "python train.py -u"),
        ("python train.py", "python train.py"),
        ("/usr/bin/vim notes", "vim notes"),
        ("bash", "bash"),
    ],
)
def test_a_command_begins_with_what_tells_something(command: str, shown: str) -> None:
    assert short_command(command) == shown


def test_cores_are_measured_between_two_readings(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  1 1 1 1\ncpu0 100 0 0 900 0 0 0 0\ncpu1 100 0 0 900 0 0 0 0\nintr 5\n")
    before = core_times(stat)
    stat.write_text("cpu  1 1 1 1\ncpu0 150 0 0 950 0 0 0 0\ncpu1 100 0 0 950 50 0 0 0\n")
    assert core_percents(before, core_times(stat)) == (50.0, 0.0)
    assert core_percents(before, before) == (None, None)
    assert core_percents([], before) == () and core_times(tmp_path / "none") == []


async def test_a_letter_after_the_sort_key_chooses_the_column(app: GputuiApp) -> None:
    async with app.run_test(size=LARGE) as pilot:
        page = await open_page(pilot, app)
        await pilot.press("o", "c")
        assert page.table.order == "cpu"
        by_cpu = [row.cpu_percent for row in page.shown_rows if row.cpu_percent is not None]
        assert by_cpu == sorted(by_cpu, reverse=True)
        await pilot.press("o", "down", "p")
        assert page.table.order == "ram", "the letter counts right after the key alone"


async def test_the_environment_is_shown_without_secrets(app: GputuiApp) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={"COLOUR": "teal", "API_TOKEN": "s3cr3t-value-123", "ALSO": "x s3cr3t-value-123"},
    )
    try:
        stat = read_stat(child.pid)
        assert stat is not None
        until_set = time.monotonic() + 30
        while not (texts := environment_texts(child.pid, stat.start_ticks)) or "COLOUR" not in " ".join(texts):
            assert time.monotonic() < until_set, texts
        assert any("teal" in line for line in texts) and "s3cr3t" not in " ".join(texts)
        assert "COLOUR" not in " ".join(environment_texts(child.pid, stat.start_ticks + 1)), "another process by now"
    finally:
        child.kill()
        child.wait()
    assert len(environment_texts(child.pid, stat.start_ticks)) == 1


async def test_one_key_kills_after_a_question(app: GputuiApp, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr("gputui.runs.user_signals.send", lambda pid, ticks, number: sent.append((pid, number)))
    async with app.run_test(size=LARGE) as pilot:
        page = await open_page(pilot, app)
        row = page.row_in_question
        assert row is not None
        await pilot.press("K")
        await pilot.pause()
        assert not sent
        await pilot.press("y")
        await until(pilot, lambda: bool(sent))
        assert sent == [(row.pid, signal.SIGKILL)]
