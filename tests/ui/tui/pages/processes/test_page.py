"""The page of processes: its rows, and its keys under a pilot."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from gputui.machine.procfs import read_stat
from gputui.runs.processes import HostProcess
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.data.snapshot import ProcessSet, Snapshot
from gputui.ui.tui.dialogs.signals import SignalScreen
from gputui.ui.tui.pages.processes.page import ProcessesScreen, environment_texts
from gputui.ui.tui.pages.processes.rows import ProcessRow, TableState, arranged, process_rows
from tests.ui.tui import many_processes
from tests.ui.tui.conftest import MakeApp
from tests.ui.tui.filling import GIB, Filler
from tests.ui.tui.pages.overview.test_render import read
from tests.ui.tui.test_screens import SMALL, feed_of, overview, text, until

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


def test_groups_come_in_the_order_of_the_gpus(snapshot: Snapshot) -> None:
    groups = arranged(process_rows(snapshot), TableState(grouping="gpu"))
    assert [group.heading for group in groups] == [*(f"GPU {index}" for index in range(8)), "no GPU"]
    runs = arranged(process_rows(snapshot), TableState(grouping="run"))
    assert [(group.heading, len(group.rows)) for group in runs] == [("llama-1", 286), ("no run of ours", 12)]
    found = arranged(process_rows(snapshot), TableState(filter_text="alice gpu5 part", grouping="gpu"))
    assert [(group.heading, len(group.rows)) for group in found] == [("GPU 5", 3)]


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


async def test_a_signal_asks_twice_and_can_be_called_off(app: GputuiApp, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    monkeypatch.setattr("gputui.runs.identity.send_checked_signal", lambda *given: sent.append(given))
    async with app.run_test(size=SMALL) as pilot:
        await open_page(pilot, app)
        for key in ("escape", "n", "q"):
            await pilot.press("s")
            assert isinstance(app.screen, SignalScreen)
            assert "rank 3 of llama-1" in app.screen.query_one("#confirm").text  # type: ignore[attr-defined]
            await pilot.press("y", "x")  # no signal is chosen yet
            assert isinstance(app.screen, SignalScreen)
            await pilot.press("k", "enter", "k")
            assert "Send KILL?" in app.screen.query_one("#confirm").text  # type: ignore[attr-defined]
            await pilot.press(key)
            await pilot.pause()
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
            assert child.wait(60) == -signal.SIGTERM
            await pilot.press("s", "t", "y")
            await until(pilot, lambda: "has ended" in text(app, "message"))
    finally:
        child.kill()
        child.wait()


# --- commands, cores, environment, letters


async def test_the_environment_is_shown_without_secrets(app: GputuiApp) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={"COLOUR": "teal", "API_TOKEN": "s3cr3t-value-123", "ALSO": "x s3cr3t-value-123"},
    )
    try:
        stat = read_stat(child.pid)
        assert stat is not None
        until_set = time.monotonic() + 60
        while not (texts := environment_texts(child.pid, stat.start_ticks)) or "COLOUR" not in " ".join(texts):
            assert time.monotonic() < until_set, texts
        assert any("teal" in line for line in texts) and "s3cr3t" not in " ".join(texts)
        assert "COLOUR" not in " ".join(environment_texts(child.pid, stat.start_ticks + 1)), "another process by now"
    finally:
        child.kill()
        child.wait()
    assert len(environment_texts(child.pid, stat.start_ticks)) == 1
