"""States of runs, the order of the queue, and leases of GPUs."""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from gputui.core.config import Workspace
from gputui.runs import repository
from gputui.runs.repository import transaction
from gputui.store.hardware import read_gpus
from gputui.store.queue import QueueEntry, priorities_to_move
from gputui.store.run_states import MOVES, ForbiddenMoveError, RunState, check_move
from tests.homes import open_store

NOW = 1_790_000_000.0
UUID = "GPU-0"


def entry(run_id: str, priority: int, waited_since: float, sequence: int = 0) -> QueueEntry:
    return QueueEntry(0, run_id, priority, queued_at=waited_since, waiting_for=None, sequence=sequence)


def queue_order(entries: list[QueueEntry], priorities: dict[str, int] | None = None) -> list[str]:
    """Order entries as the store does; returns the ids of their runs."""
    changed = priorities or {}
    return [
        entry.run_id
        for entry in sorted(entries, key=lambda e: (-changed.get(e.run_id, e.priority), e.queued_at or 0.0, e.sequence))
    ]


@pytest.fixture
def store(workspace: Workspace) -> Iterator[sqlite3.Connection]:
    """Runs a and b of study s, c of another, x and y of none."""
    with closing(open_store(workspace.database)) as connection:
        for number, (name, study) in enumerate([("a", "s"), ("b", "s"), ("c", "t"), ("x", None), ("y", None)]):
            connection.execute(
                "INSERT INTO runs (run_id, sequence, name, profile, state, attempt, spec, params, created_at, "
                "study_id) VALUES (?, ?, ?, 'p', 'running', 1, '{}', '{}', ?, ?)",
                (name, number, f"name of {name}", NOW, study),
            )
        yield connection


def lease(store: sqlite3.Connection, run_id: str, share: float = 1.0) -> bool:
    """Return whether the run got the UUID."""
    try:
        with transaction(store):
            repository.take_leases(store, run_id, [UUID], NOW, share=share)
    except sqlite3.IntegrityError:
        return False
    return True


# --- states and the queue


def test_every_state_has_its_moves_and_every_move_its_state() -> None:
    assert set(MOVES) == set(RunState)
    assert set().union(*MOVES.values()) == set(RunState) - {RunState.UNKNOWN}


def test_forbidden_moves_are_refused() -> None:
    with pytest.raises(ForbiddenMoveError, match="from queued to running"):
        check_move(RunState.QUEUED, RunState.RUNNING)
    check_move(RunState.RUNNING, RunState.RECOVERING)


def test_any_move_leads_to_the_wanted_order_and_nobody_falls() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        entries = [entry(f"r{n}", chance.randint(-2, 2), float(chance.randint(0, 3)), n) for n in range(6)]
        order = queue_order(entries)
        waiting = [next(entry for entry in entries if entry.run_id == run_id) for run_id in order]
        for place, by in itertools.product(range(6), (-1, 1)):
            expected = list(order)
            run_id = expected.pop(place)
            expected.insert(max(0, place + by), run_id)
            raised = priorities_to_move(waiting, run_id, by)
            assert queue_order(waiting, raised) == expected
            assert all(raised[entry.run_id] > entry.priority for entry in waiting if entry.run_id in raised)


# --- leases that several runs share


def test_only_trials_of_one_study_share_a_gpu(store: sqlite3.Connection) -> None:
    assert lease(store, "a", 0.25)
    assert lease(store, "b", 0.25)
    assert repository.leases(store) == {UUID: (("a", "b"), "s", {"a": 0.25, "b": 0.25})}
    refused = [lease(store, name, share) for name in ("c", "x") for share in (0.25, 1.0)]
    assert refused == [False] * 4
    assert not lease(store, "b"), "nobody has it alone while another is there"
    repository.end_lease(store, "a", UUID)
    assert lease(store, "b")
    assert not lease(store, "a", 0.25)
    assert repository.leases(store) == {UUID: (("b",), None, {})}


def test_runs_of_no_study_share_up_to_the_whole_gpu(store: sqlite3.Connection) -> None:
    assert lease(store, "x", 0.6)
    assert not lease(store, "y", 0.5)
    assert not lease(store, "y")
    assert not lease(store, "a", 0.25)
    assert lease(store, "x", 0.5), "its own again"
    assert lease(store, "y", 0.5)
    assert repository.leases(store) == {UUID: (("x", "y"), "", {"x": 0.5, "y": 0.5})}


def test_a_shared_gpu_is_listed_once_with_all_its_runs(store: sqlite3.Connection) -> None:
    processes = [{"pid": 7, "run_id": "b", "rank": 3}, {"pid": 8, "run_id": "a", "rank": 1}]
    store.execute(
        "INSERT INTO gpus (uuid, position, name, facts, first_seen_at, last_seen_at, processes, present) "
        "VALUES (?, 0, 'H', '{}', ?, ?, ?, 1)",
        (UUID, time.time(), time.time(), json.dumps(processes)),
    )
    assert [(gpu.run_ids, gpu.rank) for gpu in read_gpus(store, time.time())] == [((), None)]
    assert lease(store, "a", 0.5)
    assert lease(store, "b", 0.5)
    (gpu,) = read_gpus(store, time.time())
    assert (gpu.run_id, gpu.run_name, gpu.rank) == ("a", "name of a", 1)
    assert gpu.shared_with == (("b", "name of b"),)
    assert gpu.run_ids == ("a", "b")
