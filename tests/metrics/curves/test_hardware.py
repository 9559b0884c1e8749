"""GPUs and the host under the axis of a run."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.metrics.curves.model import ChartRequest, HardwareCurve
from tests.homes import add_gpu

from .conftest import BEGAN_AT, CurvesHome

GPUS = ("GPU-a", "GPU-b")
REQUEST = ChartRequest(axis="time", hardware=("utilization", "host_cpu", "power"))


@pytest.fixture
def busy(home: CurvesHome) -> CurvesHome:
    """An hour before the run the GPUs are idle; over it the utilisation is the second of the run, of 1000."""
    for uuid in GPUS:
        add_gpu(home.connection, uuid)
    sample(home, -60, 1000)
    home.begin_at(1, 0, gpus=GPUS)
    home.steps_at(0, 900, 50.0)
    return home


def sample(home: CurvesHome, first: int, last: int) -> None:
    home.connection.executemany(
        "INSERT INTO gpu_samples (at, gpu_id, state, utilization_percent, power_watts) VALUES (?, ?, 'ok', ?, ?)",
        [
            (BEGAN_AT + second, gpu_id, max(0.0, second / 10), None if second < 500 else 300.0 + gpu_id)
            for second in range(first, last)
            for gpu_id in (1, 2)
        ],
    )
    home.connection.executemany(
        "INSERT INTO host_samples (at, cpu_percent) VALUES (?, 25.0)", [(BEGAN_AT + s,) for s in range(first, last)]
    )


def by_name(curves: tuple[HardwareCurve, ...]) -> dict[tuple[str, str | None], HardwareCurve]:
    return {(curve.field, curve.uuid): curve for curve in curves}


def test_over_time(busy: CurvesHome) -> None:
    curves = busy.ask(REQUEST).hardware
    assert [(curve.field, curve.uuid) for curve in curves] == [
        ("utilization", "GPU-a"), ("utilization", "GPU-b"), ("host_cpu", None), ("power", "GPU-a"), ("power", "GPU-b"),
    ]  # fmt: skip
    lines = by_name(curves)
    load = lines["utilization", "GPU-a"]
    assert (load.bins[0].first_x, load.bins[-1].last_x) == (0.0, 999.0)
    assert sum(one_bin.points for one_bin in load.bins) == pytest.approx(1000, abs=2)
    assert len(load.bins) <= 2 * REQUEST.bins
    for one_bin in load.bins:
        assert one_bin.low is not None
        assert one_bin.high is not None
        assert one_bin.low == pytest.approx(one_bin.first_x / 10)
        assert one_bin.high == pytest.approx(one_bin.last_x / 10)
    # Before second 500 the power was not known.
    assert lines["power", "GPU-b"].bins[0].first_x >= 498
    assert lines["power", "GPU-b"].last == 302.0
    assert {one_bin.last for one_bin in lines["host_cpu", None].bins} == {25.0}


def test_over_other_axes(busy: CurvesHome) -> None:
    for axis in ["step", "epoch", "trained"]:
        if axis == "epoch":
            busy.write(*({"step": 900 + n, "time": BEGAN_AT + 950 + n, "epoch": n / 10} for n in range(20)))
        load = by_name(busy.ask(replace(REQUEST, axis=axis)).hardware)["utilization", "GPU-a"]
        begin = load.bins[0]
        end = load.bins[-1]
        if axis == "step":
            # The first step was done 50 seconds after the attempt began.
            assert begin.first_x == pytest.approx(0, abs=2), axis
            assert begin.low == pytest.approx(5.0, abs=0.3), axis
            assert end.last_x == pytest.approx(899, abs=2), axis
            assert end.high == pytest.approx(94.9, abs=0.3), axis
        elif axis == "epoch":
            assert end.last_x == pytest.approx(1.9, abs=0.2), axis
        else:
            assert (begin.first_x, end.last_x) == (0.0, 999.0), axis


def test_a_window(busy: CurvesHome) -> None:
    load = by_name(busy.ask(replace(REQUEST, window=(100.0, 120.0), bins=100)).hardware)["utilization", "GPU-a"]
    assert [one_bin.last for one_bin in load.bins] == pytest.approx([second / 10 for second in range(100, 121)])
    by_step = by_name(busy.ask(replace(REQUEST, axis="step", window=(100.0, 120.0), bins=100)).hardware)
    assert by_step["utilization", "GPU-a"].bins[0].low == pytest.approx(15.0, abs=0.2)


def test_the_value_at_the_crosshair_is_a_sample_whatever_the_window(busy: CurvesHome) -> None:
    for window in (None, (0.0, 900.0), (590.0, 620.0)):
        over_time = by_name(busy.ask(replace(REQUEST, cursor=600.5, window=window)).hardware)
        values = {(name, uuid): curve.at_cursor for (name, uuid), curve in over_time.items()}
        assert values["utilization", "GPU-a"] == 60.0, window
        assert values["power", "GPU-b"] == 302.0, window
        assert values["host_cpu", None] == 25.0
        by_step = by_name(busy.ask(replace(REQUEST, axis="step", cursor=550.0, window=window)).hardware)
        assert by_step["utilization", "GPU-a"].at_cursor == 60.0, window
    # Samples that were deleted are the mean of their minute.
    busy.connection.execute("UPDATE record_bounds SET raw_since = ?", (BEGAN_AT + 800,))
    busy.connection.execute(
        "INSERT INTO gpu_minutes (at, gpu_id, sample_count, utilization_percent_mean) VALUES (?, 1, 60, 63.0)",
        (BEGAN_AT + 599,),
    )
    old = by_name(busy.ask(replace(REQUEST, cursor=600.5)).hardware)
    assert old["utilization", "GPU-a"].at_cursor == 63.0


def test_steps_that_were_done_again_show_the_newest_attempt(busy: CurvesHome) -> None:
    busy.begin_at(2, 1200, first_step=500, gpus=("GPU-b",))
    sample(busy, 1200, 1500)
    busy.steps_at(500, 700, 1250.0)
    lines = by_name(busy.ask(replace(REQUEST, axis="step")).hardware)
    assert lines["utilization", "GPU-a"].bins[-1].last_x <= 500
    again = [one_bin for one_bin in lines["utilization", "GPU-b"].bins if one_bin.first_x >= 510]
    assert again
    assert all(one_bin.low is not None and one_bin.low > 120 for one_bin in again)
    over_time = by_name(busy.ask(REQUEST).hardware)
    # Nobody trained from five seconds before the second attempt on; the GPU that it left tells nothing any more.
    assert over_time["utilization", "GPU-a"].bins[-1].last_x <= 1195
    assert [one_bin.gap_before for one_bin in over_time["utilization", "GPU-b"].bins if one_bin.first_x >= 1190].count(
        True
    ) == 1
