"""What numbers tell while a run goes on, and what must not be made of them."""

from __future__ import annotations

import math
import random

from gputui.recovery.watch.numbers import (
    MemorySample,
    NonFinite,
    Spike,
    Straggler,
    find_leak,
    gradient_spike,
    loss_spike,
)
from gputui.recovery.watch.rules import Observation
from tests.tables import table

NAN = float("nan")


def fed(spike: Spike, values: list[float]) -> list[Observation]:
    return [found for step, value in enumerate(values) if (found := spike.add(step, value)) is not None]


def noisy_loss(steps: int) -> list[float]:
    chance = random.Random(0)
    return [2.0 * math.exp(-step / 300) + 0.5 + chance.gauss(0, 0.08) for step in range(steps)]


def test_a_loss_that_stays_nan_is_found_once_with_its_first_step() -> None:
    watch = NonFinite()
    found = [watch.add(step, 1.0 if step < 7 else NAN) for step in range(30)]
    assert [one.since for one in found if one] == [7]


def test_a_loss_that_jumps_and_stays_is_found_where_it_began() -> None:
    found = fed(loss_spike(), noisy_loss(500) + [6.0] * 100)
    assert [(one.kind, one.since) for one in found] == [("loss_spike", 500)]


def test_a_jump_that_ends_and_a_noisy_course_are_not() -> None:
    assert fed(loss_spike(), noisy_loss(500) + [6.0] * 20 + noisy_loss(200)) == []
    assert fed(loss_spike(), [1.0] * 300 + [1.6] * 300) == []
    assert fed(loss_spike(), [0.0] * 300) == []


def test_gradients_that_grow_tenfold_and_stay_are_found() -> None:
    assert [one.since for one in fed(gradient_spike(), [1.0, 1.2, 0.8] * 100 + [40.0] * 20)] == [300]
    assert fed(gradient_spike(), [1.0, 1.2, 0.8] * 100 + [NAN] * 20 + [4.0] * 50) == []


def straggle(own: dict[int, float], windows: int, *, step_time: float = 1.0) -> list[Observation]:
    watch = Straggler()
    found = []
    for step in range(windows):
        for rank, seconds in own.items():
            values = {"step_time": step_time, "comm_time": step_time - seconds}
            if (one := watch.add(rank, step, values, len(own))) is not None:
                found.append(one)
    return found


def test_a_rank_that_is_slow_for_some_windows_is_found_once() -> None:
    assert [(one.kind, one.rank) for one in straggle({0: 0.5, 1: 0.9, 2: 0.5}, 40)] == [("straggler", 1)]
    assert straggle({0: 0.5, 1: 0.9}, 2) == []
    assert straggle({0: 0.5, 1: 0.6}, 400) == []
    assert straggle({0: 0.5}, 10) == []


def test_a_learning_rate_that_starts_anew_brings_the_loss_back_to_where_it_was() -> None:
    """Cosine annealing with restarts: ten times the loss for hundreds of lines, and no more than at the beginning."""
    chance = random.Random(0)
    course = [
        (0.02 + 0.5 * math.exp(-4.0 * (step % 1000) / 1000)) * math.exp(chance.gauss(0, 0.3)) for step in range(5000)
    ]
    assert fed(loss_spike(), course) == []
    assert [one.since for one in fed(loss_spike(), course + [3.0] * 40)] == [5000]


def samples(grow: list[int], *, seconds: float = 60.0, left: int = 8 << 30) -> list[MemorySample]:
    """Memory each so many seconds; what is held is no longer available."""
    return [MemorySample(index * seconds, held, left - held) for index, held in enumerate(grow)]


def growing(minutes: int, *, left: int) -> list[MemorySample]:
    return samples([(1 << 30) + (20 << 20) * index for index in range(minutes)], left=left)


def test_memory_that_grows_evenly_is_told_with_the_time_it_is_full() -> None:
    leak = find_leak(growing(40, left=9 << 28))
    assert leak is not None
    assert leak.bytes_per_second == (20 << 20) / 60
    assert 24 * 60 < leak.full_in_seconds < 26 * 60


def test_a_leak_that_begins_late_is_found() -> None:
    calm = [1 << 30] * 200
    leaks = [(1 << 30) + (50 << 20) * index for index in range(130)]
    assert find_leak(samples(calm + leaks)) is not None
    assert find_leak(samples(calm + leaks[:40])) is None


@table(
    "held",
    [
        [(10 << 30) - (9 << 30) // (1 + index) for index in range(100)],  # warm-up that levels off
        [(2 << 30) + (200 << 20) * (index % 20) for index in range(400)],  # caches emptied each epoch
        [1 << 30] * 50 + [6 << 30] * 50,  # pinned memory taken once
        [min(12 << 30, (600 << 20) * index) for index in range(60)],  # data read into memory
        [(4 << 30) + ((index * 7919) % 512 << 20) for index in range(300)],  # noise
        [(8 << 30) - (20 << 20) * index for index in range(100)],  # memory given back
    ],
)
def test_what_only_looks_like_a_leak(held: list[int]) -> None:
    """At every moment of the course, with little left."""
    course = samples(held, seconds=30.0, left=max(held) + (64 << 20))
    assert not [count for count in range(len(course)) if find_leak(course[:count]) is not None]
