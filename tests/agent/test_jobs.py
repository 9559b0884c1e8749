"""Slow work is done beside the loop, a bounded number at once, and what hangs is given up."""

from __future__ import annotations

import threading

import pytest

from gputui.agent.jobs import Jobs, JobTimeoutError
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
    assert woken.acquire(timeout=60.0) and woken.acquire(timeout=60.0)
    assert good.is_over and good.result() == 7
    assert bad.is_over
    with pytest.raises(ZeroDivisionError):
        bad.result()
    assert not all_jobs.is_busy


def test_a_job_that_hangs_fails_at_its_deadline_and_holds_up_no_other() -> None:
    clock, hang = Clock(), threading.Event()
    all_jobs = Jobs(lambda: None, clock, at_once=1)
    stuck = all_jobs.start("stuck", hang.wait, deadline_seconds=5.0)
    behind = all_jobs.start("behind", lambda: "done", deadline_seconds=5.0)
    assert not stuck.is_over and behind.begun_at is None
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
