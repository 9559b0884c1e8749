"""Sinks of a living run: a process of their own, which may be killed like the agent, and whose trouble is told."""

from __future__ import annotations

import csv
import json
import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pyarrow.parquet
import pytest

from gputui.core.config import Workspace
from gputui.reports.export.exporter import LOCK_FILE
from gputui.runs.identity import ProcessIdentity, holder, is_alive
from tests.conftest import wait_until
from tests.machines import Machine

PROFILE = """
    name: steps
    launcher: python
    script: steps.py
    python: {python}
    gpus: 0
    params: {{steps: 60, seconds: 0.1, batch_size: 16, grad_accum: 3, fail_at: 35, api_key: verysecretindeed}}
    args: --steps {{steps}} --seconds {{seconds}} --fail-at {{fail_at}}
    checkpoints: {{pattern: "step_*.pt", resume: "--resume {{checkpoint}}"}}
    recovery: {{policy: standard, backoff: {{base: 0}}}}
    sinks: {sinks}
"""


def exporter(machine: Machine) -> ProcessIdentity | None:
    """The process that writes the sinks."""
    lock_holder = holder(machine.workspace.state / LOCK_FILE)
    return lock_holder.identity if lock_holder is not None and is_alive(lock_holder.identity) else None


def kill(machine: Machine) -> None:
    process = wait_until(lambda: exporter(machine), what="the exporter")
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(process), what="its death")


def sink_events(machine: Machine) -> list[tuple[str, str]]:
    return machine.rows("SELECT kind, key FROM events WHERE kind LIKE 'sink%' ORDER BY event_id")


def steps_in(file: Path) -> list[tuple[int, int]]:
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [(line["attempt"], line["step"]) for line in lines if "loss" in line]


def writes_a_sink(pid: int) -> bool:
    try:
        return b"gputui.reports.export" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def nobody_told_the_secret(workspace: Workspace) -> bool:
    files = [path for path in (workspace.run_dir("steps-1") / "sinks").rglob("*") if path.is_file()]
    return len(files) > 3 and not any(b"verysecretindeed" in path.read_bytes() for path in files)


@pytest.mark.long
def test_killed_in_the_middle_with_the_agent(machine: Machine) -> None:
    """The run fails once, the exporter is killed twice, the agent once, and one target is taken at first."""
    path = machine.folder / "out" / "steps-1.csv"
    path.parent.mkdir()
    path.write_text("mine")
    sinks = "{jsonl: , tensorboard: , parquet: , sqlite: , csv: '" + str(path.parent) + "/{run_id}.csv'}"
    machine.gputui("run", machine.profile(text=PROFILE.format(python=sys.executable, sinks=sinks)))
    run_dir = machine.workspace.run_dir("steps-1")
    lines = run_dir / "sinks" / "metrics.jsonl"
    board = run_dir / "sinks" / "tensorboard"

    wait_until(lambda: len(steps_in(lines)) > 5, what="the first lines")
    wait_until(lambda: sink_events(machine), what="the event about the csv")
    assert sink_events(machine) == [("sink_failed", "csv")]
    kill(machine)
    path.rename(machine.folder / "mine")
    writer = wait_until(lambda: exporter(machine), what="the next exporter")
    machine.kill_agent()
    machine.gputui("agent", "start")
    wait_until(lambda: len(steps_in(lines)) > 20, what="more lines")
    assert exporter(machine) == writer, "it outlives the agent, and the next one takes it over"
    kill(machine)

    machine.wait_for("steps-1", "succeeded")
    done = "SELECT count(*) FROM sink_cursors WHERE ended_at IS NOT NULL"
    wait_until(lambda: machine.rows(done) == [(5,)], what="all sinks' last lines")
    wait_until(lambda: not [pid for pid in machine.processes() if writes_a_sink(pid)], what="the sinks' end")
    stored = machine.steps("steps-1")
    assert {attempt for attempt, _ in stored} == {1, 2}
    assert len(stored) == 66
    assert steps_in(lines) == stored
    with path.open(newline="") as file:
        assert [(int(row["attempt"]), int(row["step"])) for row in csv.DictReader(file)] == stored
    table = pyarrow.parquet.read_table(run_dir / "sinks" / "metrics.parquet")
    assert list(zip(table["attempt"].to_pylist(), table["step"].to_pylist(), strict=True)) == stored
    with closing(sqlite3.connect(run_dir / "sinks" / "run.sqlite")) as home:
        assert home.execute("SELECT attempt, step FROM metrics WHERE name = 'loss' ORDER BY rowid").fetchall() == stored
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert [event.step for event in EventAccumulator(str(board)).Reload().Scalars("loss")] == list(range(60))

    wait_until(lambda: ("sink_recovered", "csv") in sink_events(machine), what="good news")
    assert sink_events(machine).count(("sink_failed", "csv")) == 1
    assert (machine.folder / "mine").read_text() == "mine"
    assert nobody_told_the_secret(machine.workspace)
