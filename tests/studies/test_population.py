"""Population-based training with a real agent: members go on from the checkpoints of others."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import yaml

from tests.conftest import wait_until
from tests.machine import Machine
from tests.studies.test_process import WAIT_SECONDS, process_of, verdicts, wait_for, write

# The loss falls by the share ``rate`` with every step; a checkpoint holds the loss. No step is made from the one in the
# file `until` on: tests decide when members pass a milestone, not the machine's pace.
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
until = pathlib.Path(__file__).with_name("until")

def is_held(step):
    try:
        return step >= int(until.read_text())
    except FileNotFoundError:
        return False

out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for step in range(begin, options.steps):
    time.sleep(options.seconds)
    while is_held(step):
        time.sleep(0.02)
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
params: {rate: 0.01, steps: 120, seconds: 0.01}
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


def train_until(lab: Machine, step: int | None) -> None:
    """Members go on up to a step, or with None to their ends."""
    file = lab.folder / "until"
    if step is None:
        file.unlink()
        return
    # The script never reads half of it.
    file.with_suffix(".new").write_text(str(step))
    file.with_suffix(".new").rename(file)


def decided(lab: Machine) -> int:
    """The last milestone at which the members were compared."""
    found = lab.rows("SELECT sampler ->> '$.milestone' FROM studies")
    return int(found[0][0] or 0) if found else 0


def begin(lab: Machine) -> None:
    """A population of which every member has a checkpoint that the agent knows, short of the first milestone."""
    train_until(lab, 15)
    lab.gputui("study", "run", write(lab, STUDY))
    givers = "SELECT count(DISTINCT run_id) FROM checkpoints"
    wait_until(lambda: lab.rows(givers) == [(4,)], WAIT_SECONDS, "a checkpoint of each member")


def pass_milestones(lab: Machine, milestone: int) -> None:
    """All members train half way from a milestone to the next, where they wait, and are compared at it."""
    train_until(lab, milestone * 20 + 10)
    wait_until(lambda: decided(lab) == milestone, WAIT_SECONDS, f"the decision at milestone {milestone}")


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


@pytest.mark.long
def test_the_worst_goes_on_from_the_best(lab: Machine) -> None:
    begin(lab)
    pass_milestones(lab, 1)
    pass_milestones(lab, 2)
    train_until(lab, None)
    wait_for(lab, "finished")
    assert set(verdicts(lab).values()) == {"complete"}
    check_lineage(lab)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_lineage_of_the_best_member_replays_to_the_same_loss(lab: Machine) -> None:
    begin(lab)
    pass_milestones(lab, 1)
    pass_milestones(lab, 2)
    train_until(lab, None)
    wait_for(lab, "finished")
    shown = lab.json("study", "show")["trials"]
    moved = next(one for one in shown if one["parent"] is not None)
    exported = lab.json("study", "export", "s", "replay.yaml", "--lineage", "--trial", str(moved["number"]))
    assert exported["phases"] >= 2
    phases = yaml.safe_load((lab.folder / "replay.yaml").read_text())["phases"]
    # The agent looks for the end of a phase every ten seconds.
    train_until(lab, phases[0]["until"] + 2)
    lab.gputui("run", "replay.yaml")
    replay = lab.json("ps")[0]["id"]
    begun = "SELECT count(*) FROM attempts WHERE run_id = ? AND number = ?"
    for number, following in enumerate(phases[1:], 2):
        wait_until(lambda number=number: lab.rows(begun, replay, number) == [(1,)], WAIT_SECONDS, f"phase {number}")
        train_until(lab, following["until"] + 2 if "until" in following else None)
    lab.wait_for(replay, "succeeded", timeout=WAIT_SECONDS)
    losses = [
        lab.rows(
            "SELECT m.step, m.data ->> '$.loss' FROM metrics m JOIN metric_sources s USING (source_id) "
            "WHERE s.run_id = ? ORDER BY m.generation DESC, m.byte_offset DESC LIMIT 1", run_id,
        )[0]
        for run_id in (moved["run"], replay)
    ]  # fmt: skip
    assert losses[0] == losses[1]
    assert lab.json("show", "s-1-t" + str(moved["number"]) + "-1") is not None
    assert lab.gputui("study", "export", "s", "replay.yaml", "--lineage", code=3)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_killed_process_of_a_population_loses_no_decision(lab: Machine) -> None:
    begin(lab)
    for milestone in (1, 2, 3):
        held = wait_until(lambda: process_of(lab), WAIT_SECONDS, "the study's process")
        os.kill(held.identity.pid, signal.SIGKILL)
        # Also where it dies between a decision and what follows from it.
        pass_milestones(lab, milestone)
    train_until(lab, None)
    wait_for(lab, "finished")
    assert set(verdicts(lab).values()) == {"complete"}
    check_lineage(lab)
