"""Charts cut at a past moment: nothing of what came later, everything of before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputui.curves.model import Axis, ChartRequest
from gputui.curves.past import RunExtent, cut
from gputui.store.attempts import read_attempts

from .conftest import BEGAN_AT, RUN, Story

LOSS = ChartRequest(("loss",), bins=4000)


def extent_of(story: Story, at: float, step: int | None) -> RunExtent:
    return RunExtent(at, tuple(read_attempts(story.reader, RUN, at)), step)


@pytest.fixture
def resumed(story: Story) -> Story:
    """Steps 0 to 999 in as many seconds, then steps 800 to 1499 again and on from second 2000."""
    story.attempt(1, 0)
    story.steps(0, 1000, 0.0)
    story.attempt(2, 2000, first_step=800)
    story.steps(800, 1500, 2000.0)
    return story


@pytest.mark.parametrize(("axis", "end"), [("step", 400.0), ("time", 400.5), ("trained", 400.5)])
def test_a_curve_ends_at_the_moment(resumed: Story, axis: Axis, end: float) -> None:
    whole = resumed.ask(replace(LOSS, axis=axis))
    then = cut(whole, extent_of(resumed, BEGAN_AT + 400.5, 400))
    curve = then.curves["loss"]
    assert curve.bins[-1].last_x <= end < curve.bins[-1].last_x + 1
    assert curve.last == whole.curves["loss"].attempts[0].bins[400].last
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


def test_before_the_first_line_there_is_nothing(resumed: Story) -> None:
    then = cut(resumed.ask(LOSS), extent_of(resumed, BEGAN_AT + 0.5, None)).curves["loss"]
    assert (then.bins, then.attempts, then.last) == ((), (), None)
    assert then.problem == "nothing measured by then"


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
