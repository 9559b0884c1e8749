"""A noisy loss: what falls slowly is no plateau, and a plateau's luck is no improvement."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from gputui.alerts.loss_course import LossCourse, falls

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


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1, 1.0])
def test_a_plateau_is_told_and_stays_told(noise: float) -> None:
    found = [stretches(lambda _: 2.0, 20_000, noise, seed, every=5) for seed in range(4)]
    assert all(one and one[0][0] <= 4000 for one in found), "within four times the patience"
    assert sum(len(one) for one in found) <= 8, "luck is hardly ever taken for an improvement"
    told = sum(until - since for one in found for since, until in one)
    assert told > 0.8 * 4 * 20_000


@pytest.mark.parametrize(("noise", "slope"), [(0.0, 1e-5), (0.1, 1e-4), (0.5, 1e-4), (0.02, 1e-5)])
def test_what_falls_is_no_plateau_however_noisy(noise: float, slope: float) -> None:
    for seed in range(2):
        assert stretches(lambda step: 4.0 - slope * step, 20_000, noise, seed) == []


def test_a_fall_that_ends_is_told_after_its_end() -> None:
    for seed in range(3):
        found = stretches(lambda step: max(2.0, 5.0 - step / 2000), 14_000, 0.1, seed)
        assert found and 7000 <= found[0][0] <= 9500


def test_a_rise_is_no_improvement() -> None:
    assert stretches(lambda step: 2.0 + step * 1e-4, 10_000, 0.05, 0)[0][0] <= 2500


@pytest.mark.parametrize("every", [150, 1500])
def test_lines_that_come_seldom_are_a_block_each(every: int) -> None:
    noisy = stretches(lambda step: 5.0 - step * 2e-4 / every * 150, 40 * every, 0.001, 1, every)
    assert noisy == [], "one line without a new best says nothing"
    flat = stretches(lambda _: 2.0, 60 * every, 0.1, 1, every)
    assert flat and flat[0][0] >= 14 * every


def test_luck_in_one_block_is_no_improvement() -> None:
    assert falls([2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 1.4, 1.3, 1.2, 1.1])
    assert not falls([2.0, 2.1, 2.0, 2.1, 2.0, 2.1, 2.0, 2.1, 2.0, 1.95])
    assert not falls([2.0] * 10)


def test_the_next_agent_goes_on() -> None:
    chance = random.Random(5)
    whole, first = LossCourse(), LossCourse()
    for step in range(0, 6000, 10):
        loss = 3.0 - step * 1e-4 + chance.gauss(0.0, 0.1)
        whole.add(loss, step, step / 100, PATIENCE)
        if step == 3000:
            first = LossCourse.from_json(json.loads(json.dumps(first.to_json())))
        first.add(loss, step, step / 100, PATIENCE)
    assert first == whole and whole.best.step is not None
