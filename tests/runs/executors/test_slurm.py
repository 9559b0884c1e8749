"""Runs on a real SLURM of one node: limits, preemption, a broken set-up, studies; what is submitted and checked."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gputui.profiles.targets import find_target
from gputui.runs.executors.commands import CommandResult, TargetRefusalError, TargetShell, UnreachableError
from gputui.runs.executors.slurm import SlurmExecutor, judge_partitions, probe
from gputui.runs.executors.slurm.jobs import QueuedJob
from gputui.runs.executors.slurm.slurm_runner import SlurmRunner
from gputui.runs.executors.ssh import SshExecutor, check_environment
from tests.conftest import wait_until
from tests.machines import Machine
from tests.runs.executors.conftest import SlurmHome
from tests.runs.executors.slurm_cluster import PATH
from tests.tables import table
from tests.texts import mentions

WAIT_SECONDS = 90.0

RENAMED = CommandResult(0, "Hello\n7|RUNNING|None|||N/A|another comment\n", "")
NO_JOB = CommandResult(1, "", "slurm_load_jobs error: Invalid job id specified\n")
NO_HISTORY = CommandResult(1, "", "Slurm accounting storage is disabled\n")
FAILED = CommandResult(1, "", "squeue: error: something new\n")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, CommandResult]:
    """The output of each of Slurm's commands."""
    results: dict[str, CommandResult] = {}
    monkeypatch.setattr(TargetShell, "call", lambda _, argv, *_options: results[argv[2 if argv[0] == "env" else 0]])
    return results


@pytest.fixture
def runner(tmp_path: Path) -> SlurmRunner:
    plan = {"target": {"kind": "slurm"}, "run_id": "a-1", "attempt": 1, "asks": {"gpus": 0}, "argv": ["python"]}
    folder = tmp_path / "attempts" / "1"
    (folder / "remote").mkdir(parents=True)
    (folder / "attempt.json").write_text(json.dumps(plan))
    return SlurmRunner(folder)


@pytest.mark.long
def test_before_its_limit_a_run_saves_is_requeued_and_goes_on_at_the_saved_step(slurm: SlurmHome) -> None:
    run_id = slurm.launch("steps=400", "seconds=0.05")
    slurm.wait_for_step(run_id, 15)
    (job,) = slurm.submitted(run_id)
    # The signal that Slurm sends some seconds before the limit.
    slurm.cluster.run("scancel", "--batch", "--signal=USR1", job)
    slurm.wait_for_place(run_id, "requeued")
    wait_until(lambda: slurm.placement(run_id).get("reason") == "BeginTime", WAIT_SECONDS, "the reason")
    assert slurm.machine.state(run_id) == "running"
    # A job that did not end by itself would keep the node until KillWait is over, much longer.
    wait_until(lambda: "idle" in slurm.cluster.run("sinfo", "-h", "-o", "%T"), 30.0, "a node for others")
    saved = slurm.steps(run_id)[-1]
    slurm.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    slurm.wait_for_step(run_id, saved + 5)
    wait_until(lambda: slurm.placement(run_id).get("restarts") == 1, WAIT_SECONDS, "the count of restarts")
    slurm.finish(run_id)
    (attempt,) = slurm.record(run_id)["attempts"]
    assert slurm.submitted(run_id) == [job]
    assert attempt["placement"]["limit_restarts"] == 1
    assert attempt["placement"]["queued_seconds"] > 0
    assert attempt["placement"]["ran_seconds"] > 0
    story = " ".join(slurm.machine.gputui("explain", run_id).split())
    assert mentions(story, "requeued 1 time")
    assert mentions(story, "lab (localhost)")


@pytest.mark.long
def test_one_that_is_preempted_goes_on_in_another_job(slurm: SlurmHome) -> None:
    slurm.set_target(**{**slurm.options, "partition": "cancelled"})
    run_id = slurm.launch("steps=100000", "seconds=0.05")
    slurm.wait_for_step(run_id, 15)
    wait_until(lambda: slurm.placement(run_id).get("limit_at"), WAIT_SECONDS, "the job's limit")
    limit_at = datetime.fromisoformat(slurm.placement(run_id)["limit_at"]).timestamp()
    assert 0 < limit_at - time.time() <= 600, "ten minutes, whatever the time zone"
    urgent = slurm.cluster.run(
        "sbatch", "--parsable", "--partition=urgent", "--exclusive", "--time=1", "--output=/dev/null", "--wrap=sleep 3"
    ).strip()
    assert urgent.isdigit()
    wait_until(lambda: len(slurm.submitted(run_id)) == 2, WAIT_SECONDS, "another job")
    slurm.wait_for_step(run_id, slurm.steps(run_id)[-1] + 3, attempt=2)
    (slurm.remote_folder(run_id) / "enough").touch()
    slurm.machine.wait_for(run_id, "succeeded", timeout=WAIT_SECONDS)
    steps = slurm.steps(run_id)
    assert sorted(set(steps)) == list(range(max(steps) + 1)), "no step lost"
    assert slurm.record(run_id)["attempts"][0]["incident"]["kind"] == "preempted"


