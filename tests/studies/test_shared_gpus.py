"""Trials of a study that share GPUs, with real agents, processes and locks on simulated GPUs."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from gputui.runs.gpu_locks import GpuHeldError, GpuLocks
from tests.conftest import wait_until
from tests.machines import Machine

WAIT_SECONDS = 150.0
"""Enough on a busy machine; only a test that fails waits so long."""

# Says what memory it takes, then waits for a file with its trial's number, or for the one that ends all. The content of
# the former says how it ends.
SCRIPT = """
import json, os, pathlib, re, sys, time
folder, number = pathlib.Path(__file__).parent, re.search(r"-t([0-9]+)-[0-9]+$", os.environ["GPUTUI_RUN_ID"])[1]
out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
gib = float(sys.argv[sys.argv.index("--gib") + 1])
for step in range(2):
    line = {"step": step, "loss": 1.0, "gpu_mem_peak": int(gib * 2**30)}
    os.write(out, (json.dumps(line) + "\\n").encode())
own = folder / f"end-{number}-{os.environ['GPUTUI_ATTEMPT']}"
while not own.exists() and not (folder / "end").exists():
    time.sleep(0.02)
if own.exists() and own.read_text() == "oom":
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
"""

PROFILE = f"""
name: net
launcher: python
script: net.py
python: {sys.executable}
gpus: 1
params: {{rate: 0.5, gib: 8}}
metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
recovery: {{backoff: {{base: 0}}}}
"""

STUDY = """
profile: ./net.yaml
space: {rate: [0.1, 0.2, 0.3, 0.4]}
objective: {metric: loss, over: last}
sampler: grid
trials_per_gpu: 2
"""


@pytest.fixture
def lab(machine: Machine) -> Machine:
    machine.workspace.scenario.write_text("gpus: 1\nmemory: 80GiB\n")
    (machine.folder / "net.py").write_text(SCRIPT)
    (machine.folder / "net.yaml").write_text(PROFILE)
    (machine.folder / "s.yaml").write_text(STUDY)
    return machine


def end(lab: Machine, trial: int | None = None, attempt: int = 1, how: str = "well") -> None:
    """One attempt of a trial ends, or all of all trials do."""
    file = lab.folder / ("end" if trial is None else f"end-{trial}-{attempt}")
    # Renaming makes sure that the script never reads half of the file.
    file.with_suffix(".new").write_text(how)
    file.with_suffix(".new").rename(file)


def on_gpu(lab: Machine) -> list[int]:
    """The trials that have a living attempt."""
    return [trial for (trial,) in lab.rows("SELECT trial FROM runs WHERE state = 'running' ORDER BY trial")]


def wait_for_trials(lab: Machine, *trials: int) -> None:
    wait_until(lambda: on_gpu(lab) == list(trials), WAIT_SECONDS, f"the trials {trials} on the GPU")


def wait_for_end(lab: Machine) -> None:
    wait_until(lambda: lab.rows("SELECT state FROM studies") == [("finished",)], WAIT_SECONDS, "the study's end")


def held_by(lab: Machine) -> str | None:
    """The obstacle for others on the GPU, by its locks alone."""
    (gpu,) = lab.json("gpus")
    try:
        GpuLocks(lab.workspace.state / "locks").take([gpu["uuid"]]).close()
    except GpuHeldError as error:
        return str(error)
    return None


def attempts(lab: Machine, trial: int) -> list[dict[str, Any]]:
    (run_id,) = lab.rows("SELECT run_id FROM runs WHERE trial = ?", trial)[0]
    attempts: list[dict[str, Any]] = lab.json("show", run_id)["attempts"]
    return attempts


def test_two_trials_share_a_gpu_also_when_the_agent_was_killed_between(lab: Machine) -> None:
    lab.gputui("study", "run", "s.yaml")
    wait_for_trials(lab, 0, 1)
    (gpu,) = lab.json("gpus")
    runs = [run_id for (run_id,) in lab.rows("SELECT run_id FROM runs WHERE trial < 2 ORDER BY trial")]
    assert gpu["run_ids"] == runs
    assert gpu["run_id"] == runs[0]
    assert "2 runs" in lab.gputui("gpus")
    lab.kill_agent()
    assert held_by(lab) is not None
    end(lab, 0)
    # The next agent finds one ended trial and one live trial, and places the next trial beside the live one.
    lab.gputui("agent", "start")
    wait_for_trials(lab, 1, 2)
    assert held_by(lab) is not None
    assert lab.rows("SELECT count(*), count(DISTINCT gpu_uuid) FROM leases") == [(2, 1)]
    # A run of a person gets the GPU next, without sharing it.
    lab.gputui("run", lab.profile(), "--gpus", "1", "--set", "steps=3")
    wait_until(lambda: lab.state("steps-1") == "queued", WAIT_SECONDS, "the run in the queue")
    end(lab, 1)
    wait_for_trials(lab, 2)
    end(lab, 2)
    lab.wait_for("steps-1", "succeeded")
    end(lab)
    wait_for_end(lab)
    began, ended = lab.rows("SELECT started_at, ended_at FROM attempts WHERE run_id = 'steps-1'")[0]
    beside = "SELECT count(*) FROM attempts WHERE run_id != 'steps-1' AND started_at < ? AND ended_at > ?"
    assert lab.rows(beside, ended, began) == [(0,)]
    assert lab.rows("SELECT state, count(*) FROM trials GROUP BY state") == [("complete", 4)]
    assert lab.rows("SELECT count(*) FROM incidents") == [(0,)]
    wait_until(lambda: not lab.rows("SELECT * FROM leases"), WAIT_SECONDS, "the end of every lease")
    assert held_by(lab) is None
    # The shared time of the GPU counts once, half of it for each trial.
    (study,) = lab.json("study", "list")
    trials = [run_id for (run_id,) in lab.rows("SELECT run_id FROM runs WHERE trial NOTNULL")]
    hours = [lab.json("show", run_id)["gpu_hours"] for run_id in trials]
    assert sum(hours) == pytest.approx(study["gpu_hours"], abs=1e-5)
    spans = [(attempt["started_at"], attempt["ended_at"]) for trial in (0, 1) for attempt in attempts(lab, trial)]
    assert spans[0][0] < spans[1][0] < spans[0][1] < spans[1][1]
