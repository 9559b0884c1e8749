"""What would happen, attempt by attempt: the same decisions as real ones, in an assumed world."""

from __future__ import annotations

import msgspec
import pytest

from gputui.recovery.action_results import AppliedAction, SkippedAction
from gputui.recovery.kinds import KINDS
from gputui.recovery.policies import POLICIES, Policy, PolicyAction, policy_from
from gputui.recovery.policy_simulation import (
    EXAMPLE,
    FIRST_FAILURE,
    STEPS,
    SimulatedAttempt,
    attempts_of,
    effect_of,
    fresh,
)
from gputui.runs.spec import RunSpec, Scalar

STANDARD = POLICIES["standard"]


def spec(**params: Scalar) -> RunSpec:
    return msgspec.structs.replace(EXAMPLE, params={"batch_size": 16, "grad_accum": 3, **params})


def tried(kind: str, policy: Policy = STANDARD, run: RunSpec | None = None, **options: bool) -> list[SimulatedAttempt]:
    return attempts_of(fresh(run or spec()), kind, policy, times=100, progress=options.get("progress", False))


def test_memory_that_never_suffices_climbs_the_ladder_and_stops() -> None:
    rounds = tried("cuda_oom", run=spec(gradient_checkpointing=False))
    assert [one.plan.verdict for one in rounds] == ["retry", "retry", "stop"]
    assert rounds[0].before == {"batch_size": 16, "grad_accum": 3, "gradient_checkpointing": False}
    assert rounds[0].plan.changed == {"batch_size": 12, "grad_accum": 4}
    assert rounds[1].before["batch_size"] == 12 and rounds[1].plan.changed == {"gradient_checkpointing": True}
    assert rounds[2].plan.because == "exhausted" and rounds[2].before["gradient_checkpointing"] is True
    assert [one.attempt for one in rounds] == [1, 2, 3]


def test_what_a_run_has_no_parameter_for_is_skipped() -> None:
    [first, second] = tried("cuda_oom")
    assert first.plan.verdict == "retry" and second.plan.verdict == "stop"
    assert "gradient_checkpointing" in [one.name for one in second.plan.actions if isinstance(one, SkippedAction)]


def test_a_rollback_goes_to_older_checkpoints_and_the_left_ones_are_not_used_again() -> None:
    rounds = tried("nan_loss", run=spec(grad_clip=1.0))
    resumed = [one.plan.resume_from for one in rounds]
    assert resumed == ["checkpoints/step_00000900.pt", "checkpoints/step_00000800.pt", None]
    assert rounds[1].plan.changed == {"grad_clip": 0.5}
    assert rounds[2].plan.verdict == "stop"


def test_progress_stays_on_the_first_rung_until_the_attempts_are_used_up() -> None:
    rounds = tried("killed", progress=True)
    assert {one.plan.rung for one in rounds} == {0}
    assert [one.step for one in rounds] == [FIRST_FAILURE + STEPS * place for place in range(len(rounds))]
    assert [one.plan.resume_from for one in rounds[:2]] == [
        "checkpoints/step_00000900.pt",
        "checkpoints/step_00001000.pt",
    ]
    assert len(rounds) == STANDARD.max_attempts and rounds[-1].plan.because == "attempts"


def test_without_progress_it_waits_longer_each_time_and_calls_a_crash_loop() -> None:
    rounds = tried("killed")
    waits = [one.plan.delay_seconds for one in rounds if one.plan.verdict == "retry"]
    assert waits == sorted(waits) and waits[0] > 0
    assert rounds[-1].plan.because == "crash_loop"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("progress", [True, False])
def test_every_kind_under_every_policy_comes_to_an_end(policy: str, progress: bool) -> None:
    for kind in KINDS:
        rounds = tried(kind, POLICIES[policy], progress=progress)
        assert rounds[-1].plan.verdict == "stop", kind
        assert all(one.plan.verdict == "retry" for one in rounds[:-1])
        if policy == "off" or KINDS[kind].deterministic:
            assert len(rounds) == 1


def test_a_run_without_checkpoints_begins_anew() -> None:
    rounds = tried("killed", run=msgspec.structs.replace(spec(), checkpoints=None))
    assert rounds[0].plan.resume_from is None


def test_the_number_of_times_is_a_limit() -> None:
    assert len(attempts_of(fresh(spec()), "killed", STANDARD, times=2, progress=True)) == 2


@pytest.mark.parametrize("name", POLICIES)
def test_trying_is_repeatable(name: str) -> None:
    assert tried("killed", POLICIES[name]) == tried("killed", POLICIES[name])


def test_the_effect_of_single_actions() -> None:
    params = dict(spec().params)
    applied = effect_of(PolicyAction("shrink_batch"), spec(), params)
    assert isinstance(applied, AppliedAction) and len(applied.changes) == 2
    assert isinstance(effect_of(PolicyAction("lower_lr", 10.0), spec(), params), SkippedAction)
    assert isinstance(effect_of(PolicyAction("rollback", 1.0), spec(), params), AppliedAction)
    bare = msgspec.structs.replace(spec(), checkpoints=None)
    assert isinstance(effect_of(PolicyAction("rollback", 1.0), bare, params), SkippedAction)
    assert effect_of(PolicyAction("stop"), spec(), params) is None


def test_a_ladder_of_the_profile_counts() -> None:
    policy = policy_from({"policy": "standard", "ladders": {"killed": [{"wait": 7}]}})
    rounds = tried("killed", policy)
    assert rounds[0].plan.delay_seconds == 7.0 and rounds[1].plan.verdict == "stop"


def test_a_lost_gpu_is_left_out_where_the_profile_allows_fewer() -> None:
    run = msgspec.structs.replace(spec(), gpus=msgspec.structs.replace(EXAMPLE.gpus, min_count=1))
    first, second = tried("gpu_lost", POLICIES["aggressive"], run)[:2]
    assert first.plan.verdict == "retry" and first.plan.effect.quarantine == ("0",)
    assert first.plan.changed == {"grad_accum": 6}
    assert second.plan.verdict == "stop"
    assert tried("gpu_lost")[0].plan.verdict == "stop"
