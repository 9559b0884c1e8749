"""When tiers are due: pure, so time is a number here."""

from __future__ import annotations

import pytest

from gputui.gpu.tiers import (
    LINK_ROUND_SECONDS,
    MAX_INTERVAL_SECONDS,
    MIN_INTERVAL_SECONDS,
    Cadence,
    ReadBackoff,
    Schedule,
    bounded_interval,
)


def test_a_late_tick_does_not_move_the_grid() -> None:
    cadence = Cadence(1.0, 100.0)
    assert cadence.due(100.0)
    assert not cadence.due(100.9)
    assert cadence.due(101.4)
    assert cadence.next_at == pytest.approx(102.0)


def test_missed_ticks_are_left_out_not_made_up_for() -> None:
    cadence = Cadence(1.0, 0.0)
    assert cadence.due(0.0)
    assert cadence.due(45.3)
    assert not cadence.due(45.9)
    assert cadence.next_at == pytest.approx(46.0)


def test_a_thousand_ticks_do_not_drift() -> None:
    cadence = Cadence(0.1, 0.0)
    now, ticks = 0.0, 0
    while ticks < 1000:
        now = cadence.next_at + 0.003
        assert cadence.due(now)
        ticks += 1
    assert cadence.next_at == pytest.approx(100.0, abs=0.01)


def test_everything_is_read_on_the_first_tick_and_later_each_at_its_pace() -> None:
    schedule = Schedule(1.0, 0.0)
    schedule.set_gpu_count(8)
    counts = {"fast": 0, "processes": 0, "slow": 0, "link": 0}
    assert set(schedule.due(0.0)) == set(counts)
    for second in range(1, 61):
        for tier in schedule.due(float(second)):
            counts[tier] += 1
    assert counts["fast"] == 60
    assert counts["processes"] == 20
    assert counts["slow"] == 12
    assert counts["link"] == pytest.approx(8 * 60 / LINK_ROUND_SECONDS, abs=1)


def test_slower_tiers_wait_for_a_tick_of_the_fast_one() -> None:
    schedule = Schedule(10.0, 0.0)
    schedule.due(0.0)
    assert schedule.due(6.0) == ()
    assert schedule.wait_seconds(6.0) == pytest.approx(4.0)
    assert set(schedule.due(10.0)) == {"fast", "processes", "slow", "link"}


def test_a_new_interval_counts_at_once() -> None:
    schedule = Schedule(60.0, 0.0)
    schedule.due(0.0)
    schedule.set_interval(0.5, 3.0)
    assert "fast" in schedule.due(3.0)
    assert schedule.wait_seconds(3.0) == pytest.approx(0.5)


@pytest.mark.parametrize(("wanted", "taken"), [(0.0, MIN_INTERVAL_SECONDS), (2.0, 2.0), (1e9, MAX_INTERVAL_SECONDS)])
def test_intervals_stay_within_reason(wanted: float, taken: float) -> None:
    assert bounded_interval(wanted) == taken


def test_backoff_grows_to_its_limit_and_starts_over() -> None:
    backoff = ReadBackoff(1.0, 10.0)
    assert backoff.due(0.0)
    assert [backoff.fail(0.0) for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert not backoff.due(9.9)
    assert backoff.due(10.0)
    assert backoff.fail(0.0, at_least_seconds=300.0) == 300.0
    backoff.reset()
    assert backoff.due(0.0)
    assert backoff.fail(0.0) == 1.0
