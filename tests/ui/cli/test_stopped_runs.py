"""What `resume` and `ps` print of a run that lay stopped."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from tests.conftest import wait_until
from tests.machines import Machine


def stopped(machine: Machine) -> str:
    machine.gputui("run", machine.profile(), "--set", "steps=2000")
    wait_until(lambda: len(machine.steps("steps-1")) > 15, 60, "some steps")
    machine.gputui("stop", "steps-1")
    machine.wait_for("steps-1", "stopped")
    return "steps-1"


def test_resume_names_the_checkpoint_and_the_time_between_does_not_count(machine: Machine) -> None:
    run_id = stopped(machine)
    with closing(sqlite3.connect(machine.workspace.database)) as connection, connection:
        connection.execute("UPDATE attempts SET started_at = started_at - 7200, ended_at = ended_at - 7200")
        connection.execute("UPDATE runs SET started_at = started_at - 7200")
    saved = machine.steps(run_id)[-1][1] + 1
    printed = machine.gputui("resume", run_id)
    assert f"queued from step_{saved:06d}.pt;" in printed and "logs" in printed
    wait_until(lambda: any(attempt == 2 for attempt, _ in machine.steps(run_id)), 60, "a step of the next attempt")
    assert " h" not in machine.gputui("ps").splitlines()[1]
    machine.gputui("stop", run_id)
    machine.wait_for(run_id, "stopped")
    # A resume that is asked for machines has the same in fields.
    answer = machine.json("resume", run_id)
    assert answer["resume_from"].endswith(".pt") and answer["resume_step"] > saved
    machine.gputui("stop", run_id)
    machine.wait_for(run_id, "stopped")
    newest = max((machine.workspace.run_dir(run_id) / "checkpoints").glob("step_*.pt"))
    newest.write_bytes(newest.read_bytes()[:-100])
    assert newest.name in machine.json("resume", run_id)["passed_over"]
    machine.gputui("stop", run_id)
