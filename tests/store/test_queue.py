"""The order of the queue, and moves in it."""

from __future__ import annotations

import itertools
import random

from gputui.store.queue import QueueEntry, moved


def entry(run_id: str, priority: int, waited_since: float, sequence: int = 0) -> QueueEntry:
    return QueueEntry(0, run_id, priority, waited_since, None, sequence)


def served(entries: list[QueueEntry], priorities: dict[str, int] | None = None) -> list[str]:
    """As the store orders them."""
    given = priorities or {}
    return [
        each.run_id
        for each in sorted(entries, key=lambda e: (-given.get(e.run_id, e.priority), e.queued_at or 0.0, e.sequence))
    ]


def test_one_place_among_equals_is_one_place() -> None:
    waiting = [entry("a", 0, 1.0), entry("b", 0, 2.0), entry("c", 0, 3.0)]
    assert moved(waiting, "c", -1) == {"a": 1, "c": 1}
    assert served(waiting, moved(waiting, "c", -1)) == ["a", "c", "b"]
    assert served(waiting, moved(waiting, "a", 1)) == ["b", "a", "c"]
    assert moved(waiting, "a", -1) == {} == moved(waiting, "c", 1)


def test_any_move_leads_to_the_wanted_order_and_nobody_falls() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        entries = [entry(f"r{n}", chance.randint(-2, 2), float(chance.randint(0, 3)), n) for n in range(6)]
        order = served(entries)
        waiting = [next(each for each in entries if each.run_id == run_id) for run_id in order]
        for place, by in itertools.product(range(6), (-1, 1)):
            wanted = list(order)
            run_id = wanted.pop(place)
            wanted.insert(max(0, place + by), run_id)
            raised = moved(waiting, run_id, by)
            assert served(waiting, raised) == wanted
            assert all(raised[each.run_id] > each.priority for each in waiting if each.run_id in raised)
