"""Slow work is done beside the loop, a bounded number at once, and what hangs is given up."""

from __future__ import annotations

import threading

import pytest

from gputui.agent.jobs import JobKey, Jobs, JobTimeoutError, Purpose
from tests.conftest import wait_until


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_job_has_the_value_or_the_error_of_its_work_and_wakes_the_loop() -> None:
    woken = threading.Semaphore(0)
    all_jobs = Jobs(lambda: woken.release(), Clock())
    good = all_jobs.start("good", lambda: 7, deadline_seconds=10.0)
    bad = all_jobs.start("bad", lambda: 1 // 0, deadline_seconds=10.0)
    assert woken.acquire(timeout=60.0)
    assert woken.acquire(timeout=60.0)
    assert good.is_over
    assert good.result() == 7
    assert bad.is_over
    with pytest.raises(ZeroDivisionError):
        bad.result()
    assert not all_jobs.is_busy


def test_a_job_that_hangs_fails_at_its_deadline_and_holds_up_no_other() -> None:
    clock = Clock()
    hang = threading.Event()
    all_jobs = Jobs(lambda: None, clock, at_once=1)
    stuck = all_jobs.start("stuck", hang.wait, deadline_seconds=5.0)
    behind = all_jobs.start("behind", lambda: "done", deadline_seconds=5.0)
    assert not stuck.is_over
    assert behind.begun_at is None
    with pytest.raises(RuntimeError):
        stuck.result()
    clock.now = 5.1
    assert stuck.is_over
    with pytest.raises(JobTimeoutError, match="stuck"):
        stuck.result()
    wait_until(lambda: behind.is_over)
    assert behind.result() == "done"
    hang.set()
    wait_until(lambda: threading.active_count() == 1 or not all_jobs.is_busy)
    with pytest.raises(JobTimeoutError):
        stuck.result()


def test_an_urgent_job_waits_for_no_other() -> None:
    hang = threading.Event()
    all_jobs = Jobs(lambda: None, Clock(), at_once=1)
    all_jobs.start("stuck", hang.wait, deadline_seconds=5.0)
    behind = all_jobs.start("behind", lambda: "done", deadline_seconds=5.0)
    urgent = all_jobs.start("urgent", lambda: "done", deadline_seconds=5.0, is_urgent=True)
    wait_until(lambda: urgent.is_over)
    assert urgent.result() == "done"
    assert behind.begun_at is None
    assert all_jobs.running() == ["stuck"]
    hang.set()
    wait_until(lambda: behind.is_over)


def test_an_answer_is_taken_by_who_asked_for_it_alone() -> None:
    all_jobs = Jobs(lambda: None, Clock())
    first, second = (JobKey(Purpose.NEWEST_LINES, "a-1", number) for number in (1, 2))
    assert all_jobs.ask(first, lambda: "of attempt 1", deadline_seconds=5.0) is None
    wait_until(lambda: not all_jobs.is_busy)
    assert all_jobs.ask(second, lambda: "of attempt 2", deadline_seconds=5.0) is None
    wait_until(lambda: not all_jobs.is_busy)
    job = all_jobs.ask(second, lambda: "asked twice", deadline_seconds=5.0)
    assert job is not None
    assert job.result() == "of attempt 2"


def test_the_answers_for_an_attempt_that_is_over_are_dropped() -> None:
    all_jobs = Jobs(lambda: None, Clock())
    keys = [JobKey(Purpose.NEWEST_LINES, run, number) for run, number in (("a-1", 1), ("a-1", 2), ("a-11", 1))]
    for key in keys:
        all_jobs.ask(key, lambda: "old", deadline_seconds=5.0)
    wait_until(lambda: not all_jobs.is_busy)
    all_jobs.drop("a-1", 1)
    answers = [all_jobs.ask(key, lambda: "new", deadline_seconds=5.0) for key in keys]
    assert [answer is None for answer in answers] == [True, False, False]
