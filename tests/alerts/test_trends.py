"""What is remembered between moments, and across agents."""

from __future__ import annotations

import json
import math

import pytest

from gputui.alerts.run_trends import RunTrend
from gputui.alerts.schedules import RateSchedule, expected_rate
from gputui.alerts.trends import GpuTrend, Growth, Mean
from gputui.gpu.model import GpuFacts, GpuSample, GpuSlowSample

FACTS = GpuFacts("GPU-a", 0, "x")


def test_a_mean_is_known_once_it_holds_enough() -> None:
    mean = Mean(60.0)
    for _ in range(50):
        mean.add(40.0, 1.0)
    assert mean.value is None
    for _ in range(20):
        mean.add(None, 1.0)
        mean.add(40.0, 1.0)
    assert mean.value == pytest.approx(40.0)
    mean.add(math.nan, 1.0)
    assert mean.value == pytest.approx(40.0)


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


def test_a_rule_sees_every_value_of_the_slow_tier_and_how_its_counts_grow() -> None:
    """So that an alert on another value of the driver is a row and a measure."""
    trend = GpuTrend()
    for value in (3, 5):
        numbers = {name: value for name in GpuSlowSample.__struct_fields__ if name != "uuid"}
        slow = GpuSlowSample("GPU-a", **numbers)  # type: ignore[arg-type]
        moment = trend.advance(None, FACTS, 1.0, training=None, holder=None, slow=slow)
        assert moment.slow == slow
    assert dict(moment.grown) == dict.fromkeys(numbers, 2)


def test_growth_is_the_slower_of_both_halves() -> None:
    ramp, step = Growth(), Growth()
    for second in range(1900):
        ramp.add(second * 1e6, 1.0)
        step.add(5e10 if second > 400 else 1e10, 1.0)
    assert ramp.per_hour == pytest.approx(3.6e9)
    assert step.per_hour == pytest.approx(0.0, abs=1.0)


def test_a_value_that_is_no_number_is_no_growth() -> None:
    growth = Growth()
    for second in range(1900):
        growth.add(math.nan if second % 2 else second * 1e6, 1.0)
    assert growth.per_hour == pytest.approx(3.6e9)
    assert all(math.isfinite(value) for _, value in growth.samples)


def test_growth_goes_on_after_a_short_gap_only() -> None:
    growth = Growth()
    for second in range(1900):
        growth.add(second * 1e6, 1.0)
    stored = json.loads(json.dumps(growth.to_json()))
    after = Growth.from_json(stored, 10.0)
    for second in range(1910, 2000):
        after.add(second * 1e6, 1.0)
    assert after.per_hour == pytest.approx(3.6e9, rel=0.02)
    assert Growth.from_json(stored, 3600.0).per_hour is None
    assert Growth.from_json(stored, -5.0).per_hour is None, "the wall clock was set back"


def test_everything_remembered_can_be_stored() -> None:
    run = RunTrend(3)
    for step in range(100):
        run.take(step, {"loss": 5.0 / (step + 1), "step_time": 0.3, "epoch": 2.0, "cache_hit_rate": 0.9,
                        "val/loss": 3.0, "samples": 32.0 * step, "grad_norm": math.nan}, 1, 1.0)  # fmt: skip
    again = RunTrend.from_json(json.loads(json.dumps(run.to_json())))
    assert again.loss == run.loss and again.median_step_seconds == 0.3 and again.skipped == 100
    assert again.advance("r", 1.0, is_training=True).values == {}, "what was measured before says nothing of now"
    gpu = GpuTrend()
    gpu.advance(GpuSample("GPU-a", utilization_percent=5.0), FACTS, 1.0, training=("r", 1), holder=None)
    assert GpuTrend.from_json(json.loads(json.dumps(gpu.to_json()))) == gpu


def test_going_back_to_a_checkpoint_begins_anew() -> None:
    trend = RunTrend(1)
    for step in [*range(1000, 2200, 100), *range(500, 1700, 100)]:
        trend.take(step, {"loss": 1.0 if step > 1700 else 3.0}, 0, 1.0)
    found = trend.advance("r", 1.0, is_training=True).stagnation[0]
    assert found.best == 3.0 and found.step is not None and found.step <= 1600


def test_metrics_grow_old() -> None:
    trend = RunTrend(1)
    trend.take(1, {"grad_norm": 99.0}, 0, 1.0)
    assert trend.advance("r", 100.0, is_training=True).values
    assert not trend.advance("r", 300.0, is_training=True).values


def test_the_usual_step_time_is_not_moved_by_slow_steps() -> None:
    trend = RunTrend(1)
    for step in range(300):
        trend.take(step, {"step_time": 0.3 if step < 20 else 3.0}, 0, 1.0)
    assert trend.median_step_seconds == 0.3


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        (RateSchedule("constant"), 500, 0.1),
        (RateSchedule("constant", warmup_steps=100), 49, 0.05),
        (RateSchedule("linear", total_steps=1000), 250, 0.075),
        (RateSchedule("cosine", total_steps=1000), 500, 0.05),
        (RateSchedule("cosine", total_steps=1100, warmup_steps=100, final=0.01), 1100, 0.01),
        (RateSchedule("cosine", peak=0.2, total_steps=1000), 0, 0.2),
    ],
)
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


def test_a_loader_that_reads_ahead_is_judged_by_its_mean() -> None:
    trend = RunTrend(1)
    for step in range(600):
        trend.take(step, {"step_time": 0.3, "data_time": 0.8 if step % 8 == 0 else 0.0}, 0, 0.3)
    means = trend.advance("r", 1.0, is_training=True).means
    assert means["data_time"] == pytest.approx(0.1, abs=0.03) and means["step_time"] == pytest.approx(0.3)
    assert not trend.advance("r", 400.0, is_training=True).means
