"""An agent that somebody stopped (SIGSTOP): it lives, so that no other takes its place, and does nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from gputui.runs.identity import ProcessIdentity, is_alive, is_stopped
from tests.conftest import wait_until
from tests.machines import Machine


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
    for command in (("ps",), ("show", "steps-1"), ("agent", "status"), ("alerts",)):
        done = machine.call(*command)
        assert done.returncode == 0, (command, done)
        assert remedy in done.stderr, (command, done)
    assert remedy in machine.gputui("doctor", code=None)
    for command in (("label", "steps-1", "--note", "seen"), ("run", machine.profile())):
        done = machine.call(*command)
        assert done.returncode == 4, (command, done)
        assert remedy in done.stdout + done.stderr, (command, done)
    os.kill(stopped.pid, signal.SIGCONT)
    assert machine.json("label", "steps-1", "--note", "seen")[0]["note"] == "seen"
    assert machine.agent() == stopped


@pytest.mark.long
def test_a_stopped_agent_can_be_ended(machine: Machine, stopped: ProcessIdentity) -> None:
    machine.gputui("agent", "stop")
    assert not is_alive(stopped)
