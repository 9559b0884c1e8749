"""Smaller batches whose accumulation a script can still divide among its ranks, and what is done where it refuses."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

from gputui.recovery.batches import Grain, Pair, fit, for_fewer_ranks, shrink_batch
from gputui.recovery.classify import Incident
from gputui.recovery.decide import decide
from gputui.recovery.effects import ActionContext, AppliedAction, SkippedAction
from gputui.recovery.plans import AttemptReach, FailedAttempt, PastDecision, RecoveryPlan
from gputui.recovery.policies import POLICIES
from gputui.recovery.policy_simulation import attempts_of, fresh
from gputui.runs.spec import MetricsSpec, RunSpec, Scalar
from tests.tables import table
from tests.texts import mentions

OOM = Incident("cuda_oom", 1, 40, summary="rank 1 ran out of GPU memory", fingerprint="f" * 16, evidence_lines=())
ASSERTS = Incident(
    "user_exception",
    0,
    step=None,
    summary="rank 0 raised an exception (AssertionError)",
    fingerprint="e" * 16,
    evidence_lines=(),
)
NANOGPT: dict[str, Scalar] = {"batch_size": 12, "gradient_accumulation_steps": 40}

LOWERED = PastDecision(
    1,
    "cuda_oom",
    0,
    verdict="retry",
    progressed=True,
    changed=True,
    actions=("shrink_batch",),
    replaced={"batch_size": 12, "gradient_accumulation_steps": 40},
)
TRIED: dict[str, Scalar] = {"batch_size": 9, "gradient_accumulation_steps": 54}


def spec(nproc: int = 2, **values: Any) -> RunSpec:
    values = {"metrics": (MetricsSpec("jsonl", "/m"),), **values}
    return RunSpec("job", "torchrun", ("train.py",), "/w", python="/p", nproc=nproc, **values)


def shrunk(params: dict[str, Scalar], run: RunSpec, below: int | None = None) -> AppliedAction | SkippedAction:
    return shrink_batch(ActionContext(OOM, run, params, below=below))


def values(result: AppliedAction | SkippedAction) -> list[Scalar]:
    assert isinstance(result, AppliedAction)
    return [change.after for change in result.changes]


def planned(
    history: list[PastDecision], params: dict[str, Scalar], incident: Incident, step: int | None
) -> RecoveryPlan:
    progress = AttemptReach(last_step=step, best_step_before=40)
    failed = FailedAttempt(
        run_id="job-1", number=len(history) + 1, incident=incident, reach=progress, spec=spec(), params=params,
        policy=POLICIES["standard"], history=history,
    )  # fmt: skip
    return decide(failed)


@table(("ranks", "pair"), [(2, [9, 54]), (4, [8, 60]), (5, [8, 60]), (8, [6, 80])])
def test_the_accumulation_of_nanogpts_defaults_stays_divisible_by_the_ranks(ranks: int, pair: list[int]) -> None:
    assert values(shrunk(NANOGPT, spec(ranks))) == pair


@table("scope, ranks, pair, phrase", [
    (None, 2, [12, 4], "stays 48 per rank"), ("rank", 2, [12, 4], "stays 48 per rank"),
    ("global", 2, [12, 4], "stays 48 over all ranks"), ("global", 4, [12, 4], "stays 48 over all ranks"),
    ("global", 1, [12, 4], "stays 48"),
])  # fmt: skip
def test_the_effective_batch_is_told_of_those_who_share_it(
    scope: Literal["rank", "global"] | None, ranks: int, pair: list[int], phrase: str
) -> None:
    scopes: dict[str, Any] = {} if scope is None else {"grad_accum": scope}
    result = shrunk({"batch_size": 16, "grad_accum": 3}, spec(ranks, scopes=scopes))
    assert values(result) == pair
    assert isinstance(result, AppliedAction)
    assert result.note.endswith(phrase)


def test_multiples_are_kept_and_what_is_out_of_tolerance_is_said() -> None:
    result = shrunk({"batch_size": 24, "grad_accum": 5}, spec(multiples={"batch_size": 8, "grad_accum": 5}))
    assert values(result) == [8, 15]
    far = shrunk({"batch_size": 24, "grad_accum": 5}, spec(multiples={"batch_size": 16, "grad_accum": 4}))
    assert values(far) == [16, 8]
    assert isinstance(far, AppliedAction)
    assert "128 instead of 120" in far.note
    assert isinstance(shrunk({"batch_size": 8, "grad_accum": 5}, spec(multiples={"batch_size": 8})), SkippedAction)
    assert values(shrunk({"batch_size": 32}, spec(multiples={"batch_size": 16}))) == [16]


def test_a_batch_that_the_ranks_share_stays_divisible_by_them() -> None:
    run = spec(4, scopes={"batch_size": "global"})
    result = shrunk({"batch_size": 64, "grad_accum": 1}, run)
    assert values(result) == [32, 2]
    assert isinstance(result, AppliedAction)
    assert mentions(result.note, 64)
    assert fit(Fraction(90), 45, Grain(4, 1)) == Pair(44, 2, is_near=False)


def test_fewer_ranks_share_what_more_of_them_shared() -> None:
    run = spec(8, scopes={"gradient_accumulation_steps": "global"})
    changes, text = for_fewer_ranks(run, {"batch_size": 12, "gradient_accumulation_steps": 48}, 8, 6)
    assert [change.after for change in changes] == [48]
    assert text.endswith("stays 576")
    changes, _ = for_fewer_ranks(spec(8), {"batch_size": 12, "gradient_accumulation_steps": 8}, 8, 4)
    assert [change.after for change in changes] == [16]


# --- a change with which the script does not start -------------------------------------------------------------------


def test_a_change_with_which_the_run_does_not_start_is_taken_back_and_the_next_smaller_batch_tried() -> None:
    plan = planned([LOWERED], TRIED, ASSERTS, step=None)
    assert plan.verdict == "retry"
    assert plan.params == {"batch_size": 8, "gradient_accumulation_steps": 60}
    assert [action.name for action in plan.actions] == ["undo", "shrink_batch"]
    assert plan.delay_seconds == 0.0
    assert mentions(plan.reason, "batch_size 12 → 9")
    again = PastDecision(
        2,
        "user_exception",
        0,
        verdict="retry",
        progressed=False,
        changed=True,
        actions=("undo", "shrink_batch"),
        replaced=LOWERED.replaced,
    )
    third = planned([LOWERED, again], plan.params, ASSERTS, step=None)
    assert third.params == {"batch_size": 7, "gradient_accumulation_steps": 68}


@table(
    ("incident", "step"),
    [
        (OOM, None),
        (ASSERTS, 41),
        (Incident("killed", 1, step=None, summary="", fingerprint="f" * 16, evidence_lines=()), None),
    ],
)
def test_nothing_is_taken_back_for_the_same_trouble_after_a_step_or_for_another_reason(
    incident: Incident, step: int | None
) -> None:
    plan = planned([LOWERED], TRIED, incident, step)
    assert "undo" not in [action.name for action in plan.actions]


def test_a_refused_change_is_never_tried_twice_nor_unchanged() -> None:
    rounds = attempts_of(
        fresh(spec(params=NANOGPT)), "cuda_oom", POLICIES["standard"], times=20, progress=False, refuses=True
    )
    tried = [tuple(attempt_round.before.items()) for attempt_round in rounds]
    assert len(set(tried)) == len(tried) > 2
    assert [attempt_round.kind for attempt_round in rounds][:2] == ["cuda_oom", "user_exception"]
    assert rounds[-1].plan.verdict == "stop"
