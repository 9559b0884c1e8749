"""Charts cut at a past moment: nothing of what came later, everything of before."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.metrics.curves.model import ChartRequest
from gputui.metrics.curves.past import RunExtent, cut
from gputui.store.attempts import read_attempts

from .conftest import BEGAN_AT, RUN, CurvesHome

LOSS = ChartRequest(("loss",), bins=4000)


def extent_of(home: CurvesHome, at: float, step: int | None) -> RunExtent:
    return RunExtent(at, tuple(read_attempts(home.reader, RUN, at)), step)


@pytest.fixture
def resumed(home: CurvesHome) -> CurvesHome:
    """Steps 0 to 999 in as many seconds, then steps 800 to 1499 again and on from second 2000, an epoch in 100 steps,
    of which whole ones are written."""
    home.begin_at(1, 0)
    for first in range(0, 1000, 100):
        home.steps_at(first, first + 100, float(first), epoch=first // 100)
    home.begin_at(2, 2000, first_step=800)
    for first in range(800, 1500, 100):
        home.steps_at(first, first + 100, 1200.0 + first, epoch=first // 100)
    return home


def test_a_curve_ends_at_the_moment(resumed: CurvesHome) -> None:
    for axis, end, within in [("step", 450.0, 0), ("time", 450.5, 1), ("trained", 450.5, 1), ("epoch", 4.5, 0.2)]:
        whole = resumed.ask(replace(LOSS, axis=axis))
        then = cut(whole, extent_of(resumed, BEGAN_AT + 450.5, 450))
        curve = then.curves["loss"]
        assert end - within <= curve.bins[-1].last_x <= end, (axis, end, within)
        assert curve.last == 450.0, (axis, end, within)
        assert [attempt.attempt for attempt in curve.attempts] == [1], (axis, end, within)
        assert curve.redone == (), (axis, end, within)
        assert then.frame.end == curve.bins[-1].last_x, (axis, end, within)
        # Cutting leaves the whole curve as it was.
        assert whole.curves["loss"].bins[-1].last_x > curve.bins[-1].last_x, (axis, end, within)


def test_what_was_redone_later_had_not_been_then(resumed: CurvesHome) -> None:
    whole = resumed.ask(LOSS)
    assert len(whole.curves["loss"].redone) > 0
    before = cut(whole, extent_of(resumed, BEGAN_AT + 1500, 999)).curves["loss"]
    assert before.redone == ()
    assert before.bins[-1].last_x == 999.0
    during = cut(whole, extent_of(resumed, BEGAN_AT + 2100.5, 900)).curves["loss"]
    assert min(one_bin.first_x for one_bin in during.redone) == 800.0
    assert max(one_bin.last_x for one_bin in during.redone) == 999.0
    assert during.bins[-1].last_x == 900.0
    assert any(one_bin.gap_before for one_bin in during.bins[1:])
