"""The disk on which everything is recorded is full while a run fails on it: the same agent brings it back later."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gputui.runs.identity import is_alive
from tests.conftest import wait_until
from tests.machines import Machine, on_small_disk


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Machine]:
    """A machine whose home lies on a file system of 16 MiB."""
    with on_small_disk(tmp_path / "small", "16m") as machine:
        yield machine


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 4096):
                pass
        except OSError:
            return


def test_the_agent_outlives_a_full_disk_and_recovers_what_failed_on_it(small: Machine) -> None:
    small.gputui("run", small.profile(), "--set", "steps=150", "--set", "seconds=0.04")
    wait_until(lambda: len(small.steps("steps-1")) > 12, what="some steps")
    agent = wait_until(small.agent)
    shim = small.shim("steps-1")
    log = small.workspace.agent_log
    # Reserve room for the agent's log, so that it can report the full disk.
    subprocess.run(["fallocate", "--keep-size", "--length", "65536", str(log)], check=True)
    fill(small.folder / "ballast")
    for process in small.marked("steps-1"):
        if process.pid != shim.pid:
            # The script may have failed for want of room already.
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(shim), what="the end of the shim")
    record = small.workspace.run_dir("steps-1") / "attempts/1/exit.json"
    assert record.stat().st_size, "the shim's record had room of its own"
    wait_until(lambda: "cannot be written now" in log.read_text(), what="the agent's word on the disk")
    assert small.agent() == agent
    (small.folder / "ballast").unlink()
    small.wait_for("steps-1", "succeeded")
    ((kind,),) = small.rows("SELECT kind FROM incidents")
    assert kind in ("disk_full", "killed")
    assert small.agent() == agent
    assert small.rows("PRAGMA integrity_check") == [("ok",)]
