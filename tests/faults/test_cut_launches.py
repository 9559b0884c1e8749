"""The agent is killed while it makes a run."""

from __future__ import annotations

import os
import signal

from gputui.runs.identity import send_signal
from tests.machines import Machine


def runs(machine: Machine) -> list[str]:
    """The folders of runs."""
    return [name for name in os.listdir(machine.workspace.runs) if not name.startswith(".")]


def test_a_launch_that_was_cut_off_makes_one_run(machine: Machine) -> None:
    """Killed as soon as the run's folder is there, before the run is stored."""
    profile = machine.profile()
    machine.gputui("agent", "start")
    agent = machine.agent()
    assert agent is not None
    with machine.start("run", profile, "--set", "steps=1", "--json") as client:
        while not runs(machine):
            assert client.poll() is None
        send_signal(agent, signal.SIGKILL)
        output, errors = client.communicate()
    assert client.returncode == 0, errors
    ((run_id,),) = machine.rows("SELECT run_id FROM runs")
    assert f'"{run_id}"' in output
    assert runs(machine) == [run_id]
