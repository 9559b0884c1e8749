"""Nobody else reads a home: everything that gputui itself writes is for its user alone, whatever the umask."""

from __future__ import annotations

import os
from pathlib import Path

from tests.machines import Machine

# What the run itself writes, with the umask of the shell that launched it; its folder is closed to others.
OF_THE_RUN = ("metrics.jsonl", "enough", "checkpoints")


def too_open(top: Path) -> list[str]:
    """Paths below that others could enter or read."""
    problems = []
    for folder, folders, files in os.walk(top):
        for name in [*folders, *files]:
            path = Path(folder) / name
            mode = path.lstat().st_mode & 0o777
            if mode & 0o077 and not path.is_symlink():
                problems.append(f"{mode:04o} {path.relative_to(top)}")
    return problems


def test_a_home_that_was_used_is_closed_to_others(machine: Machine) -> None:
    before = os.umask(0o022)
    try:
        machine.workspace.scenario.write_text("gpus: 2\n")
        machine.workspace.scenario.chmod(0o600)
        machine.gputui("queue", "pause")
        profile = Path(machine.profile())
        profile.write_text(profile.read_text() + "sinks: [jsonl]\n")
        machine.gputui("run", str(profile), "--gpus", "1", "--set", "fail_at=15")
        machine.gputui("queue", "resume")
        machine.wait_for("steps-1", "succeeded")
        machine.gputui("run", str(profile), "--set", "steps=100000")
        machine.wait_for("steps-2", "running")
        machine.kill_agent()
        machine.gputui("stop", "steps-2")
        machine.wait_for("steps-2", "stopped")
        machine.gputui("report", "steps-1", "-o", str(machine.folder / "report.html"), code=None)
        machine.gputui("agent", "stop")
    finally:
        os.umask(before)
    open_to_others = [
        line
        for line in too_open(machine.workspace.state)
        if not any(part in line.partition("/steps-")[2] for part in OF_THE_RUN)
    ]
    assert open_to_others == []
    assert machine.workspace.state.stat().st_mode & 0o777 == machine.workspace.runs.stat().st_mode & 0o777 == 0o700
