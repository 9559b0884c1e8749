"""Runs on a real SLURM of one node, from launch to end; the test makes and ends it."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from gputui.runs.identity import identify
from tests.conftest import wait_until
from tests.machine import Machine
from tests.runs.executors.slurm_cluster import PATH, SlurmCluster, skip_without_slurm

WAIT_SECONDS = 90.0
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    skip_without_slurm()
    made = SlurmCluster()
    try:
        made.start()
        yield made
    finally:
        made.stop()


class Lab:
    """A home with the cluster as its target ``lab``."""

    def __init__(self, machine: Machine, cluster: SlurmCluster) -> None:
        self.machine, self.cluster = machine, cluster
        # The cluster remembers the jobs of earlier tests.
        self.profile = machine.profile(f"steps{next(NUMBERS)}")
        self.target()

    def target(self, **options: Any) -> None:
        lab = {"kind": "slurm", "partition": "main", "time": "10m", "poll": 1, **options}
        self.machine.workspace.targets.write_text(json.dumps({"lab": lab}))

    def launch(self, *changes: str) -> str:
        words = [word for change in changes for word in ("--set", change)]
        return str(self.machine.json("run", self.profile, "--on", "lab", *words)["id"])

    def shown(self, run_id: str) -> dict[str, Any]:
        found = self.machine.json("show", run_id)
        assert isinstance(found, dict)
        return found

    def placement(self, run_id: str) -> dict[str, Any]:
        return self.shown(run_id)["placement"] or {}

    def wait_for_place(self, run_id: str, *states: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = self.placement(run_id)
            return found if found.get("state") in states else None

        return wait_until(look, WAIT_SECONDS, f"{run_id} {states} there")

    def wait_for_step(self, run_id: str, step: int, attempt: int = 1) -> None:
        wait_until(lambda: self.machine.steps(run_id)[-1:] >= [(attempt, step)], WAIT_SECONDS, f"step {step}")

    def submitted(self, run_id: str) -> list[str]:
        """The jobs that were ever handed over for a run."""
        names = self.cluster.run("squeue", "-h", "-t", "all", "-o", "%i %j").splitlines()
        return [line.split()[0] for line in names if line.split()[1].startswith(f"{run_id}.")]

    def courier(self, run_id: str, attempt: int = 1) -> int | None:
        record = self.machine.workspace.run_dir(run_id) / "attempts" / str(attempt) / "started.json"
        try:
            pid = int(json.loads(record.read_text())["shim_pid"])
        except (OSError, ValueError):
            return None
        return pid if identify(pid) is not None else None


@pytest.fixture
def lab(machine: Machine, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    monkeypatch.setenv("PATH", PATH)
    made = Lab(machine, cluster)
    yield made
    for job in cluster.jobs():
        cluster.run("scancel", "--quiet", job)
    wait_until(lambda: not cluster.run("squeue", "-h", "-o", "%i").split(), what="an empty queue")


def steps_made(lab: Lab, run_id: str) -> list[int]:
    return [step for _, step in lab.machine.steps(run_id)]


def test_a_run_goes_there_and_its_metrics_logs_and_place_come_back(lab: Lab) -> None:
    run_id = lab.launch("steps=100000")
    lab.wait_for_place(run_id, "running")
    lab.wait_for_step(run_id, 5)
    (lab.machine.workspace.run_dir(run_id) / "enough").touch()
    lab.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    shown, made = lab.shown(run_id), steps_made(lab, run_id)
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
    last = steps_made(lab, run_id)[-1]
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
    wait_until(lambda: lab.placement(run_id)["reason"] == "BeginTime", WAIT_SECONDS, "the reason")
    assert lab.machine.state(run_id) == "running"
    saved = steps_made(lab, run_id)[-1]
    lab.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    lab.wait_for_step(run_id, saved + 5)
    wait_until(lambda: lab.placement(run_id)["restarts"] == 1, WAIT_SECONDS, "the count of restarts")
    (lab.machine.workspace.run_dir(run_id) / "enough").touch()
    lab.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    made = steps_made(lab, run_id)
    assert made == list(range(len(made))), "no step lost or made twice"
    assert lab.submitted(run_id) == [job] and len(lab.shown(run_id)["attempts"]) == 1


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
    before = steps_made(lab, run_id)[-1]
    lab.wait_for_step(run_id, before + 3, attempt)
    (lab.machine.workspace.run_dir(run_id) / "enough").touch()
    lab.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    made = steps_made(lab, run_id)
    assert sorted(set(made)) == list(range(max(made) + 1)), "no step lost"
    first = lab.shown(run_id)["attempts"][0]
    assert (first["incident"] or {}).get("kind") == (None if is_same_job else "preempted")


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
    made = steps_made(lab, run_id)
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
    assert {name: one["status"] for name, one in results.items()} == dict.fromkeys(
        ("commands", "controller", "partition", "gpus", "submission", "clock"), "pass"
    )
    assert results["gpus"]["detail"].startswith("2 of 2 ")
    lab.target(partition="nonsense")
    done = lab.machine.call("targets", "check", "lab", "--json")
    wrong = {one["name"]: one["status"] for one in json.loads(done.stdout)}
    assert done.returncode == 3 and wrong["partition"] == wrong["submission"] == "fail"
    assert [one["name"] for one in lab.machine.json("targets")] == ["lab"]


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
