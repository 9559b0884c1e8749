"""Simulated recovery, attempt by attempt: the same decisions as real ones, in an assumed world."""

from __future__ import annotations

import msgspec

from gputui.recovery.kinds import KINDS
from gputui.recovery.policies import POLICIES, Policy
from gputui.recovery.policy_simulation import EXAMPLE, SimulatedAttempt, attempts_of, fresh
from gputui.runs.spec import RunSpec, Scalar
from tests.tables import table

STANDARD = POLICIES["standard"]


def spec(**params: Scalar) -> RunSpec:
    return msgspec.structs.replace(EXAMPLE, params={"batch_size": 16, "grad_accum": 3, **params})


def tried(kind: str, policy: Policy = STANDARD, run: RunSpec | None = None, **options: bool) -> list[SimulatedAttempt]:
    return attempts_of(fresh(run or spec()), kind, policy, times=100, progress=options.get("progress", False))


def test_a_rollback_goes_to_older_checkpoints_and_the_left_ones_are_not_used_again() -> None:
    rounds = tried("nan_loss", run=spec(grad_clip=1.0))
    resumed = [attempt_round.plan.resume_from for attempt_round in rounds]
    assert resumed == ["checkpoints/step_00000900.pt", "checkpoints/step_00000800.pt", None]
    assert rounds[1].plan.changed == {"grad_clip": 0.5}
    assert rounds[2].plan.verdict == "stop"


@table("policy", POLICIES)
@table("progress", [True, False])
def test_every_kind_under_every_policy_comes_to_an_end(policy: str, progress: bool) -> None:
    for kind in KINDS:
        rounds = tried(kind, POLICIES[policy], progress=progress)
        assert rounds[-1].plan.verdict == "stop", kind
        assert all(attempt_round.plan.verdict == "retry" for attempt_round in rounds[:-1])
        if policy == "off" or KINDS[kind].retry == "never":
            assert len(rounds) == 1
