"""Studies with real agents, processes and runs: verdicts, kills, and what a person may ask for."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from gputui.runs import identity
from gputui.runs.identity import is_alive
from gputui.studies.rows import LOCK_FILE
from tests.conftest import wait_until
from tests.machines import Machine
from tests.studies.conftest import ask_outside

# Reports a value that its parameters decide, a line a step; fails as asked. Before its last step it waits while the
# file `hold` has a number that is not above its trial's: tests decide when a trial ends, not the machine's pace.
SCORED = """
import argparse, json, os, pathlib, re, sys, time
options = argparse.ArgumentParser()
options.add_argument("--quality", type=float)
options.add_argument("--steps", type=int)
options.add_argument("--seconds", type=float)
options.add_argument("--fault")
options = options.parse_args()
if options.fault == "start":
    raise SystemExit("no such data")
hold, number = pathlib.Path(__file__).with_name("hold"), re.search(r"-t([0-9]+)-[0-9]+$", os.environ["GPUTUI_RUN_ID"])

def is_held():
    try:
        first = int(hold.read_text())
        return number is None or int(number[1]) >= first
    except FileNotFoundError:
        return False

out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for step in range(options.steps):
    time.sleep(options.seconds)
    while step == options.steps - 1 and is_held():
        time.sleep(0.02)
    os.write(out, (json.dumps({"step": step, "loss": options.quality + 1 / (step + 1)}) + "\\n").encode())
    if options.fault == "oom" and step == 2:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if options.fault == "nan" and step == 2:
        raise FloatingPointError("loss is nan")
    if options.fault == "once" and step == 2 and os.environ["GPUTUI_ATTEMPT"] == "1":
        os.kill(os.getpid(), 9)
"""

PROFILE = """
name: scored
launcher: python
script: scored.py
gpus: 0
params: {quality: 0.5, steps: 10, seconds: 0.02, fault: none}
metrics: {source: jsonl, path: "{run_dir}/metrics.jsonl"}
"""

WAIT_SECONDS = 150.0
"""Enough on a busy machine; only a test that fails waits so long."""

STUDY = """
profile: ./scored.yaml
space:
  quality: [0.1, 0.2, 0.3, 0.4]
