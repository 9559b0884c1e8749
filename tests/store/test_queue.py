"""States of runs and their moves, and the order of the queue."""

from __future__ import annotations

import itertools
import random

import pytest

from gputui.store.queue import QueueEntry, priorities_to_move
from gputui.store.run_states import MOVES, ForbiddenMoveError, RunState, check_move


def entry(run_id: str, priority: int, waited_since: float, sequence: int = 0) -> QueueEntry:
    return QueueEntry(0, run_id, priority, waited_since, None, sequence)


def served(entries: list[QueueEntry], priorities: dict[str, int] | None = None) -> list[str]:
    """As the store orders them."""
    changed = priorities or {}
    return [
        entry.run_id
        for entry in sorted(entries, key=lambda e: (-changed.get(e.run_id, e.priority), e.queued_at or 0.0, e.sequence))
    ]


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
        order = served(entries)
        waiting = [next(entry for entry in entries if entry.run_id == run_id) for run_id in order]
        for place, by in itertools.product(range(6), (-1, 1)):
            expected = list(order)
            run_id = expected.pop(place)
            expected.insert(max(0, place + by), run_id)
            raised = priorities_to_move(waiting, run_id, by)
            assert served(waiting, raised) == expected
            assert all(raised[entry.run_id] > entry.priority for entry in waiting if entry.run_id in raised)
