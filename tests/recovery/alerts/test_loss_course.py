"""A noisy loss: what falls slowly is no plateau, and a plateau's luck is no improvement."""

from __future__ import annotations

import random
from collections.abc import Callable

from gputui.recovery.alerts.loss_course import LossCourse
from tests.tables import table

PATIENCE = 1000.0


def stretches(
    loss: Callable[[int], float], steps: int, noise: float, seed: int, every: int = 1
) -> list[tuple[int, int]]:
    """(from, until) of the stretches in which it would be said that nothing becomes better."""
    chance, course = random.Random(seed), LossCourse()
    found: list[tuple[int, int]] = []
    begin: int | None = None
    for step in range(0, steps, every):
        course.add(loss(step) + chance.gauss(0.0, noise), step, None, PATIENCE)
        told = course.stagnation(step, None, PATIENCE)
        is_stuck = told is not None and (told.steps or 0) > PATIENCE
        if is_stuck and begin is None:
            begin = step
        if not is_stuck and begin is not None:
            found.append((begin, step))
            begin = None
    return [*found, (begin, steps)] if begin is not None else found


@table("noise", [0.0, 0.01, 0.1, 1.0])
def test_a_plateau_is_told_and_stays_told(noise: float) -> None:
    found = [stretches(lambda _: 2.0, 20_000, noise, seed, every=5) for seed in range(4)]
    assert all(one and one[0][0] <= 4000 for one in found), "within four times the patience"
    assert sum(len(one) for one in found) <= 8, "luck is hardly ever taken for an improvement"
    told = sum(until - since for one in found for since, until in one)
    assert told > 0.8 * 4 * 20_000


@table(("noise", "slope"), [(0.0, 1e-5), (0.1, 1e-4), (0.5, 1e-4), (0.02, 1e-5)])
def test_what_falls_is_no_plateau_however_noisy(noise: float, slope: float) -> None:
    for seed in range(2):
        assert stretches(lambda step: 4.0 - slope * step, 20_000, noise, seed) == []
