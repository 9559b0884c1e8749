"""Curves of a run: the same whether they were reduced or not, read at once or followed."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from gputui.metrics.curves import live_curves
from gputui.metrics.curves.bins import average_at
from gputui.metrics.curves.live_curves import RunCurves
from gputui.metrics.curves.model import Axis, ChartRequest, MetricCurve
from gputui.metrics.draw.bins import Bin

from .conftest import BEGAN_AT, RUN, CurvesHome

LOSS = ChartRequest(("loss",))


def summary(bins: Sequence[Bin]) -> tuple[object, ...]:
    """Sum up the values of bins, however they are cut."""
    lows = [one_bin.low for one_bin in bins if one_bin.low is not None]
    highs = [one_bin.high for one_bin in bins if one_bin.high is not None]
    return (
        sum(one_bin.points for one_bin in bins),
        sum(one_bin.nan for one_bin in bins),
        min(lows, default=None),
        max(highs, default=None),
        bins[0].first_x if lows else None,
        bins[-1].last_x if lows else None,
    )


def comparable(value: float | None) -> float | str | None:
    """Return the value, and a text for NaN, which equals nothing."""
    return "NaN" if value is not None and math.isnan(value) else value


def loss(home: CurvesHome, request: ChartRequest = LOSS) -> MetricCurve:
    return home.ask(request).curves["loss"]


def test_before_anything_was_measured(home: CurvesHome) -> None:
    home.begin_at(1, 0)
    data = home.ask(LOSS)
    assert data.names == ()
    assert data.frame.start is None
    assert data.curves["loss"].problem == "nothing measured yet"
    assert home.ask(ChartRequest()).curves == {}


def test_a_spike_among_many_stays(home: CurvesHome) -> None:
    home.begin_at(1, 0)
    home.steps_at(0, 9000, 0.0)
    home.write({"step": 9000, "time": BEGAN_AT + 9000, "loss": 1e9}, {"step": 9001, "time": BEGAN_AT + 9001})
    home.steps_at(9002, 12_000, 9002.0)
    axes: tuple[Axis, ...] = ("step", "time", "trained")
    for axis in axes:
        curve = loss(home, replace(LOSS, axis=axis, bins=40))
        assert len(curve.bins) <= 40
        assert summary(curve.bins) == (11_999, 0, 0.0, 1e9, 0.0, 11_999.0), axis
        assert curve.last == 11_999.0
        assert all(a.last_x <= b.first_x for a, b in zip(curve.bins, curve.bins[1:], strict=False))
        frame = home.ask(replace(LOSS, axis=axis)).frame
        assert (frame.start, frame.end, frame.origin_at) == (0.0, 11_999.0, BEGAN_AT), axis


def test_reduced_or_not_the_curves_say_the_same(home: CurvesHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_curves, "LINES_IN_FULL", 600)
    chance = random.Random(3)
    home.begin_at(1, 0)
    home.steps_at(0, 2600, 0.0, noise=math.nan)
    home.begin_at(2, 2800, first_step=1500)
    lines = [{"step": step, "time": BEGAN_AT + 1350 + step, "loss": chance.gauss(5, 2)} for step in range(1500, 4200)]
    home.write(*({**line, "val": 1} if number % 5 else line for number, line in enumerate(lines)))
    requests = [
        ChartRequest(("loss", "noise", "val"), axis=axis, window=window, bins=60)
        for axis in ("step", "time", "trained")
        for window in (None, (100.0, 4000.0), (1490.0, 1510.0), (1e6, 2e6))
    ]
    before = [home.ask(request) for request in requests]
    home.unreduce()
    for request, data in zip(requests, before, strict=True):
        plain = home.ask(request)
        assert plain.frame == data.frame
        for name in request.names:
            reduced_curve = data.curves[name]
            plain_curve = plain.curves[name]
            assert [attempt.attempt for attempt in reduced_curve.attempts] == [
                attempt.attempt for attempt in plain_curve.attempts
            ], request
            assert reduced_curve.problem == plain_curve.problem
            assert comparable(reduced_curve.last) == comparable(plain_curve.last)
            if request.window is None:
                assert summary(reduced_curve.bins) == summary(plain_curve.bins), request
                assert summary(reduced_curve.redone) == summary(plain_curve.redone), request
            elif reduced_curve.bins and summary(plain_curve.bins)[2] is not None:
                # Blocks reach over the ends of a window, by less than a bin.
                assert summary(reduced_curve.bins)[0] >= summary(plain_curve.bins)[0]


def test_steps_that_were_done_again(home: CurvesHome) -> None:
    home.begin_at(1, 0)
    home.steps_at(0, 5000, 0.0)
    home.begin_at(2, 6000, first_step=3001)
    home.write(*({"step": step, "time": BEGAN_AT + 3000 + step, "loss": -1.0} for step in range(3001, 4001)))
    curve = loss(home, replace(LOSS, bins=100))
    assert summary(curve.bins) == (3001 + 1000, 0, -1.0, 3000.0, 0.0, 4000.0)
    assert summary(curve.redone) == (1999, 0, 3001.0, 4999.0, 3001.0, 4999.0)
    first, second = curve.attempts
    assert summary(first.bins) == (5000, 0, 0.0, 4999.0, 0.0, 4999.0)
    assert summary(second.bins)[:4] == (1000, 0, -1.0, -1.0)
    assert next(one_bin.gap_before for one_bin in curve.bins if one_bin.low == -1.0)
    over_time = loss(home, replace(LOSS, axis="time", bins=100))
    assert over_time.redone == ()
    assert summary(over_time.bins)[0] == 6000
    trained = loss(home, replace(LOSS, axis="trained", bins=100))
    # Five seconds before the second attempt began the first was over; those are not training.
    assert trained.bins[-1].last_x == over_time.bins[-1].last_x - 5


def test_a_moving_average_is_the_same_in_every_window(home: CurvesHome) -> None:
    chance = random.Random(5)
    home.begin_at(1, 0)
    lines = ({"step": step, "time": BEGAN_AT + step, "loss": chance.gauss(5, 2)} for step in range(9000))
    home.write(*lines)
    curves = RunCurves(RUN)
    request = replace(LOSS, smoothing=0.9)
    whole = home.ask(request, curves).curves["loss"]
    for window in ((2000.0, 4000.0), (3000.0, 3200.0), (0.0, 9000.0)):
        for reader in (curves, RunCurves(RUN)):
            piece = home.ask(replace(request, window=window), reader).curves["loss"]
            assert average_at(piece.smooth, 3100.0) == pytest.approx(average_at(whole.smooth, 3100.0)), window
    assert home.ask(request, curves).curves["loss"].smooth == whole.smooth


def test_following_says_what_a_new_look_says(home: CurvesHome) -> None:
    home.begin_at(1, 0)
    followed = RunCurves(RUN)
    request = replace(LOSS, names=("loss", "late"))
    home.ask(request, followed)
    for first in range(0, 3000, 250):
        home.steps_at(first, first + 250, float(first), **({"late": 2.0} if first > 2000 else {}))
        data = home.ask(request, followed)
        anew = home.ask(request)
        assert data.frame == anew.frame
        for name in request.names:
            assert summary(data.curves[name].bins) == summary(anew.curves[name].bins)
    assert data.names == ("loss", "late")


def test_the_newest_value_is_followed_also_outside_the_window(home: CurvesHome) -> None:
    home.begin_at(1, 0)
    followed = RunCurves(RUN)
    request = replace(LOSS, window=(0.0, 10.0))
    for first in (0, 20):
        home.steps_at(first, first + 20, float(first))
        assert home.ask(request, followed).curves["loss"].last == first + 19


@pytest.mark.parametrize("whole", [True, False])
def test_epochs(home: CurvesHome, whole: bool) -> None:
    home.begin_at(1, 0)
    home.write(
        *(
            {
                "step": step,
                "loss": float(step),
                **({"epoch": step // 1000 if whole else step / 1000} if step % 3 else {}),
            }
            for step in range(4001)
        )
    )
    request = replace(LOSS, axis="epoch")
    data = home.ask(request)
    curve = data.curves["loss"]
    assert data.frame.end == pytest.approx(4.0, abs=0.05)
    for one_bin in curve.bins:
        assert one_bin.first is not None
        assert one_bin.first_x == pytest.approx(one_bin.first / 1000, abs=0.07)
    narrow = home.ask(replace(request, window=(2.0, 2.5))).curves["loss"]
    assert summary(narrow.bins)[2] == pytest.approx(2000, abs=70)
    assert summary(narrow.bins)[3] == pytest.approx(2500, abs=70)


def test_any_name_can_be_asked_for(home: CurvesHome) -> None:
    names = "val/acc", "a.b", "a[0]", "$", "größe", 'say "x"', "back\\slash", "", "new\nline", "''", "$.loss", "🙂"
    home.begin_at(1, 0)
    # The first are reduced, the last are not.
    home.write(*({"step": step, **dict.fromkeys(names, 0.5), "a": {"b": 7}, "loss": 9} for step in range(600)))
    summaries = {name: summary(home.ask(ChartRequest((name,))).curves[name].bins)[:4] for name in names}
    assert summaries == dict.fromkeys(names, (600, 0, 0.5, 0.5))


def test_words_truth_and_lists_are_no_values(home: CurvesHome) -> None:
    home.begin_at(1, 0)
    values = [3, "three", [1], None, True, {"x": 1}, "NaN", "Infinity"]
    home.write(*({"step": step, "odd": values[step % len(values)]} for step in range(600)))
    curve = home.ask(ChartRequest(("odd",))).curves["odd"]
    assert summary(curve.bins)[:4] == (225, 75, 3.0, 3.0)


def test_other_ranks_and_other_runs_are_left_out(home: CurvesHome) -> None:
    home.begin_at(1, 0)
    home.add_run("run-2")
    second_file = home.file.with_name("other.jsonl")
    home.ingest.open_source("run-2", str(second_file), "jsonl")
    home.ingest.begin_attempt("run-2", 1)
    second_file.write_text("".join(f'{{"step": {step}, "loss": 99}}\n' for step in range(600)))
    home.write(*({"step": step, "rank": rank, "loss": float(rank)} for step in range(600) for rank in range(2)))
    assert summary(loss(home).bins)[:4] == (600, 0, 0.0, 0.0)


# --- on a logarithmic axis


def test_a_logarithmic_axis_shows_the_beginning_of_a_long_run(home: CurvesHome) -> None:
    home.begin_at(1, 0)
    home.steps_at(0, 60_000, 0.0)
    curve = loss(home, replace(LOSS, bins=200, is_log=True))
    assert len(curve.bins) <= 200
    early = [one_bin for one_bin in curve.bins if one_bin.last_x < 20]
    assert [one_bin.first_x for one_bin in early[:6]] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]  # 0 has no place on it
    assert sum(one_bin.points for one_bin in curve.bins) == 59_999
    # Behind it a bin is about as long, seen along the axis, as any other.
    assert all(one_bin.last_x / one_bin.first_x < 1.25 for one_bin in curve.bins if one_bin.first_x > 100)
    linear = loss(home, replace(LOSS, bins=200))
    assert sum(one_bin.last_x < 200 for one_bin in linear.bins) < 3


def test_values_of_different_events_are_different_metrics(home: CurvesHome) -> None:
    home.begin_at(1, 0)
    home.steps_at(0, 600, 0.0)
    events = [("checkpoint", 40.0), ("validation", 3.0), ("checkpoint", 41.0)]
    home.write(*({"step": 9, "time": BEGAN_AT + 9, "event": name, "seconds": value} for name, value in events))
    home.steps_at(600, 1200, 600.0)
    data = home.ask(ChartRequest(("checkpoint/seconds", "validation/seconds")))
    assert data.names == ("loss", "checkpoint/seconds", "validation/seconds")
    checkpoint, validation = data.curves.values()
    assert (checkpoint.bins[0].low, checkpoint.bins[-1].high, checkpoint.last) == (40.0, 41.0, 41.0)
    assert (validation.bins[0].low, validation.bins[-1].high) == (3.0, 3.0)
