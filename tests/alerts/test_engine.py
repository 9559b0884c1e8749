"""Durations, hysteresis, cool-down, and an engine that goes on in the next agent."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gputui.alerts.engine import Engine, Key, RuleState
from gputui.alerts.moments import RuleReading
from gputui.alerts.resolved_rules import standard
from tests.alerts.scenes import GIB, Stage, gpu

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


def test_a_flapping_value_raises_once() -> None:
    stage = Stage("gpu_memory", for_seconds=0.0, clear_seconds=60.0)
    assert stage.play([(FULL, 2), (FREE, 30)] * 50) == ["raised"]


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


def test_a_question_that_no_longer_arises_clears() -> None:
    stage = Stage("gpu_underused")
    stage.play([(gpu(busy_percent=5.0), 301)])
    assert stage.play([(gpu(training_run=None), 1)]) == ["cleared"]
    assert stage.changes[-1].why == "no longer applies"


def test_the_next_agent_goes_on_where_the_last_one_was() -> None:
    stage = Stage("gpu_memory")
    stage.play([(FULL, 200)])
    stored = json.loads(json.dumps(stage.engine.to_json()))
    after = Stage("gpu_memory", Engine.from_json(stored))
    assert after.play([(FULL, 100)]) == []
    assert after.play([(FULL, 3)]) == ["raised"]
    again = Stage("gpu_memory", Engine.from_json(json.loads(json.dumps(after.engine.to_json()))))
    assert again.play([(FULL, 500)]) == [] and again.is_raised
    assert again.play([(FREE, 62)]) == ["cleared"]


def test_what_the_store_holds_is_what_is_raised() -> None:
    gone, kept = Key("gpu_memory", "gpu", "GPU-a"), Key("disk", "host", "")
    engine = Engine({gone: RuleState(raised=True)})
    engine.adopt([kept])
    assert engine.raised() == [kept]


def test_a_damaged_state_is_an_empty_one() -> None:
    good = Engine({Key("disk", "host", ""): RuleState(raised=True)}).to_json()
    assert Engine.from_json([{"rule": "disk"}, 7, *good, {**good[0], "met_seconds": "soon"}]).raised() == [
        Key("disk", "host", "")
    ]
    assert Engine.from_json("nonsense").states == {}


def test_what_never_was_leaves_no_trace() -> None:
    stage = Stage("gpu_memory")
    stage.play([(FREE, 100), (EDGE, 100), (UNKNOWN, 100)])
    assert stage.engine.states == {}
    stage.play([(FULL, 10), (FREE, 1)])
    assert stage.engine.states == {}


def test_subjects_that_are_gone_are_forgotten_unless_raised() -> None:
    raised, pending = Key("disk", "host", ""), Key("slow_steps", "run", "old-1")
    engine = Engine({raised: RuleState(raised=True), pending: RuleState(met_seconds=5.0)})
    engine.forget("run", {"new-1"})
    assert list(engine.states) == [raised]


@given(st.lists(st.one_of(st.none(), st.floats(0, 110)), max_size=200), st.floats(0, 20), st.floats(0, 20))
def test_raised_and_cleared_alternate(values: list[float | None], for_seconds: float, rest: float) -> None:
    stage = Stage("gpu_memory", for_seconds=for_seconds, clear_seconds=3.0, cooldown_seconds=rest)
    said = []
    for value in values:
        change = stage.engine.evaluate(stage.rule, stage.key, RuleReading(value, 95.0), 1.0)
        if change is not None:
            said.append(change.kind)
            assert change.kind == "cleared" or (value is not None and value > 95.0)
    assert said == [("raised", "cleared")[place % 2] for place in range(len(said))]


def test_every_shipped_rule_comes_back_over_its_hysteresis() -> None:
    for one in standard().values():
        key = Key(one.rule.id, one.rule.subject, "x")
        engine = Engine({key: RuleState(raised=True, last="well", well_seconds=1e9)})
        best = RuleReading(1e9 if one.rule.below else 0.0, max([*one.limits.values(), 0.0]))
        change = engine.evaluate(one, key, best, 1.0)
        assert change is not None and change.kind == "cleared", one.rule.id
