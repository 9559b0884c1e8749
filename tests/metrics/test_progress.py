"""The progress of a run: its short curve and its pace."""

from __future__ import annotations

import itertools
import math

import pytest

from gputui.metrics.progress import at_equal_steps, mean_pace_of, pace_of


def test_a_short_attempt_does_not_stretch_its_part_of_the_curve() -> None:
    long = [(1000.0 * number, 10.0 - number) for number in range(1, 9)]
    short = [(8000.0 + number, 2.0) for number in range(1, 17)]
    losses = at_equal_steps([*long, *short])
    assert len(losses) == 24
    assert losses[0] == 9.0
    assert losses[-1] == 2.0
    falls = [before - after for before, after in itertools.pairwise(losses) if before is not None and after is not None]
    assert max(falls) - min(falls) < 0.02, "as evenly as the long attempt fell"
    assert at_equal_steps([(1.0, 4.0), (2.0, 3.0), (3.0, None), (4.0, math.nan)]) == (4.0, None)
    assert at_equal_steps([(1.0, 4.0)]) == (4.0,)
    assert at_equal_steps([(1.0, None)]) == ()


def test_a_pause_is_no_slower_pace_but_comes_again() -> None:
    reports = [(0.5 * step + 10.0 * (step > 40), float(step)) for step in range(1, 81)]
    assert pace_of(reports) == pytest.approx(2.0)
    assert mean_pace_of(reports) == pytest.approx(79 / 49.5)


def test_the_pace_is_that_of_the_last_minute() -> None:
    slow = [(float(step), float(step)) for step in range(100)]
    fast = [(99 + step / 4, 99.0 + step) for step in range(1, 281)]
    assert pace_of([*slow, *fast]) == pytest.approx(4.0)
    assert pace_of(slow) == pytest.approx(1.0)


@pytest.mark.parametrize("reports", [[], [(1.0, 5.0)]])
def test_one_report_has_no_pace(reports: list[tuple[float, float]]) -> None:
    assert pace_of(reports) is None
    assert mean_pace_of(reports) is None
