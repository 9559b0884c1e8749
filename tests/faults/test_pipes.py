"""Pipes in place of a run's files: the agent goes on with the other runs."""

from __future__ import annotations

import os
import signal

from tests.conftest import wait_until
from tests.machine import Machine


def test_a_pipe_in_place_of_a_specification_and_of_metrics_stops_no_other_run(machine: Machine) -> None:
    text = """
    name: piped
    launcher: command
    command: sleep 1000
    gpus: 0
    metrics: {source: hf, path: "{run_dir}/trainer_state.json"}
    """
    machine.gputui("run", machine.profile("piped", text))
    folder = machine.workspace.run_dir("piped-1")
    (command,) = wait_until(lambda: [one for one in machine.marked("piped-1") if one != machine.shim("piped-1")])
    (folder / "spec.json").unlink()
    for name in ("spec.json", "trainer_state.json"):
        os.mkfifo(folder / name)
    os.kill(command.pid, signal.SIGKILL)
    assert machine.wait_for("piped-1", "failed", timeout=30) == "failed"
    machine.gputui("run", machine.profile(), "--set", "steps=5", "--wait", timeout=60)
