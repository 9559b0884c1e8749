"""Costs of failures: steps that are lost, and the time until they are done again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.recovery.costs import Cost, costs_of, total
from gputui.store.attempts import Attempt, FellowStay
from tests.recovery.histories import FIRST_ATTEMPT, Lines, attempt, decision, incident, second_attempt
from tests.tables import table


def line(number: int, first: int, last: int, at: float, step_seconds: float = 1.0) -> dict[tuple[int, int], float]:
    return {(number, step): at + (step - first) * step_seconds for step in range(first, last + 1)}


TIMES = line(1, 1, 39, 11.0) | line(2, 31, 99, 70.0)  # step 30 at 40 s, step 39 at 49 s


def cost_of(attempts: list[Attempt], lines: Lines, verdict: str = "retry") -> Cost:
    return costs_of(attempts, [incident(7, 1)], [decision(7, 1, at=53.0, verdict=verdict)], lines)[7]


def test_steps_after_the_checkpoint_and_the_time_until_they_are_done_again() -> None:
    cost = cost_of([FIRST_ATTEMPT, second_attempt()], Lines(times=TIMES))
    assert cost == Cost(lost_steps=9, lost_seconds=30.0, lost_gpu_hours=pytest.approx((12 + 9) * 2 / 3600))


def test_what_is_lost_of_a_shared_gpu_is_the_runs_part() -> None:
    beside = (FellowStay("b-1", 0.0, end=None),)
    shared = [replace(attempt, gpus=("a",), fellows=beside) for attempt in (FIRST_ATTEMPT, second_attempt())]
    assert cost_of(shared, Lines(times=TIMES)).lost_gpu_hours == pytest.approx((12 + 9) / 2 / 3600)


def test_the_loss_shows_in_the_first_later_attempt_with_a_step() -> None:
    refused = second_attempt(last=None, first_step=None, ended_at=65.0)
    anew = attempt(3, at=66.0, last=99, first_step=1, ended_at=200.0)
    by_attempt = costs_of(
        [FIRST_ATTEMPT, refused, anew], [incident(7, 1), incident(8, 2)], [], Lines(times=TIMES | line(3, 1, 99, 70.0))
    )
    assert by_attempt[7].lost_steps == 39
    assert by_attempt[8].lost_steps is None
    stop = [decision(8, 2, at=65.0, verdict="stop")]
    by_attempt = costs_of(
        [FIRST_ATTEMPT, refused, anew],
        [incident(7, 1), incident(8, 2)],
        stop,
        Lines(times=TIMES | line(3, 1, 99, 70.0)),
    )
    assert by_attempt[7].lost_steps == 9


def test_a_beginning_anew_loses_everything() -> None:
    cost = cost_of(
        [FIRST_ATTEMPT, second_attempt(first_step=1, resumed_from=None, resumed_step=None)], Lines(times=TIMES)
    )
    assert (cost.lost_steps, cost.lost_seconds) == (39, 70.0 - 11.0)


def test_an_attempt_that_went_on_by_itself_costs_at_least_what_it_repeats() -> None:
    cost = cost_of(
        [FIRST_ATTEMPT, second_attempt(first_step=31, resumed_from=None, resumed_step=None)], Lines(times=TIMES)
    )
    assert (cost.lost_steps, cost.is_at_least, cost.lost_seconds) == (9, True, 30.0)


@table("losses, cost", [
    ({}, Cost(lost_steps=None, lost_seconds=None, lost_gpu_hours=None)),
    # A first loss as high as at the beginning shows a new start, one as low as the last a loaded checkpoint.
    ({1: [9.0, 5.0, 1.0], 2: [9.0]}, Cost(39, 59.0, pytest.approx((41 + 9) * 2 / 3600))),
    ({1: [9.0, 5.0, 1.0], 2: [1.0]}, Cost(9, 30.0, pytest.approx((12 + 9) * 2 / 3600))),
])  # fmt: skip
def test_an_attempt_that_counts_from_the_first_step_costs_what_its_loss_shows(
    losses: dict[int, list[float]], cost: Cost
) -> None:
    lines = Lines(times=line(1, 1, 39, 11.0) | line(2, 1, 69, 70.0), losses=losses)
    assert cost_of([FIRST_ATTEMPT, second_attempt(first_step=1)], lines) == cost


def test_the_step_of_a_checkpoint_that_its_name_does_not_tell_is_about_right() -> None:
    certain, uncertain = (
        cost_of([FIRST_ATTEMPT, second_attempt(resumed_from=f"/c/{name}.pt", resumed_step=30)], Lines(times=TIMES))
        for name in ("step_30", "last")
    )
    assert (certain.lost_steps, certain.is_about) == (9, False)
    assert (uncertain.lost_steps, uncertain.is_about) == (9, True)


def test_what_a_restart_without_steps_costs_is_unknown_where_it_succeeded() -> None:
    silent = second_attempt(last=None, first_step=None, started_at=61.0, ended_at=900.0, state="succeeded")
    assert cost_of([FIRST_ATTEMPT, silent], Lines(times=line(1, 1, 39, 11.0))) == Cost(
        lost_steps=None, lost_seconds=None, lost_gpu_hours=None
    )


def test_a_checkpoint_without_a_number_is_known_by_the_next_first_step() -> None:
    cost = cost_of([FIRST_ATTEMPT, second_attempt(resumed_from="/c/last.pt", resumed_step=None)], Lines(times=TIMES))
    assert cost.lost_steps == 9
    assert (
        cost_of(
            [FIRST_ATTEMPT, second_attempt(resumed_from="/c/last.pt", resumed_step=None, first_step=None)],
            Lines(times={}),
        ).lost_steps
        is None
    )


def test_unknown_is_never_zero() -> None:
    assert cost_of([FIRST_ATTEMPT], Lines(times=TIMES)) == Cost(lost_steps=None, lost_seconds=None, lost_gpu_hours=None)
    without_metrics = [attempt(1, at=0.0), second_attempt(last=None, first_step=None, ended_at=None)]
    assert cost_of(without_metrics, Lines(times={})) == Cost(lost_steps=None, lost_seconds=None, lost_gpu_hours=None)
    # It has been started but did no step yet.
    assert (
        cost_of(
            [FIRST_ATTEMPT, second_attempt(last=None, first_step=None, ended_at=None)],
            Lines(times=line(1, 1, 39, 11.0)),
        ).lost_seconds
        is None
    )


@pytest.mark.parametrize("verdict", ["stop", "retry"])
def test_waiting_for_the_next_attempt_is_no_gpu_time_as_in_what_a_run_took(verdict: str) -> None:
    resumed = second_attempt(at=5000.0)
    cost = cost_of(
        [FIRST_ATTEMPT, resumed], Lines(times=line(1, 1, 39, 11.0) | line(2, 31, 99, 5010.0)), verdict=verdict
    )
    assert cost.lost_seconds == 4970.0
    assert cost.lost_gpu_hours == pytest.approx(((52 - 40) + (5010 - 5001)) * 2 / 3600)


def test_spans_never_overlap_even_where_an_attempt_did_nothing() -> None:
    idle = second_attempt(last=None, first_step=None, ended_at=80.0)
    third = attempt(3, at=90.0, last=99, first_step=31, resumed_from="/c/step_30.pt", resumed_step=30, gpus=("a", "b"))
    by_attempt = costs_of(
        [FIRST_ATTEMPT, idle, third],
        [incident(1, 1), incident(2, 2)],
        [decision(1, 1, at=53.0), decision(2, 2, at=81.0)],
        Lines(times=line(1, 1, 39, 11.0) | line(3, 31, 99, 100.0)),
    )
    assert by_attempt[1].lost_seconds == 80.0 - 40.0
    assert by_attempt[2] == Cost(lost_steps=None, lost_seconds=100.0 - 80.0, lost_gpu_hours=pytest.approx(9 * 2 / 3600))
    together = total(by_attempt.values())
    assert together == Cost(9, 60.0, pytest.approx((12 + 19 + 9) * 2 / 3600), incidents=2, unknown=1)
