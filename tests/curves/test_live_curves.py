"""Curves of a run: the same whether they were reduced or not, read at once or followed."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from gputui.charts.envelope import Bin
from gputui.curves import run_lines
from gputui.curves.live_curves import RunCurves, read_charts
from gputui.curves.model import Axis, ChartRequest, MetricCurve
from gputui.metrics.formats import Reading
from gputui.store.attempts import read_attempts

from .conftest import BEGAN_AT, RUN, Story

LOSS = ChartRequest(("loss",))


def told(bins: Sequence[Bin]) -> tuple[object, ...]:
    """What bins say together, however they are cut."""
    lows = [each.low for each in bins if each.low is not None]
    highs = [each.high for each in bins if each.high is not None]
    return (
        sum(each.points for each in bins),
        sum(each.nan for each in bins),
        min(lows, default=None),
        max(highs, default=None),
        bins[0].first_x if lows else None,
        bins[-1].last_x if lows else None,
    )


def loss(story: Story, request: ChartRequest = LOSS) -> MetricCurve:
    return story.ask(request).curves["loss"]


def test_before_anything_was_measured(story: Story) -> None:
    story.attempt(1, 0)
    data = story.ask(LOSS)
    assert data.names == () and data.frame.start is None
    assert data.curves["loss"].problem == "nothing measured yet"
    assert story.ask(ChartRequest()).curves == {}


@pytest.mark.parametrize("axis", ["step", "time", "trained"])
def test_a_spike_among_many_stays(story: Story, axis: Axis) -> None:
    story.attempt(1, 0)
    story.steps(0, 9000, 0.0)
    story.write({"step": 9000, "time": BEGAN_AT + 9000, "loss": 1e9}, {"step": 9001, "time": BEGAN_AT + 9001})
    story.steps(9002, 12_000, 9002.0)
    curve = loss(story, replace(LOSS, axis=axis, bins=40))
    assert len(curve.bins) <= 40
    assert told(curve.bins) == (11_999, 0, 0.0, 1e9, 0.0, 11_999.0)
    assert curve.last == 11_999.0
    assert all(a.last_x <= b.first_x for a, b in zip(curve.bins, curve.bins[1:], strict=False))
    frame = story.ask(replace(LOSS, axis=axis)).frame
    assert (frame.start, frame.end, frame.origin_at) == (0.0, 11_999.0, BEGAN_AT)


def test_reduced_or_not_the_curves_say_the_same(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lines, "LINES_IN_FULL", 600)
    chance = random.Random(3)
    story.attempt(1, 0)
    story.steps(0, 2600, 0.0, noise=math.nan)
    story.attempt(2, 2800, first_step=1500)
    lines = [{"step": step, "time": BEGAN_AT + 1350 + step, "loss": chance.gauss(5, 2)} for step in range(1500, 4200)]
    story.write(*({**line, "val": 1} if number % 5 else line for number, line in enumerate(lines)))
    requests = [
        ChartRequest(("loss", "noise", "val"), axis=axis, window=window, bins=60)
        for axis in ("step", "time", "trained")
        for window in (None, (100.0, 4000.0), (1490.0, 1510.0), (1e6, 2e6))
    ]
    before = [story.ask(request) for request in requests]
    story.unreduce()
    for request, data in zip(requests, before, strict=True):
        plain = story.ask(request)
        assert plain.frame == data.frame
        for name in request.names:
            one, other = data.curves[name], plain.curves[name]
            assert [each.attempt for each in one.attempts] == [each.attempt for each in other.attempts], request
            assert (one.problem, one.last == one.last and one.last) == (
                other.problem,
                other.last == other.last and other.last,
            )
            if request.window is None:
                assert told(one.bins) == told(other.bins), request
                assert told(one.redone) == told(other.redone), request
            elif one.bins and told(other.bins)[2] is not None:
                # Blocks reach over the ends of a window, by less than a bin.
                assert told(one.bins)[0] >= told(other.bins)[0]


def test_a_narrow_window_is_shown_in_full(story: Story) -> None:
    story.attempt(1, 0)
    story.steps(0, 10_000, 0.0)
    curve = loss(story, replace(LOSS, window=(7000.0, 7100.0)))
    assert [(each.first_x, each.last) for each in curve.bins] == [(float(x), float(x)) for x in range(7000, 7101)]


def test_steps_that_were_done_again(story: Story) -> None:
    story.attempt(1, 0)
    story.steps(0, 5000, 0.0)
    story.attempt(2, 6000, first_step=3001)
    story.write(*({"step": step, "time": BEGAN_AT + 3000 + step, "loss": -1.0} for step in range(3001, 4001)))
    curve = loss(story, replace(LOSS, bins=100))
    assert told(curve.bins) == (3001 + 1000, 0, -1.0, 3000.0, 0.0, 4000.0)
    assert told(curve.redone) == (1999, 0, 3001.0, 4999.0, 3001.0, 4999.0)
    first, second = curve.attempts
    assert told(first.bins) == (5000, 0, 0.0, 4999.0, 0.0, 4999.0)
    assert told(second.bins)[:4] == (1000, 0, -1.0, -1.0)
    assert next(each.gap_before for each in curve.bins if each.low == -1.0)
    over_time = loss(story, replace(LOSS, axis="time", bins=100))
    assert over_time.redone == () and told(over_time.bins)[0] == 6000
    trained = loss(story, replace(LOSS, axis="trained", bins=100))
    # Five seconds before the second attempt began the first was over; those are not training.
    assert trained.bins[-1].last_x == over_time.bins[-1].last_x - 5


def test_following_says_what_a_new_look_says(story: Story) -> None:
    story.attempt(1, 0)
    followed = RunCurves(RUN)
    request = replace(LOSS, names=("loss", "late"))
    story.ask(request, followed)
    for first in range(0, 3000, 250):
        story.steps(first, first + 250, float(first), **({"late": 2.0} if first > 2000 else {}))
        data = story.ask(request, followed)
        anew = story.ask(request)
        assert data.frame == anew.frame
        for name in request.names:
            assert told(data.curves[name].bins) == told(anew.curves[name].bins)
    assert data.names == ("loss", "late")


def test_nothing_new_is_the_same_value(story: Story) -> None:
    story.attempt(1, 0)
    story.steps(0, 1000, 0.0)
    followed = RunCurves(RUN)
    first = story.ask(LOSS, followed)
    assert story.ask(LOSS, followed).curves["loss"] is first.curves["loss"]
    smoothed = story.ask(replace(LOSS, smoothing=0.9), followed).curves["loss"]
    assert smoothed.bins == first.curves["loss"].bins and len(smoothed.smooth) == len(smoothed.bins)


def test_an_attempt_that_begins_while_it_is_followed(story: Story) -> None:
    story.attempt(1, 0)
    story.steps(0, 3000, 0.0)
    followed = RunCurves(RUN)
    assert told(story.ask(LOSS, followed).curves["loss"].bins)[0] == 3000
    story.attempt(2, 4000, first_step=2000)
    story.steps(2000, 2100, 4000.0)
    curve = story.ask(LOSS, followed).curves["loss"]
    assert (told(curve.bins)[0], told(curve.redone)[0]) == (2100, 1000)


def test_a_flood_is_not_followed_line_by_line(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    story.attempt(1, 0)
    followed = RunCurves(RUN)
    story.ask(LOSS, followed)
    story.steps(0, 10_000, 0.0)
    read = 0
    real = run_lines.lines

    def counted(*place: object) -> object:
        nonlocal read
        for line in real(*place):  # type: ignore[arg-type]
            read += 1
            yield line

    monkeypatch.setattr(run_lines, "lines", counted)
    assert told(story.ask(LOSS, followed).curves["loss"].bins)[0] == 10_000
    assert read <= 2 * 512


@pytest.mark.parametrize("whole", [True, False])
def test_epochs(story: Story, whole: bool) -> None:
    story.attempt(1, 0)
    story.write(
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
    data = story.ask(request)
    curve = data.curves["loss"]
    assert data.frame.end == pytest.approx(4.0, abs=0.05)
    for each in curve.bins:
        assert each.first is not None
        assert each.first_x == pytest.approx(each.first / 1000, abs=0.07)
    narrow = story.ask(replace(request, window=(2.0, 2.5))).curves["loss"]
    assert told(narrow.bins)[2] == pytest.approx(2000, abs=70) and told(narrow.bins)[3] == pytest.approx(2500, abs=70)


def test_an_epoch_that_ends_while_it_is_followed(story: Story) -> None:
    story.attempt(1, 0)
    followed = RunCurves(RUN)
    request = replace(LOSS, axis="epoch")
    story.write(*({"step": step, "loss": 1.0, "epoch": 0} for step in range(100)))
    assert story.ask(request, followed).curves["loss"].problem == "no epoch is known yet"
    story.write(*({"step": step, "loss": 1.0, "epoch": step // 100} for step in range(100, 150)))
    data = story.ask(request, followed)
    assert data.frame.end == pytest.approx(1.49, abs=0.01)
    story.write(*({"step": step, "loss": 1.0, "epoch": step // 100} for step in range(150, 250)))
    assert story.ask(request, followed).frame.end == pytest.approx(2.49, abs=0.01)


def test_lines_that_tell_no_time(story: Story) -> None:
    story.attempt(1, 0)
    story.write(*({"step": step, "loss": 1.0} for step in range(400)))
    assert loss(story).problem is None
    assert loss(story, replace(LOSS, axis="time")).problem is None
    # As an older gputui stored them, which did not note when a line arrived.
    story.connection.execute("UPDATE metrics SET at = NULL")
    assert loss(story, replace(LOSS, axis="time")).problem == "its lines tell no time"
    assert loss(story, replace(LOSS, axis="epoch")).problem == "no epoch is known yet"
    assert loss(story, replace(LOSS, window=(5000.0, 6000.0))).problem == "nothing measured in this window"


def test_names_are_harmless_and_still_found(story: Story) -> None:
    story.attempt(1, 0)
    story.write({"step": 1, "\x1b[31mred": 4.0})
    (name,) = story.ask(LOSS).names
    assert "\x1b" not in name
    assert story.ask(ChartRequest((name,))).curves[name].last == 4.0


@pytest.mark.parametrize(
    "name", ["val/acc", "a.b", "a[0]", "$", "größe", 'say "x"', "back\\slash", "", "new\nline", "''", "$.loss", "🙂"]
)
def test_any_name_can_be_asked_for(story: Story, name: str) -> None:
    story.attempt(1, 0)
    # The first are reduced, the last are not.
    story.write(*({"step": step, name: 0.5, "a": {"b": 7}, "loss": 9} for step in range(600)))
    curve = story.ask(ChartRequest((name,))).curves[name]
    assert told(curve.bins)[:4] == (600, 0, 0.5, 0.5)


def test_words_truth_and_lists_are_no_values(story: Story) -> None:
    story.attempt(1, 0)
    values = [3, "three", [1], None, True, {"x": 1}, "NaN", "Infinity"]
    story.write(*({"step": step, "odd": values[step % len(values)]} for step in range(600)))
    curve = story.ask(ChartRequest(("odd",))).curves["odd"]
    assert told(curve.bins)[:4] == (225, 75, 3.0, 3.0)


def test_other_ranks_and_other_runs_are_left_out(story: Story) -> None:
    story.attempt(1, 0)
    story.connection.execute(
        "INSERT INTO runs (run_id, sequence, name, profile, state, spec, params, created_at) "
        "VALUES ('run-2', 2, 'run', 'p', 'running', '{}', '{}', 0)"
    )
    other = story.file.with_name("other.jsonl")
    story.ingest.open_source("run-2", str(other), "jsonl")
    story.ingest.begin_attempt("run-2", 1)
    other.write_text("".join(f'{{"step": {step}, "loss": 99}}\n' for step in range(600)))
    story.write(*({"step": step, "rank": rank, "loss": float(rank)} for step in range(600) for rank in range(2)))
    assert told(loss(story).bins)[:4] == (600, 0, 0.0, 0.0)


def test_a_learning_rate_is_not_smoothed(story: Story) -> None:
    story.attempt(1, 0)
    story.steps(0, 100, 0.0, lr=1e-3)
    curves = story.ask(ChartRequest(("loss", "lr"), smoothing=0.9)).curves
    assert curves["loss"].smooth and not curves["lr"].smooth


def test_an_output_file_per_attempt(story: Story) -> None:
    """Where metrics are read from what is printed, each attempt has a source of its own."""
    folder = story.path.parent
    pattern = r"iter (?P<step>\d+): loss (?P<loss>\S+)"
    story.connection.execute(
        "INSERT INTO runs (run_id, sequence, name, profile, state, spec, params, created_at) "
        "VALUES ('run-2', 2, 'run', 'p', 'running', ?, '{}', 0)",
        (json.dumps({"launcher": "command", "metrics": {"patterns": [pattern]}}),),
    )
    story.ingest.open_source("run-2", str(folder), "stdout", Reading((pattern,)))
    followed = RunCurves("run-2")
    for number, (first, last) in enumerate(((0, 1500), (1000, 2500)), 1):
        story.connection.execute(
            "INSERT INTO attempts (run_id, number, state, params, gpus, launch, created_at, first_step) "
            "VALUES ('run-2', ?, 'running', '{}', '[]', '{}', ?, ?)",
            (number, BEGAN_AT + number, first),
        )
        story.ingest.begin_attempt("run-2", number)
        output = folder / "attempts" / str(number) / "output.log"
        output.parent.mkdir(parents=True)
        output.write_text("".join(f"iter {step}: loss {number}\n" for step in range(first, last)))
        while story.ingest.pump("run-2").more:
            pass
        reader = story.reader
        reader.execute("BEGIN")
        curve = followed.read(reader, read_attempts(reader, "run-2"), LOSS).curves["loss"]
        reader.execute("ROLLBACK")
        again = read_charts(reader, "run-2", LOSS).curves["loss"]
        assert (told(curve.bins), told(curve.redone)) == (told(again.bins), told(again.redone))
    assert told(curve.bins)[:4] == (2500, 0, 1.0, 2.0) and told(curve.redone)[:4] == (500, 0, 1.0, 1.0)
    assert curve.bins[-1].last == 2.0


# --- on a logarithmic axis


def test_a_logarithmic_axis_shows_the_beginning_of_a_long_run(story: Story) -> None:
    story.attempt(1, 0)
    story.steps(0, 60_000, 0.0)
    curve = loss(story, replace(LOSS, bins=200, is_log=True))
    assert len(curve.bins) <= 200
    early = [each for each in curve.bins if each.last_x < 20]
    assert [each.first_x for each in early[:6]] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]  # 0 has no place on it
    assert sum(each.points for each in curve.bins) == 59_999
    # Behind it a bin is about as long, seen along the axis, as any other.
    assert all(each.last_x / each.first_x < 1.25 for each in curve.bins if each.first_x > 100)
    linear = loss(story, replace(LOSS, bins=200))
    assert sum(each.last_x < 200 for each in linear.bins) < 3


def test_a_logarithmic_axis_is_followed_and_looked_into(story: Story) -> None:
    story.attempt(1, 0)
    story.steps(0, 20_000, 0.0)
    request = replace(LOSS, bins=120, is_log=True)
    curves = RunCurves(RUN)
    first = story.ask(request, curves).curves["loss"]
    story.steps(20_000, 20_500, 20_000.0)
    grown = story.ask(request, curves).curves["loss"]
    assert sum(each.points for each in grown.bins) == sum(each.points for each in first.bins) + 500
    window = story.ask(replace(request, window=(100.0, 1000.0)), curves).curves["loss"]
    inside = [each for each in window.bins if each.first_x >= 100 and each.last_x <= 1000]
    assert len(inside) > 100 and sum(each.points for each in inside) >= 850


@pytest.mark.parametrize("axis", ["time", "trained"])
def test_in_time_the_axis_spans_the_attempts_not_only_their_lines(story: Story, axis: Axis) -> None:
    story.attempt(1, 0)
    story.connection.execute("UPDATE attempts SET ended_at = ?", (BEGAN_AT + 22,))
    without_lines = story.ask(ChartRequest(("loss",), axis=axis)).frame
    assert (without_lines.start, without_lines.end) == (0.0, 22.0)
    story.steps(0, 3, 10.0)
    frame = story.ask(ChartRequest(("loss",), axis=axis)).frame
    assert (frame.start, frame.end) == (0.0, 22.0)
    by_step = story.ask(ChartRequest(("loss",))).frame
    assert (by_step.start, by_step.end) == (0.0, 2.0)


@pytest.mark.parametrize("is_reduced", [False, True])
def test_values_of_different_events_are_different_metrics(story: Story, is_reduced: bool) -> None:
    story.attempt(1, 0)
    story.steps(0, 600 if is_reduced else 20, 0.0)
    events = [("checkpoint", 40.0), ("validation", 3.0), ("checkpoint", 41.0)]
    story.write(*({"step": 9, "time": BEGAN_AT + 9, "event": name, "seconds": value} for name, value in events))
    story.steps(600, 1200, 600.0)
    data = story.ask(ChartRequest(("checkpoint/seconds", "validation/seconds")))
    assert data.names == ("loss", "checkpoint/seconds", "validation/seconds")
    checkpoint, validation = data.curves.values()
    assert (checkpoint.bins[0].low, checkpoint.bins[-1].high, checkpoint.last) == (40.0, 41.0, 41.0)
    assert (validation.bins[0].low, validation.bins[-1].high) == (3.0, 3.0)
