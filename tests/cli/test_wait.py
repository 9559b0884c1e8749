"""`gputui run --wait`, and the words that mean the newest run or a command typed wrongly."""

from __future__ import annotations

import re
import sys
import time
from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.cli.context import Session
from gputui.cli.wait import event_line, status_words
from gputui.store import commands
from gputui.store.events import EventView
from gputui.store.run_states import RunState
from gputui.store.runs import Run
from gputui.tui.data.snapshot import Progress
from tests.conftest import wait_until
from tests.machine import Machine
from tests.stores import open_store

NOW = 1_700_000_000.0
RUN = Run(
    "demo-1", 1, "demo", "demo.yaml", RunState.RUNNING, 1, {}, "{}", NOW, NOW, None, NOW, attempt_state="running",
    attempt_started_at=NOW,
)  # fmt: skip
NOTHING = Progress()


@pytest.mark.parametrize(
    ("changes", "progress", "words"),
    [
        ({"state": RunState.QUEUED, "waiting_for": "GPU 1"}, {}, "demo-1 queued · GPU 1"),
        ({"state": RunState.STARTING, "attempt": 2}, {}, "demo-1 starting · attempt 2 · 14 s"),
        (
            {"state": RunState.STARTING, "usual_start_seconds": 11.2},
            {},
            "demo-1 starting · 14 s (last time 11 s)",
        ),
        ({}, {}, "demo-1 running"),
        ({}, {"step": 140}, "demo-1 running · step 140"),
        (
            {},
            {"step": 140, "total_steps": 300, "loss": 0.02, "seconds_left": 40.0},
            "demo-1 running · step 140/300 · loss 0.02000 · 40 s left",
        ),
        (
            {},
            {"step": 140, "seconds_left": 40.0, "steps_per_second": 10.0, "newest_at": NOW - 28},
            "demo-1 running · step 140 · no step for 42 s (usually 0.1 s)",
        ),
    ],
)
def test_the_line_at_the_bottom(changes: dict[str, Any], progress: dict[str, Any], words: str) -> None:
    run, shown = replace(RUN, **changes), replace(NOTHING, **progress)
    assert status_words(run, shown, NOW + 14) == words


@pytest.mark.parametrize(("severity", "mark"), [("error", "✗"), ("warning", "▲"), ("info", " ")])
def test_an_event_is_a_line_with_its_time(severity: str, mark: str) -> None:
    event = EventView(1, NOW, severity, None, "demo-1", 1, "attempt_failed", None, "rank 0 failed")
    assert re.fullmatch(rf"\d\d:\d\d:\d\d {mark} rank 0 failed", event_line(event))


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


def test_commands_without_a_run_take_the_newest(machine: Machine) -> None:
    for verb in ("show", "logs", "explain"):
        assert "no run yet" in machine.gputui(verb, code=3) or "nothing has been recorded" in machine.gputui(
            verb, code=3
        )
    assert "no runs yet" in machine.gputui("ps", "--active")
    machine.gputui("run", machine.profile(), "--wait")
    machine.gputui("run", machine.profile(), "--wait")
    assert machine.json("show")["id"] == "steps-2"
    assert "2 that are over" in machine.gputui("ps", "--active")
    assert machine.json("ps", "--active") == []


def test_a_mistyped_command_is_answered_with_the_nearest(machine: Machine) -> None:
    assert "did you mean run?" in machine.gputui("rnu", code=2)
    assert "did you mean" not in machine.gputui("xyzzy", code=2)


def test_a_complete_run_is_resumed_only_on_request(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--wait")
    machine.gputui("resume", "steps-1", code=3)
    assert machine.json("show", "steps-1")["attempt"] == 1
    machine.gputui("resume", "steps-1", "--force")
    assert machine.wait_for("steps-1", "succeeded") and machine.json("show", "steps-1")["attempt"] == 2


def test_check_shows_the_plan_also_where_gpus_are_missing(machine: Machine) -> None:
    profile = machine.profile("two", "name: two\nlauncher: python\nscript: steps.py\ngpus: 2\n")
    machine.gputui("run", machine.profile(), "--wait")  # the agent knows by now that there is no GPU
    shown = machine.gputui("check", profile, "--gpus", "99", code=3)
    assert "✗ gpus" in shown and "command" in shown


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


def test_ps_and_stop_say_that_a_run_is_stuck_and_what_a_stop_waits_for(machine: Machine) -> None:
    script = machine.folder / "deaf.py"
    script.write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for step in range(99):\n"
        "    print(f'step {step}/99 loss 1', flush=True)\n"
        "    time.sleep(0.05 if step < 40 else 600)\n"
    )
    pattern = "step (?P<step>\\d+)/(?P<total_steps>\\d+) loss (?P<loss>\\S+)"
    profile = machine.profile(
        "deaf",
        f"name: deaf\nlauncher: python\nscript: deaf.py\ngpus: 0\ngrace: 600\npython: {sys.executable}\n"
        f"metrics: {{source: stdout, patterns: ['{pattern}']}}\n",
    )
    machine.gputui("run", profile)
    wait_until(lambda: "no step for" in machine.gputui("ps"), what="the stall")
    assert "killed in" in machine.gputui("stop", "deaf-1")
    assert "killed in" in machine.gputui("ps")
    machine.gputui("stop", "deaf-1", "--now")
    machine.wait_for("deaf-1", "stopped")
    assert machine.json("show")["attempts"][0]["state"] == "stopped"


def test_a_finished_run_keeps_its_last_step_and_loss_in_the_list(machine: Machine) -> None:
    machine.gputui("run", machine.profile(), "--set", "steps=3", "--wait")
    heads, row = (line.split() for line in machine.gputui("ps").splitlines())
    assert (row[heads.index("STEP")], row[heads.index("LOSS")]) == ("2/3", "0.3333")


def test_an_agent_that_ended_before_it_read_a_command_is_started_again(machine: Machine) -> None:
    open_store(machine.workspace.database).close()
    session = Session(machine.workspace)
    with closing(session.commander()) as connection:
        command_id = commands.submit(connection, "queue_pause", None, {}, "me", now=time.time())
        assert session.wait(connection, command_id, 30.0) == {"paused": True}
