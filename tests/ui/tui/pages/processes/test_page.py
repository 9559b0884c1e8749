"""The page of processes: its rows, and its keys under a pilot."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from gputui.machine.procfs import read_stat
from gputui.metrics.draw.parts import Line
from gputui.runs.process_words import script_of, script_words
from gputui.runs.processes import HostProcess
from gputui.ui.tui.app import GputuiApp
from gputui.ui.tui.dialogs.questions import MenuScreen
from gputui.ui.tui.pages.processes.page import ProcessesScreen, environment_texts
from gputui.ui.tui.pages.processes.view import ProcessesState, ProcessRow, arrange, process_panel, process_rows
from gputui.ui.views.snapshot import Snapshot
from tests.homes import GIB, Home
from tests.ui.tui import many_processes
from tests.ui.tui.conftest import MakeApp
from tests.ui.tui.screens import SMALL, feed_of, overview, read, text, wait_for


def plain(lines: list[Line]) -> list[str]:
    return ["".join(part for part, _ in line) for line in lines]


@pytest.fixture
def app(home: Home, make_app: MakeApp) -> GputuiApp:
    many_processes.fill(home)
    app = make_app()
    many_processes.give(app.feed)
    return app


async def open_page(pilot: Pilot[Any], app: GputuiApp) -> ProcessesScreen:
    await pilot.press("p")
    await pilot.pause()
    assert isinstance(app.screen, ProcessesScreen)
    return app.screen


@pytest.fixture
def snapshot(home: Home, make_app: MakeApp) -> Snapshot:
    many_processes.fill(home)
    snapshot = read(home.workspace)
    return replace(snapshot, processes=many_processes.StillProcesses().read(()))


# --- rows


def test_what_the_driver_and_procfs_know_of_a_process_is_one_row(snapshot: Snapshot) -> None:
    rows = process_rows(snapshot)
    assert len(rows) == many_processes.everything(snapshot.gpus) == len({row.key for row in rows})
    rank = next(row for row in rows if row.pid == 1002)
    assert (rank.gpus, rank.gpu_memory_bytes, rank.sm_percent, rank.cpu_percent) == ((2,), 62 * GIB, 92, 97.0)
    assert (rank.run_id, rank.rank, rank.parent_pid) == ("llama-1", 2, 101)
    worker = next(row for row in rows if row.pid == 2203)
    assert worker.gpus == ()
    assert worker.gpu_memory_bytes is None
    assert worker.rank == 2
    stranger = next(row for row in rows if row.pid == 5041)
    assert stranger.run_id is None
    assert stranger.cpu_percent is None


def test_a_pid_that_went_to_another_process_is_not_mixed_up(snapshot: Snapshot) -> None:
    process = HostProcess(
        1002, 1, 99_999, state="R", user="bob", command="vim", cpu_percent=1.0, memory_bytes=5, run_id=None, rank=None
    )
    assert snapshot.processes is not None
    hosts = {**snapshot.processes, 1002: process}
    rows = [row for row in process_rows(replace(snapshot, processes=hosts)) if row.pid == 1002]
    assert [(row.start_ticks, row.cpu_percent) for row in rows] == [(1009, None), (99_999, 1.0)]


def test_orders_put_what_is_unknown_last() -> None:
    rows = [
        ProcessRow(n, 1, cpu_percent=cpu, user=user)
        for n, cpu, user in ((1, 5.0, "zoe"), (2, None, None), (3, 9.0, "amy"))
    ]

    def pids(order: str) -> list[int]:
        return [row.pid for row in arrange(rows, ProcessesState(order=order))[""]]

    assert pids("CPU") == [3, 1, 2] == pids("user")
    assert pids("PID") == [1, 2, 3]


def test_the_tree_hangs_children_behind_their_parents(snapshot: Snapshot) -> None:
    rows = arrange(process_rows(snapshot), ProcessesState(is_tree=True))[""]
    assert [(row.pid, row.tree) for row in rows[:4]] == [(100, ""), (101, "└ "), (1003, "  ├ "), (2300, "  │ ├ ")]
    assert rows[3 + many_processes.LOADERS - 1].tree == "  │ └ "
    assert len(rows) == 298


def test_groups_come_in_the_order_of_the_gpus(snapshot: Snapshot) -> None:
    def headings(state: ProcessesState) -> list[str]:
        return list(arrange(process_rows(snapshot), state))

    titles = headings(ProcessesState(grouping="gpu"))
    assert titles == [*(f"GPU {index} · 1" for index in range(4)), *(f"GPU {index} · 3" for index in range(4, 8)),
                     "no GPU · 282"]  # fmt: skip
    assert headings(ProcessesState(grouping="run")) == ["llama-1 · 286", "no run of ours · 12"]
    assert headings(ProcessesState(filter_text="alice gpu5 part", grouping="gpu")) == ["GPU 5 · 3"]


@pytest.mark.parametrize(
    ("command", "script"),
    [("/opt/env/bin/python3.11 -u -X dev /srv/burn.py --rank 3", "burn.py --rank 3"), ("", ""), ("python", "python"),
     ("python -m trainer fit", "trainer fit"), ("python -c import time", "python -c import time"),
     ("/usr/bin/torchrun train.py", "torchrun train.py")],
)  # fmt: skip
def test_a_script_is_named_without_its_interpreter(command: str, script: str) -> None:
    assert script_of(command) == script


def test_the_panel_has_what_every_snapshot_knows(home: Home) -> None:
    many_processes.fill(home)
    home.processes(7, {"pid": 4190777, "user": None, "command": None, "memory_bytes": GIB, "kind": "C"})
    lines = plain(process_panel(read(home.workspace), 100, 20))
    assert {len(line) for line in lines} == {100}
    assert len(lines) == 20
    lines_of_table = [line.rstrip() for line in lines]
    assert lines_of_table[0].startswith(" PROCESSES ─")
    assert lines_of_table[0].endswith(" 4 of runs, 10 others ─")
    assert lines_of_table[1].split() == ["PID", "USER", "GPU", "GPU", "MEM", "%", "SM", "RUN", "COMMAND"]
    # Processes of runs come last: the rows of GPUs show them already.
    assert lines_of_table[12].split() == ["1003", "me", "3", "63.0G", "79%", "93%", "llama-1", "r3", "train.py"]
    assert [line.split() for line in lines_of_table if "4190777" in line] == [
        ["4190777", "–", "7", "1.0G", "1%", "–", "process", "not", "visible", "here"]
    ]


# --- the page


async def test_the_page_opens_sorts_groups_and_goes_back(app: GputuiApp) -> None:
    async with app.run_test(size=SMALL) as pilot:
        page = await open_page(pilot, app)
        assert feed_of(app).interest.processes
        assert text(app, "head").startswith(" gputui › processes · 298 · CPU ")
        assert text(app, "list").split("\n")[2].startswith("▸    1003 me")
        await pilot.press("o", "o")
        assert "by CPU" in text(app, "list")
        assert page.listing.rows[0].pid == 1003
        await pilot.press("v")
        assert "└ torchrun" in text(app, "list") or "as a tree" in text(app, "list")
        await pilot.press("b", "home")
        assert "GPU 0 · 1" in text(app, "list")
        await pilot.press("b", "home")
        assert "llama-1 · 286" in text(app, "list")
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is overview(app)
        assert not feed_of(app).interest.processes


async def test_a_signal_asks_twice_and_can_be_called_off(app: GputuiApp, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    monkeypatch.setattr("gputui.runs.identity.send_checked_signal", lambda *arguments: sent.append(arguments))
    async with app.run_test(size=SMALL) as pilot:
        await open_page(pilot, app)
        for key in ("escape", "n", "q"):
            await pilot.press("s")
            assert isinstance(app.screen, MenuScreen)
            assert "rank 3 of llama-1" in app.screen.query_one("#confirm").text  # type: ignore[attr-defined]
            await pilot.press("y", "x")  # no signal is chosen yet
            assert isinstance(app.screen, MenuScreen)
            await pilot.press("k")
            assert "Send KILL?" in app.screen.query_one("#confirm").text  # type: ignore[attr-defined]
            await pilot.press(key)
            await pilot.pause()
            assert isinstance(app.screen, ProcessesScreen)
            assert sent == []


async def test_a_real_process_shows_no_secrets_and_is_ended_by_a_confirmed_signal(app: GputuiApp) -> None:
    secrets = {"COLOUR": "teal", "API_TOKEN": "s3cr3t-value-123", "ALSO": "x s3cr3t-value-123"}
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], env=secrets)
    try:
        stat = read_stat(child.pid)
        assert stat is not None
        ticks = stat.start_ticks
        until_set = time.monotonic() + 60
        while "COLOUR" not in (texts := " ".join(environment_texts(child.pid, ticks))):
            assert time.monotonic() < until_set, texts
        assert "teal" in texts
        assert "s3cr3t" not in texts
        assert "COLOUR" not in " ".join(environment_texts(child.pid, ticks + 1)), "another process by now"
        sleeper = replace(many_processes.host_process(child.pid, 1, "sleeper"), start_ticks=ticks)
        many_processes.give(app.feed).hosts = {child.pid: sleeper}
        async with app.run_test(size=SMALL) as pilot:
            await open_page(pilot, app)
            await pilot.press("slash", *"sleeper", "enter", "s", "t", "y")
            await wait_for(pilot, lambda: "SIGTERM was sent" in text(app, "message"))
            assert child.wait(60) == -signal.SIGTERM
            await pilot.press("s", "t", "y")
            await wait_for(pilot, lambda: "has ended" in text(app, "message"))
    finally:
        child.kill()
        child.wait()
    assert len(environment_texts(child.pid, ticks)) == 1


def test_the_own_folder_of_a_run_is_left_out_of_its_commands() -> None:
    commands = {
        "python train.py --out /h/state/runs/vit-1/out --lr 0.1": "train.py --lr 0.1",
        "/env/bin/python -u train.py --lr 0.1 --out=/h/state/runs/vit-1": "train.py --lr 0.1",
        "train.py -o /runs/vit-1/ --resume /runs/vit-1/out/s_40.pt": "train.py --resume /runs/vit-1/out/s_40.pt",
        "train.py --out /h/runs/vit-12/out": "train.py --out /h/runs/vit-12/out",
    }
    assert {command: script_words(command, "vit-1") for command in commands} == commands
    assert script_words("train.py --out /h/runs/vit-1/out", None) == "train.py --out /h/runs/vit-1/out"
