"""Charts as of a past moment: nothing of what came later, everything of before."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.metrics.curves.model import ChartRequest

from .conftest import BEGAN_AT, Story

LOSS = ChartRequest(("loss",), bins=4000)


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


def test_a_curve_ends_at_the_moment(resumed: Story) -> None:
    for axis, end, within in [("step", 450.0, 0), ("time", 450.0, 0), ("trained", 450.0, 0), ("epoch", 4.5, 0.01)]:
        then = resumed.ask(replace(LOSS, axis=axis), at=BEGAN_AT + 450.5)
        curve = then.curves["loss"]
        assert curve.bins[-1].last_x == pytest.approx(end, abs=within) and curve.redone == (), axis
        assert curve.last == 450.0, axis
        assert then.frame.end == curve.bins[-1].last_x, axis
        assert all(marker.attempt == 1 for marker in then.markers), axis


def test_what_was_redone_later_had_not_been_then(resumed: Story) -> None:
    assert len(resumed.ask(LOSS).curves["loss"].redone) > 0
    before = resumed.ask(LOSS, at=BEGAN_AT + 1500).curves["loss"]
    assert before.redone == () and before.bins[-1].last_x == 999.0
    during = resumed.ask(LOSS, at=BEGAN_AT + 2100.5).curves["loss"]
    assert min(each.first_x for each in during.redone) == 800.0
    assert max(each.last_x for each in during.redone) == 999.0
    assert during.bins[-1].last_x == 900.0
    assert any(each.gap_before for each in during.bins[1:])


def test_long_ago(resumed: Story) -> None:
    assert resumed.ask(LOSS, at=BEGAN_AT - 60).curves["loss"].problem == "nothing measured yet"
