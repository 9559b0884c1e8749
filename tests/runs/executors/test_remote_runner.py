"""A runner whose target says what the test wants: when the end of a job is that of its attempt; no second one runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gputui.runs.executors import remote
from gputui.runs.executors.commands import MissingProgramError, UnreachableError
from gputui.runs.executors.job_status import EndedBy, JobClock, JobStatus
from gputui.runs.executors.remote_runner import (
    GIVE_UP_SECONDS,
    MAX_PAUSE_OF_STOP_SECONDS,
    RemoteRunner,
    take_client_environment,
)
from gputui.runs.launch_shell import capture
from tests.tables import table

JOB = "7"
MOST_TURNS = 20

HOUR = 3600.0


def listed(state: str, ended_by: EndedBy | None = None) -> JobStatus:
    reason = None if ended_by is None else ended_by.upper()
    return JobStatus(JOB, state, reason, nodes=("n1",), ended_by=ended_by)


NODE_FAIL = listed("ended", "node_fail")
PREEMPTED = listed("ended", "preempted")


class Target:
    """A target's states, one after another, the last for ever; what it is asked to do."""

    def __init__(self, folder: Path, *states: JobStatus | None) -> None:
        self.folder = folder
        self.states = list(states)
        self.submitted: list[str] = []
        self.number: str | None = JOB
        self.cancelled: list[str] = []
        self.is_reached = True

    def now(self) -> JobStatus | None:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


class Doctored(RemoteRunner):
    def __init__(self, target: Target) -> None:
        super().__init__(target.folder)
        self.fake_target = target

    def reach(self) -> None:
        self.jobs("")

    def submit(self, token: str) -> str | None:
        self.fake_target.submitted.append(token)
        return self.fake_target.number

    def jobs(self, token: str) -> list[JobStatus]:
        if not self.fake_target.is_reached:
            raise UnreachableError("nobody answers")
        status = self.fake_target.now() if self.fake_target.submitted else None
        return [] if status is None else [status]

    def signal_job(self, job: str, *, at_once: bool) -> None:
        raise AssertionError("nobody asked for a stop")

    def cancel(self, job: str) -> None:
        self.fake_target.cancelled.append(job)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "attempts" / "1"
    folder.mkdir(parents=True)
    plan = {
        "attempt": 1, "run_id": "a-1", "argv": ["true"], "target": {"name": "lab", "kind": "slurm"},
        "output": "output.log", "grace_seconds": 5.0, "asks": {"gpus": 2, "ranks": 2},
    }  # fmt: skip
    (folder / "attempt.json").write_text(json.dumps(plan))
    return folder


def turn(runner: RemoteRunner) -> bool:
    runner.contacts.due_at = 0.0
    return runner.poll()


def end_of(runner: RemoteRunner, *, within: int = MOST_TURNS) -> dict[str, Any]:
    """exit.json, after as many turns as it takes."""
    assert any(turn(runner) for _ in range(within)), "the attempt did not end"
    return dict(json.loads((runner.folder / "exit.json").read_text()))


def unreachable(*_: object) -> None:
    raise UnreachableError("nobody answers")


def begin(runner: RemoteRunner) -> None:
    """As the body of the job does."""
    (runner.remote / "claim").write_text(JOB)
    (runner.remote / "started.json").write_text(json.dumps({"at": 1.0}))


def stop(runner: RemoteRunner, *, at_once: bool = False) -> None:
    runner.stop = {"at": time.time(), "at_once": at_once, "asked": False}


def missing(*_: object) -> None:
    raise MissingProgramError("sbatch: No such file or directory")


@pytest.mark.parametrize("word", [NODE_FAIL, None])
def test_a_job_that_is_put_into_the_queue_again_has_not_ended(folder: Path, word: JobStatus | None) -> None:
    target = Target(folder, listed("running"))
    runner = Doctored(target)
    turn(runner)
    begin(runner)
    target.states = [word, word, listed("pending"), word, word, listed("running")]
    assert not any(turn(runner) for _ in range(6))
    (runner.remote / "exit.json").write_text(json.dumps({"code": 0, "signal": None, "stop_requested": False}))
    record = end_of(runner)
    assert (record["code"], record.get("ended_by")) == (0, None)
    assert len(target.submitted) == 1
    assert target.cancelled == []


@pytest.mark.parametrize(("number", "unlisted"), [(None, 3), ("2026", 0)])
def test_a_job_whose_number_was_not_said_is_followed_and_none_is_submitted_beside_it(
    folder: Path, number: str | None, unlisted: int
) -> None:
    target = Target(folder, *[None] * unlisted, listed("running"))
    target.number = number
    runner = Doctored(target)
    while not turn(runner) and len(target.states) > 1:
        pass
    assert not turn(runner)
    assert runner.status is not None
    assert runner.status.job == JOB
    assert len(target.submitted) == 1
    assert target.cancelled == []


