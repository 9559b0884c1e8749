"""Ticks lie at round values within the axis, ascending and told apart by their labels."""

from collections.abc import Callable

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gputui.metrics.draw import scales
from gputui.metrics.draw.parts import XAxis
from gputui.metrics.draw.scales import LinearScale
from gputui.metrics.draw.ticks import linear_ticks, log_ticks, tick_labels, time_labels, time_ticks, whole_ticks
from gputui.metrics.draw.x_axis import x_ticks

SPANS = st.tuples(st.floats(-1e12, 1e12), st.floats(1e-6, 1e12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
POSITIVE = st.tuples(st.floats(1e-12, 1e12), st.floats(1.01, 1e9)).map(lambda pair: (pair[0], pair[0] * pair[1]))


@pytest.mark.parametrize("find", [linear_ticks, whole_ticks, time_ticks])
@given(span=SPANS, most=st.integers(0, 12))
def test_linear_and_time_ticks(
    find: Callable[[float, float, int], list[float]], span: tuple[float, float], most: int
) -> None:
    low, high = span
    assume(low < high)
    ticks = find(low, high, most)
    assert len(ticks) <= most
    assert ticks == sorted(set(ticks))
    slack = 1e-6 * (high - low) + 1e-9 * max(abs(low), abs(high))
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    labels = tick_labels(ticks)
    assert len(set(labels)) == len(labels)


@given(span=POSITIVE, most=st.integers(1, 12))
def test_log_ticks(span: tuple[float, float], most: int) -> None:
    low, high = span
    ticks = log_ticks(low, high, most)
    assert len(ticks) <= most
    assert ticks == sorted(set(ticks))
    assert all(low * 0.99 <= tick <= high * 1.01 for tick in ticks)


@example(-1.797693113290062e308, -1.7976931150876916e308)
@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_a_scale_holds_what_it_was_made_for(first: float, second: float) -> None:
    low, high = sorted((first, second))
    scale = scales.value_scale(low, high)
    for value in (low, high):
        place = scale.place(value)
        assert place is not None
        assert -1e-9 <= place <= 1 + 1e-9 or not high / 2 - low / 2 > 0


@given(POSITIVE)
def test_a_log_scale_holds_what_it_was_made_for(span: tuple[float, float]) -> None:
    for low, high in (span, scales.round_outward(*span, "log")):
        scale = scales.value_scale(low, high, "log")
        assert low <= span[0]
        assert high >= span[1]
        assert scale.place(low) == pytest.approx(0)
        assert scale.place(high) == pytest.approx(1)
        assert scale.place(0.0) is None
        assert scale.place(-1.0) is None


def test_examples() -> None:
    assert linear_ticks(0, 10, 6) == [0, 2, 4, 6, 8, 10]
    assert linear_ticks(0.1, 0.5, 5) == [0.1, 0.2, 0.3, 0.4, 0.5]
    ends = {9000: 3000, 50_000: 10_000, 7.0: 1.0, 1.2: 0.2, 0.8: 0.2}
    assert {end: whole_ticks(0.0, end, 8)[1] for end in ends} == ends
    assert whole_ticks(0.0, 8000, 3)[-1] == 8000
    assert whole_ticks(-10.0, 0.0, 4)[0] == -10
    assert log_ticks(0.9, 1100, 6) == [1, 10, 100, 1000]
    assert log_ticks(1, 10, 6) == [1, 2, 5, 10]
    assert log_ticks(1e-8, 1e8, 5) == [1e-8, 1e-4, 1, 1e4, 1e8]
    assert time_ticks(0, 7200, 5) == [0, 1800, 3600, 5400, 7200]
    assert time_labels([0, 1800, 3600, 5400]) == ["0", "30m", "1h", "1h30"]
    assert time_labels([0, 30, 60, 90]) == ["0", "30s", "1m", "1:30"]
    assert time_labels([86400, 2 * 86400 + 7200]) == ["1d", "2d2h"]
    labels = {
        (0, 2000, 4000): "0 2k 4k", (0, 500, 1000): "0 500 1000", (5, 7.5, 10): "5.0 7.5 10.0",
        (0.008, 0.01, 0.012): "0.008 0.010 0.012", (0, 3e-4, 6e-4): "0 0.0003 0.0006",
        (0, 3e-5, 6e-5): "0 3e-5 6e-5", (1, 10, 1000): "1 10 1k",
        (10_000, 10_001, 10_002): "10000 10001 10002", (90, 95, 100): "90 95 100", (): "",
    }  # fmt: skip
    assert {ticks: " ".join(tick_labels(ticks)) for ticks in labels} == labels
    assert scales.stable_end(8110) == 9000
    assert scales.stable_end(0) == 0


def test_steps_have_ticks_at_whole_numbers_only() -> None:
    few = LinearScale(0.0, 3.0)
    fraction = LinearScale(0.0, 0.9)
    assert x_ticks(fraction, XAxis("epoch"), 2)[0] == [0.0, 0.5]
    assert x_ticks(few, XAxis("step", kind="count"), 8) == ([0.0, 1.0, 2.0, 3.0], ["0", "1", "2", "3"])
    assert x_ticks(fraction, XAxis("step", kind="count"), 8)[0] == [0.0]
