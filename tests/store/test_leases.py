"""Leases: one run has a GPU, or several trials of one study do."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from gputui.core.config import Workspace
from gputui.runs import repository
from gputui.runs.repository import transaction
from gputui.store.hardware import read_gpus
from tests.stores import open_store

NOW = 1_790_000_000.0
GPU = "GPU-0"


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


def lease(store: sqlite3.Connection, run_id: str, *, shared: bool) -> bool:
    """Whether the run got the GPU."""
    try:
        with transaction(store):
            repository.take_leases(store, run_id, [GPU], NOW, shared=shared)
    except sqlite3.IntegrityError:
        return False
    return True


def test_only_trials_of_one_study_share_a_gpu(store: sqlite3.Connection) -> None:
    assert lease(store, "a", shared=True) and lease(store, "b", shared=True)
    assert repository.leases(store) == {GPU: (("a", "b"), "s")}
    refused = [lease(store, name, shared=shared) for name in ("c", "x") for shared in (True, False)]
    assert refused == [False] * 4
    assert not lease(store, "b", shared=False), "nobody has it alone while another is there"
    repository.end_lease(store, "a", GPU)
    assert lease(store, "b", shared=False) and not lease(store, "a", shared=True)
    assert repository.leases(store) == {GPU: (("b",), None)}


def test_runs_of_no_study_never_share(store: sqlite3.Connection) -> None:
    assert lease(store, "x", shared=True)
    assert not lease(store, "y", shared=True)
    assert lease(store, "x", shared=True), "its own again"


def test_a_shared_gpu_is_listed_once_with_all_its_runs(store: sqlite3.Connection) -> None:
    processes = [{"pid": 7, "run_id": "b", "rank": 3}, {"pid": 8, "run_id": "a", "rank": 1}]
    store.execute(
        "INSERT INTO gpus (uuid, position, name, facts, first_seen_at, last_seen_at, processes, present) "
        "VALUES (?, 0, 'H', '{}', ?, ?, ?, 1)",
        (GPU, time.time(), time.time(), json.dumps(processes)),
    )
    assert [(gpu.run_ids, gpu.rank) for gpu in read_gpus(store, time.time())] == [((), None)]
    assert lease(store, "a", shared=True) and lease(store, "b", shared=True)
    (gpu,) = read_gpus(store, time.time())
    assert (gpu.run_id, gpu.run_name, gpu.rank) == ("a", "name of a", 1)
    assert gpu.shared_with == (("b", "name of b"),) and gpu.run_ids == ("a", "b")
