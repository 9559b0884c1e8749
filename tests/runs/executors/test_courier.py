"""A courier whose target says what the test wants: when the end of a job is that of its attempt; no second one runs."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gputui.runs.executors import far
from gputui.runs.executors.courier import Courier, EndedBy, JobStatus, UnreachableError

JOB = "7"
MOST_TURNS = 20


def listed(state: str, ended_by: EndedBy | None = None) -> JobStatus:
    return JobStatus(JOB, state, None if ended_by is None else ended_by.upper(), nodes=("n1",), ended_by=ended_by)


NODE_FAIL, PREEMPTED = listed("ended", "node_fail"), listed("ended", "preempted")


class Target:
    """What the target says, one state after another, the last for ever; what it is asked to do."""

    def __init__(self, folder: Path, *states: JobStatus | None) -> None:
        self.folder, self.states = folder, list(states)
        self.submitted: list[str] = []
        self.cancelled: list[str] = []
        self.is_reached = True
        # What the job becomes once it is cancelled; nothing changes where it is none.
        self.after_cancel: list[JobStatus | None] = []

    def now(self) -> JobStatus | None:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def cancel(self, job: str) -> None:
        self.cancelled.append(job)
        if self.after_cancel:
            self.states, self.after_cancel = self.after_cancel, []


class Doctored(Courier):
    def __init__(self, target: Target) -> None:
        super().__init__(target.folder)
        self.there = target

    def submit(self, token: str) -> str:
        self.there.submitted.append(token)
        return JOB

    def jobs(self, token: str) -> list[JobStatus]:
        if not self.there.is_reached:
            raise UnreachableError("nobody answers")
        found = self.there.now() if self.there.submitted else None
        return [] if found is None else [found]

    def forgotten(self, job: str) -> JobStatus | None:
        return None

    def signal_job(self, job: str, *, at_once: bool) -> None:
        raise AssertionError("nobody asked for a stop")

    def cancel(self, job: str) -> None:
        self.there.cancel(job)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "attempts" / "1"
    made.mkdir(parents=True)
    plan = {
        "attempt": 1,
        "run_id": "a-1",
        "argv": ["true"],
        "target": {"name": "lab", "kind": "slurm"},
        "output": "output.log",
    }
    (made / "attempt.json").write_text(json.dumps({**plan, "grace_seconds": 5.0}))
    return made


def turn(courier: Courier) -> bool:
    courier.due = 0.0
    return courier.turn()


def end_of(courier: Courier, *, within: int = MOST_TURNS) -> dict[str, Any]:
    """exit.json, after as many turns as it takes."""
    assert any(turn(courier) for _ in range(within)), "the attempt did not end"
    return ended(courier.folder)


def ended(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "exit.json").read_text())
    assert isinstance(found, dict)
    return found


def begin(courier: Courier) -> None:
    """As the body of the job does."""
    (courier.far / "claim").write_text(JOB)
    (courier.far / "started.json").write_text(json.dumps({"at": 1.0}))


@pytest.mark.parametrize("word", [NODE_FAIL, PREEMPTED, None])
def test_a_job_that_is_put_into_the_queue_again_has_not_ended(folder: Path, word: JobStatus | None) -> None:
    there = Target(folder, listed("running"))
    courier = Doctored(there)
    turn(courier)
    begin(courier)
    there.states = [word, word, listed("pending"), word, word, listed("running")]
    assert not any(turn(courier) for _ in range(6))
    (courier.far / "exit.json").write_text(json.dumps({"code": 0, "signal": None, "stop_requested": False}))
    record = end_of(courier)
    assert (record["code"], record.get("ended_by")) == (0, None)
    assert len(there.submitted) == 1 and there.cancelled == []


@pytest.mark.parametrize("word", [NODE_FAIL, PREEMPTED])
def test_one_that_has_ended_is_taken_off_the_target_before_the_attempt_is_over(folder: Path, word: JobStatus) -> None:
    there = Target(folder, listed("running"))
    courier = Doctored(there)
    turn(courier)
    begin(courier)
    there.states = [word]
    assert end_of(courier)["ended_by"] == word.ended_by
    assert there.cancelled == [JOB] and (courier.far / far.OVER).exists()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_one_that_comes_back_at_the_last_moment_is_gone_before_the_attempt_is_over(
    folder: Path, is_replaced: bool
) -> None:
    there = Target(folder, listed("running"))
    courier = Doctored(there)
    turn(courier)
    begin(courier)
    there.states = [NODE_FAIL]
    there.after_cancel = [listed("running"), listed("running"), listed("ending"), listed("ended", "cancelled")]
    while not there.cancelled:
        assert not turn(courier)
    assert not (folder / "exit.json").exists()
    if is_replaced:
        courier = Doctored(there)
    # The cancellation was gputui's own: a person ended nothing.
    assert end_of(courier)["ended_by"] == "node_fail"
    assert there.now() == listed("ended", "cancelled") and len(there.submitted) == 1


def test_an_attempt_is_not_over_while_nobody_can_say_that_its_job_is_gone(folder: Path) -> None:
    there = Target(folder, listed("running"))
    courier = Doctored(there)
    turn(courier)
    begin(courier)
    there.states = [NODE_FAIL]
    assert not turn(courier) and not turn(courier)
    there.is_reached = False
    assert not any(turn(courier) for _ in range(5)) and courier.problem is not None
    there.is_reached = True
    assert end_of(courier)["ended_by"] == "node_fail"


def test_what_ended_by_itself_after_all_counts(folder: Path) -> None:
    """The job comes back, and its command ends before it is taken off."""
    there = Target(folder, listed("running"))
    courier = Doctored(there)
    turn(courier)
    begin(courier)
    there.states, there.after_cancel = [NODE_FAIL], [listed("running")]
    while not there.cancelled:
        assert not turn(courier)
    (courier.far / "exit.json").write_text(json.dumps({"code": 0, "signal": None, "stop_requested": False}))
    record = end_of(courier)
    assert (record["code"], record.get("ended_by")) == (0, None)


def test_a_job_that_comes_for_an_attempt_that_is_over_starts_nothing(folder: Path) -> None:
    courier = Doctored(Target(folder, listed("running")))
    turn(courier)
    begin(courier)
    courier.mark_over()
    before = sorted(path.name for path in courier.far.iterdir())
    argv: Sequence[str] = [sys.executable, "-I", "-S", str(courier.far / "far.py"), "body", str(courier.far), JOB]
    assert subprocess.run(argv, timeout=60, check=False, capture_output=True).returncode == 0
    assert sorted(path.name for path in courier.far.iterdir()) == before


def test_a_second_courier_of_an_attempt_does_nothing(folder: Path) -> None:
    there = Target(folder, listed("running"))
    with (folder / "attempt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        Doctored(there).run()
    assert there.submitted == [] and not (folder / "started.json").exists()


def test_a_full_disk_is_reported_and_waited_for(folder: Path) -> None:
    class Full(Doctored):
        has_room = False

        def send(self) -> None:
            if not self.has_room:
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(self.far))
            super().send()

    there = Target(folder, listed("running"))
    courier = Full(there)
    assert not turn(courier) and not turn(courier)
    assert os.strerror(errno.EDQUOT) in str(courier.problem) and there.submitted == []
    placed = json.loads((folder / "placement.json").read_text())
    assert placed["problem"] == courier.problem
    courier.has_room = True
    assert not turn(courier) and courier.problem is None and len(there.submitted) == 1
