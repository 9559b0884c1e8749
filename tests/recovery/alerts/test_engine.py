"""Durations, hysteresis, cool-down, and an engine that goes on in the next agent."""

from __future__ import annotations

from tests.recovery.alerts.scenes import GIB, Stage, gpu

FULL, EDGE, FREE = gpu(memory_used_bytes=78 * GIB), gpu(memory_used_bytes=75 * GIB), gpu(memory_used_bytes=40 * GIB)
UNKNOWN = gpu(memory_used_bytes=None)


def test_a_value_between_limit_and_hysteresis_changes_nothing() -> None:
    stage = Stage("gpu_memory")
    assert stage.play([(FULL, 301), (EDGE, 5000)]) == ["raised"]
    assert stage.play([(FREE, 59), (EDGE, 5), (FREE, 60)]) == []
    assert stage.play([(FREE, 1)]) == ["cleared"]


def test_it_is_not_raised_again_during_the_cool_down() -> None:
    stage = Stage("gpu_memory", for_seconds=10.0, clear_seconds=5.0, cooldown_seconds=100.0)
    assert stage.play([(FULL, 11), (FREE, 6)]) == ["raised", "cleared"]
    assert stage.play([(FULL, 99)]) == []
    assert stage.play([(FULL, 1)]) == ["raised"]


def test_time_in_which_nothing_is_known_counts_for_nothing() -> None:
    stage = Stage("gpu_memory")
    assert stage.play([(FULL, 200), (UNKNOWN, 4000), (FULL, 100)]) == []
    assert stage.play([(FULL, 2)]) == ["raised"]
    assert stage.play([(FREE, 50), (UNKNOWN, 4000), (FREE, 5)]) == []
    assert stage.play([(FREE, 10)]) == ["cleared"]


def test_a_rule_that_is_switched_off_clears_its_alerts() -> None:
    stage = Stage("gpu_memory")
    stage.play([(FULL, 301)])
    off = Stage("gpu_memory", stage.engine, enabled=False)
    assert off.play([(FULL, 1)]) == ["cleared"]
    assert off.changes[-1].why == "the rule is off"
    assert off.play([(FULL, 5000)]) == []
