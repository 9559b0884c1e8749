"""Population-based training with a real agent: members go on from the checkpoints of others."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.machine import Machine
from tests.studies.test_process import process_of, state, verdicts, wait_for, write

# The loss falls by the share ``rate`` with every step; a checkpoint holds the loss.
LEARNER = """
import argparse, json, os, pathlib, time, zipfile
options = argparse.ArgumentParser()
options.add_argument("--rate", type=float)
options.add_argument("--steps", type=int)
options.add_argument("--seconds", type=float)
options.add_argument("--resume", default="")
options = options.parse_args()
folder = pathlib.Path(os.environ["GPUTUI_RUN_DIR"]) / "checkpoints"
folder.mkdir(exist_ok=True)
begin, loss = 0, 1.0
if options.resume:
    with zipfile.ZipFile(options.resume) as archive:
        begin, loss = json.loads(archive.read("state"))
out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for step in range(begin, options.steps):
    time.sleep(options.seconds)
    loss *= 1 - options.rate
    os.write(out, (json.dumps({"step": step, "time": time.time(), "loss": loss}) + "\\n").encode())
    if (step + 1) % 5 == 0:
        path = folder / f"step_{step + 1:06d}.pt"
        with zipfile.ZipFile(path.with_suffix(".tmp"), "w") as archive:
            archive.writestr("state", json.dumps([step + 1, loss]))
        path.with_suffix(".tmp").rename(path)
"""

PROFILE = """
name: learner
launcher: python
script: learner.py
gpus: 0
params: {rate: 0.01, steps: 120, seconds: 0.15}
metrics: {source: jsonl, path: "{run_dir}/metrics.jsonl"}
checkpoints: {dir: "{run_dir}/checkpoints", pattern: "step_*.pt", resume: "--resume {checkpoint}"}
"""

STUDY = """
profile: ./learner.yaml
space:
  rate: {type: float, min: 0.001, max: 0.2, log: true}
objective: {metric: loss, over: last}
pbt: {members: 4, every: 20}
parallel: 4
"""


@pytest.fixture
def lab(machine: Machine) -> Machine:
    (machine.folder / "learner.py").write_text(LEARNER)
    (machine.folder / "learner.yaml").write_text(PROFILE)
    return machine


def check_lineage(lab: Machine) -> None:
    """Every member that went on from another did so from its state, with its own new parameters."""
    trials = {one["number"]: one for one in lab.json("study", "show")["trials"]}
    moved = [one for one in trials.values() if one["parent"] is not None]
    assert moved
    for one in moved:
        shown = lab.json("show", one["run"])
        newest = shown["attempts"][-1]
        pins = lab.workspace.studies / "s-1" / "pins"
        assert Path(newest["resumed_from"]).is_relative_to(pins)
        assert newest["params"]["rate"] == one["params"]["rate"]
        ((first, loss),) = lab.rows(
            "SELECT m.step, m.data ->> '$.loss' FROM metrics m JOIN metric_sources s USING (source_id) "
            "WHERE s.run_id = ? AND m.attempt = ? ORDER BY m.step LIMIT 1",
            one["run"], newest["number"],
        )  # fmt: skip
        donor = trials[one["parent"]]["run"]
        given = lab.rows(
            "SELECT m.data ->> '$.loss' FROM metrics m JOIN metric_sources s USING (source_id) "
            "WHERE s.run_id = ? AND m.step = ? ",
            donor, first - 1,
        )  # fmt: skip
        assert any(loss == pytest.approx(before * (1 - one["params"]["rate"])) for (before,) in given)
    assert lab.rows("SELECT count(*) FROM incidents") == [(0,)]


def test_the_worst_goes_on_from_the_best(lab: Machine) -> None:
    lab.gputui("study", "run", write(lab, STUDY), "--wait")
    assert state(lab) == "finished" and set(verdicts(lab).values()) == {"complete"}
    check_lineage(lab)


@pytest.mark.long
def test_a_killed_process_of_a_population_loses_no_decision(lab: Machine) -> None:
    lab.gputui("study", "run", write(lab, STUDY))
    for _ in range(6):
        wait_until(lambda: process_of(lab) is not None or state(lab) == "finished", 60, "the study's process")
        held = process_of(lab)
        if held is None:
            break
        os.kill(held.identity.pid, signal.SIGKILL)
    wait_for(lab, "finished")
    assert set(verdicts(lab).values()) == {"complete"}
    check_lineage(lab)
    decided = json.loads(lab.rows("SELECT sampler FROM studies")[0][0])
    assert decided["milestone"] >= 1


@pytest.mark.long
def test_a_stopped_study_starts_no_member_again(lab: Machine) -> None:
    lab.gputui("study", "run", write(lab, STUDY))

    def is_one_between_two_runs() -> bool:
        asked = lab.rows("SELECT 1 FROM trials WHERE sampler LIKE '%exploit%'")
        return bool(asked) or state(lab) == "finished"

    wait_until(is_one_between_two_runs, 90, "an exploit")
    assert state(lab) == "running"
    lab.gputui("study", "stop", "s-1")
    wait_for(lab, "stopped")
    assert set(verdicts(lab).values()) <= {"stopped", "complete"}
    assert lab.rows("SELECT count(*) FROM runs WHERE state NOT IN ('stopped', 'succeeded')") == [(0,)]