def test_a_contact_counts_once_all_metrics_are_here(folder: Path) -> None:
    runner = Doctored(Target(folder, listed("running")))
    turn(runner)
    first = runner.contacts.newest_at
    runner.contacts.is_behind = True
    turn(runner)
    assert first is not None
    assert runner.contacts.newest_at == first
    assert runner.contacts.due_at <= time.monotonic()
    runner.contacts.is_behind = False
    turn(runner)
    assert runner.contacts.newest_at is not None
    assert runner.contacts.newest_at > first
    assert runner.contacts.due_at > time.monotonic()
    placed = json.loads((folder / "placement.json").read_text())
    assert (placed["contact_at"], placed["poll_seconds"]) == (runner.contacts.newest_at, runner.contacts.poll_seconds)


def test_the_time_in_the_queue_is_not_the_time_that_a_job_ran() -> None:
    clock = JobClock()
    for at, state in enumerate((None, "pending", "configuring", "running", "suspended", "requeued", "running"), 1):
        clock.count(state, 10.0 * at)
    # The clock was set back since the last contact.
    clock.count("running", 0.0)
    assert (clock.queued_seconds, clock.ran_seconds) == (20.0, 30.0)


@table(
    ("ran", "recorded", "expected"),
    [
        (9 * HOUR, (HOUR,), HOUR), (HOUR, (9 * HOUR,), 9 * HOUR), (9 * HOUR, (HOUR, 2 * HOUR), 3 * HOUR),
        # None stands for the start that is still running, or for one that left no record.
        (HOUR, (None,), HOUR), (HOUR, (2 * HOUR, None), 2 * HOUR), (5 * HOUR, (None, HOUR), 5 * HOUR),
    ],
)  # fmt: skip
def test_complete_records_of_the_target_beat_the_clock(
    ran: float, recorded: tuple[float | None, ...], expected: float
) -> None:
    assert JobClock(ran_seconds=ran).corrected_by(recorded) == expected


def test_time_without_contact_counts_only_by_the_record_of_the_target(folder: Path) -> None:
    target = Target(folder, listed("running"))
    runner = Doctored(target)
    turn(runner)
    begin(runner)
    # For eight hours the target did not answer; below, no runner asked it.
    runner.clock = JobClock(ran_seconds=HOUR, counted_at=time.time() - 8 * HOUR)
    target.is_reached = False
    turn(runner)
    target.is_reached = True
    turn(runner)
    placed = json.loads((folder / "placement.json").read_text())
    assert HOUR <= placed["ran_seconds"] < 2 * HOUR
    (folder / "placement.json").write_text(json.dumps({**placed, "contact_at": time.time() - 8 * HOUR}))
    successor = Doctored(target)
    turn(successor)
    assert successor.clock.ran_seconds < 2 * HOUR
    times = {"started_at": 10.0, "ended_at": 10.0 + 5 * HOUR}
    (runner.remote / "exit.json").write_text(json.dumps({"code": 0, "signal": None, "stop_requested": False, **times}))
    end_of(successor)
    assert json.loads((folder / "placement.json").read_text())["ran_seconds"] == 5 * HOUR


def test_a_report_counts_gpus_and_at_least_the_time_that_the_starts_of_a_job_recorded(folder: Path) -> None:
    runner = Doctored(Target(folder, listed("running")))
    turn(runner)
    begin(runner)
    exits = [{"started_at": 1.0, "ended_at": 31.0}, None, {"started_at": 40.0, "ended_at": 50.0}]
    whys: list[dict[str, str]] = [{"why": remote.TIME_LIMIT}, {}, {}]
    starts = [json.dumps({"again_at": 1.0, "exit": record, **why}) for record, why in zip(exits, whys, strict=True)]
    (runner.remote / "starts.jsonl").write_text("\n".join(starts))
    turn(runner)
    placed = json.loads((folder / "placement.json").read_text())
    names = ("gpus", "restarts", "limit_restarts", "ran_seconds")
    assert [placed[name] for name in names] == [2, 3, 1, 40.0]


def test_a_stop_ends_an_attempt_that_was_never_submitted(folder: Path) -> None:
    target = Target(folder, None)
    target.is_reached = False
    runner = Doctored(target)
    assert not turn(runner)
    assert runner.contacts.problem is not None
    stop(runner)
    assert end_of(runner, within=1)["stop_requested"]
    assert not target.submitted


