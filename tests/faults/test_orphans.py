"""Processes that outlived their run: found, told once, ended; and what must never be taken for one."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from gputui.agent.context import AgentContext
from gputui.agent.maintenance import LOOK_SECONDS, OrphanWatch
from gputui.runs.identity import ProcessIdentity, identify
from gputui.runs.orphans import MarkedProcess, RunStatus, orphans, without_ancestors
from gputui.store.run_states import RunState
from tests.conftest import wait_until
from tests.machines import Machine

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
Leave = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def leave(machine: Machine) -> Iterator[Leave]:
    """Leave a process behind that carries a run's mark."""
    processes: list[subprocess.Popen[str]] = []

    def start(
        run_id: str, script: str = SLEEP, *, runs: str | None = None, attempt: str = "1"
    ) -> subprocess.Popen[str]:
        marks = {
            "GPUTUI_RUN_ID": run_id,
            "GPUTUI_RUN_DIR": f"{runs or machine.workspace.runs}/{run_id}",
            "GPUTUI_ATTEMPT": attempt,
        }
        process = subprocess.Popen(
            [sys.executable, "-c", script], env=os.environ | marks, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def look(watch: OrphanWatch, now: float) -> None:
    """A turn, and the one in which what its job has found is taken."""
    watch.poll(now)
    wait_until(lambda: not watch.context.jobs.is_busy, 60, "the scan")
    watch.poll(now)


def process(run_id: str, attempt: int | None) -> MarkedProcess:
    return MarkedProcess(ProcessIdentity(2_000_000, 1, "boot"), run_id, attempt, "python")


def test_orphans_are_listed_and_ended_and_nothing_else_is(machine: Machine, leave: Leave) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=3", "--wait")
    machine.gputui("run", machine.profile(), "--name", "alive", "--set", "steps=100000")
    machine.wait_for("alive-1", "running")
    orphan = leave("steps-1")
    deaf = leave("steps-1", DEAF)
    removed = leave("gone-7")
    elsewhere = leave("steps-1", runs=str(machine.folder / "another/state/runs"))
    listed = machine.json("agent", "orphans")
    assert sorted((entry["pid"], entry["run_id"], entry["killed"]) for entry in listed) == sorted(
        [(orphan.pid, "steps-1", None), (deaf.pid, "steps-1", None), (removed.pid, "gone-7", None)]
    )
    assert all("time.sleep(600)" in entry["command"] and entry["gpu_memory_bytes"] is None for entry in listed)
    assert str(orphan.pid) in machine.gputui("agent", "orphans")
    assert orphan.poll() is None
    killed = json.loads(machine.gputui("agent", "orphans", "--kill", "--json"))
    assert {entry["killed"] for entry in killed} == {True}
    assert (orphan.wait(60), deaf.wait(60), removed.wait(60)) == (-15, -9, -15)
    events = machine.rows("SELECT run_id, attempt, key, message FROM events WHERE kind = 'orphan_killed'")
    assert {(row[0], row[1]) for row in events} == {("steps-1", 1), (None, None)}
    assert {row[2] for row in events} == {str(orphan.pid), str(deaf.pid), str(removed.pid)}
    assert any("of gone-7 (" in row[3] for row in events)
    assert all("time.sleep(600)" in row[3] for row in events)
    assert elsewhere.poll() is None
    assert machine.state("alive-1") == "running"
    assert machine.marked("alive-1")
    assert "no orphans" in machine.gputui("agent", "orphans", "--kill")


def test_the_agent_tells_each_orphan_once(machine: Machine, leave: Leave) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=3", "--wait")
    machine.gputui("agent", "stop")
    orphan = leave("steps-1")
    with closing(sqlite3.connect(machine.workspace.database, isolation_level=None)) as connection:

        def told() -> list[tuple[str, str]]:
            return connection.execute("SELECT severity, key FROM events WHERE kind = 'orphan'").fetchall()

        for now in (0.0, 10_000.0):  # the second one is a successor
            watch = OrphanWatch(AgentContext.of(connection, machine.workspace, wake=lambda: None))
            look(watch, now)
            before = told()
            look(watch, now + LOOK_SECONDS / 2)
            assert told() == before
            look(watch, now + LOOK_SECONDS)
            look(watch, now + 2 * LOOK_SECONDS)
            assert told() == [("warning", str(orphan.pid))]


def test_what_is_an_orphan() -> None:
    table = [
        (RunState.RUNNING, 2, 2, False),
        (RunState.STARTING, 2, 2, False),
        (RunState.STOPPING, 2, 2, False),
        (RunState.RUNNING, 2, None, False),
        (RunState.RUNNING, 1, 2, False),  # begun after the database was read
        (RunState.RUNNING, 2, 1, True),
        (RunState.RECOVERING, 2, 2, True),
        (RunState.QUEUED, 2, 2, True),
        (RunState.QUEUED, 2, 3, False),
        (RunState.SUCCEEDED, 2, 2, True),
        (RunState.FAILED, 2, None, True),
        (RunState.STOPPED, 2, 3, False),  # resumed after the database was read
    ]
    verdicts = [
        (state, newest, attempt, bool(orphans([process("a-1", attempt)], {"a-1": RunStatus(state, newest)})))
        for state, newest, attempt, _ in table
    ]
    assert verdicts == table


def test_own_ancestors_are_left_out() -> None:
    test_process = identify(os.getpid())
    parent = identify(os.getppid())
    assert test_process is not None
    assert parent is not None
    listed = [MarkedProcess(identity, "a-1", 1, "") for identity in (test_process, parent)]
    assert without_ancestors([*listed, process("a-1", 1)], os.getpid()) == [process("a-1", 1)]
