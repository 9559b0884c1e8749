"""Runs over two nodes of a real SLURM: two daemons on this machine, one task on each, ranks that meet."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gputui.recovery.evidence import collect
from gputui.runs.executors.slurm.nodes import Lead
from gputui.runs.logs import rank_logs
from tests.conftest import wait_until
from tests.machine import Machine
from tests.runs.executors.slurm_cluster import PATH, SlurmCluster, skip_without_slurm
from tests.runs.executors.target_home import TargetHome

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
    # How many ranks want to stop, and to end: all do what one does.
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


SRUN = """#!{python}
import json, socket, sys
kinds = {{}}
for reuses in (0, 1):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuses)
        try:
            other.bind(("", int(sys.argv[-1])))
            other.listen()
            kinds[reuses] = "listens"
        except OSError as error:
            kinds[reuses] = type(error).__name__
print(json.dumps(list(kinds.values())))
"""


def test_where_ranks_meet_is_free_for_them_and_taken_for_srun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "attempt.json").write_text(json.dumps({"nodes": 2, "grace_seconds": 1}))
    program = tmp_path / "srun"
    program.write_text(SRUN.format(python=sys.executable))
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    lead = Lead(tmp_path)
    lead.start()
    lead.watch()
    assert json.loads(capsys.readouterr().out) == ["OSError", "listens"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    skip_without_slurm()
    made = SlurmCluster(nodes=("n0", "n1"))
    try:
        made.start()
        if "MULTIPLE_SLURMD         = Yes" not in made.run("scontrol", "show", "config"):
            pytest.skip("this SLURM runs one daemon for each machine")
        yield made
    finally:
        made.stop()


def lives(process: psutil.Process) -> bool:
    """Whether a process has not ended; nobody may have asked yet how it did."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Lab(TargetHome):
    """A home with the cluster as its target, where each run gets both nodes."""

    wait_seconds = WAIT_SECONDS

    def __init__(self, machine: Machine, cluster: SlurmCluster) -> None:
        super().__init__(machine)
        self.cluster = cluster
        name = Path(self.profile).stem
        self.profile = machine.profile(name, PROFILE.format(name=name, python=sys.executable))
        (machine.folder / "pair.py").write_text(SCRIPT)
        self.set_target(kind="slurm", partition="main", time="10m", poll=1, nodes=2, options=["--overcommit"])

    def submitted(self, run_id: str) -> list[str]:
        names = self.cluster.run("squeue", "-h", "-t", "all", "-o", "%i %j").splitlines()
        return [line.split()[0] for line in names if line.split()[1].startswith(f"{run_id}.")]

    def alive(self, run_id: str) -> list[str]:
        names = self.cluster.run("squeue", "-h", "-o", "%i %j").splitlines()
        return [line.split()[0] for line in names if line.split()[1].startswith(f"{run_id}.")]

    def serving(self, run_id: str, node: str) -> list[psutil.Process]:
        """The processes of a run's task on a node: what serves it there, the launcher and the ranks."""
        marker = str(self.machine.workspace.run_dir(run_id))
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words, environment = process.cmdline(), process.environ()
                is_marked = any(word.startswith(marker) for word in (*words, *environment.values()))
                # Who leads has no part of its own, and srun's processes are of the batch step.
                is_task = environment.get("SLURM_STEP_ID") == "0" and environment.get("SLURMD_NODENAME") == node
                if is_marked and is_task:
                    found.append(process)
        return found

    def end(self, run_id: str) -> list[int]:
        """Let the script end; the steps that were made, some twice where an attempt followed another."""
        (self.machine.workspace.run_dir(run_id) / "enough").touch()
        self.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
        made = self.steps(run_id)
        assert sorted(set(made)) == list(range(max(made) + 1)), "no step lost"
        return made


