"""What incidents cost: from rows to steps, seconds and GPU-hours."""

from __future__ import annotations

from typing import Any

import pytest

from gputui.recovery.cost import Cost, costs, in_words, total
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


def test_what_an_attempt_did_counts_and_not_what_it_was_given() -> None:
    anew = second(first_step=9, last=1059, resumed_step=1800, gpus=())
    first = attempt(1, at=0.0, last=1879, first_step=9, ended_at=52.0)
    times = line(1, 9, 1879, 1.0, 0.01) | line(2, 9, 1059, 70.0)
    assert one([first, anew], Clock(times)).lost_steps == 1879
    earlier = second(first_step=901, last=1900, resumed_step=1800, gpus=())
    assert one([first, earlier], Clock(times)).lost_steps == 979
    folding = Clock(times)
    folding.folding = {1}
    assert one([first, anew], folding).lost_steps == 79


def test_where_lines_come_only_with_checkpoints_there_is_at_least_so_much() -> None:
    clock = Clock(TIMES)
    clock.late = True
    cost = one([FIRST, second()], clock)
    assert cost.is_at_least and in_words(cost).startswith("at least 9 steps")
    kept = one([attempt(1, at=0.0, last=30, first_step=1, ended_at=52.0), second()], clock)
    assert kept.lost_steps == 0 and "0 step" not in in_words(kept)
    whole = total([cost, kept])
    assert whole is not None and whole.is_at_least and whole.to_json()["lost_steps_is_at_least"] is True


def test_where_steps_start_again_each_epoch_the_loss_is_unknown() -> None:
    clock = Clock(TIMES)
    clock.folding = {1}
    cost = one([FIRST, second(resumed_from="/c/step_1800.pt", resumed_step=1800)], clock)
    assert cost.lost_steps is None and cost.lost_seconds is not None
    assert "step" not in in_words(cost)


def test_steps_that_are_counted_from_zero() -> None:
    first = attempt(1, at=0.0, last=38, first_step=0, ended_at=52.0)
    cost = one([first, second(first_step=30, gpus=())], Clock(line(1, 0, 38, 11.0) | line(2, 30, 98, 70.0)))
    # Steps 30 to 38 are done twice; step 29 was the last one of the checkpoint, at 40 s.
    assert cost == Cost(9, 30.0, 0.0)


def test_a_beginning_anew_loses_everything() -> None:
    cost = one([FIRST, second(first_step=1, resumed_from=None, resumed_step=None)], Clock(TIMES))
    assert (cost.lost_steps, cost.lost_seconds) == (39, 70.0 - 11.0)


def test_a_checkpoint_without_a_number_is_known_by_the_next_first_step() -> None:
    cost = one([FIRST, second(resumed_from="/c/last.pt", resumed_step=None)], Clock(TIMES))
    assert cost.lost_steps == 9
    assert (
        one([FIRST, second(resumed_from="/c/last.pt", resumed_step=None, first_step=None)], Clock()).lost_steps is None
    )


def test_nothing_lost_is_zero_and_never_less() -> None:
    cost = one([FIRST, second(resumed_step=39, first_step=40)], Clock(TIMES))
    assert cost.lost_steps == 0
    assert one([FIRST, second(resumed_step=80, first_step=81)], Clock(TIMES)).lost_steps == 0


def test_unknown_is_never_zero() -> None:
    assert one([FIRST], Clock(TIMES)) == Cost(None, None, None)
    without_metrics = [attempt(1, at=0.0), second(last=None, first_step=None, ended_at=None)]
    assert one(without_metrics, Clock()) == Cost(None, None, None)
    # It has been started but did no step yet.
    assert (
        one([FIRST, second(last=None, first_step=None, ended_at=None)], Clock(line(1, 1, 39, 11.0))).lost_seconds
        is None
    )


def test_what_was_kept_is_unknown_where_the_target_never_chose() -> None:
    attempts = [FIRST, second(resumed_from=None, resumed_step=None, started_at=None, first_step=None, last=None)]

    def lost(*, start_is_chosen_there: bool) -> Cost:
        met, decided = [incident(7, 1)], [decision(7, 1, at=53.0)]
        return costs(attempts, met, decided, Clock(TIMES), start_is_chosen_there=start_is_chosen_there)[7]

    assert lost(start_is_chosen_there=True) == Cost(None, None, None)
    assert lost(start_is_chosen_there=False).lost_steps == 39
    # It has begun there, from the start.
    attempts[1] = second(resumed_from=None, resumed_step=None, first_step=1)
    assert lost(start_is_chosen_there=True).lost_steps == 39


def test_the_agents_own_times_where_lines_tell_none() -> None:
    first = attempt(1, at=0.0, last=39, first_step=1, first_step_at=12.0, ended_at=52.0)
    cost = one([first, second(first_step_at=71.0)], Clock())
    assert cost.lost_seconds == 71.0 - 12.0


def test_gpus_are_not_held_between_a_stop_and_a_persons_resume() -> None:
    resumed = second(at=5000.0)
    cost = one([FIRST, resumed], Clock(line(1, 1, 39, 11.0) | line(2, 31, 99, 5010.0)), verdict="stop")
    assert cost.lost_seconds == 4970.0
    assert cost.lost_gpu_hours == pytest.approx(((52 - 40) + (5010 - 5000)) * 2 / 3600)


def test_whoever_begins_a_stopped_run_anew_gives_it_up_himself() -> None:
    anew = second(resumed_from=None, resumed_step=None, first_step=1)
    assert one([FIRST, anew], Clock(TIMES), verdict="stop") == Cost(None, None, None)


def test_fewer_gpus_after_the_incident() -> None:
    cost = one([FIRST, second(gpus=("a",))], Clock(TIMES))
    assert cost.lost_gpu_hours == pytest.approx(((52 - 40) * 2 + (70 - 52) * 1) / 3600)


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


def test_of_several_incidents_of_one_attempt_the_first_bears_the_cost() -> None:
    found = costs([FIRST, second()], [incident(2, 1), incident(1, 1)], [], Clock(TIMES))
    assert list(found) == [1]


def test_in_words() -> None:
    assert total([]) is None
    assert in_words(Cost(9, 13.0, 0.0216)) == "9 steps, 13 s and 0.022 GPU-hours"
    assert in_words(Cost(1, 13.0, 0.0)) == "1 step and 13 s"
    assert in_words(Cost(None, 13.0, None)) == "13 s"
    assert in_words(Cost(None, None, None)) == ""
    assert in_words(Cost(0, None, 310.4)) == "0 steps and 310 GPU-hours"
