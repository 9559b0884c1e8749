"""A loss and a learning rate: what falls slowly is no plateau, and a plateau's luck is no improvement."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gputui.recovery.watch.learning_rate import RateSchedule, expected_rate
from gputui.recovery.watch.loss_history import LossHistory
from gputui.recovery.watch.metric_history import MetricHistory
from gputui.recovery.watch.rules import RULES
from gputui.store.metrics.roles import MetricRoles
from tests.tables import table

PATIENCE = 1000.0


def stretches(
    loss: Callable[[int], float], steps: int, noise: float, seed: int, every: int = 1
) -> list[tuple[int, int]]:
    """(from, until) of the stretches in which it would be said that nothing becomes better."""
    chance = random.Random(seed)
    history = LossHistory()
    spans: list[tuple[int, int]] = []
    begin: int | None = None
    for step in range(0, steps, every):
        history.add(loss(step) + chance.gauss(0.0, noise), step, None, PATIENCE)
        is_stuck = (history.steps_since(step, PATIENCE) or 0) > PATIENCE
        if is_stuck and begin is None:
            begin = step
        if not is_stuck and begin is not None:
            spans.append((begin, step))
            begin = None
    return [*spans, (begin, steps)] if begin is not None else spans


@table("noise", [0.0, 0.01, 0.1, 1.0])
def test_a_plateau_is_told_and_stays_told(noise: float) -> None:
    by_seed = [stretches(lambda _: 2.0, 20_000, noise, seed, every=5) for seed in range(4)]
    assert all(stretches and stretches[0][0] <= 4000 for stretches in by_seed), "within four times the patience"
    assert sum(len(stretches) for stretches in by_seed) <= 8, "luck is hardly ever taken for an improvement"
    stuck_steps = sum(end - begin for stretches in by_seed for begin, end in stretches)
    assert stuck_steps > 0.8 * 4 * 20_000


@table(("noise", "slope"), [(0.0, 1e-5), (0.1, 1e-4), (0.5, 1e-4), (0.02, 1e-5)])
def test_what_falls_is_no_plateau_however_noisy(noise: float, slope: float) -> None:
    for seed in range(2):
        assert stretches(lambda step: 4.0 - slope * step, 20_000, noise, seed) == []


def test_the_best_metric_of_a_profile_takes_the_place_of_the_losses() -> None:
    for improves in (True, False):
        history = MetricHistory(MetricRoles("train/loss", "val/loss", "val/acc", "max"))
        for step in range(0, 20_000, 20):
            accuracy = step / 20_000 if improves else 0.25
            values = {"loss": 1.0, "val/loss": 1.0, "best": accuracy, "epoch": step / 1000}
            history.add(step, values, float(step))
        (observation,) = (cause for cause in history.observe(True, RULES) if cause.kind == "no_improvement")
        assert (observation.value is not None and observation.value > observation.limit) is not improves
        assert improves or ("val/acc" in observation.text and "0.25" in observation.text)


def test_going_back_to_a_checkpoint_begins_anew() -> None:
    history = MetricHistory()
    for second, step in enumerate([*range(1000, 2200, 100), *range(500, 1700, 100)]):
        history.add(step, {"loss": 1.0 if step > 1700 else 3.0}, float(second))
    assert history.loss.best.value == 3.0
    assert history.loss.best.step is not None
    assert history.loss.best.step <= 1600


def test_samples_that_were_skipped_are_counted_by_events_of_all_ranks() -> None:
    history = MetricHistory()
    for step in range(40):
        history.add(step, {"samples": 5000.0 + 32 * step}, float(step))
        history.add(step, {}, float(step), event="sample_skipped", rank=1)
        history.add(step, {"samples": 1.0}, float(step), rank=1)
    (observation,) = (cause for cause in history.observe(True, RULES) if cause.kind == "skipped_samples")
    assert observation.value == pytest.approx(100 * 40 / (39 * 32 + 40)), "without those of earlier attempts"


@table("schedule, step, expected", [
    (RateSchedule("constant"), 500, 0.1), (RateSchedule("constant", warmup_steps=100), 49, 0.05),
    (RateSchedule("linear", total_steps=1000), 250, 0.075), (RateSchedule("cosine", total_steps=1000), 500, 0.05),
    (RateSchedule("cosine", total_steps=1100, warmup_steps=100, final=0.01), 1100, 0.01),
    (RateSchedule("cosine", peak=0.2, total_steps=1000), 0, 0.2),
])  # fmt: skip
def test_schedules(schedule: RateSchedule, step: int, expected: float) -> None:
    assert schedule.at(step, peak=0.1, total_steps=None) == pytest.approx(expected)
    allowed = expected_rate(schedule, step, {}, 0.1)
    assert allowed is not None
    assert allowed[0] - 1e-12 <= expected <= allowed[1] + 1e-12


@table("schedule, values, peak, expected", [
    (RateSchedule("constant"), {"lr_expected": 0.3}, 0.1, (0.3, 0.3)), (None, {"lr": 0.3}, 0.1, None),
    # The total number of steps is unknown.
    (RateSchedule("linear"), {}, 0.1, None), (RateSchedule("linear", final=0.1), {"total_steps": 9.0}, 0.1, (0.1, 0.1)),
    (RateSchedule("constant"), {}, None, None),
])  # fmt: skip
def test_what_the_script_says_counts_first(
    schedule: RateSchedule | None, values: dict[str, float], peak: float | None, expected: object
) -> None:
    assert expected_rate(schedule, 5, values, peak) == expected
