"""Runs on a real SLURM of one node, from launch to end; the test makes and ends it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gputui.runs.executors.courier import CommandResult
from gputui.runs.executors.slurm.job_table import recorded, submitted
from gputui.runs.executors.slurm.script import batch_script
from gputui.runs.executors.slurm.slurm_courier import SlurmCourier
from gputui.runs.executors.ssh.survey import judge_clock
from tests.conftest import wait_until
from tests.machine import Machine
from tests.runs.executors.slurm_cluster import PATH, SlurmCluster, skip_without_slurm
from tests.runs.executors.ssh_machine import Far, far_machine
from tests.runs.executors.target_home import TargetHome

WAIT_SECONDS = 90.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    skip_without_slurm()
    made = SlurmCluster()
    try:
        made.start()
        yield made
    finally:
        made.stop()


class Lab(TargetHome):
    """A home with the cluster as its target."""

    wait_seconds = WAIT_SECONDS

    def __init__(self, machine: Machine, cluster: SlurmCluster) -> None:
        super().__init__(machine)
        self.cluster = cluster
        self.far: Far | None = None
        self.target()

    def target(self, **options: Any) -> None:
        lab = {"kind": "slurm", "partition": "main", "time": "10m", "poll": 1, **options}
        if self.far is not None:
            lab |= {"host": "kepler", "config": str(self.far.config), "folder": str(self.far.runs)}
            lab["python"] = sys.executable
        self.set_target(**lab)

    def there(self, run_id: str) -> Path:
        """The run's folder behind SSH."""
        assert self.far is not None
        (found,) = self.far.runs.glob(f"*/{run_id}")
        return found

    def submitted(self, run_id: str) -> list[str]:
        """The jobs that were ever handed over for a run."""
        names = self.cluster.run("squeue", "-h", "-t", "all", "-o", "%i %j").splitlines()
        return [line.split()[0] for line in names if line.split()[1].startswith(f"{run_id}.")]

    def alive(self, run_id: str) -> str:
        """The one job of a run that has not ended."""
        (line,) = (
            line
            for line in self.cluster.run("squeue", "-h", "-o", "%i %j").splitlines()
            if line.split()[1].startswith(f"{run_id}.")
        )
        return line.split()[0]

    def end(self, run_id: str) -> None:
        """Let the script end, some of whose steps may have been made twice."""
        (self.machine.workspace.run_dir(run_id) / "enough").touch()
        self.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)


