"""The real program looking back at what a real agent has recorded."""

from __future__ import annotations

import json
import time

from tests.conftest import wait_until
from tests.machine import Machine
from tests.pty.test_control_center import Terminal, shared_profile


def test_a_run_is_looked_at_before_it_was_and_while_it_was(machine: Machine) -> None:
    machine.workspace.scenario.write_text("gpus: 2\nseed: 9\nfaults: []\n")
    shared_profile(machine)
    terminal = Terminal(machine, 100, 30)
    terminal.wait_for("simulated GPUs")
    wait_until(lambda: machine.rows("SELECT count(*) FROM host_samples")[0][0] >= 3, what="three samples")
    machine.gputui("run", "a-steps", "--set", "steps=2000")
    terminal.wait_for("● a-steps-1")
    [(begun,)] = machine.rows("SELECT created_at FROM runs")
    terminal.press("t")
    terminal.wait_for("A moment")
    terminal.press(time.strftime("%H:%M:%S", time.localtime(begun - 1)) + "\r")
    lines = terminal.wait_for("There was no run yet")
    assert not any("a-steps-1" in line for line in lines)
    terminal.press("]")
    terminal.wait_for("a-steps-1")
    terminal.press("s")
    terminal.wait_for("this would change the present; L returns to it.")
    assert machine.state("a-steps-1") == "running"
    terminal.press("L")
    terminal.wait_for("● a-steps-1")
    terminal.press("q")
    assert terminal.close() == 0
    then = json.loads(
        machine.gputui("--once", "--json", "--at", f"{time.strftime('%H:%M:%S', time.localtime(begun - 1))}")
    )
    assert (then["is_past"], then["runs"], len(then["gpus"])) == (True, [], 2)
    assert "a-steps-1" in machine.gputui("--once")
    machine.gputui("stop", "a-steps-1", "--now")
    machine.wait_for("a-steps-1", "stopped")
