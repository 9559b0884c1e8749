"""The policy of a valid ``recovery:`` mapping."""

from __future__ import annotations

from typing import Any

from gputui.recovery.policies import ENDS_ON, POLICIES, STOP, PolicyAction, policy_from
from gputui.recovery.watch.numbers import NON_FINITE_LINES, NULL_LINES
from tests.tables import table


def test_a_name_alone_is_the_ready_policy() -> None:
    for name in ("off", "restart-only", "standard", "aggressive"):
        assert policy_from({"policy": name}) == POLICIES[name]
    assert policy_from({}) == POLICIES["standard"]
    assert policy_from({"policy": False}) == POLICIES["off"]  # YAML's reading of a bare off


def test_what_is_left_out_stays_as_it_is() -> None:
    policy = policy_from(
        {
            "policy": "standard",
            "max_attempts": 5,
            "backoff": {"base": 1, "max": 60},
            "ladders": {"cuda_oom": ["shrink_batch", "gradient_checkpointing", "stop"]},
        }
    )
    assert policy.max_attempts == 5
    assert policy.max_without_progress == 3
    assert (policy.backoff.base_seconds, policy.backoff.max_seconds, policy.backoff.factor) == (1.0, 60.0, 3.0)
    assert policy.ladder("cuda_oom") == (
        (PolicyAction("shrink_batch"),),
        (PolicyAction("gradient_checkpointing"),),
        STOP,
    )
    assert policy.ladder("killed") == POLICIES["standard"].ladder("killed")


@table(
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
    assert policy_from({"ladders": {"nan_loss": written}}).ladder("nan_loss") == ladder


def test_what_ends_a_living_attempt_is_a_matter_of_the_policy() -> None:
    assert policy_from({"policy": "off"}).ends_on == frozenset()
    assert policy_from({"policy": "standard"}).ends_on == {"hang", "nan_loss", "memory_leak"}
    assert policy_from({"policy": "aggressive"}).ends_on == set(ENDS_ON)
    policy = policy_from({"ends_on": [], "hang_after": 900})
    assert (policy.ends_on, policy.hang_after_seconds) == (frozenset(), 900.0)


def test_how_many_checkpoints_a_policy_may_need() -> None:
    assert POLICIES["off"].checkpoints_wanted == 1
    assert POLICIES["standard"].checkpoints_wanted == 2
    assert policy_from({"ladders": {"nan_loss": [{"rollback": 5}]}}).checkpoints_wanted == 6


def test_the_condition_of_a_lost_loss_has_the_limits_of_the_watch() -> None:
    assert str(NON_FINITE_LINES) in ENDS_ON["nan_loss"].split()
    assert str(NULL_LINES) in ENDS_ON["nan_loss"].split()
