"""GPUs and the host under the axis of a run."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.curves import hardware
from gputui.curves.live_curves import RunCurves
from gputui.curves.model import Axis, ChartRequest, HardwareCurve

from .conftest import BEGAN_AT, RUN, Story

GPUS = ("GPU-a", "GPU-b")
REQUEST = ChartRequest(axis="time", hardware=("utilization", "host_cpu", "power"))


@pytest.fixture
def busy(story: Story) -> Story:
    """An hour before the run the GPUs are idle; over it the utilisation is the second of the run, of 1000."""
    for number, uuid in enumerate(GPUS):
        story.connection.execute(
            "INSERT INTO gpus (uuid, position, name, first_seen_at, last_seen_at) VALUES (?, ?, 'H200', 0, 0)",
            (uuid, number),
        )
    sample(story, -60, 1000)
    story.attempt(1, 0, gpus=GPUS)
    story.steps(0, 900, 50.0)
    return story


def sample(story: Story, first: int, last: int) -> None:
    story.connection.executemany(
        "INSERT INTO gpu_samples (at, gpu_id, state, utilization_percent, power_watts) VALUES (?, ?, 'ok', ?, ?)",
        [
            (BEGAN_AT + second, gpu_id, max(0.0, second / 10), None if second < 500 else 300.0 + gpu_id)
            for second in range(first, last)
            for gpu_id in (1, 2)
        ],
    )
    story.connection.executemany(
        "INSERT INTO host_samples (at, cpu_percent) VALUES (?, 25.0)", [(BEGAN_AT + s,) for s in range(first, last)]
    )


def by_name(curves: tuple[HardwareCurve, ...]) -> dict[tuple[str, str | None], HardwareCurve]:
    return {(curve.field, curve.uuid): curve for curve in curves}


def test_over_time(busy: Story) -> None:
    curves = busy.ask(REQUEST).hardware
    assert [(curve.field, curve.uuid) for curve in curves] == [
        ("utilization", "GPU-a"), ("utilization", "GPU-b"), ("host_cpu", None), ("power", "GPU-a"), ("power", "GPU-b"),
    ]  # fmt: skip
    found = by_name(curves)
    load = found["utilization", "GPU-a"]
    assert (load.bins[0].first_x, load.bins[-1].last_x) == (0.0, 999.0)
    assert sum(each.points for each in load.bins) == pytest.approx(1000, abs=2)
    assert len(load.bins) <= 2 * REQUEST.bins
    for each in load.bins:
        assert each.low is not None and each.high is not None
        assert each.low == pytest.approx(each.first_x / 10) and each.high == pytest.approx(each.last_x / 10)
    # Before second 500 the power was not known.
    assert found["power", "GPU-b"].bins[0].first_x >= 498 and found["power", "GPU-b"].last == 302.0
    assert {each.last for each in found["host_cpu", None].bins} == {25.0}


@pytest.mark.parametrize("axis", ["step", "epoch", "trained"])
def test_over_other_axes(busy: Story, axis: Axis) -> None:
    if axis == "epoch":
        busy.write(*({"step": 900 + n, "time": BEGAN_AT + 950 + n, "epoch": n / 10} for n in range(20)))
    load = by_name(busy.ask(replace(REQUEST, axis=axis)).hardware)["utilization", "GPU-a"]
    begin, end = load.bins[0], load.bins[-1]
    if axis == "step":
        # The first step was done 50 seconds after the attempt began.
        assert begin.first_x == pytest.approx(0, abs=2) and begin.low == pytest.approx(5.0, abs=0.3)
        assert end.last_x == pytest.approx(899, abs=2) and end.high == pytest.approx(94.9, abs=0.3)
    elif axis == "epoch":
        assert end.last_x == pytest.approx(1.9, abs=0.2)
    else:
        assert (begin.first_x, end.last_x) == (0.0, 999.0)


def test_a_window(busy: Story) -> None:
    load = by_name(busy.ask(replace(REQUEST, window=(100.0, 120.0), bins=100)).hardware)["utilization", "GPU-a"]
    assert [each.last for each in load.bins] == pytest.approx([second / 10 for second in range(100, 121)])
    by_step = by_name(busy.ask(replace(REQUEST, axis="step", window=(100.0, 120.0), bins=100)).hardware)
    assert by_step["utilization", "GPU-a"].bins[0].low == pytest.approx(15.0, abs=0.2)


def test_steps_that_were_done_again_show_the_newest_attempt(busy: Story) -> None:
    busy.attempt(2, 1200, first_step=500, gpus=("GPU-b",))
    sample(busy, 1200, 1500)
    busy.steps(500, 700, 1250.0)
    found = by_name(busy.ask(replace(REQUEST, axis="step")).hardware)
    assert found["utilization", "GPU-a"].bins[-1].last_x <= 500
    again = [each for each in found["utilization", "GPU-b"].bins if each.first_x >= 510]
    assert again and all(each.low is not None and each.low > 120 for each in again)
    over_time = by_name(busy.ask(REQUEST).hardware)
    # Nobody trained from five seconds before the second attempt on; the GPU that it left tells nothing any more.
    assert over_time["utilization", "GPU-a"].bins[-1].last_x <= 1195
    assert [each.gap_before for each in over_time["utilization", "GPU-b"].bins if each.first_x >= 1190].count(True) == 1


def test_followed_as_it_is_sampled(busy: Story) -> None:
    followed = RunCurves(RUN)
    busy.ask(REQUEST, followed)
    for second in range(1000, 1300, 50):
        sample(busy, second, second + 50)
        load = by_name(busy.ask(REQUEST, followed).hardware)["utilization", "GPU-a"]
        assert load.bins[-1].last_x == second + 49
        assert sum(each.points for each in load.bins) == pytest.approx(second + 50, abs=4)


def test_a_long_stretch_is_looked_into(busy: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "SAMPLES_AT_ONCE", 300)
    monkeypatch.setattr(hardware, "LEAST_SECONDS", 2.0)
    request = replace(REQUEST, hardware=("utilization",), bins=20)
    load = by_name(busy.ask(request).hardware)["utilization", "GPU-a"]
    assert sum(each.points for each in load.bins) <= 300
    assert all(not each.gap_before for each in load.bins) and load.bins[-1].last_x > 900


def test_nothing_was_sampled(story: Story) -> None:
    story.attempt(1, 0, gpus=GPUS)
    assert story.ask(REQUEST).hardware == ()
    assert story.ask(ChartRequest()).hardware == ()


def test_samples_are_joined_however_finely_a_chart_is_cut_and_a_pause_is_not(busy: Story) -> None:
    busy.connection.execute("DELETE FROM gpu_samples WHERE at > ? AND at < ?", (BEGAN_AT + 40, BEGAN_AT + 70))
    fine = replace(REQUEST, hardware=("utilization",), window=(20.0, 90.0), bins=400)
    bins = busy.ask(fine).hardware[0].bins
    assert len(bins) >= 40  # a bin for each sample
    assert [each.first_x for each in bins if each.gap_before] == [70.0]


def test_samples_a_minute_apart_are_joined_and_a_missing_hour_is_not(story: Story) -> None:
    story.connection.execute(
        "INSERT INTO gpus (uuid, position, name, first_seen_at, last_seen_at) VALUES ('GPU-a', 0, 'H200', 0, 0)"
    )
    minutes = [minute for minute in range(300) if not 100 <= minute < 160]
    story.connection.executemany(
        "INSERT INTO gpu_samples (at, gpu_id, state, utilization_percent) VALUES (?, 1, 'ok', 50)",
        [(BEGAN_AT + 60 * minute,) for minute in minutes],
    )
    story.connection.execute(
        "INSERT INTO host_samples (at, cpu_percent) VALUES (?, 25.0)", (BEGAN_AT + 60 * minutes[-1],)
    )
    story.attempt(1, 0, gpus=("GPU-a",))
    story.steps(0, 10, 0.0)
    for bins in (100, 320, 2000):
        (curve,) = story.ask(ChartRequest(axis="time", hardware=("utilization",), bins=bins)).hardware
        assert [each.first_x // 60 for each in curve.bins if each.gap_before] == [160]
