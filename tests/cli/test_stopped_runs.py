"""What `resume`, `ps`, `logs` and `metrics` print of a run that lay stopped, or that measures nothing."""

from __future__ import annotations

import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gputui.cli.logs import stop_traceback
from gputui.runs.checkpoint_names import step_words
from gputui.runs.logs import RankLog
from gputui.store.runs import read_runs
from tests.conftest import wait_until
from tests.machine import Machine


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
    with closing(sqlite3.connect(machine.workspace.database)) as connection:
        (run,) = read_runs(connection)
        (ended_at,) = connection.execute("SELECT ended_at FROM attempts WHERE number = 1").fetchone()
    assert run.attempt_started_at is not None and run.ended_seconds is not None
    now = run.attempt_started_at + 5
    assert run.trained_seconds(now) == pytest.approx(run.ended_seconds + 5) and now - ended_at > 7000
    assert " h" not in machine.gputui("ps").splitlines()[1]
    machine.gputui("stop", run_id)
    machine.wait_for(run_id, "stopped")
    # A resume that is asked for machines has the same in fields.
    answer = machine.json("resume", run_id)
    assert answer["resume_from"].endswith(".pt") and answer["resume_step"] > saved
    machine.gputui("stop", run_id)


def test_metrics_that_are_off_are_not_waited_for(machine: Machine) -> None:
    (machine.folder / "quiet.py").write_text("print('done')\n")
    profile = machine.profile(
        "quiet", f"launcher: python\nscript: quiet.py\npython: {sys.executable}\ngpus: 0\nmetrics: off\n"
    )
    machine.gputui("run", profile, "--wait")
    said = machine.gputui("metrics", "quiet-1")
    assert "metrics: off" in said and "yet" not in said


def test_what_a_launcher_prints_of_a_stop_is_known(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_text(
        "Traceback (most recent call last):\n"
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15\n"
    )
    assert stop_traceback([RankLog(None, "output", log)]) == "SignalException"
    with log.open("a") as file:
        file.write("Traceback (most recent call last):\nKeyError: 1\n")
    assert stop_traceback([RankLog(None, "output", log)]) is None
    log.write_text("Traceback (most recent call last):\nValueError: 15\n")
    assert stop_traceback([RankLog(None, "output", log)]) is None


@pytest.mark.long
def test_the_note_on_it_is_no_line_of_the_log(machine: Machine) -> None:
    script = "import time\nfor n in range(900):\n    print(f'step {n} loss 1', flush=True)\n    time.sleep(0.1)\n"
    (machine.folder / "a.py").write_text(script)
    profile = machine.profile(
        "a",
        f"""
        launcher: torchrun
        script: a.py
        python: {sys.executable}
        gpus: 0
        metrics: {{source: output, patterns: ['step (?P<step>\\d+) loss (?P<loss>\\S+)']}}
        """,
    )
    machine.gputui("run", profile)
    wait_until(lambda: len(machine.steps("a-1")) > 2, 60, "some steps")
    machine.gputui("stop", "a-1")
    machine.wait_for("a-1", "stopped")
    done = machine.call("logs", "a-1")
    assert "SignalException" in done.stdout and "SignalException" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not re.search("was stopped", done.stdout)


def test_a_step_that_only_the_time_tells_is_not_told_as_a_fact() -> None:
    assert step_words("step_000040.pt", 40) == "step 40"
    assert step_words("ckpt.pt", 40) == "about step 40"
