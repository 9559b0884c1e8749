"""A home that was moved, as the page on operations says: runs go on there, and their metrics are read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.machines import Machine

PRINTS = """
name: printer
launcher: command
command: [sh, -c, "i=0; while [ $i -lt 400 ]; do echo step $i loss 0.5; i=$((i+1)); sleep 0.05; done"]
gpus: 0
metrics: {source: output, patterns: ["step (?P<step>[0-9]+) loss (?P<loss>[0-9.]+)"]}
"""


@pytest.mark.parametrize("text", [None, PRINTS], ids=["file", "output"])
def test_a_run_goes_on_in_a_moved_home(machine: Machine, tmp_path: Path, text: str | None) -> None:
    name = "steps" if text is None else "printer"
    machine.gputui("run", machine.profile(name, text), *(["--set", "steps=4000"] if text is None else []))
    run_id = f"{name}-1"
    wait_until(lambda: len(machine.steps(run_id)) > 3, what="its first steps")
    machine.gputui("stop", run_id)
    machine.wait_for(run_id, "stopped")
    machine.gputui("agent", "stop")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    shutil.move(machine.folder / "home", folder / "home")
    moved = Machine(folder)
    moved.gputui("restart", run_id)
    try:
        second = "SELECT step FROM metrics JOIN metric_sources USING (source_id) WHERE run_id = ? AND attempt = 2"
        steps = wait_until(lambda: moved.rows(second, run_id), what="steps of the second attempt")
        places = {path for (path,) in moved.rows("SELECT path FROM metric_sources WHERE run_id = ?", run_id)}
        assert steps[0] == (0,)
        assert all(path.startswith(str(moved.workspace.state)) for path in places)
    finally:
        moved.gputui("stop", "--now", run_id, code=None)
        moved.gputui("agent", "stop", code=None)