@pytest.fixture
def lab(machine: Machine, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    monkeypatch.setenv("PATH", PATH)
    yield Lab(machine, cluster)
    for job in cluster.jobs():
        cluster.run("scancel", "--quiet", job)
    wait_until(lambda: not cluster.run("squeue", "-h", "-o", "%i").split(), what="an empty queue")


@pytest.mark.long
def test_ranks_on_two_nodes_meet_and_a_stop_saves(lab: Lab) -> None:
    run_id = lab.launch()
    lab.wait_for_step(run_id, 10)
    assert lab.wait_for_place(run_id, "running")["nodes"] == ["n[0-1]"]
    for rank in (0, 1):
        assert f"rank {rank} of 2 on n{rank}" in lab.machine.gputui("logs", run_id, "--rank", str(rank))
    lab.machine.gputui("stop", run_id)
    lab.machine.wait_for(run_id, "stopped", timeout=WAIT_SECONDS)
    last = lab.steps(run_id)[-1]
    assert (lab.machine.workspace.run_dir(run_id) / "checkpoints" / f"step_{last + 1:06d}.pt").is_file()
    assert lab.shown(run_id)["attempts"][0]["incident"] is None
    wait_until(lambda: not lab.alive(run_id), WAIT_SECONDS, "an empty queue")


@pytest.mark.long
def test_before_its_limit_a_run_on_two_nodes_saves_and_goes_on(lab: Lab) -> None:
    run_id = lab.launch()
    lab.wait_for_step(run_id, 5)
    (job,) = lab.submitted(run_id)
    lab.cluster.run("scancel", "--batch", "--signal=USR1", job)
    wait_until(lambda: lab.placement(run_id).get("reason") == "BeginTime", WAIT_SECONDS, "its return")
    saved = lab.steps(run_id)[-1]
    lab.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    lab.wait_for_step(run_id, saved + 3)
    made = lab.end(run_id)
    assert made == list(range(len(made))), "no step made twice"
    assert lab.submitted(run_id) == [job] and len(lab.shown(run_id)["attempts"]) == 1


@pytest.mark.long
def test_a_rank_that_fails_on_the_second_node_ends_both_and_they_go_on_together(lab: Lab) -> None:
    run_id = lab.launch("fail_at=15")
    lab.wait_for_step(run_id, 20, attempt=2)
    first = lab.shown(run_id)["attempts"][0]
    assert first["incident"]["kind"] == "user_exception" and first["incident"]["rank"] == 1
    assert len(lab.alive(run_id)) == 1
    assert len(lab.end(run_id)) > 20 and len(lab.shown(run_id)["attempts"]) == 2


@pytest.mark.long
@pytest.mark.parametrize("killed", ["nodes.py", "shim.py"])
def test_who_serves_a_node_is_killed_and_both_end_and_go_on_together(lab: Lab, killed: str) -> None:
    run_id = lab.launch()
    lab.wait_for_step(run_id, 12)
    served = {node: lab.serving(run_id, node) for node in ("n0", "n1")}
    (found,) = (process for process in served["n1"] if any(word.endswith(killed) for word in process.cmdline()))
    found.kill()
    both = [*served["n0"], *served["n1"]]
    wait_until(lambda: not any(map(lives, both)), timeout_seconds=15.0, what="the end of both")
    lab.wait_for_step(run_id, 20, attempt=2)
    assert lab.shown(run_id)["attempts"][0]["incident"]["kind"] == "node_fail"
    lab.end(run_id)


@pytest.mark.long
@pytest.mark.parametrize("node", ["n0", "n1"])
def test_a_node_that_is_lost_ends_both_and_they_go_on_together(lab: Lab, node: str) -> None:
    run_id = lab.launch()
    lab.wait_for_step(run_id, 12)
    with lab.cluster.lost_node(str(lab.machine.workspace.run_dir(run_id)), node) as dead:
        before = lab.steps(run_id)[-1]
        wait_until(lambda: dead.kept, WAIT_SECONDS, "the controller's last words to the job")

    def goes_on() -> bool:
        # The job is in the queue again once the other node has let it go; it would wait there for two minutes.
        for job in lab.alive(run_id):
            lab.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        return lab.steps(run_id)[-1] > before + 3

    wait_until(goes_on, WAIT_SECONDS, "more steps")
    assert len(lab.alive(run_id)) == 1
    lab.end(run_id)


def test_only_a_launcher_that_spans_nodes_is_started_on_several(machine: Machine) -> None:
    machine.workspace.targets.write_text(json.dumps({"lab": {"kind": "slurm", "nodes": 2}}))
    assert "launcher" in machine.gputui("run", machine.profile(), "--on", "lab", code=3)
    pair = machine.profile("pair", PROFILE.format(name="pair", python=sys.executable))
    (machine.folder / "pair.py").write_text(SCRIPT)
    script = machine.gputui("run", pair, "--on", "lab", "--dry-run")
    assert "#SBATCH --nodes=2\n" in script and "#SBATCH --ntasks-per-node=1\n" in script


def test_ranks_of_later_nodes_are_numbered_on(tmp_path: Path) -> None:
    (tmp_path / "attempt.json").write_text(json.dumps({"asks": {"ranks": 4}}))
    for node in (0, 1, 10):
        for rank in (0, 3):
            place = tmp_path / "nodes" / str(node) / "ranks" / "a_b" / "attempt_0" / str(rank)
            place.mkdir(parents=True)
            (place / "stderr.log").write_text("x")
            (place / "error.json").write_text(json.dumps({"message": {"message": "E"}}))
    wanted = [0, 3, 4, 7, 40, 43]
    assert [log.rank for log in rank_logs(tmp_path)] == wanted
    evidence = collect(tmp_path, exit=None, ended_at=None)
    assert sorted(error.rank for error in evidence.errors if error.rank is not None) == wanted
