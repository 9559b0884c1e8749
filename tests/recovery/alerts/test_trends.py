"""What is remembered between moments, and across agents."""

from __future__ import annotations

import pytest

from gputui.machine.gpu_model import GpuFacts
from gputui.recovery.alerts.run_trends import RunTrend
from gputui.recovery.alerts.schedules import RateSchedule, expected_rate
from gputui.recovery.alerts.trends import GpuTrend, Growth
from gputui.store.series import GpuSample, GpuSlowSample
from tests.tables import table

FACTS = GpuFacts("GPU-a", 0, "x")


def test_a_gpu_that_works_in_bursts_is_judged_by_its_mean() -> None:
    trend = GpuTrend()
    for second in range(300):
        sample = GpuSample(
            "GPU-a", utilization_percent=100.0 if second % 10 < 8 else 0.0, throttle_reasons=("power cap",)
        )
        moment = trend.advance(sample, FACTS, 1.0, training=("r", 1), holder=None)
    assert moment.busy_percent == pytest.approx(80.0, abs=6.0)
    assert moment.throttled_percent == 0.0, "a power cap is no trouble"


def test_power_is_compared_under_one_attempt_only() -> None:
    trend = GpuTrend()
    for _ in range(4000):
        moment = trend.advance(GpuSample("GPU-a", power_watts=600.0), FACTS, 1.0, training=("r", 1), holder=None)
    assert moment.power_before_watts == pytest.approx(600.0)
    for _ in range(600):
        moment = trend.advance(GpuSample("GPU-a", power_watts=300.0), FACTS, 1.0, training=("r", 1), holder=None)
    assert moment.power_watts is not None and moment.power_watts < 350 and moment.power_before_watts is not None
    assert moment.power_before_watts > 500
    moment = trend.advance(GpuSample("GPU-a", power_watts=300.0), FACTS, 1.0, training=("r", 2), holder=None)
    assert moment.power_watts is None and moment.power_before_watts is None


def test_counted_errors_tell_only_what_is_new() -> None:
    trend = GpuTrend()
    sample = GpuSample("GPU-a")
    counts = [7, 7, None, 9, 9, 2, 3]
    found = [
        trend.advance(
            sample, FACTS, 1.0, training=None, holder=None, slow=GpuSlowSample("GPU-a", ecc_uncorrected=count)
        )
        for count in counts
    ]
    grown = [moment.grown.get("ecc_uncorrected") for moment in found]
    assert grown == [0, 0, None, 2, 0, 0, 1], "a smaller count is a driver that began anew"
    assert GpuTrend.from_json(trend.to_json()).counts == {"ecc_uncorrected": 3}


def test_growth_is_the_slower_of_both_halves() -> None:
    ramp, step = Growth(), Growth()
    for second in range(1900):
        ramp.add(second * 1e6, 1.0)
        step.add(5e10 if second > 400 else 1e10, 1.0)
    assert ramp.per_hour == pytest.approx(3.6e9)
    assert step.per_hour == pytest.approx(0.0, abs=1.0)


def test_going_back_to_a_checkpoint_begins_anew() -> None:
    trend = RunTrend(1)
    for step in [*range(1000, 2200, 100), *range(500, 1700, 100)]:
        trend.take(step, {"loss": 1.0 if step > 1700 else 3.0}, 0, 1.0)
    found = trend.advance("r", 1.0, is_training=True).stagnation[0]
    assert found.best == 3.0 and found.step is not None and found.step <= 1600


@table("schedule, step, expected", [
    (RateSchedule("constant"), 500, 0.1), (RateSchedule("constant", warmup_steps=100), 49, 0.05),
    (RateSchedule("linear", total_steps=1000), 250, 0.075), (RateSchedule("cosine", total_steps=1000), 500, 0.05),
    (RateSchedule("cosine", total_steps=1100, warmup_steps=100, final=0.01), 1100, 0.01),
    (RateSchedule("cosine", peak=0.2, total_steps=1000), 0, 0.2),
])  # fmt: skip
def test_schedules(schedule: RateSchedule, step: int, expected: float) -> None:
    assert schedule.at(step, peak=0.1, total_steps=None) == pytest.approx(expected)
    allowed = expected_rate(schedule, step, {}, 0.1)
    assert allowed is not None and allowed[0] - 1e-12 <= expected <= allowed[1] + 1e-12


def test_what_the_script_says_counts_first() -> None:
    assert expected_rate(RateSchedule("constant"), 5, {"lr_expected": 0.3}, 0.1) == (0.3, 0.3)
    assert expected_rate(None, 5, {"lr": 0.3}, 0.1) is None
    assert expected_rate(RateSchedule("linear"), 5, {}, 0.1) is None, "nobody says how many steps there are"
    assert expected_rate(RateSchedule("linear"), 5, {"total_steps": 10.0}, 0.1) is not None
    assert expected_rate(RateSchedule("constant"), 5, {}, None) is None
