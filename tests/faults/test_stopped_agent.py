"""An agent that somebody stopped (SIGSTOP): it lives, so that no other takes its place, and does nothing."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from gputui.runs.agent_process import stopped_agent
from gputui.runs.identity import ProcessIdentity, is_alive, is_stopped
from gputui.store import commands
from gputui.store.database import open_commander
from gputui.tui.agent_watchdog import AgentKeeper
from tests.conftest import wait_until
from tests.machine import Machine

# Far less than a command waits for an answer (store.commands.ANSWER_SECONDS).
TOLD_WITHIN_SECONDS = 12.0


@pytest.fixture
def stopped(machine: Machine) -> Iterator[ProcessIdentity]:
    """The agent of the machine, stopped, with one run behind it."""
    machine.gputui("run", machine.profile(), "--set", "steps=3", "--wait")
    agent = wait_until(machine.agent, what="an agent")
    os.kill(agent.pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(agent), what="the agent to stop")
    yield agent
    if is_alive(agent):
        os.kill(agent.pid, signal.SIGCONT)


def test_every_command_says_so_and_how_to_continue_it(machine: Machine, stopped: ProcessIdentity) -> None:
    remedy = f"kill -CONT {stopped.pid}"
    for words in (("ps",), ("show", "steps-1"), ("agent", "status"), ("alerts",)):
        done = machine.call(*words)
        assert done.returncode == 0 and remedy in done.stderr, (words, done)
    assert remedy in machine.gputui("doctor", code=None)
    for words in (("note", "steps-1", "seen"), ("run", machine.profile()), ("gpus",), ("agent", "start"), ("--once",)):
        began = time.monotonic()
        done = machine.call(*words)
        assert time.monotonic() - began < TOLD_WITHIN_SECONDS
        assert done.returncode == 4 and remedy in done.stdout + done.stderr, (words, done)
    os.kill(stopped.pid, signal.SIGCONT)
    assert machine.json("note", "steps-1", "seen")["note"] == "seen"
    assert machine.agent() == stopped


def test_who_waits_for_a_run_is_told(machine: Machine, stopped: ProcessIdentity) -> None:
    os.kill(stopped.pid, signal.SIGCONT)
    with machine.start("run", machine.profile(), "--wait", "--set", "steps=100000") as waiting:
        wait_until(lambda: machine.state("steps-2") == "running", what="the run")
        os.kill(stopped.pid, signal.SIGSTOP)
        _, errors = waiting.communicate(timeout=60)
    os.kill(stopped.pid, signal.SIGCONT)
    assert waiting.returncode == 4 and f"kill -CONT {stopped.pid}" in errors
    machine.gputui("stop", "steps-2", "--now")


def test_a_command_that_it_cannot_answer_is_withdrawn(machine: Machine, stopped: ProcessIdentity) -> None:
    with closing(open_commander(machine.workspace.database)) as connection:
        asked = commands.submit(connection, "label", "steps-1", {"note": "late"}, "me", now=time.time())
        answer = commands.wait_for_answer(
            connection, asked, 600.0, is_in_vain=lambda: stopped_agent(machine.workspace) is not None
        )
    assert answer is None
    os.kill(stopped.pid, signal.SIGCONT)
    assert machine.json("tag", "steps-1", "+seen")["note"] is None


def test_the_screen_says_so_until_it_is_continued(machine: Machine, stopped: ProcessIdentity) -> None:
    told: queue.Queue[str | None] = queue.Queue()
    keeper = AgentKeeper(machine.workspace, told.put)
    keeper.start()
    try:
        sentence = wait_for_sentence(told)
        assert f"kill -CONT {stopped.pid}" in sentence
        os.kill(stopped.pid, signal.SIGCONT)
        assert told.get(timeout=TOLD_WITHIN_SECONDS) is None
        os.kill(stopped.pid, signal.SIGSTOP)
        assert told.get(timeout=TOLD_WITHIN_SECONDS) == sentence
    finally:
        keeper.stop()


def wait_for_sentence(told: queue.Queue[str | None]) -> str:
    sentence = told.get(timeout=TOLD_WITHIN_SECONDS)
    assert sentence is not None
    return sentence


def test_a_stopped_agent_can_be_ended(machine: Machine, stopped: ProcessIdentity) -> None:
    machine.gputui("agent", "stop")
    assert not is_alive(stopped)
