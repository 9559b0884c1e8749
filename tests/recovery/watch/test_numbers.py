"""Findings from the numbers of a running run, and lookalikes."""

from __future__ import annotations

import math
import random

from gputui.recovery.watch.leaks import MemorySample, find_leak
from gputui.recovery.watch.numbers import NonFinite, Spike, Straggler, gradient_spike, loss_spike
from tests.tables import table

NAN = float("nan")
CHANCE = random.Random(0)
NOISY = [2.0 * math.exp(-step / 300) + 0.5 + CHANCE.gauss(0, 0.08) for step in range(500)]
# Cosine annealing with restarts: ten times the loss for hundreds of lines, and no more than at the beginning.
RESTARTS = [
    (0.02 + 0.5 * math.exp(-4.0 * (step % 1000) / 1000)) * math.exp(CHANCE.gauss(0, 0.3)) for step in range(5000)
]
NORMS = [1.0, 1.2, 0.8] * 100


def samples(used: list[int], *, seconds: float = 60.0, available: int = 8 << 30) -> list[MemorySample]:
    """Memory each so many seconds; what is held is no longer available."""
    return [MemorySample(index * seconds, size, available - size) for index, size in enumerate(used)]


@table("make, values, since", [
    # A loss that stays NaN or that jumps and stays is found once, with its first step.
    (NonFinite, [1.0] * 7 + [NAN] * 23, [7]), (NonFinite, [NAN] * 4 + [1.0] + [math.inf] * 4 + [1.0], []),
    (loss_spike, NOISY + [6.0] * 100, [500]), (loss_spike, RESTARTS + [3.0] * 40, [5000]),
    (loss_spike, NOISY + [6.0] * 20 + NOISY[:200], []), (loss_spike, [1.0] * 300 + [1.6] * 300, []),
    (loss_spike, [0.0] * 300, []), (loss_spike, RESTARTS, []),
    (gradient_spike, NORMS + [40.0] * 20, [300]), (gradient_spike, NORMS + [NAN] * 20 + [4.0] * 50, []),
])  # fmt: skip
def test_a_loss_and_its_gradients(make: type[NonFinite] | type[Spike], values: list[float], since: list[int]) -> None:
    detector = make()  # type: ignore[call-arg]
    spans = [span for step, value in enumerate(values) if (span := detector.add(step, value)) is not None]
    assert [stretch.since for stretch in spans] == since


@table("nulls, numbers, since", [(49, 0, None), (50, 0, 0), (45, 5, 0), (9, 1, None)])
def test_nulls_that_stand_for_nan_are_certain_later(nulls: int, numbers: int, since: int | None) -> None:
    """A logger may have begun to measure the loss less often."""
    detector = NonFinite()
    flags = [True] * nulls + [False] * numbers
    spans = [span for step, flag in enumerate(flags) if (span := detector.add(step, NAN, is_null=flag)) is not None]
    expected = [] if since is None else [since]
    assert [span.since for span in spans] == expected


@table("step_seconds, windows, slow", [
    ({0: 0.5, 1: 0.9, 2: 0.5}, 40, [1]), ({0: 0.5, 1: 0.9}, 2, []), ({0: 0.5, 1: 0.6}, 400, []), ({0: 0.5}, 10, []),
])  # fmt: skip
def test_a_rank_that_is_slow_for_some_windows_is_found_once(
    step_seconds: dict[int, float], windows: int, slow: list[int]
) -> None:
    detector = Straggler()
    ranks = [
        detector.add(rank, step, {"step_time": 1.0, "comm_time": 1.0 - seconds}, len(step_seconds))
        for step in range(windows)
        for rank, seconds in step_seconds.items()
    ]
    assert [slow_rank.rank for slow_rank in ranks if slow_rank is not None] == slow


def test_memory_that_grows_evenly_is_told_with_the_time_it_is_full() -> None:
    leak = find_leak(samples([(1 << 30) + (20 << 20) * index for index in range(40)], available=9 << 28))
    assert leak is not None
    assert leak.bytes_per_second == (20 << 20) / 60
    assert 24 * 60 < leak.full_in_seconds < 26 * 60


@table("minutes, is_found", [(130, True), (40, False)])
def test_a_leak_that_begins_late_is_found(minutes: int, is_found: bool) -> None:
    used = [1 << 30] * 200 + [(1 << 30) + (50 << 20) * index for index in range(minutes)]
    assert (find_leak(samples(used)) is not None) is is_found


@table("used", [
    [(10 << 30) - (9 << 30) // (1 + index) for index in range(100)],  # warm-up that levels off
    [(2 << 30) + (200 << 20) * (index % 20) for index in range(400)],  # caches emptied each epoch
    [1 << 30] * 50 + [6 << 30] * 50,  # pinned memory taken once
    [min(12 << 30, (600 << 20) * index) for index in range(60)],  # data read into memory
    [(4 << 30) + ((index * 7919) % 512 << 20) for index in range(300)],  # noise
    [(8 << 30) - (20 << 20) * index for index in range(100)],  # memory given back
])  # fmt: skip
def test_what_only_looks_like_a_leak(used: list[int]) -> None:
    """At every moment of the history, with little left."""
    history = samples(used, seconds=30.0, available=max(used) + (64 << 20))
    assert not [count for count in range(len(history)) if find_leak(history[:count]) is not None]