@pytest.fixture
def lab(machine: Machine, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    monkeypatch.setenv("PATH", PATH)
    made = Lab(machine, cluster)
    yield made
    for job in cluster.jobs():
        cluster.run("scancel", "--quiet", job)
    wait_until(lambda: not cluster.run("squeue", "-h", "-o", "%i").split(), what="an empty queue")


def test_a_run_goes_there_and_its_metrics_logs_and_place_come_back(lab: Lab) -> None:
    run_id = lab.launch("steps=100000")
    lab.wait_for_place(run_id, "running")
    lab.wait_for_step(run_id, 5)
    (lab.machine.workspace.run_dir(run_id) / "enough").touch()
    lab.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    shown, made = lab.shown(run_id), lab.steps(run_id)
    assert made == list(range(len(made)))
    assert shown["target"] == "lab" and shown["placement"]["state"] == "ended"
    assert shown["placement"]["nodes"] == ["localhost"] and shown["placement"]["job"] in lab.submitted(run_id)
    assert "done" in lab.machine.gputui("logs", run_id)
    assert "lab" in lab.machine.gputui("show", run_id)


def test_a_stop_saves_and_the_job_is_gone(lab: Lab) -> None:
    run_id = lab.launch("steps=100000")
    lab.wait_for_step(run_id, 5)
    lab.machine.gputui("stop", run_id)
    lab.machine.wait_for(run_id, "stopped", timeout=WAIT_SECONDS)
    saved = list((lab.machine.workspace.run_dir(run_id) / "checkpoints").glob("step_*.pt"))
    last = lab.steps(run_id)[-1]
    assert any(path.stem == f"step_{last + 1:06d}" for path in saved)
    wait_until(lambda: not lab.cluster.run("squeue", "-h", "-o", "%i").split(), what="an empty queue")
    assert lab.shown(run_id)["attempts"][0]["incident"] is None


def test_a_run_that_waits_there_says_why_and_can_be_stopped(lab: Lab) -> None:
    lab.target(options=["--begin=now+1hour"])
    run_id = lab.launch()
    place = lab.wait_for_place(run_id, "pending")
    assert place["reason"] == "BeginTime" and place["expected_start"] is not None
    assert lab.machine.state(run_id) == "starting"
    lab.machine.gputui("stop", run_id)
    lab.machine.wait_for(run_id, "stopped", timeout=WAIT_SECONDS)
    assert lab.cluster.run("squeue", "-h", "-o", "%i").split() == []


def test_before_its_limit_a_run_saves_is_requeued_and_goes_on_at_the_saved_step(lab: Lab) -> None:
    run_id = lab.launch("steps=400", "seconds=0.05")
    lab.wait_for_step(run_id, 15)
    (job,) = lab.submitted(run_id)
    # What the cluster sends so many seconds before the limit.
    lab.cluster.run("scancel", "--batch", "--signal=USR1", job)
    lab.wait_for_place(run_id, "requeued")
    wait_until(lambda: lab.placement(run_id).get("reason") == "BeginTime", WAIT_SECONDS, "the reason")
    assert lab.machine.state(run_id) == "running"
    saved = lab.steps(run_id)[-1]
    lab.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    lab.wait_for_step(run_id, saved + 5)
    wait_until(lambda: lab.placement(run_id).get("restarts") == 1, WAIT_SECONDS, "the count of restarts")
    (lab.machine.workspace.run_dir(run_id) / "enough").touch()
    lab.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    made = lab.steps(run_id)
    assert made == list(range(len(made))), "no step lost or made twice"
    assert lab.submitted(run_id) == [job] and len(lab.shown(run_id)["attempts"]) == 1


@pytest.mark.long
@pytest.mark.parametrize(("partition", "is_same_job"), [("scavenge", True), ("cancelled", False)])
def test_one_that_is_preempted_goes_on(lab: Lab, partition: str, is_same_job: bool) -> None:
    lab.target(partition=partition)
    run_id = lab.launch("steps=100000", "seconds=0.05")
    lab.wait_for_step(run_id, 15)
    (job,) = lab.submitted(run_id)
    urgent = lab.cluster.run(
        "sbatch", "--parsable", "--partition=urgent", "--exclusive", "--time=1", "--output=/dev/null", "--wrap=sleep 3"
    ).strip()
    assert urgent.isdigit()
    if is_same_job:
        lab.wait_for_place(run_id, "requeued")
        lab.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        wait_until(lambda: lab.placement(run_id).get("restarts") == 1, WAIT_SECONDS, "the second start")
    else:
        wait_until(lambda: len(lab.submitted(run_id)) == 2, WAIT_SECONDS, "another job")
    attempt = 1 if is_same_job else 2
    before = lab.steps(run_id)[-1]
    lab.wait_for_step(run_id, before + 3, attempt)
    (lab.machine.workspace.run_dir(run_id) / "enough").touch()
    lab.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    made = lab.steps(run_id)
    assert sorted(set(made)) == list(range(max(made) + 1)), "no step lost"
    first = lab.shown(run_id)["attempts"][0]
    assert (first["incident"] or {}).get("kind") == (None if is_same_job else "preempted")


@pytest.mark.long
def test_a_job_that_another_person_cancels_is_no_failure_of_the_script(lab: Lab) -> None:
    run_id = lab.launch("steps=100000")
    lab.wait_for_step(run_id, 5)
    lab.cluster.run("scancel", *lab.submitted(run_id))
    lab.machine.wait_for(run_id, "stopped", timeout=WAIT_SECONDS)
    assert lab.shown(run_id)["attempts"][0]["incident"]["kind"] == "stopped_outside"


def test_what_the_cluster_refuses_is_said_in_its_words(lab: Lab) -> None:
    lab.target(partition="nonsense")
    run_id = lab.launch()
    lab.machine.wait_for(run_id, "failed", timeout=WAIT_SECONDS)
    incident = lab.shown(run_id)["attempts"][0]["incident"]
    assert incident["kind"] == "launch_failed"
    assert any("invalid partition" in line.lower() for line in [incident["summary"], *map(str, incident["evidence"])])


@pytest.mark.long
def test_a_cluster_that_does_not_answer_is_unknown_and_not_failed(lab: Lab, cluster: SlurmCluster) -> None:
    run_id = lab.launch("steps=100000")
    lab.wait_for_step(run_id, 5)
    os.kill(cluster.control.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: lab.placement(run_id).get("problem"), WAIT_SECONDS, "a problem")
        assert lab.machine.state(run_id) == "running"
    finally:
        os.kill(cluster.control.pid, signal.SIGCONT)
    wait_until(lambda: lab.placement(run_id).get("problem") is None, WAIT_SECONDS, "an answer")
    (lab.machine.workspace.run_dir(run_id) / "enough").touch()
    lab.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("options", [[], ["--no-requeue"]])
def test_at_its_real_limit_a_run_has_saved_and_goes_on(lab: Lab, options: list[str]) -> None:
    lab.target(time="2", warn=30, options=options)
    run_id = lab.launch("steps=100000", "seconds=0.2")
    lab.wait_for_step(run_id, 5)
    (job,) = lab.submitted(run_id)
    if options:
        wait_until(lambda: len(lab.submitted(run_id)) == 2, 180, "another job")
        assert lab.shown(run_id)["attempts"][0]["incident"]["kind"] == "time_limit"
    else:
        wait_until(lambda: lab.placement(run_id).get("state") == "requeued", 180, "the end of its time")
        lab.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    saved = lab.steps(run_id)[-1]
    lab.wait_for_step(run_id, saved + 2, attempt=2 if options else 1)
    (lab.machine.workspace.run_dir(run_id) / "enough").touch()
    lab.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    made = lab.steps(run_id)
    assert made == list(range(len(made))), "no step lost or made twice"


@pytest.mark.long
@pytest.mark.parametrize("is_requeued", [True, False])
def test_a_node_that_goes_down_ends_the_job_and_the_run_goes_on(
    lab: Lab, cluster: SlurmCluster, is_requeued: bool
) -> None:
    run_id = lab.launch("steps=100000", "seconds=0.05")
    lab.wait_for_step(run_id, 15)
    (job,) = lab.submitted(run_id)
    if not is_requeued:
        cluster.run("scontrol", "update", f"JobId={job}", "Requeue=0")
    before = lab.steps(run_id)[-1]
    with cluster.lost_node(str(lab.machine.workspace.run_dir(run_id))) as dead:
        if is_requeued:
            lab.wait_for_place(run_id, "requeued")
        else:
            # Every other node is asked for, of which there are none; then any.
            wait_until(lambda: len(lab.submitted(run_id)) == 3, WAIT_SECONDS, "another job")
            assert "BadConstraints" in cluster.run("squeue", "-h", "-t", "all", "-o", "%r")
            assert lab.shown(run_id)["attempts"][0]["incident"]["kind"] == "node_fail"
        wait_until(lambda: dead.kept, WAIT_SECONDS, "the controller's last words to the job")
    cluster.run("scontrol", "update", f"JobId={lab.alive(run_id)}", "StartTime=now")
    wait_until(lambda: lab.steps(run_id)[-1] > before + 3, WAIT_SECONDS, "more steps")
    assert (lab.alive(run_id) == job) == is_requeued
    lab.end(run_id)
    made = lab.steps(run_id)
    assert sorted(set(made)) == list(range(max(made) + 1)), "no step lost"
    assert len(lab.shown(run_id)["attempts"]) == (1 if is_requeued else 2)
    assert len(lab.submitted(run_id)) == (1 if is_requeued else 3)


@pytest.mark.long
def test_a_job_that_is_ended_with_its_former_start_goes_on_as_another(lab: Lab, cluster: SlurmCluster) -> None:
    """What the controller sent to end the start on the lost node comes late, and ends the next one."""
    run_id = lab.launch("steps=100000", "seconds=0.05")
    lab.wait_for_step(run_id, 15)
    (job,) = lab.submitted(run_id)
    with cluster.lost_node(str(lab.machine.workspace.run_dir(run_id))) as dead:
        lab.wait_for_place(run_id, "requeued")
        wait_until(lambda: dead.kept, WAIT_SECONDS, "the controller's last words to the job")
    before = lab.steps(run_id)[-1]
    cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    wait_until(lambda: lab.steps(run_id)[-1] > before + 3, WAIT_SECONDS, "the second start")
    dead.deliver()
    wait_until(lambda: len(lab.submitted(run_id)) == 2, WAIT_SECONDS, "another job")
    lab.wait_for_step(run_id, 0, attempt=2)
    assert lab.alive(run_id) != job
    lab.end(run_id)
    made, attempts = lab.steps(run_id), lab.shown(run_id)["attempts"]
    assert sorted(set(made)) == list(range(max(made) + 1)), "no step lost"
    assert [(one["incident"] or {}).get("kind") for one in attempts] == ["preempted", None]


@pytest.mark.long
def test_a_job_is_known_by_its_number_where_its_name_and_comment_are_changed(lab: Lab) -> None:
    run_id = lab.launch("steps=100000")
    lab.wait_for_step(run_id, 5)
    (job,) = lab.submitted(run_id)
    changed = ("update", f"JobId={job}", "JobName=mine", "Comment=billing:42")
    assert lab.cluster.run("scontrol", *changed) == ""
    known = lab.steps(run_id)[-1]
    lab.wait_for_step(run_id, known + 150)
    assert lab.wait_for_place(run_id, "running")["job"] == job
    lab.end(run_id)
    assert lab.submitted(run_id) == [] and len(lab.shown(run_id)["attempts"]) == 1


def test_nodes_that_failed_are_left_out_of_the_next_request(tmp_path: Path) -> None:
    for number, ended_by in enumerate(["node_fail", None, "node_fail"], start=1):
        folder = tmp_path / "attempts" / str(number)
        folder.mkdir(parents=True)
        (folder / "placement.json").write_text(json.dumps({"nodes": [f"n{number}"]}))
        (folder / "exit.json").write_text(json.dumps({"ended_by": ended_by}))
    folder = tmp_path / "attempts" / "4"
    folder.mkdir()
    target = {"kind": "slurm", "exclude": "bad"}
    plan = {"target": target, "run_id": "a-1", "attempt": 4, "asks": {"gpus": 0}, "argv": ["python"]}
    (folder / "attempt.json").write_text(json.dumps(plan))
    lost = SlurmCourier(folder).lost_nodes()
    assert lost == ["n1", "n3"]
    assert "#SBATCH --exclude=bad,n1,n3\n" in batch_script(plan, "/far", token="T", lost=lost)


def test_what_a_login_profile_prints_is_no_answer_of_the_cluster() -> None:
    banner = "Welcome to the lab\n"
    assert submitted(f"{banner}42;main\n") == "42"
    assert submitted(banner) is None
    ended = recorded("42", f"{banner}NODE_FAIL|n1\n")
    assert ended is not None and ended.ended_by == "node_fail"
    assert judge_clock(CommandResult(0, f"{banner}1000\n", ""), 1001.0).status == "pass"
    assert judge_clock(CommandResult(0, banner, ""), 1001.0).status == "warn"


TORCHRUN = """
    name: {name}
    launcher: torchrun
    script: ranks.py
    python: {python}
    nproc: 2
    gpus: 0
    params: {{steps: 40}}
    metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
"""
RANKS = """
import json, os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
with open(os.environ["GPUTUI_METRICS"], "a") as out:
    for step in range(int(sys.argv[2])):
        value = torch.ones(1)
        dist.all_reduce(value)
        if dist.get_rank() == 0:
            print(json.dumps({"step": step, "loss": value.item()}), file=out, flush=True)
print("rank", dist.get_rank(), "on", os.environ.get("SLURMD_NODENAME"), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.long
def test_ranks_of_torchrun_meet_in_a_job(lab: Lab) -> None:
    lab.target(options=["--overcommit"])
    lab.profile = lab.machine.profile(
        "ranks", TORCHRUN.format(name=f"ranks-{Path(lab.profile).stem}", python=sys.executable)
    )
    (lab.machine.folder / "ranks.py").write_text(RANKS)
    run_id = str(lab.machine.json("run", lab.profile, "--on", "lab")["id"])
    lab.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    assert lab.steps(run_id) == list(range(40))
    assert "rank 1 on localhost" in lab.machine.gputui("logs", run_id, "--rank", "1")


@pytest.fixture
def far_lab(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """The same cluster behind a login node that shares no files with this machine."""
    with far_machine(tmp_path / "far", monkeypatch, SLURM_CONF=lab.cluster.env["SLURM_CONF"]) as far:
        monkeypatch.delenv("SLURM_CONF")
        lab.far = far
        code = lab.machine.folder / "code"
        code.mkdir()
        for path in (lab.machine.folder / "steps.py", Path(lab.profile)):
            shutil.move(path, code / path.name)
        lab.profile = str(code / Path(lab.profile).name)
        subprocess.run(["git", "init", "-q", str(code)], check=True, timeout=20)
        lab.target()
        yield lab


@pytest.mark.long
def test_a_cluster_behind_ssh_gets_the_code_and_gives_the_metrics_back(far_lab: Lab) -> None:
    run_id = far_lab.launch("steps=100000")
    far_lab.wait_for_step(run_id, 15)
    there = far_lab.there(run_id)
    assert (there / "code" / "steps.py").is_file()
    assert far_lab.wait_for_place(run_id, "running")["nodes"] == ["localhost"]
    pid = wait_until(lambda: far_lab.courier(run_id), WAIT_SECONDS, "a courier")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: far_lab.courier(run_id) not in (pid, None), WAIT_SECONDS, "another courier")
    (job,) = far_lab.submitted(run_id)
    far_lab.cluster.run("scancel", "--batch", "--signal=USR1", job)
    far_lab.wait_for_place(run_id, "requeued")
    saved = far_lab.steps(run_id)[-1]
    far_lab.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    far_lab.wait_for_step(run_id, saved + 5)
    (there / "enough").touch()
    far_lab.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    written = (there / "metrics.jsonl").read_text().count("\n")
    assert far_lab.steps(run_id) == list(range(written)) and far_lab.submitted(run_id) == [job]
    assert "done" in far_lab.machine.gputui("logs", run_id)


@pytest.mark.long
def test_a_stop_reaches_a_cluster_behind_ssh(far_lab: Lab) -> None:
    run_id = far_lab.launch("steps=100000")
    far_lab.wait_for_step(run_id, 5)
    far_lab.machine.gputui("stop", run_id)
    far_lab.machine.wait_for(run_id, "stopped", timeout=WAIT_SECONDS)
    last = far_lab.steps(run_id)[-1]
    assert (far_lab.there(run_id) / "checkpoints" / f"step_{last + 1:06d}.pt").is_file()


@pytest.mark.long
def test_a_check_reaches_a_cluster_behind_ssh(far_lab: Lab) -> None:
    results = {one["name"]: one["status"] for one in far_lab.machine.json("targets", "check", "lab")}
    assert {name: results[name] for name in ("commands", "controller", "partition", "submission", "python")} == (
        dict.fromkeys(("commands", "controller", "partition", "submission", "python"), "pass")
    )


@pytest.mark.long
def test_couriers_and_agents_killed_at_random_leave_one_job_and_every_line_once(lab: Lab) -> None:
    run_id = lab.launch("steps=100000", "seconds=0.02")
    killed = 0
    for turn in range(12):
        if turn % 4 == 3:
            lab.machine.kill_agent()
            lab.machine.gputui("agent", "start")
        pid = wait_until(lambda: lab.courier(run_id), WAIT_SECONDS, "a courier")
        wait_until(lambda: random.random() < 0.1, what="some moment")
        os.kill(pid, signal.SIGKILL)
        killed += 1
        wait_until(lambda pid=pid: lab.courier(run_id) not in (pid, None), WAIT_SECONDS, "another courier")
    lab.wait_for_step(run_id, 20)
    (lab.machine.workspace.run_dir(run_id) / "enough").touch()
    lab.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    made = lab.steps(run_id)
    written = (lab.machine.workspace.run_dir(run_id) / "metrics.jsonl").read_text().count("\n")
    assert made == list(range(written)) and killed == 12
    assert len(lab.submitted(run_id)) == 1 and len(lab.shown(run_id)["attempts"]) == 1


def test_the_dry_run_prints_the_script_that_is_submitted(lab: Lab) -> None:
    lab.target(partition="main", time="2h", setup=["module load cuda"], gpu_type="a100", warn=60)
    words = ("run", lab.profile, "--on", "lab", "--gpus", "2")
    text = lab.machine.gputui(*words, "--dry-run")
    for line in ("--partition=main", "--time=120", "--gres=gpu:a100:2", "--signal=B:USR1@60", "--requeue"):
        assert f"#SBATCH {line}\n" in text
    assert "\nmodule load cuda\n" in text and "far.py" in text
    lab.target(partition="main", time="2h", setup=["true"], gpu_type=None, options=["--hold"])
    run_id = str(lab.machine.json("run", lab.profile, "--on", "lab")["id"])
    lab.wait_for_place(run_id, "pending")
    script = (lab.machine.workspace.run_dir(run_id) / "attempts" / "1" / "far" / "job.sh").read_text()
    dry = lab.machine.gputui("run", lab.profile, "--on", "lab", "--dry-run")
    same = [
        line
        for line in script.splitlines()
        if not any(word in line for word in ("-name", "comment", "output", "far.py"))
    ]
    assert all(line in dry.splitlines() for line in same)
    lab.machine.gputui("stop", run_id)
    lab.machine.wait_for(run_id, "stopped", timeout=WAIT_SECONDS)


def test_a_check_of_the_target_tells_what_is_there_and_what_is_wrong(lab: Lab) -> None:
    results = {one["name"]: one for one in lab.machine.json("targets", "check", "lab")}
    assert {name: one["status"] for name, one in results.items() if name != "torch"} == dict.fromkeys(
        ("commands", "controller", "partition", "gpus", "submission", "clock", "python"), "pass"
    )
    assert results["gpus"]["detail"].startswith("2 of 2 ")
    lab.target(partition="nonsense")
    done = lab.machine.call("targets", "check", "lab", "--json")
    wrong = {one["name"]: one["status"] for one in json.loads(done.stdout)}
    assert done.returncode == 3 and wrong["partition"] == wrong["submission"] == "fail"
    assert [one["name"] for one in lab.machine.json("targets")] == ["lab"]


def test_without_the_commands_of_a_cluster_nothing_fails_but_the_check(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = lab.machine.folder / "bin"
    bare.mkdir()
    for name in ("bash", "git", "date"):
        (bare / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(bare))
    done = lab.machine.call("targets", "check", "lab", "--json")
    (only,) = json.loads(done.stdout)
    assert done.returncode == 3 and (only["name"], only["status"]) == ("commands", "fail")
    run_id = lab.launch()
    problem = wait_until(lambda: lab.placement(run_id).get("problem"), WAIT_SECONDS, "a problem")
    assert "squeue" in problem and lab.machine.state(run_id) == "starting"
    lab.machine.gputui("stop", run_id, "--now")


@pytest.mark.parametrize(
    ("target", "place"),
    [
        ({"kind": "slrum"}, "lab.kind"),
        ({"kind": "slurm", "partiton": "gpu"}, "lab.partiton"),
        ({"kind": "slurm", "time": "soon"}, "lab.time"),
        ({"kind": "slurm", "partition": "gpu; rm"}, "lab.partition"),
        ({"partition": "gpu"}, "lab"),
    ],
)
def test_what_is_wrong_with_a_target_is_said_with_its_place(
    machine: Machine, target: dict[str, Any], place: str
) -> None:
    machine.workspace.targets.write_text(json.dumps({"lab": target}))
    said = machine.gputui("run", machine.profile(), "--on", "lab", code=2)
    assert f"{place}: " in said and len(said.splitlines()) == 1


def test_a_target_that_is_not_there_is_named_with_the_nearest(machine: Machine) -> None:
    machine.workspace.targets.write_text(json.dumps({"lab": {"kind": "slurm"}}))
    assert "lab" in machine.gputui("run", machine.profile(), "--on", "lap", code=2)
