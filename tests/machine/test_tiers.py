"""Due times of tiers: pure, so time is a number here."""

from __future__ import annotations

import pytest

from gputui.machine.schedule import LINK_ROUND_SECONDS, Cadence, ReadBackoff, Schedule


def test_a_late_tick_does_not_move_the_grid() -> None:
    cadence = Cadence(1.0, 100.0)
    assert cadence.due(100.0)
    assert not cadence.due(100.9)
    assert cadence.due(101.4)
    assert cadence.next_at == pytest.approx(102.0)


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
