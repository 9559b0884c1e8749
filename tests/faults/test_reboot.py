"""A reboot in the middle of a run: told by the boot id, decided by the policy, and nobody signals a PID of the former
boot."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.faults.live import reboot
from tests.machines import Machine

# The script records every signal that it gets.
BYSTANDER = (
    "import signal, sys, time\n"
    "for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:\n"
    "    try: signal.signal(number, lambda n, _: print(n, flush=True))\n"
    "    except OSError: pass\n"
    "print('ready', flush=True)\n"
    "while True: time.sleep(60)\n"
)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[str]]:
    """A process of this boot that has the PID and start time of the former boot's shim."""
    with subprocess.Popen([sys.executable, "-c", BYSTANDER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def begin(machine: Machine, recovery: str) -> None:
    profile = machine.profile("steps", Path(machine.profile()).read_text() + f"recovery: {recovery}\n")
    machine.gputui("run", profile, "--set", "seconds=0.05", "--set", "steps=100000")
    wait_until(lambda: len(machine.steps("steps-1")) > 15, what="some steps")


def test_a_run_goes_on_after_a_reboot_when_its_policy_says_so(
    machine: Machine, bystander: subprocess.Popen[str]
) -> None:
    begin(machine, "aggressive")
    reboot(machine, "steps-1", bystander.pid)
    newest = max(path.name for path in machine.workspace.run_dir("steps-1").glob("checkpoints/step_*.pt"))
    machine.gputui("agent", "start")
    machine.finish("steps-1", attempt=2)
    first, second = machine.json("show", "steps-1")["attempts"]
    assert (first["state"], first["incident"]["kind"], first["exit"]) == ("failed", "interrupted", None)
    assert second["resumed_from"].endswith(newest)
    assert "rebooted or lost power" in " ".join(machine.gputui("explain", "steps-1").split())
    assert bystander.poll() is None
    bystander.kill()
    assert bystander.stdout is not None
    assert bystander.stdout.read() == "", "a process of this boot was signalled"


def test_a_stop_of_a_former_boot_signals_nobody(machine: Machine, bystander: subprocess.Popen[str]) -> None:
    begin(machine, "aggressive")
    reboot(machine, "steps-1", bystander.pid)
    with closing(sqlite3.connect(machine.workspace.database)) as connection:
        connection.execute("UPDATE runs SET state = 'stopping'")
        connection.execute("UPDATE attempts SET stop_requested = 'stop'")
        connection.commit()
    machine.gputui("agent", "start")
    machine.wait_for("steps-1", "stopped")
    assert machine.rows("SELECT count(*) FROM incidents") == [(0,)]
    assert bystander.poll() is None
    bystander.kill()
    assert bystander.stdout is not None
    assert bystander.stdout.read() == ""
