"""What incidents cost: from rows to steps, seconds and GPU-hours."""

from __future__ import annotations

from typing import Any

import pytest

from gputui.recovery.story import Cost, costs, total
from gputui.store.attempts import Attempt
from tests.recovery.test_history import attempt, decision, incident


class Clock:
    """Step s of attempt a was done at times[a, s]."""

    def __init__(self, times: dict[tuple[int, int], float] | None = None) -> None:
        self.times = times or {}
        self.folding: set[int] = set()
        self.late = False

    def first_at(self, attempt: int) -> float | None:
        return min((at for (number, _), at in self.times.items() if number == attempt), default=None)

    def repeats(self, attempt: int, step: int) -> bool:
        return attempt in self.folding

    def widest_gap(self, attempt: int) -> int | None:
        return 1

    def come_with_checkpoints(self) -> bool:
        return self.late

    def last_at(self, attempt: int, step: int) -> float | None:
        return max((at for (number, s), at in self.times.items() if number == attempt and s <= step), default=None)


def line(number: int, first: int, last: int, at: float, each: float = 1.0) -> dict[tuple[int, int], float]:
    return {(number, step): at + (step - first) * each for step in range(first, last + 1)}


def second(**values: Any) -> Attempt:
    fields: dict[str, Any] = {
        "at": 60.0,
        "last": 99,
        "first_step": 31,
        "resumed_from": "/c/step_30.pt",
        "resumed_step": 30,
        "gpus": ("a", "b"),
    }
    return attempt(2, **fields | values)


FIRST = attempt(1, at=0.0, last=39, first_step=1, ended_at=52.0, gpus=("a", "b"))
TIMES = line(1, 1, 39, 11.0) | line(2, 31, 99, 70.0)  # step 30 at 40 s, step 39 at 49 s


def one(attempts: list[Attempt], clock: Clock, verdict: str = "retry") -> Cost:
    return costs(attempts, [incident(7, 1)], [decision(7, 1, at=53.0, verdict=verdict)], clock)[7]


def test_steps_after_the_checkpoint_and_the_time_until_they_are_done_again() -> None:
    cost = one([FIRST, second()], Clock(TIMES))
    assert cost == Cost(lost_steps=9, lost_seconds=30.0, lost_gpu_hours=pytest.approx(30 * 2 / 3600))


def test_the_loss_shows_in_the_first_later_attempt_with_a_step() -> None:
    refused = second(last=None, first_step=None, ended_at=65.0)
    anew = attempt(3, at=66.0, last=99, first_step=1, ended_at=200.0)
    found = costs([FIRST, refused, anew], [incident(7, 1), incident(8, 2)], [], Clock(TIMES | line(3, 1, 99, 70.0)))
    assert found[7].lost_steps == 39 and found[8].lost_steps is None
    stop = [decision(8, 2, at=65.0, verdict="stop")]
    found = costs([FIRST, refused, anew], [incident(7, 1), incident(8, 2)], stop, Clock(TIMES | line(3, 1, 99, 70.0)))
    assert found[7].lost_steps == 9


def test_a_beginning_anew_loses_everything() -> None:
    cost = one([FIRST, second(first_step=1, resumed_from=None, resumed_step=None)], Clock(TIMES))
    assert (cost.lost_steps, cost.lost_seconds) == (39, 70.0 - 11.0)


def test_a_checkpoint_without_a_number_is_known_by_the_next_first_step() -> None:
    cost = one([FIRST, second(resumed_from="/c/last.pt", resumed_step=None)], Clock(TIMES))
    assert cost.lost_steps == 9
    assert (
        one([FIRST, second(resumed_from="/c/last.pt", resumed_step=None, first_step=None)], Clock()).lost_steps is None
    )


def test_unknown_is_never_zero() -> None:
    assert one([FIRST], Clock(TIMES)) == Cost(None, None, None)
    without_metrics = [attempt(1, at=0.0), second(last=None, first_step=None, ended_at=None)]
    assert one(without_metrics, Clock()) == Cost(None, None, None)
    # It has been started but did no step yet.
    assert (
        one([FIRST, second(last=None, first_step=None, ended_at=None)], Clock(line(1, 1, 39, 11.0))).lost_seconds
        is None
    )


def test_gpus_are_not_held_between_a_stop_and_a_persons_resume() -> None:
    resumed = second(at=5000.0)
    cost = one([FIRST, resumed], Clock(line(1, 1, 39, 11.0) | line(2, 31, 99, 5010.0)), verdict="stop")
    assert cost.lost_seconds == 4970.0
    assert cost.lost_gpu_hours == pytest.approx(((52 - 40) + (5010 - 5000)) * 2 / 3600)


def test_spans_never_overlap_even_where_an_attempt_did_nothing() -> None:
    idle = second(last=None, first_step=None, ended_at=80.0)
    third = attempt(3, at=90.0, last=99, first_step=31, resumed_from="/c/step_30.pt", resumed_step=30, gpus=("a", "b"))
    found = costs(
        [FIRST, idle, third],
        [incident(1, 1), incident(2, 2)],
        [decision(1, 1, at=53.0), decision(2, 2, at=81.0)],
        Clock(line(1, 1, 39, 11.0) | line(3, 31, 99, 100.0)),
    )
    assert found[1].lost_seconds == 80.0 - 40.0
    assert found[2] == Cost(None, 100.0 - 80.0, pytest.approx(20 * 2 / 3600))
    together = total(found.values())
    assert together == Cost(9, 60.0, pytest.approx(60 * 2 / 3600), incidents=2, unknown=1)