@pytest.mark.long
def test_a_run_has_its_own_limit_and_a_broken_set_up_is_read_in_the_log_of_its_job(slurm: SlurmHome) -> None:
    slurm.set_target(**slurm.options, setup=["echo no module named cuda >&2", "exit 3"])
    run_id = str(slurm.machine.json("run", slurm.profile, "--on", "lab", "--time", "7m")["id"])
    slurm.machine.wait_for(run_id, "failed", timeout=WAIT_SECONDS)
    (job,) = slurm.submitted(run_id)
    assert slurm.cluster.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%l").strip() == "7:00"
    assert "no module named cuda" in slurm.machine.gputui("logs", run_id)
    assert "no module named cuda" in " ".join(slurm.machine.gputui("explain", run_id).split())


@pytest.mark.long
def test_a_run_is_submitted_with_the_environment_of_its_own_shell(
    slurm: SlurmHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.delenv("SLURM_CONF")
        slurm.machine.gputui("agent", "start")
    arguments = ("--on", "lab", "--gpus", "2", "--set", "steps=100000")
    run_id = str(slurm.machine.json("run", slurm.profile, *arguments)["id"])
    slurm.wait_for_step(run_id, 5)
    slurm.finish(run_id)
    assert slurm.record(run_id)["gpu_hours"] > 0
    assert mentions(slurm.machine.gputui("explain", run_id), "2 GPUs", "lab")


@pytest.mark.long
@table("name, value, end", [("SLURM_CONF", "/nope/slurm.conf", "stopped"), ("PATH", "/nope", "failed")])
def test_a_run_that_was_never_submitted_can_be_removed(
    slurm: SlurmHome, monkeypatch: pytest.MonkeyPatch, name: str, value: str, end: str
) -> None:
    with monkeypatch.context() as shell:
        shell.setenv(name, value)
        run_id = slurm.launch()
    if end == "stopped":
        wait_until(lambda: slurm.placement(run_id).get("problem"), WAIT_SECONDS, "a problem")
        slurm.machine.gputui("stop", run_id)
    # A stop waits for a running call of sbatch, which may take 30 s.
    slurm.machine.wait_for(run_id, end, timeout=WAIT_SECONDS)
    slurm.machine.gputui("rm", run_id)
    assert not slurm.submitted(run_id)


@pytest.mark.long
def test_a_run_that_is_started_again_has_the_environment_and_the_limit_of_then(
    slurm: SlurmHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as shell:
        shell.setenv("PATH", "/nope")
        run_id = slurm.launch("steps=100000")
    slurm.machine.wait_for(run_id, "failed", timeout=15.0)
    slurm.machine.gputui("restart", run_id)
    slurm.wait_for_step(run_id, 5, attempt=2)
    slurm.machine.gputui("stop", run_id)
    slurm.machine.wait_for(run_id, "stopped", timeout=WAIT_SECONDS)
    assert "--time" in slurm.machine.gputui("resume", run_id, "--time", "soon", code=2)
    waiting = slurm.machine.start("resume", run_id, "--time", "9m", "--wait")
    slurm.wait_for_step(run_id, 5, attempt=3)
    job = slurm.submitted(run_id)[-1]
    assert slurm.cluster.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%l").strip() == "9:00"
    (slurm.remote_folder(run_id) / "enough").touch()
    output, errors = waiting.communicate(timeout=WAIT_SECONDS)
    assert waiting.returncode == 0, output + errors
    assert "succeeded" in output, output + errors


@pytest.mark.long
def test_a_suspended_run_is_shown_as_such_and_saves_when_it_is_stopped(slurm: SlurmHome) -> None:
    run_id = slurm.launch("steps=100000", "seconds=0.05")
    slurm.wait_for_step(run_id, 5)
    (job,) = slurm.submitted(run_id)
    slurm.cluster.run("scontrol", "suspend", job)
    slurm.wait_for_place(run_id, "suspended")
    assert slurm.stop(run_id) > 5
    assert slurm.placement(run_id)["state"] == "ended"


@pytest.mark.long
def test_the_trials_of_a_grid_are_jobs_beside_each_other(slurm: SlurmHome) -> None:
    arguments = ("--grid", "steps=100000,90000", "--on", "lab", "--parallel", "2", "--name", "swept")
    slurm.machine.json("study", "run", slurm.profile, *arguments)
    runs = [f"swept-1-t{number}-1" for number in range(2)]
    for run_id in runs:
        slurm.wait_for_step(run_id, 5)
    for run_id in runs:
        slurm.finish(run_id)
    wait_until(lambda: slurm.machine.json("study", "show")["state"] == "finished", WAIT_SECONDS, "the study's end")
    study = slurm.machine.json("study", "show")
    assert [trial["state"] for trial in study["trials"]] == ["complete"] * 2
    assert study["target"] == "lab"
    assert all(len(slurm.submitted(run_id)) == 1 for run_id in runs)


@table("code, output, listed, expected", [
    (0, "4711\n", "", "4711"), (0, "4711;cluster\n", "", "4711"), (0, "Job 12 of 3\n--\n4711\nBye 2026\n", "", "4711"),
    (0, "Submitted\n", "", None), (0, "4711\n2026\n", "", None), (1, "4711\n", "", "refused"),
    (1, "4711\n", "4711|PENDING|None|||N/A|gputui:T\n", "4711"),
])  # fmt: skip
def test_the_job_is_found_in_whatever_sbatch_prints(
    runner: SlurmRunner, answers: dict[str, CommandResult], code: int, output: str, listed: str, expected: str | None
) -> None:
    answers |= {"sbatch": CommandResult(code, output, ""), "squeue": CommandResult(0, f"Hello\n{listed}", "")}
    try:
        job = runner.submit("T")
    except TargetRefusalError:
        job = "refused"
    assert job == expected


@table("squeue, sacct, expected", [
    (RENAMED, FAILED, "running"), (NO_JOB, NO_HISTORY, None), (CommandResult(0, "", ""), NO_HISTORY, None),
    (NO_JOB, CommandResult(0, "", ""), None), (NO_JOB, CommandResult(0, "7|COMPLETED|n1\n", ""), "ended"),
    (NO_JOB, CommandResult(0, "Hi | you\n77|RUNNING|n1\n7|CANCELLED by 0|n1\n", ""), "ended"),
    (NO_JOB, CommandResult(0, "7|RUNNING|n1\n", ""), "unknown"), (NO_JOB, FAILED, "unknown"),
    (FAILED, CommandResult(0, "7|RUNNING|n1\n", ""), "unknown"), (FAILED, NO_HISTORY, "unknown"),
    (FAILED, CommandResult(0, "7|COMPLETED|n1\n", ""), "unknown"),
    (NO_JOB, CommandResult(127, "", "bash: sacct: command not found\n"), None),
])  # fmt: skip
def test_a_job_has_ended_only_where_no_answer_says_that_it_lives(
    runner: SlurmRunner, answers: dict[str, CommandResult], squeue: CommandResult, sacct: CommandResult,
    expected: str | None,
) -> None:  # fmt: skip
    answers |= {"squeue": squeue, "sacct": sacct}
    try:
        status = runner.unlisted_status("7")
        state = None if status is None else status.state
    except UnreachableError:
        state = "unknown"
    assert state == expected


def test_a_person_may_give_up_a_job_that_only_its_history_calls_alive(
    runner: SlurmRunner, answers: dict[str, CommandResult]
) -> None:
    runner.stop = {"at": 0.0, "at_once": True, "asked": True}
    answers |= {"squeue": NO_JOB, "sacct": CommandResult(0, "7|RUNNING|n1\n", "")}
    assert runner.unlisted_status("7") is None


@table("fields, expected", [
    (("PENDING", "Priority", "1767225600"), ("pending", "Priority", None)),
    (("RUNNING", "None"), ("running", None, None)), (("SUSPENDED", "None"), ("suspended", None, None)),
    (("NEW_IN_SLURM_99", "None"), ("pending", "NEW_IN_SLURM_99", None)),
    (("REQUEUE_HOLD", "held"), ("requeued", "REQUEUE_HOLD: held", None)),
    (("COMPLETED", "None"), ("ended", "COMPLETED", None)), (("CANCELLED+",), ("ended", "CANCELLED+", "cancelled")),
    (("CANCELLED", "PartitionTimeLimit"), ("ended", "CANCELLED", "cancelled")),
    (("TIMEOUT", "TimeLimit"), ("ended", "TIMEOUT: TimeLimit", "time_limit")),
])  # fmt: skip
def test_the_state_of_a_job_is_read_from_its_words(fields: tuple[str, ...], expected: tuple[str | None, ...]) -> None:
    status = QueuedJob("7", *fields).status()
    assert (status.state, status.reason, status.ended_by) == expected
    assert (status.expected_start is not None) == (status.state == "pending" and len(fields) > 2)


@table("target, status", [
    ({"partition": "gpu", "time": "4h"}, "pass"), ({"partition": "gpu", "time": "8h"}, "fail"),
    ({"partition": "gpu", "time": "4h 1m"}, "fail"),
    ({"partition": "gpu", "time": "1-0"}, "fail"), ({"partition": "off"}, "fail"), ({"partition": "gone"}, "fail"),
    ({"partition": "off,free", "time": "9d"}, "pass"), ({}, "pass"), ({"time": "241"}, "fail"),
])  # fmt: skip
def test_a_partition_in_which_the_job_would_wait_forever_is_refused(target: dict[str, Any], status: str) -> None:
    rows = [("gpu", "YES", "04:00:00", "UP"), ("off", "NO", "UNLIMITED", "DOWN"), ("free", "NO", "UNLIMITED", "UP")]
    line = "PartitionName={} AllowGroups=ALL Default={} MaxTime={} State={} TotalCPUs=4"
    text = "\n".join(["Welcome", *(line.format(*row) for row in rows)])
    result = judge_partitions(target, CommandResult(0, text, ""))
    assert result is not None
    assert result.status == status


def test_what_a_check_cannot_read_is_a_failed_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ssh", "sbatch", "scontrol", "sinfo", "date"):
        (tmp_path / name).write_text("#!/bin/sh\necho Welcome\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{PATH}")
    for survey in (SlurmExecutor().survey, SshExecutor().survey):
        assert [check.status for check in survey({"host": "k", "setup": ["echo Welcome"]})][-1] == "fail"
    assert [check.status for check in SlurmExecutor().survey({})][-1] == "fail"


def test_an_interpreter_that_does_not_exist_is_a_line_of_the_check_and_no_fault_of_the_cluster() -> None:
    checks = {check.name: check for check in check_environment(TargetShell(), {"python": "/nope/python"})}
    assert checks["python"].status == "fail"
    assert "/nope/python" in checks["python"].detail
    assert checks["torch"].status == "warn"


@table("target, place", [
    ({"kind": "slrum"}, "lab.kind"), ({"kind": "slurm", "partiton": "gpu"}, "lab.partiton"),
    ({"kind": "slurm", "memory": "much"}, "lab.memory"),
    ({"kind": "slurm", "time": "soon"}, "lab.time"), ({"kind": "slurm", "time": "0h"}, "lab.time"),
    ({"kind": "slurm", "partition": "gpu; rm"}, "lab.partition"),
    ({"partition": "gpu"}, "lab"),
])  # fmt: skip
def test_what_is_wrong_with_a_target_is_said_with_its_place(
    machine: Machine, target: dict[str, Any], place: str
) -> None:
    machine.workspace.targets.write_text(json.dumps({"lab": target}))
    said = machine.gputui("run", machine.profile(), "--on", "lab", code=2)
    assert f"{place}: " in said
    assert len(said.splitlines()) == 1


def test_the_dry_run_prints_the_script_that_is_submitted(machine: Machine) -> None:
    lab = {"kind": "slurm", "partition": "main", "time": "1h 30m", "setup": ["module load cuda"], "gpu_type": "a100"}
    machine.workspace.targets.write_text(json.dumps({"lab": {**lab, "warn": 60, "memory": "400GiB"}}))
    text = machine.gputui("run", machine.profile(), "--on", "lab", "--gpus", "2", "--dry-run")
    checked = probe(find_target("lab", {}, machine.workspace), has_gpus=False)
    for line in ("--partition=main", "--time=90", "--mem=409600M", "--signal=B:USR1@60", "--requeue"):
        assert f"#SBATCH {line}\n" in text
        assert f"#SBATCH {line}\n" in checked
    assert "#SBATCH --gres=gpu:a100:2\n" in text
    assert "#SBATCH --gres=gpu:a100:1\n" in checked
    assert "\nmodule load cuda\n" in text
    assert "remote.pyz" in text
    assert f"{machine.folder}/steps.py --steps 50" in text


@table(
    "options", [{"kind": "slurm", "host": "k"}, {"kind": "ssh", "host": "k"}, {"kind": "ray", "address": "http://k"}]
)
def test_the_dry_run_shows_the_command_with_the_paths_of_the_target(machine: Machine, options: dict[str, str]) -> None:
    machine.workspace.targets.write_text(json.dumps({"lab": options}))
    profile = machine.profile()
    subprocess.run(["git", "init", "-q", str(machine.folder)], check=True, timeout=20)
    lines = machine.gputui("run", profile, "--on", "lab", "--dry-run").splitlines()
    (command,) = [line for line in lines if line.startswith("#") and "steps.py" in line]
    assert "RUN/code/steps.py --steps 50" in command
    assert str(machine.folder) not in command.replace(sys.executable, "")
    assert f"# {machine.folder} is RUN/code there" in lines
