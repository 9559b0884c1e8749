"""A profile's ``recovery:`` mapping."""

from __future__ import annotations

from typing import Any

import pytest

from gputui.recovery.policies import ENDS_ON, POLICIES, STOP, PolicyAction
from gputui.recovery.policy import PolicyError, parse_policy


def test_a_name_alone_is_the_ready_policy() -> None:
    for name in ("off", "restart-only", "standard", "aggressive"):
        assert parse_policy({"policy": name}) == POLICIES[name]
    assert parse_policy({}) == POLICIES["standard"]
    assert parse_policy({"policy": False}) == POLICIES["off"]  # YAML's reading of a bare off


def test_what_is_left_out_stays_as_it_is() -> None:
    policy = parse_policy(
        {
            "policy": "standard",
            "max_attempts": 5,
            "backoff": {"base": 1, "max": 60},
            "ladders": {"cuda_oom": ["shrink_batch", "gradient_checkpointing", "stop"]},
        }
    )
    assert policy.max_attempts == 5 and policy.max_without_progress == 3
    assert (policy.backoff.base_seconds, policy.backoff.max_seconds, policy.backoff.factor) == (1.0, 60.0, 3.0)
    assert policy.ladder("cuda_oom") == (
        (PolicyAction("shrink_batch"),),
        (PolicyAction("gradient_checkpointing"),),
        STOP,
    )
    assert policy.ladder("killed") == POLICIES["standard"].ladder("killed")


@pytest.mark.parametrize(
    ("written", "ladder"),
    [
        (["restart"], ((PolicyAction("restart"),), STOP)),
        ("restart", ((PolicyAction("restart"),), STOP)),
        ([], (STOP,)),
        (["stop"], (STOP,)),
        (
            [{"rollback": 2}, {"wait": 5, "lower_lr": None}],
            ((PolicyAction("rollback", 2.0),), (PolicyAction("wait", 5.0), PolicyAction("lower_lr", 10.0)), STOP),
        ),
        ([["rollback", "tighter_clip"]], ((PolicyAction("rollback", 1), PolicyAction("tighter_clip", 2.0)), STOP)),
        ([[{"rollback": 3}, "lower_lr"]], ((PolicyAction("rollback", 3.0), PolicyAction("lower_lr", 10.0)), STOP)),
    ],
)
def test_ways_to_write_a_ladder(written: Any, ladder: Any) -> None:
    assert parse_policy({"ladders": {"nan_loss": written}}).ladder("nan_loss") == ladder


def test_what_ends_a_living_attempt_is_a_matter_of_the_policy() -> None:
    assert parse_policy({"policy": "off"}).ends_on == frozenset()
    assert parse_policy({"policy": "standard"}).ends_on == {"hang", "nan_loss", "memory_leak"}
    assert parse_policy({"policy": "aggressive"}).ends_on == set(ENDS_ON)
    policy = parse_policy({"ends_on": [], "hang_after": 900})
    assert (policy.ends_on, policy.hang_after_seconds) == (frozenset(), 900.0)


