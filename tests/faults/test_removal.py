"""A run of many lines is removed on a disk that is nearly full, while another trains on it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.homes import add_many_lines, add_source
from tests.machines import Machine, on_small_disk

LINES = 150_000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Machine]:
    """A machine whose home lies on a file system of 128 MiB."""
    with on_small_disk(tmp_path / "small", "128m") as machine:
        yield machine


def free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


@pytest.mark.long
def test_a_long_run_is_removed_beside_one_that_trains(small: Machine) -> None:
    profile = small.profile()
    small.gputui("run", profile, "--set", "steps=12", "--wait")
    small.gputui("agent", "stop")
    with closing(sqlite3.connect(small.workspace.database)) as connection, connection:
        source = add_source(connection, "steps-1", "more.jsonl")
        add_many_lines(connection, source, LINES, filling=70)
    small.gputui("run", profile, "--set", "steps=100000")
    wait_until(lambda: len(small.steps("steps-2")) > 5, what="some steps")
    with (small.folder / "ballast").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free_bytes(small.folder) - (12 << 20))
    asked_at = time.monotonic()
    small.gputui("rm", "steps-1")
    # The command does not wait for the deletion, which takes many times as long.
    assert time.monotonic() - asked_at < 15
    assert small.rows("SELECT run_id FROM runs") == [("steps-2",)]
    least = free_bytes(small.folder)
    step_count = len(small.steps("steps-2"))

    def is_gone() -> bool:
        nonlocal least
        least = min(least, free_bytes(small.folder))
        return small.rows("SELECT count(*) FROM metric_sources") == [(1,)]

    wait_until(is_gone, timeout_seconds=180, what="the end of the lines")
    assert least > 1 << 20
    wait_until(lambda: len(small.steps("steps-2")) > step_count, what="more steps")
    assert small.state("steps-2") == "running"
    assert not (small.workspace.run_dir("steps-1")).exists()
    ((gap,),) = small.rows("SELECT max(heartbeat_at) - ? FROM agent", time.time())
    assert abs(gap) < 10
