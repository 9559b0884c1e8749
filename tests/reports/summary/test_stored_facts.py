"""Which runs a report compares with those that it is of."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest

from gputui.config import Workspace
from gputui.reports.summary.stored_facts import siblings
from gputui.store.runs import get_run
from tests.tui.filling import NOW, Filler


@pytest.fixture
def filler(workspace: Workspace) -> Iterator[Filler]:
    made = Filler(workspace)
    made.gpus(4)
    yield made
    made.close()


def add(filler: Filler, run_id: str, gpus: int, speed: float | None, processes: int = 1) -> None:
    """A run that is over; without a speed it crashed before its first step."""
    state = "failed" if speed is None else "succeeded"
    held = tuple(range(gpus))
    filler.run(run_id, state, name="net", gpus=held, params={"lr": 0.1}, ended_ago=100.0)
    filler.attempt(run_id, 1, state, gpus=held, ended_ago=100.0)
    if not gpus:
        (text,) = filler.connection.execute("SELECT spec FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        spec = json.dumps({**json.loads(text), "nproc": processes})
        filler.connection.execute("UPDATE runs SET spec = ? WHERE run_id = ?", (spec, run_id))
    if speed is not None:
        line = {"step": 0, "time": NOW - 900, "rank": 0, "step_time": 0.5, "samples_per_s": speed}
        filler.metrics(run_id, 1, [line])


def compared_with(filler: Filler, run_id: str, limit: int = 8) -> list[str]:
    run = get_run(filler.connection, run_id)
    assert run is not None
    return [other.run_id for other in siblings(filler.connection, [run], limit)]


@pytest.mark.parametrize("speed", [None, 0.0, math.nan])
def test_a_run_without_a_speed_hides_no_older_one(filler: Filler, speed: float | None) -> None:
    add(filler, "good-4", 4, 400.0)
    add(filler, "older-2", 2, 200.0)
    add(filler, "newer-2", 2, 210.0)
    add(filler, "bad-4", 4, speed)
    add(filler, "one", 1, 100.0)
    assert compared_with(filler, "one") == ["newer-2", "good-4"]
    assert compared_with(filler, "one", limit=1) == ["newer-2"]
    assert compared_with(filler, "bad-4") == ["one", "newer-2", "good-4"]


def test_runs_on_processes_are_compared_with_runs_on_processes(filler: Filler) -> None:
    add(filler, "gpu", 1, 1000.0)
    add(filler, "two", 0, 20.0, processes=2)
    add(filler, "one", 0, 10.0, processes=1)
    assert compared_with(filler, "one") == ["two"]
    assert compared_with(filler, "gpu") == []
