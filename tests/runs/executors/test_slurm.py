"""Runs on a real SLURM of one node, from launch to end; the test makes and ends it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gputui.profiles.targets import find_target
from gputui.runs.executors.courier import CommandResult, TargetRefusalError, TargetShell
from gputui.runs.executors.slurm.slurm_courier import SlurmCourier
from gputui.runs.executors.slurm.survey import judge_partitions, probe
from gputui.runs.executors.slurm.survey import survey as slurm_survey
from gputui.runs.executors.ssh.connection import environment_there
from gputui.runs.executors.ssh.connection import survey as ssh_survey
from tests.conftest import wait_until
from tests.machines import Machine
from tests.runs.executors.slurm_cluster import PATH, SlurmCluster, skip_without_slurm
from tests.runs.executors.ssh_machine import far_machine
from tests.runs.executors.target_home import TargetHome
from tests.tables import table

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
        self.target()

    def target(self, **options: Any) -> None:
        self.set_target(**{"kind": "slurm", "partition": "main", "time": "10m", "poll": 1, **options})

    def submitted(self, run_id: str) -> list[str]:
        """The jobs that were ever handed over for a run."""
        names = self.cluster.run("squeue", "-h", "-t", "all", "-o", "%i %j").splitlines()
        return [line.split()[0] for line in names if line.split()[1].startswith(f"{run_id}.")]


@pytest.fixture
def lab(machine: Machine, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    greeting = cluster.folder / "greeting" / "sbatch"
    greeting.parent.mkdir(exist_ok=True)
    greeting.write_text(f'#!/bin/sh\necho Welcome\n{shutil.which("sbatch", path=PATH)} "$@" && echo Bye\n')
    greeting.chmod(0o755)
    monkeypatch.setenv("PATH", f"{greeting.parent}:{PATH}")
    made = Lab(machine, cluster)
    yield made
    for job in cluster.jobs():
        cluster.run("scancel", "--quiet", job)
    wait_until(lambda: not cluster.run("squeue", "-h", "-o", "%i").split(), what="an empty queue")


@pytest.mark.long
def test_a_run_goes_there_and_its_metrics_logs_and_place_come_back(lab: Lab) -> None:
    run_id = lab.launch("steps=100000")
    lab.wait_for_place(run_id, "running")
    lab.wait_for_step(run_id, 5)
    lab.finish(run_id, lab.machine.workspace.run_dir(run_id))
    shown = lab.shown(run_id)
    assert shown["target"] == "lab" and shown["placement"]["state"] == "ended"
    assert shown["placement"]["nodes"] == ["localhost"] and shown["placement"]["job"] in lab.submitted(run_id)
    assert "done" in lab.machine.gputui("logs", run_id)
    assert "lab" in lab.machine.gputui("show", run_id)


@pytest.mark.long
def test_a_run_goes_there_by_a_login_node_that_greets(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with far_machine(tmp_path / "far", monkeypatch) as far:
        lab.keep_code_in_git()
        lab.target(**far.target())
        run_id = lab.launch("steps=100000")
        lab.wait_for_step(run_id, 5)
        lab.finish(run_id, *far.runs.glob(f"*/{run_id}"))
        assert lab.placement(run_id)["state"] == "ended"


@pytest.mark.long
def test_a_stop_saves_and_the_job_is_gone(lab: Lab) -> None:
    run_id = lab.launch("steps=100000")
    lab.wait_for_step(run_id, 5)
    assert lab.stop(run_id, lab.machine.workspace.run_dir(run_id)) > 5
    wait_until(lambda: not lab.cluster.run("squeue", "-h", "-o", "%i").split(), what="an empty queue")


@pytest.mark.long
def test_before_its_limit_a_run_saves_is_requeued_and_goes_on_at_the_saved_step(lab: Lab) -> None:
    run_id = lab.launch("steps=400", "seconds=0.05")
    lab.wait_for_step(run_id, 15)
    (job,) = lab.submitted(run_id)
    # What the cluster sends so many seconds before the limit.
    lab.cluster.run("scancel", "--batch", "--signal=USR1", job)
    lab.wait_for_place(run_id, "requeued")
    wait_until(lambda: lab.placement(run_id).get("reason") == "BeginTime", WAIT_SECONDS, "the reason")
    assert lab.machine.state(run_id) == "running"
    # Long before KillWait is over, which a job that stays would use.
    wait_until(lambda: "idle" in lab.cluster.run("sinfo", "-h", "-o", "%T"), 30.0, "a node for others")
    saved = lab.steps(run_id)[-1]
    lab.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    lab.wait_for_step(run_id, saved + 5)
    wait_until(lambda: lab.placement(run_id).get("restarts") == 1, WAIT_SECONDS, "the count of restarts")
    lab.finish(run_id, lab.machine.workspace.run_dir(run_id))
    assert lab.submitted(run_id) == [job] and len(lab.shown(run_id)["attempts"]) == 1


@pytest.mark.long
def test_one_that_is_preempted_goes_on_in_another_job(lab: Lab) -> None:
    lab.target(partition="cancelled")
    run_id = lab.launch("steps=100000", "seconds=0.05")
    lab.wait_for_step(run_id, 15)
    urgent = lab.cluster.run(
        "sbatch", "--parsable", "--partition=urgent", "--exclusive", "--time=1", "--output=/dev/null", "--wrap=sleep 3"
    ).strip()
    assert urgent.isdigit()
    wait_until(lambda: len(lab.submitted(run_id)) == 2, WAIT_SECONDS, "another job")
    lab.wait_for_step(run_id, lab.steps(run_id)[-1] + 3, attempt=2)
    (lab.machine.workspace.run_dir(run_id) / "enough").touch()
    lab.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    made = lab.steps(run_id)
    assert sorted(set(made)) == list(range(max(made) + 1)), "no step lost"
    assert lab.shown(run_id)["attempts"][0]["incident"]["kind"] == "preempted"


@pytest.mark.long
def test_a_run_has_its_own_limit_and_a_broken_set_up_is_read_in_the_log_of_its_job(lab: Lab) -> None:
    lab.target(setup=["echo no module named cuda >&2", "exit 3"])
    run_id = str(lab.machine.json("run", lab.profile, "--on", "lab", "--time", "7m")["id"])
    lab.machine.wait_for(run_id, "failed", timeout=WAIT_SECONDS)
    (job,) = lab.submitted(run_id)
    assert lab.cluster.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%l").strip() == "7:00"
    assert "no module named cuda" in lab.machine.gputui("logs", run_id)
    assert "no module named cuda" in lab.machine.gputui("explain", run_id)


@pytest.mark.long
def test_the_trials_of_a_grid_are_jobs_beside_each_other(lab: Lab) -> None:
    words = ("--grid", "steps=100000,90000", "--on", "lab", "--parallel", "2", "--name", "swept")
    lab.machine.json("study", "run", lab.profile, *words)
    runs = [f"swept-1-t{number}-1" for number in range(2)]
    for run_id in runs:
        lab.wait_for_step(run_id, 5)
    for run_id in runs:
        lab.finish(run_id, lab.machine.workspace.run_dir(run_id))
    wait_until(lambda: lab.machine.json("study", "show")["state"] == "finished", WAIT_SECONDS, "the study's end")
    found = lab.machine.json("study", "show")
    assert [one["state"] for one in found["trials"]] == ["complete"] * 2 and found["target"] == "lab"
    assert all(len(lab.submitted(run_id)) == 1 for run_id in runs)


@table("code, output, listed, expected", [
    (0, "4711\n", "", "4711"), (0, "4711;cluster\n", "", "4711"), (0, "Job 12 of 3\n--\n4711\nBye 2026\n", "", "4711"),
    (0, "Submitted\n", "", None), (1, "4711\n", "", "refused"),
    (1, "4711\n", "4711|PENDING|None|||N/A|gputui:T\n", "4711"),
])  # fmt: skip
def test_the_job_is_found_in_whatever_sbatch_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, output: str, listed: str, expected: str | None
) -> None:
    answers = {"sbatch": CommandResult(code, output, ""), "squeue": CommandResult(0, f"Hello\n{listed}", "")}
    monkeypatch.setattr(TargetShell, "call", lambda _, argv, *given: answers[argv[0]])
    plan = {"target": {"kind": "slurm"}, "run_id": "a-1", "attempt": 1, "asks": {"gpus": 0}, "argv": ["python"]}
    folder = tmp_path / "attempts" / "1"
    (folder / "far").mkdir(parents=True)
    (folder / "attempt.json").write_text(json.dumps(plan))
    try:
        found = SlurmCourier(folder).submit("T")
    except TargetRefusalError:
        found = "refused"
    assert found == expected


@table("target, status", [
    ({"partition": "gpu", "time": "4h"}, "pass"), ({"partition": "gpu", "time": "8h"}, "fail"),
    ({"partition": "gpu", "time": "1-0"}, "fail"), ({"partition": "off"}, "fail"), ({"partition": "gone"}, "fail"),
    ({"partition": "off,free", "time": "9d"}, "pass"), ({}, "pass"), ({"time": "241"}, "fail"),
])  # fmt: skip
def test_a_partition_in_which_the_job_would_wait_forever_is_refused(target: dict[str, Any], status: str) -> None:
    rows = [("gpu", "YES", "04:00:00", "UP"), ("off", "NO", "UNLIMITED", "DOWN"), ("free", "NO", "UNLIMITED", "UP")]
    line = "PartitionName={} AllowGroups=ALL Default={} MaxTime={} State={} TotalCPUs=4"
    text = "\n".join(["Welcome", *(line.format(*row) for row in rows)])
    result = judge_partitions(target, CommandResult(0, text, ""))
    assert result is not None and result.status == status


def test_what_a_check_cannot_read_is_a_failed_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ssh", "sbatch", "scontrol", "sinfo", "date"):
        (tmp_path / name).write_text("#!/bin/sh\necho Welcome\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{PATH}")
    for survey in (slurm_survey, ssh_survey):
        assert [each.status for each in survey({"host": "k", "setup": ["echo Welcome"]})][-1] == "fail"
    assert [each.status for each in slurm_survey({})][-1] == "fail"


def test_an_interpreter_that_does_not_exist_is_a_line_of_the_check_and_no_fault_of_the_cluster() -> None:
    found = {each.name: each for each in environment_there(TargetShell(), {"python": "/nope/python"})}
    assert found["python"].status == "fail" and "/nope/python" in found["python"].detail
    assert found["torch"].status == "warn"


@table("target, place", [
    ({"kind": "slrum"}, "lab.kind"), ({"kind": "slurm", "partiton": "gpu"}, "lab.partiton"),
    ({"kind": "slurm", "memory": "much"}, "lab.memory"),
    ({"kind": "slurm", "time": "soon"}, "lab.time"), ({"kind": "slurm", "partition": "gpu; rm"}, "lab.partition"),
    ({"partition": "gpu"}, "lab"),
])  # fmt: skip
def test_what_is_wrong_with_a_target_is_said_with_its_place(
    machine: Machine, target: dict[str, Any], place: str
) -> None:
    machine.workspace.targets.write_text(json.dumps({"lab": target}))
    said = machine.gputui("run", machine.profile(), "--on", "lab", code=2)
    assert f"{place}: " in said and len(said.splitlines()) == 1


def test_the_dry_run_prints_the_script_that_is_submitted(machine: Machine) -> None:
    lab = {"kind": "slurm", "partition": "main", "time": "2h", "setup": ["module load cuda"], "gpu_type": "a100"}
    machine.workspace.targets.write_text(json.dumps({"lab": {**lab, "warn": 60, "memory": "400GiB"}}))
    text = machine.gputui("run", machine.profile(), "--on", "lab", "--gpus", "2", "--dry-run")
    checked = probe(find_target("lab", {}, machine.workspace), has_gpus=False)
    for line in ("--partition=main", "--time=120", "--mem=409600M", "--signal=B:USR1@60", "--requeue"):
        assert f"#SBATCH {line}\n" in text and f"#SBATCH {line}\n" in checked
    assert "#SBATCH --gres=gpu:a100:2\n" in text and "#SBATCH --gres=gpu:a100:1\n" in checked
    assert "\nmodule load cuda\n" in text and "far.pyz" in text
