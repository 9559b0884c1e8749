"""`gputui run --wait`, and the words that mean the newest run or a command typed wrongly."""

from __future__ import annotations

import re
import time
from contextlib import closing

from gputui.core.config import Workspace
from gputui.store import commands
from gputui.ui.cli.context import Session
from tests.conftest import wait_until
from tests.machines import Machine
from tests.stores import open_store
from tests.ui.cli.program import refused, said, shape
from tests.ui.tui.filling import Filler


def test_waiting_shows_the_incident_the_decision_and_the_story(machine: Machine) -> None:
    shown = machine.gputui("run", machine.profile(), "--set", "fail_at=25", "--wait")
    lines = shown.splitlines()
    stored = [row[0] for row in machine.rows("SELECT message FROM events WHERE run_id = 'steps-1' ORDER BY event_id")]
    printed = [line[11:] for line in lines if re.match(r"\d\d:\d\d:\d\d ", line)]
    assert printed == stored
    assert next(line[9] for line in lines if re.match(r"\d\d:\d\d:\d\d [✗▲]", line)) == "✗"
    assert "\x1b" not in shown, "no terminal, no rewritten line"
    story = machine.gputui("explain").split("\n\n")
    assert story[1] in shown, "the attempt's paragraph"
    assert machine.gputui("explain") == machine.gputui("explain", "steps-1")


def test_commands_without_a_run_take_the_newest(workspace: Workspace) -> None:
    for verb in ("show", "logs", "explain"):
        assert "nothing has been recorded" in refused(workspace, verb, code=3)
    filler = Filler(workspace)
    assert "no runs yet" in said(workspace, "ps", "--active")
    for number in (1, 2):
        filler.run(f"steps-{number}", "succeeded", ended_ago=10.0)
        filler.attempt(f"steps-{number}", 1, "succeeded", ended_ago=10.0)
    assert shape(workspace, "show")["id"] == "steps-2"
    assert said(workspace, "explain") == said(workspace, "explain", "steps-2")
    assert "2 that are over" in said(workspace, "ps", "--active")
    assert shape(workspace, "ps", "--active") == []
    filler.close()


def test_a_complete_run_is_resumed_only_on_request(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--wait")
    machine.gputui("resume", "steps-1", code=3)
    assert machine.json("show", "steps-1")["attempt"] == 1
    machine.gputui("resume", "steps-1", "--force")
    assert machine.wait_for("steps-1", "succeeded") and machine.json("show", "steps-1")["attempt"] == 2


def test_a_finished_run_keeps_its_last_step_and_loss_in_the_list(workspace: Workspace) -> None:
    filler = Filler(workspace)
    filler.run("steps-1", "succeeded", ended_ago=10.0)
    filler.attempt("steps-1", 1, "succeeded", ended_ago=10.0)
    filler.metrics("steps-1", 1, [{"step": step, "time": filler.now - 20, "loss": 1 / (step + 1)} for step in range(3)])
    filler.close()
    heads, row = (line.split() for line in said(workspace, "ps").splitlines()[:2])
    assert (row[heads.index("STEP")], row[heads.index("LOSS")]) == ("2", "0.3333")


def test_an_agent_that_ended_before_it_read_a_command_is_started_again(machine: Machine) -> None:
    open_store(machine.workspace.database).close()
    session = Session(machine.workspace)
    with closing(session.commander()) as connection:
        command_id = commands.submit(connection, "queue_pause", None, {}, "me", now=time.time())
        assert session.wait(connection, command_id, 30.0) == {"paused": True}


def test_a_run_after_another_starts_once_that_has_succeeded(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=100000")
    follower = machine.gputui("run", machine.profile(), "--after", "steps-1", "--set", "steps=3", "--json")
    assert '"steps-2"' in follower
    wait_until(lambda: "steps-1" in (machine.json("show", "steps-2")["reason"] or ""), what="what it waits for")
    assert machine.json("show", "steps-2")["attempt"] == 0
    machine.finish("steps-1")
    machine.wait_for("steps-2", "succeeded")
    ends = dict(machine.rows("SELECT run_id, started_at FROM attempts"))
    (ended,) = machine.rows("SELECT ended_at FROM attempts WHERE run_id = 'steps-1'")
    assert ends["steps-2"] >= ended[0]
    assert "no run" in machine.gputui("run", machine.profile(), "--after", "nothing-9", code=3)
