"""Steps that start again in each epoch are noticed, once; what only looks like it is not."""

from __future__ import annotations

from collections.abc import Iterable

from gputui.metrics.reduction import MetricLine
from gputui.metrics.step_order import StepOrder

from .conftest import Bench, line


def found(*steps: int, attempts: Iterable[int] = ()) -> list[int]:
    """The places of the lines at which it is noticed, each taken alone."""
    order, numbers = StepOrder(), list(attempts) or [1] * len(steps)
    lines = [MetricLine(0, place, numbers[place], step, None, {}) for place, step in enumerate(steps)]
    return [place for place, one in enumerate(lines) if order.add([one])]


def test_a_count_within_each_epoch() -> None:
    assert found(0, 2, 14, 0, 2, 14, 0, 2, 14, 0, 2) == [6]
    assert found(1, 2, 3, 1, 2, 3, 1) == [6]


def test_what_is_no_such_count() -> None:
    for steps in [
        range(100),
        [0, 10, 10, 20, 10, 20, 30],  # a validation that is logged late
        [0, 1, 2, 3, 0, 1, 2, 3, 4, 5],  # once back to the beginning
        [100, 110, 120, 105, 110, 120, 107, 130],  # rollbacks of the script's own
        [0, 0, 0, 1, 0, 1, 0, 1],  # two threads that log the same step
    ]:
        assert found(*steps) == []


def test_attempts_may_each_begin_at_the_first_step() -> None:
    assert found(0, 1, 2, 0, 1, 2, 0, 1, 2, attempts=[1, 1, 1, 2, 2, 2, 3, 3, 3]) == []


def test_the_report_tells_it_once(bench: Bench) -> None:
    bench.begin()
    notes = []
    for _ in range(5):
        for step in range(4):
            bench.append(line(step))
            notes += bench.ingest.pump().notes
    assert [note.kind for _, note in notes] == ["steps_restarted"]
