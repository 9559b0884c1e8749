"""One metric of every rank beside the others."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import pytest

from gputui.curves import ranks
from gputui.curves.live_curves import RunCurves
from gputui.curves.model import ChartRequest, RankCurves
from gputui.curves.past import RunExtent, cut
from gputui.store.attempts import read_attempts

from .conftest import BEGAN_AT, RUN, Story

TIMES = ChartRequest(("loss",), ranked=("step_time",), bins=100)


def lines(first: int, last: int, *, count: int = 3, slow: int = 2, at: float = 0.0) -> Sequence[dict[str, Any]]:
    return [
        {
            "step": step, "time": BEGAN_AT + at + step - first, "rank": rank,
            "step_time": 2.0 if rank == slow else 1.0, **({"loss": float(step)} if rank == 0 else {}),
        }
        for step in range(first, last)
        for rank in range(count)
    ]  # fmt: skip


def times(story: Story, request: ChartRequest = TIMES, curves: RunCurves | None = None) -> RankCurves:
    return story.ask(request, curves).ranked["step_time"]


def test_what_several_ranks_tell_is_known(story: Story) -> None:
    story.attempt(1, 0)
    story.write(*lines(0, 4))
    data = story.ask(ChartRequest(("loss",)))
    assert data.rank_names == {"step_time"} and data.ranked == {}
    assert read_attempts(story.reader, RUN)[0].number == 1


def test_each_rank_has_its_own_curve(story: Story) -> None:
    story.attempt(1, 0)
    story.write(*lines(0, 700))  # some reduced, some not
    found = times(story)
    assert [each.rank for each in found.curves] == [0, 1, 2] and not found.is_sampled
    assert [each.last for each in found.curves] == [1.0, 1.0, 2.0]
    assert all(sum(one.points for one in each.bins) == 700 for each in found.curves)
    assert {one.high for one in found.curves[2].bins} == {2.0}


def test_they_are_followed_as_they_grow(story: Story) -> None:
    story.attempt(1, 0)
    story.write(*lines(0, 50))
    curves = RunCurves(RUN)
    first = times(story, curves=curves)
    assert times(story, curves=curves) is first
    story.write(*lines(50, 60, slow=1))
    grown = times(story, curves=curves)
    assert [each.last for each in grown.curves] == [1.0, 2.0, 1.0]
    assert [each.bins for each in grown.curves] == [each.bins for each in times(story).curves]
    story.write(*lines(60, 61, count=4))
    assert [each.rank for each in times(story, curves=curves).curves] == [0, 1, 2, 3]


@pytest.mark.parametrize("grown", [False, True])
def test_a_reading_that_failed_leaves_no_holes(story: Story, monkeypatch: pytest.MonkeyPatch, grown: bool) -> None:
    story.attempt(1, 0)
    story.write(*lines(0, 700))
    curves = RunCurves(RUN)
    if grown:
        times(story, curves=curves)
        story.write(*lines(700, 720))
    take, taken = ranks.RankReader._take, []

    def fail(self: ranks.RankReader, *of_line: Any) -> None:
        taken.append(take(self, *of_line))
        if len(taken) == 20:
            raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(ranks.RankReader, "_take", fail)
        with pytest.raises(sqlite3.OperationalError):
            times(story, curves=curves)
    again, whole = times(story, curves=curves), times(story)
    assert [each.bins for each in again.curves] == [each.bins for each in whole.curves]
    assert {sum(one.points for one in each.bins) for each in again.curves} == {720 if grown else 700}


def test_a_window_shows_its_part_and_smoothing_averages(story: Story) -> None:
    story.attempt(1, 0)
    story.write(*lines(0, 100))
    curves = RunCurves(RUN)
    window = times(story, ChartRequest(ranked=("step_time",), window=(20.0, 30.0), bins=100), curves)
    assert [(each.bins[0].first_x, each.bins[-1].last_x) for each in window.curves] == [(20.0, 30.0)] * 3
    smooth = times(story, ChartRequest(ranked=("step_time",), smoothing=0.9), curves)
    assert smooth.curves[2].bins[-1].last == pytest.approx(2.0) and smooth.curves[2].last == 2.0


def test_steps_that_were_done_again_are_those_of_the_newest_attempt(story: Story) -> None:
    story.attempt(1, 0)
    story.write(*lines(0, 100, slow=0))
    story.attempt(2, 200, first_step=50)
    story.write(*lines(50, 80, at=200.0))
    own = times(story).curves[0]
    assert sum(each.points for each in own.bins) == 80
    assert {each.high for each in own.bins if each.first_x >= 50} == {1.0}
    assert [each.first_x for each in own.bins if each.gap_before] == [50.0]
    over_time = times(story, ChartRequest(ranked=("step_time",), axis="time")).curves[0]
    assert sum(each.points for each in over_time.bins) == 130


def test_of_a_long_run_a_part_is_looked_at_and_that_is_told(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "LINES_AT_ONCE", 600)
    story.attempt(1, 0)
    story.write(*lines(0, 5120))
    found = times(story)
    assert found.is_sampled
    for each in found.curves:
        assert 100 < sum(one.points for one in each.bins) < 1000
        assert each.bins[0].first_x == 0.0 and each.bins[-1].last_x > 4600
    assert found.curves[2].last == 2.0


def test_looking_back_they_end_where_the_run_was(story: Story) -> None:
    story.attempt(1, 0)
    story.write(*lines(0, 50), *lines(50, 100, slow=1))
    data = cut(story.ask(TIMES), RunExtent(BEGAN_AT + 30, tuple(read_attempts(story.reader, RUN)), step=30))
    assert [each.last for each in data.ranked["step_time"].curves] == [1.0, 1.0, 2.0]
    assert all(each.bins[-1].last_x <= 30 for each in data.ranked["step_time"].curves)
