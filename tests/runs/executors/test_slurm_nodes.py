"""Runs over two nodes of a real SLURM: two daemons on this machine, one task on each, ranks that meet."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.recovery.evidence import collect
from gputui.runs.executors.slurm import SlurmExecutor
from gputui.runs.logs import rank_logs
from tests.conftest import wait_until
from tests.machines import Machine
from tests.runs.executors.conftest import SlurmHome, running_slurm
from tests.runs.executors.slurm_cluster import SlurmCluster

WAIT_SECONDS = 120.0

PROFILE = """
    name: {name}
    launcher: torchrun
    script: pair.py
    python: {python}
    nproc: 1
    gpus: 0
    params: {{steps: 100000, seconds: 0.05, fail_at: -1}}
    metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
    checkpoints: {{dir: "{{run_dir}}/checkpoints", pattern: "step_*.pt", resume: "--resume {{checkpoint}}"}}
    recovery: {{policy: standard, backoff: {{base: 0.1}}}}
"""
SCRIPT = '''
"""Two ranks that agree on each step; the first writes lines and checkpoints; the second fails on demand."""
import argparse, json, os, pathlib, signal, sys, time, zipfile
import torch, torch.distributed as dist

options = argparse.ArgumentParser()
options.add_argument("--steps", type=int)
options.add_argument("--seconds", type=float)
options.add_argument("--fail-at", type=int)
options.add_argument("--resume", default="")
options = options.parse_args()
run_dir = pathlib.Path(os.environ["GPUTUI_RUN_DIR"])
begin = int(pathlib.Path(options.resume).stem.split("_")[1]) if options.resume else 0
stopping = False

def ask(*_):
    global stopping
    stopping = True

signal.signal(signal.SIGTERM, ask)
dist.init_process_group("gloo")
rank = dist.get_rank()
print("rank", rank, "of", dist.get_world_size(), "on", os.environ["SLURMD_NODENAME"], flush=True)

def save(step):
    (run_dir / "checkpoints").mkdir(exist_ok=True)
    path = run_dir / "checkpoints" / f"step_{step:06d}.pt"
    with zipfile.ZipFile(path.with_suffix(".tmp"), "w") as archive:
        archive.writestr("step", str(step))
    path.with_suffix(".tmp").rename(path)

for step in range(begin, options.steps):
    time.sleep(options.seconds)
    if rank == 1 and step == options.fail_at and not options.resume:
        raise RuntimeError("the dog ate the gradients")
    # The sums say how many ranks want to stop or to end; if one does, all do.
    wishes = torch.tensor([float(stopping), float((run_dir / "enough").exists()), 1.0])
    dist.all_reduce(wishes)
    if rank == 0:
        with open(os.environ["GPUTUI_METRICS"], "a") as out:
            print(json.dumps({"step": step, "loss": wishes[2].item()}), file=out, flush=True)
        if (step + 1) % 10 == 0 or wishes[0]:
            save(step + 1)
    if wishes[0] or wishes[1]:
        break
dist.destroy_process_group()
'''


@pytest.fixture(scope="module")
def slurm_cluster() -> Iterator[SlurmCluster]:
    for cluster in running_slurm("n0", "n1"):
        if "MULTIPLE_SLURMD         = Yes" not in cluster.run("scontrol", "show", "config"):
            pytest.skip("this SLURM runs one daemon for each machine")
        yield cluster


class Lab(SlurmHome):
    """Each run gets both nodes."""

    def __init__(self, machine: Machine, cluster: SlurmCluster) -> None:
        super().__init__(machine, cluster)
        name = Path(self.profile).stem
        self.profile = machine.profile(name, PROFILE.format(name=name, python=sys.executable))
        (machine.folder / "pair.py").write_text(SCRIPT)
        self.set_target(**self.options, nodes=2, options=["--overcommit"])

    def end(self, run_id: str) -> list[int]:
        """Let the script end; the steps that were made, some twice where an attempt followed another."""
        (self.machine.workspace.run_dir(run_id) / "enough").touch()
        self.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
        steps = self.steps(run_id)
        assert sorted(set(steps)) == list(range(max(steps) + 1)), "no step lost"
        return steps


@pytest.fixture
def lab(machine: Machine, empty_slurm: SlurmCluster) -> Lab:
    return Lab(machine, empty_slurm)


@pytest.mark.long
def test_ranks_on_two_nodes_meet_and_a_stop_saves(lab: Lab) -> None:
    run_id = lab.launch()
    lab.wait_for_step(run_id, 10)
    assert lab.wait_for_place(run_id, "running")["nodes"] == ["n[0-1]"]
    (gpus,) = [check for check in SlurmExecutor().survey({"kind": "slurm"}) if check.name == "gpus"]
    assert "4 of 4" in gpus.detail
    for rank in (0, 1):
        assert f"rank {rank} of 2 on n{rank}" in lab.machine.gputui("logs", run_id, "--rank", str(rank))
    lab.stop(run_id)
    wait_until(lambda: not lab.submitted(run_id, "pending,running,completing"), WAIT_SECONDS, "an empty queue")


@pytest.mark.long
def test_a_rank_that_fails_on_the_second_node_ends_both_and_they_go_on_together(lab: Lab) -> None:
    run_id = lab.launch("fail_at=15")
    lab.wait_for_step(run_id, 20, attempt=2)
    first = lab.record(run_id)["attempts"][0]
    assert first["incident"]["kind"] == "user_exception"
    assert first["incident"]["rank"] == 1
    assert len(lab.submitted(run_id, "pending,running,completing")) == 1
    assert len(lab.end(run_id)) > 20
    assert len(lab.record(run_id)["attempts"]) == 2


@pytest.mark.long
def test_what_serves_a_node_and_is_killed_ends_the_attempt_on_all(lab: Lab) -> None:
    run_id = lab.launch()
    lab.wait_for_step(run_id, 10)
    served = lab.remote_folder(run_id) / "attempts" / "1" / "remote" / "node-1" / "started.json"
    os.kill(json.loads(served.read_text())["shim_pid"], signal.SIGKILL)
    lab.wait_for_step(run_id, 15, attempt=2)
    first = lab.record(run_id)["attempts"][0]
    assert first["incident"]["kind"] == "node_fail"
    assert "n1 ended" in lab.machine.gputui("explain", run_id)
    lab.end(run_id)


def test_only_a_launcher_that_spans_nodes_is_started_on_several(machine: Machine) -> None:
    machine.workspace.targets.write_text(json.dumps({"lab": {"kind": "slurm", "nodes": 2}}))
    assert "launcher" in machine.gputui("run", machine.profile(), "--on", "lab", code=3)
    pair = machine.profile("pair", PROFILE.format(name="pair", python=sys.executable))
    (machine.folder / "pair.py").write_text(SCRIPT)
    script = machine.gputui("run", pair, "--on", "lab", "--dry-run")
    assert "#SBATCH --nodes=2\n" in script
    assert "#SBATCH --ntasks-per-node=1\n" in script


def test_ranks_of_later_nodes_are_numbered_on(tmp_path: Path) -> None:
    (tmp_path / "attempt.json").write_text(json.dumps({"asks": {"ranks": 4}}))
    for node in (0, 1, 10):
        for rank in (0, 3):
            place = tmp_path / "nodes" / str(node) / "ranks" / "a_b" / "attempt_0" / str(rank)
            place.mkdir(parents=True)
            (place / "stderr.log").write_text("x")
            (place / "error.json").write_text(json.dumps({"message": {"message": "E"}}))
    ranks = [0, 3, 4, 7, 40, 43]
    assert [log.rank for log in rank_logs(tmp_path)] == ranks
    evidence = collect(tmp_path, exit=None, ended_at=None)
    assert sorted(error.rank for error in evidence.errors if error.rank is not None) == ranks