def test_the_ladder_of_everything_else() -> None:
    policy = parse_policy({"ladders": {"default": ["restart", "restart"]}})
    assert len(policy.ladder("unknown")) == 3
    assert policy.ladder("cuda_oom") == POLICIES["standard"].ladder("cuda_oom")


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"policy": "standart"}, "recovery.policy: unknown policy 'standart'; did you mean standard?"),
        ({"policy": 3}, "recovery.policy: unknown policy 3; known are off, restart-only, standard, aggressive"),
        ({"max_atempts": 5}, "recovery.max_atempts: unknown key 'max_atempts'; did you mean max_attempts?"),
        ({"max_attempts": 0}, "recovery.max_attempts: expected a whole number from 1 to 10000, got 0"),
        ({"max_attempts": True}, "recovery.max_attempts: expected a whole number from 1 to 10000, got True"),
        (
            {"max_without_progress": "3"},
            "recovery.max_without_progress: expected a whole number from 1 to 10000, got '3'",
        ),
        ({"backoff": 5}, "recovery.backoff: expected a mapping with base, factor, max, jitter, got 5"),
        ({"ends_on": ["hangs"]}, "recovery.ends_on[0]: 'hangs' cannot be ended on; did you mean hang?"),
        ({"ends_on": "hang"}, "recovery.ends_on: expected a list such as [hang, nan_loss], got 'hang'"),
        (
            {"policy": "off", "ends_on": ["hang"]},
            "recovery.ends_on: the policy off ends nothing; choose another policy to build on",
        ),
        ({"hang_after": 0}, "recovery.hang_after: expected a number of seconds from 1 to 86400, got 0"),
        ({"backoff": {"bass": 5}}, "recovery.backoff.bass: unknown key 'bass'; did you mean base?"),
        ({"backoff": {"jitter": 2}}, "recovery.backoff.jitter: expected a number from 0 to 1, got 2"),
        ({"backoff": {"base": float("nan")}}, "recovery.backoff.base: expected a number from 0 to 86400, got nan"),
        ({"ladders": ["restart"]}, "recovery.ladders: expected a mapping from kinds of incident to lists of actions"),
        (
            {"ladders": {"cuda_om": ["restart"]}},
            "recovery.ladders.cuda_om: unknown kind of incident 'cuda_om'; did you mean cuda_oom?",
        ),
        ({"ladders": {"import_error": ["restart"]}}, "recovery.ladders.import_error: import_error is never retried"),
        ({"ladders": {"cuda_oom": {"restart": 1}}}, "recovery.ladders.cuda_oom: expected a list of at most 50 actions"),
        (
            {"ladders": {"cuda_oom": ["shrink_bach"]}},
            "recovery.ladders.cuda_oom[0]: unknown action 'shrink_bach'; did you mean shrink_batch?",
        ),
        (
            {"ladders": {"cuda_oom": ["restart", 3]}},
            "recovery.ladders.cuda_oom[1]: expected an action such as restart or {rollback: 2}, got 3",
        ),
        ({"ladders": {"cuda_oom": ["stop", "restart"]}}, "recovery.ladders.cuda_oom[0]: nothing can follow stop"),
        ({"ladders": {"cuda_oom": [["stop", "restart"]]}}, "recovery.ladders.cuda_oom[0]: stop stands alone"),
        (
            {"ladders": {"cuda_oom": [{"rollback": 0}]}},
            "recovery.ladders.cuda_oom[0]: rollback takes a whole number (checkpoints) from 1 to 1000000, got 0",
        ),
        (
            {"ladders": {"cuda_oom": [{"rollback": 1.5}]}},
            "rollback takes a whole number (checkpoints) from 1 to 1000000, got 1.5",
        ),
        (
            {"ladders": {"cuda_oom": [{"wait": 1e12}]}},
            "recovery.ladders.cuda_oom[0]: wait takes a number (seconds) from 0 to 1000000, got 1000000000000.0",
        ),
        ({"ladders": {"cuda_oom": [{"restart": 2}]}}, "recovery.ladders.cuda_oom[0]: restart takes no number, got 2"),
        ({"policy": "off", "ladders": {"cuda_oom": ["restart"]}}, "recovery.ladders: the policy off has no ladders"),
        ("standard", "recovery: expected a mapping or the name of a policy, got 'standard'"),
    ],
)
def test_mistakes_name_their_place_and_the_nearest_right_word(mapping: Any, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(mapping)
    assert any(str(problem).startswith(message) or message in str(problem) for problem in caught.value.problems)


def test_every_mistake_is_named_at_once() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy({"policy": "x", "max_attempts": -1, "ladders": {"nope": ["restart"], "killed": ["rollbak"]}})
    assert [problem.key for problem in caught.value.problems] == [
        ("policy",),
        ("ladders", "nope"),
        ("ladders", "killed", 0),
        ("max_attempts",),
    ]


def test_how_many_checkpoints_a_policy_may_need() -> None:
    assert POLICIES["off"].checkpoints_wanted == 1
    assert POLICIES["standard"].checkpoints_wanted == 2
    assert parse_policy({"ladders": {"nan_loss": [{"rollback": 5}]}}).checkpoints_wanted == 6
