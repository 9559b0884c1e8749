"""Charts cut at a past moment: nothing of what came later, everything of before."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.charts.envelope import Bin
from gputui.curves.model import Axis, ChartRequest, HardwareCurve
from gputui.curves.past import RunExtent, cut
from gputui.store.attempts import read_attempts

from .conftest import BEGAN_AT, RUN, Story

LOSS = ChartRequest(("loss",), bins=4000)


def extent_of(story: Story, at: float, step: int | None) -> RunExtent:
    return RunExtent(at, tuple(read_attempts(story.reader, RUN, at)), step)


@pytest.fixture
def resumed(story: Story) -> Story:
    """Steps 0 to 999 in as many seconds, then steps 800 to 1499 again and on from second 2000, an epoch in 100 steps,
    of which whole ones are written."""
    story.attempt(1, 0)
    for first in range(0, 1000, 100):
        story.steps(first, first + 100, float(first), epoch=first // 100)
    story.attempt(2, 2000, first_step=800)
    for first in range(800, 1500, 100):
        story.steps(first, first + 100, 1200.0 + first, epoch=first // 100)
    return story


@pytest.mark.parametrize(
    ("axis", "end", "within"), [("step", 450.0, 0), ("time", 450.5, 1), ("trained", 450.5, 1), ("epoch", 4.5, 0.2)]
)
def test_a_curve_ends_at_the_moment(resumed: Story, axis: Axis, end: float, within: float) -> None:
    whole = resumed.ask(replace(LOSS, axis=axis))
    then = cut(whole, extent_of(resumed, BEGAN_AT + 450.5, 450))
    curve = then.curves["loss"]
    assert end - within <= curve.bins[-1].last_x <= end
    assert curve.last == 450.0
    assert [each.attempt for each in curve.attempts] == [1] and curve.redone == ()
    assert then.frame.end == curve.bins[-1].last_x
    assert whole.curves["loss"].bins[-1].last_x > curve.bins[-1].last_x  # the whole is as it was


def test_what_was_redone_later_had_not_been_then(resumed: Story) -> None:
    whole = resumed.ask(LOSS)
    assert len(whole.curves["loss"].redone) > 0
    before = cut(whole, extent_of(resumed, BEGAN_AT + 1500, 999)).curves["loss"]
    assert before.redone == () and before.bins[-1].last_x == 999.0
    during = cut(whole, extent_of(resumed, BEGAN_AT + 2100.5, 900)).curves["loss"]
    assert min(each.first_x for each in during.redone) == 800.0
    assert max(each.last_x for each in during.redone) == 999.0
    assert during.bins[-1].last_x == 900.0
    assert any(each.gap_before for each in during.bins[1:])


@pytest.mark.parametrize("axis", ["step", "epoch"])
def test_before_the_first_line_there_is_nothing(resumed: Story, axis: Axis) -> None:
    whole = resumed.ask(replace(LOSS, axis=axis))
    then = cut(whole, extent_of(resumed, BEGAN_AT + 0.5, None)).curves["loss"]
    assert (then.bins, then.attempts, then.last) == ((), (), None)
    assert then.problem == "nothing measured by then"


def test_over_epochs_the_newest_attempt_ends_where_it_was(resumed: Story) -> None:
    whole = resumed.ask(replace(LOSS, axis="epoch"))
    begun = cut(whole, extent_of(resumed, BEGAN_AT + 2000.5, None)).curves["loss"]
    assert [each.attempt for each in begun.attempts] == [1]
    assert begun.bins[-1].last_x < 8.0 <= begun.redone[0].first_x
    during = cut(whole, extent_of(resumed, BEGAN_AT + 2050.5, 850))
    assert during.curves["loss"].last == 850.0
    assert during.curves["loss"].bins[-1].last_x == pytest.approx(8.5, abs=0.2)
    # What is drawn behind reaches further.
    redone = during.curves["loss"].redone
    assert (redone[0].first, redone[-1].last) == (800.0, 999.0)
    assert during.frame.end == redone[-1].last_x > 9.0


def test_the_axis_of_time_ends_with_the_hardware(resumed: Story) -> None:
    power = HardwareCurve("power", "GPU-a", tuple(Bin(float(x), x + 10.0) for x in range(0, 1900, 10)))
    whole = replace(resumed.ask(replace(LOSS, axis="time")), hardware=(power,))
    then = cut(whole, extent_of(resumed, BEGAN_AT + 1505.5, 999))
    assert then.curves["loss"].bins[-1].last_x == 999.0
    assert then.frame.end == 1505.5


def test_smoothing_knows_only_what_was(resumed: Story) -> None:
    whole = resumed.ask(replace(LOSS, smoothing=0.9))
    then = cut(whole, extent_of(resumed, BEGAN_AT + 400.5, 400)).curves["loss"]
    assert then.smooth[-1].last_x == 400.0
    # The moving average looks backwards only, so that it is that of the whole up to there.
    assert [each.last for each in then.smooth] == [
        each.last for each in whole.curves["loss"].smooth[: len(then.smooth)]
    ]


def test_marks_of_later_are_left_out(resumed: Story) -> None:
    whole = resumed.ask(LOSS)
    assert {marker.attempt for marker in whole.markers} == {1, 2}
    then = cut(whole, extent_of(resumed, BEGAN_AT + 400.5, 400))
    assert all(marker.attempt == 1 and (marker.at or 0) <= BEGAN_AT + 400.5 for marker in then.markers)