def test_a_missing_program_refuses_what_was_not_submitted_and_ends_nothing_that_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Doctored(Target(folder, listed("running")))
    turn(runner)
    monkeypatch.setattr(runner, "jobs", missing)
    assert not turn(runner)
    assert runner.contacts.problem is not None
    for path in runner.folder.glob("*.json"):
        if path.name != "attempt.json":
            path.unlink()
    assert "sbatch" in end_of(runner, within=1)["error"]


def test_a_stop_at_once_gives_up_a_target_that_does_not_answer(folder: Path) -> None:
    target = Target(folder, listed("running"))
    runner = Doctored(target)
    turn(runner)
    begin(runner)
    target.is_reached = False
    stop(runner)
    assert not turn(runner)
    assert runner.contacts.due_at < time.monotonic() + MAX_PAUSE_OF_STOP_SECONDS
    stop(runner, at_once=True)
    assert not turn(runner)
    assert runner.stop is not None
    assert runner.contacts.newest_at is not None
    runner.stop["at"] -= GIVE_UP_SECONDS
    runner.contacts.newest_at -= GIVE_UP_SECONDS
    record = end_of(runner, within=1)
    assert record["stop_requested"]
    assert (record["given_up"], record["job"]) == ("nobody answers", JOB)


def test_one_that_ended_well_before_its_stop_arrived_has_succeeded(folder: Path) -> None:
    runner = Doctored(Target(folder, listed("running")))
    turn(runner)
    begin(runner)
    stop(runner)
    (runner.remote / "exit.json").write_text(json.dumps({"code": 0, "signal": None, "stop_requested": False}))
    record = end_of(runner)
    assert record["code"] == 0
    assert not record["stop_requested"]


def test_a_runner_has_the_clients_variables_of_the_launching_shell_and_none_of_the_agents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = {
        "PATH": "/opt/slurm/bin",
        "SLURM_CONF": "/etc/c",
        "SLURM_JOB_ID": "3",
        "SSH_AUTH_SOCK": "/s",
        "SECRET": "x",
    }
    monkeypatch.setattr(os, "environ", {"PATH": "/bin", "SLURM_CLUSTERS": "old", "GPUTUI_RUN_ID": "a-1"})
    take_client_environment({"client_environment": capture(shell).clients})
    expected = {"PATH": "/opt/slurm/bin", "SLURM_CONF": "/etc/c", "SSH_AUTH_SOCK": "/s", "GPUTUI_RUN_ID": "a-1"}
    assert os.environ == expected


def test_one_that_has_ended_is_taken_off_the_target_before_the_attempt_is_over(folder: Path) -> None:
    target = Target(folder, listed("running"))
    runner = Doctored(target)
    turn(runner)
    begin(runner)
    target.states = [PREEMPTED]
    assert end_of(runner)["ended_by"] == PREEMPTED.ended_by
    assert target.cancelled == [JOB]
    assert (runner.remote / remote.OVER).exists()


def test_an_attempt_is_not_over_while_nobody_can_say_that_its_job_is_gone(folder: Path) -> None:
    target = Target(folder, listed("running"))
    runner = Doctored(target)
    turn(runner)
    begin(runner)
    target.states = [NODE_FAIL]
    assert not turn(runner)
    assert not turn(runner)
    target.is_reached = False
    assert not any(turn(runner) for _ in range(5))
    assert runner.contacts.problem is not None
    target.is_reached = True
    assert end_of(runner)["ended_by"] == "node_fail"


def test_one_that_ended_by_itself_is_over_whatever_is_known_of_its_job(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(folder, listed("running"))
    runner = Doctored(target)
    turn(runner)
    begin(runner)
    target.states = [None]
    monkeypatch.setattr(runner, "unlisted_status", unreachable)
    assert not any(turn(runner) for _ in range(5))
    assert runner.contacts.problem is not None
    (runner.remote / "exit.json").write_text(json.dumps({"code": 3, "signal": None, "stop_requested": False}))
    record = end_of(runner, within=1)
    assert (record["code"], record.get("ended_by")) == (3, None)


def test_a_job_that_comes_for_an_attempt_that_is_over_starts_nothing(folder: Path) -> None:
    runner = Doctored(Target(folder, listed("running")))
    turn(runner)
    begin(runner)
    runner.mark_over()
    before = sorted(path.name for path in runner.remote.iterdir())
    argv: Sequence[str] = [
        sys.executable,
        "-I",
        "-S",
        str(runner.remote / remote.PROGRAM),
        "body",
        str(runner.remote),
        JOB,
    ]
    assert subprocess.run(argv, timeout=60, check=False, capture_output=True).returncode == 0
    assert sorted(path.name for path in runner.remote.iterdir()) == before