objective: {metric: loss, over: last}
sampler: grid
parallel: 2
"""


@pytest.fixture
def lab(machine: Machine) -> Machine:
    (machine.folder / "scored.py").write_text(SCORED)
    (machine.folder / "scored.yaml").write_text(PROFILE)
    return machine


def write(lab: Machine, text: str, name: str = "s") -> str:
    (lab.folder / f"{name}.yaml").write_text(text)
    return f"{name}.yaml"


def begin(lab: Machine, file: str, *, code: int = 0) -> None:
    """Run a study to its end."""
    lab.gputui("study", "run", file, "--wait", code=code, timeout=WAIT_SECONDS)


def hold(lab: Machine, number: int | None) -> None:
    """Trials from this number on, and runs of no study, wait before their last step; None: none does."""
    file = lab.folder / "hold"
    if number is None:
        file.unlink()
        return
    # Renaming makes sure that the script never reads half of the file.
    file.with_suffix(".new").write_text(str(number))
    file.with_suffix(".new").rename(file)


def verdicts(lab: Machine, study: str = "s-1") -> dict[int, str]:
    return {row[0]: row[1] for row in lab.rows("SELECT number, state FROM trials WHERE study_id = ?", study)}


def state(lab: Machine, study: str = "s-1") -> str:
    rows = lab.rows("SELECT state FROM studies WHERE study_id = ?", study)
    return str(rows[0][0]) if rows else ""


def wait_for_state(lab: Machine, *states: str, study: str = "s-1") -> None:
    wait_until(lambda: state(lab, study) in states, WAIT_SECONDS, f"{study} {states}")


def process_of(lab: Machine, study: str = "s-1") -> identity.Holder | None:
    holder = identity.holder(lab.workspace.studies / study / LOCK_FILE)
    return holder if holder is not None and is_alive(holder.identity) else None


def test_a_grid_runs_each_point_once_as_an_ordinary_run(lab: Machine) -> None:
    grid = ("--grid", "quality=0.3,0.1", "--grid", "steps=5,8")
    lab.gputui("study", "run", "scored.yaml", *grid, "--over", "last", "--wait")
    study = lab.json("study", "show")
    assert (study["id"], study["state"]) == ("scored-grid-1", "finished")
    assert [trial["params"] for trial in study["trials"]] == [
        {"quality": q, "steps": s} for q in (0.3, 0.1) for s in (5, 8)
    ]
    assert [trial["value"] for trial in study["trials"]] == pytest.approx([0.5, 0.425, 0.3, 0.225])
    assert [trial["number"] for trial in study["best"]] == [3]
    runs = {run["id"]: run for run in lab.json("ps")}
    assert all(runs[trial["run"]]["params"]["steps"] == trial["params"]["steps"] for trial in study["trials"])
    assert all(
        (runs[trial["run"]]["study"], runs[trial["run"]]["trial"]) == (study["id"], trial["number"])
        for trial in study["trials"]
    )
    assert lab.rows("SELECT count(*), max(priority) FROM runs WHERE study_id = 'scored-grid-1'") == [(4, -10)]
    source = lab.gputui("study", "show", "--source")
    again = write(lab, source, "again")
    assert json.loads(lab.gputui("study", "check", again, "--json"))["valid"] is True


def test_a_bad_trial_is_cut_short_without_an_incident(lab: Machine) -> None:
    text = STUDY.replace("[0.1, 0.2, 0.3, 0.4]", "[0.1, 0.2, 0.9]").replace("parallel: 2", "parallel: 1")
    file = write(lab, text + "pruner: {kind: median, length: 60, rungs: 30, startup: 2}\nparams: {steps: 60}\n")
    hold(lab, 2)
    begin(lab, file)
    assert verdicts(lab) == {0: "complete", 1: "complete", 2: "pruned"}
    (run_id, reason, rung) = lab.rows("SELECT run_id, reason, rung FROM trials WHERE number = 2")[0]
    assert rung is not None
    assert rung < 30
    assert lab.rows("SELECT state, reason FROM runs WHERE run_id = ?", run_id) == [("stopped", reason)]
    assert lab.rows("SELECT count(*) FROM incidents") == [(0,)]
    trial = lab.json("study", "show", "s")["trials"][2]
    assert trial["value"] == trial["rungs"][-1]["value"]
    assert [rung["rung"] for rung in trial["rungs"]][-1] == rung


def test_faults_are_told_apart(lab: Machine) -> None:
    text = STUDY.replace("quality: [0.1, 0.2, 0.3, 0.4]", "fault: [none, oom, nan, once]")
    begin(lab, write(lab, text))
    trials = lab.json("study", "show")["trials"]
    assert [trial["state"] for trial in trials] == ["complete", "infeasible", "failed", "complete"]
    assert [trial["value"] is None for trial in trials] == [False, True, True, False]
    assert lab.json("show", trials[3]["run"])["attempt"] == 2
    assert lab.json("show", trials[2]["run"])["attempt"] == 1


def test_an_objective_that_no_line_reports_pauses_the_study_at_once(lab: Machine) -> None:
    file = write(lab, STUDY.replace("metric: loss", "metric: lost").replace("parallel: 2", "parallel: 1"))
    begin(lab, file, code=1)
    study = lab.json("study", "show")
    assert study["state"] == "paused"
    assert "loss" in study["reason"]
    assert len(study["trials"]) == 1
    wait_until(lambda: process_of(lab) is None, WAIT_SECONDS, "no process while it is paused")


def test_the_command_of_the_report_trains_the_best_point(lab: Machine) -> None:
    begin(lab, write(lab, STUDY.replace("[0.1, 0.2, 0.3, 0.4]", "[0.3, 0.1]")))
    command = lab.json("study", "report")["best"][0]["command"]
    assert command in lab.gputui("study", "report")
    lab.gputui(*shlex.split(command)[1:])
    lab.wait_for("scored-1", "succeeded")
    assert lab.json("show", "scored-1")["params"]["quality"] == 0.1


def test_another_process_takes_part_while_the_study_runs(lab: Machine) -> None:
    hold(lab, 0)
    text = STUDY.replace("quality: [0.1, 0.2, 0.3, 0.4]", "quality: {type: float, min: 0, max: 1}")
    file = write(lab, text.replace("sampler: grid", "sampler: random\nbudget: {trials: 3}"))
    lab.gputui("study", "run", file)
    wait_until(lambda: len(verdicts(lab)) == 2, WAIT_SECONDS, "two trials that run")
    assert ask_outside(Path(lab.json("study", "show")["storage"]), 0.01) == "3"
    wait_until(lambda: verdicts(lab).get(2) == "complete", WAIT_SECONDS, "the trial from outside")
    hold(lab, None)
    wait_for_state(lab, "finished")
    study = lab.json("study", "show")
    assert [trial["origin"] for trial in study["trials"]].count("outside") == 1
    assert len(study["trials"]) == 4
    assert [trial["number"] for trial in study["best"]] == [2]


def test_a_study_is_an_optuna_storage_that_optuna_reads(lab: Machine, tmp_path: Path) -> None:
    import optuna

    begin(lab, write(lab, STUDY.replace("[0.1, 0.2, 0.3, 0.4]", "[0.3, 0.1]")))
    target = tmp_path / "out.db"
    assert lab.json("study", "export", "s", str(target))["trials"] == 2
    read = optuna.load_study(study_name="s-1", storage=f"sqlite:///{target}")
    assert [trial.state.name for trial in read.trials] == ["COMPLETE", "COMPLETE"]
    assert read.best_params == {"quality": 0.1}
    assert read.best_value == pytest.approx(0.2)
    assert lab.gputui("study", "export", "s", str(target), code=3)


@pytest.mark.long
def test_pausing_stopping_extending_and_adding_a_point(lab: Machine) -> None:
    text = STUDY.replace("sampler: grid", "sampler: random\nbudget: {trials: 2}").replace("parallel: 2", "parallel: 1")
    begin(lab, write(lab, text))
    assert len(verdicts(lab)) == 2
    assert lab.json("study", "extend", "s", "--trials", "1")["budget"]["trials"] == 3
    wait_for_state(lab, "finished")
    assert len(verdicts(lab)) == 3
    assert lab.gputui("study", "enqueue", "s", "--set", "quality=0.15", code=3)
    lab.gputui("study", "enqueue", "s", "--set", "quality=0.4")
    wait_for_state(lab, "finished")
    assert lab.json("study", "show")["trials"][3]["params"] == {"quality": 0.4}
    lab.gputui("study", "extend", "s", "--trials", "500")
    wait_until(lambda: len(verdicts(lab)) > 4, WAIT_SECONDS, "more trials")
    lab.gputui("study", "pause", "s")
    wait_until(lambda: process_of(lab) is None and state(lab) == "paused", WAIT_SECONDS, "paused, and its trials over")
    lab.gputui("study", "resume", "s")
    count = len(verdicts(lab))
    wait_until(lambda: len(verdicts(lab)) > count, WAIT_SECONDS, "more trials")
    lab.gputui("study", "stop", "s")
    wait_for_state(lab, "stopped")
    assert set(verdicts(lab).values()) <= {"complete", "stopped"}
    assert not lab.rows("SELECT 1 FROM runs WHERE state NOT IN ('succeeded', 'stopped')")
