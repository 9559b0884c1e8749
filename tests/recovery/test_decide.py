"""Decisions: which rung, from which checkpoint, after how long, and when it is over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.recovery.classify import Incident
from gputui.recovery.decide import decide, reason_of_end
from gputui.recovery.effects import SkippedAction
from gputui.recovery.kinds import KINDS
from gputui.recovery.plans import AttemptReach, FailedAttempt, PastDecision, RecoveryPlan
from gputui.recovery.policies import POLICIES, Backoff, Policy, policy_from
from gputui.runs.checkpoint_formats import CheckpointInfo
from gputui.runs.spec import CheckpointSpec, MetricsSpec, RunSpec, Scalar
from tests.tables import table
from tests.texts import mentions

PARAMS: dict[str, Scalar] = {
    "batch_size": 16, "grad_accum": 3, "gradient_checkpointing": False, "lr": 0.1, "grad_clip": 1.0, "num_workers": 4,
}  # fmt: skip
STANDARD = POLICIES["standard"]

SAME = "tried to allocate 2.00 GiB, train.py:18"
BLOCK = "tried to allocate 20.00 MiB, train.py:18"
LINE = "RuntimeError: CUDA error: out of memory, train.py:18"

FURTHER = AttemptReach(last_step=90, best_step_before=40)

UUID = "GPU-6f2a3b1c-0000-4000-8000-000000000001"

STUCK = AttemptReach(last_step=40, best_step_before=40)


def incident(kind: str = "killed", step: int | None = 40) -> Incident:
    return Incident(kind, 1, step, summary=f"rank 1 met {kind}", fingerprint="f" * 16, evidence_lines=())


def spec(**values: Any) -> RunSpec:
    settings: dict[str, Any] = {
        "checkpoints": CheckpointSpec("/c", "step_*.pt", ("--resume", "{checkpoint}")),
        "metrics": (MetricsSpec("jsonl", "/m"),),
        **values,
    }
    return RunSpec(name="job", launcher="torchrun", program=("t.py",), workdir="/w", python="/p", nproc=2, **settings)


def checkpoint(step: int, valid: bool = True, why: str = "matches its SHA-256", place: int = 0) -> CheckpointInfo:
    return CheckpointInfo(Path(f"/c/step_{step:08d}.pt"), step, valid, why=why, size_bytes=10, place=place or step)


def plan_for(
    kind: str = "killed",
    *,
    step: int | None = 40,
    history: list[PastDecision] | None = None,
    progress: AttemptReach | None = None,
    params: dict[str, Scalar] | None = None,
    policy: Policy = STANDARD,
    checkpoints: list[CheckpointInfo] | None = None,
    run: RunSpec | None = None,
    attempt: int = 1,
    more: dict[str, Any] | None = None,
) -> RecoveryPlan:
    reach = AttemptReach(last_step=40) if progress is None else progress
    failed = FailedAttempt(
        run_id="job-1",
        number=attempt,
        incident=incident(kind, step),
        reach=reach,
        spec=run or spec(),
        params=PARAMS if params is None else params,
        policy=policy,
        history=history or [],
        checkpoints=[checkpoint(40)] if checkpoints is None else checkpoints,
    )
    return decide(replace(failed, **(more or {})))


def retry(kind: str, rung: int, *, attempt: int = 1, progressed: bool = False, changed: bool = False) -> PastDecision:
    return PastDecision(
        attempt, kind, rung, verdict="retry", progressed=progressed, changed=changed, actions=("restart",)
    )


def skipped(plan: RecoveryPlan) -> list[str]:
    return [action.name for action in plan.actions if isinstance(action, SkippedAction)]


def ladder_of(details: list[tuple[int | None, str]], kind: str = "cuda_oom") -> tuple[list[Scalar], RecoveryPlan]:
    """The batches of attempts that fail at these steps with these details, the last again and again; the last plan."""
    params: dict[str, Scalar] = {"batch_size": 64}
    sizes = [params["batch_size"]]
    history = []
    while True:
        step, detail = details[min(len(history), len(details) - 1)]
        best = max((past.step for past in history if past.step is not None), default=None)
        reach = AttemptReach(last_step=step, best_step_before=best)
        failure = replace(incident(kind, step), summary=f"rank {len(history) % 2} ran out of GPU memory ({detail})")
        plan = plan_for(kind, history=history, progress=reach, params=params, more={"incident": failure})
        if plan.verdict == "stop":
            return sizes, plan
        actions = tuple(action.name for action in plan.actions if not isinstance(action, SkippedAction))
        past = PastDecision(
            len(history) + 1,
            kind,
            plan.rung,
            verdict="retry",
            progressed=reach.made,
            changed=True,
            actions=actions,
            replaced=dict(params),
        )
        history.append(replace(past, step=step, detail=detail))
        params = plan.params
        sizes.append(params["batch_size"])


def past(kind: str, attempt: int, *, progressed: bool = False, **replaced: Scalar) -> PastDecision:
    return PastDecision(
        attempt,
        kind,
        0,
        verdict="retry",
        progressed=progressed,
        changed=bool(replaced),
        actions=("shrink_batch",),
        replaced=replaced,
    )


OOM = [past("cuda_oom", 1, progressed=True, batch_size=64), past("cuda_oom", 2, batch_size=48)]


# --- the ladders ------------------------------------------------------------------------------------------------------


def test_out_of_memory_first_shrinks_the_batch() -> None:
    plan = plan_for("cuda_oom")
    assert (plan.verdict, plan.rung, plan.because) == ("retry", 0, "ladder")
    assert plan.changed == {"batch_size": 12, "grad_accum": 4}
    assert plan.params == {**PARAMS, **plan.changed}
    assert plan.resume_from == "/c/step_00000040.pt"
    assert plan.delay_seconds == 0.0
    assert mentions(plan.reason, "batch_size 16 → 12", "grad_accum 3 → 4", "48 per rank", "step_00000040.pt")


@table(
    "batch, limit, tried",
    [(8, 0, [6, 4, 2, 1]), (8, 5, [6, 4]), (16, 0, [12, 9, 4, 2, 1]), (64, 1, [48, 36, 18, 9, 4, 2, 1])],
)
def test_a_batch_is_lowered_until_it_fits_or_is_one(batch: int, limit: int, tried: list[int]) -> None:
    params: dict[str, Scalar] = {"batch_size": batch}
    history: list[PastDecision] = []
    sizes = []
    while (size := params["batch_size"]) and int(size) > limit:
        progress = AttemptReach(last_step=40) if not history else STUCK
        plan = plan_for("cuda_oom", history=history, progress=progress, params=params)
        if plan.verdict == "stop":
            assert plan.because == "exhausted"
            break
        actions = tuple(action.name for action in plan.actions if not isinstance(action, SkippedAction))
        history.append(
            PastDecision(
                1,
                "cuda_oom",
                plan.rung,
                verdict="retry",
                progressed=not history,
                changed=True,
                actions=actions,
                replaced={"batch_size": size},
            )
        )
        params = plan.params
        sizes.append(params["batch_size"])
    assert sizes == tried


@table("details, tried", [
    ([(60, SAME)], [64, 48, 36]),
    ([(None, SAME)], [64, 48, 36]),
    ([(60, LINE)], [64, 48, 36, 18]),
    ([(60, BLOCK)], [64, 48, 36, 18]),
    ([(60, f"tried to allocate {size}.00 GiB, train.py:18") for size in range(9, 1, -1)], [64, 48, 36, 18, 9, 4, 2, 1]),
    ([(60, f"{LINE}{place}") for place in range(8)], [64, 48, 36, 18, 9, 4, 2, 1]),
    ([(20, SAME), (30, SAME), (40, SAME)], [64, 48, 36, 27, 20]),
    ([(60, SAME), (60, "tried to allocate 1.50 GiB, train.py:18")], [64, 48, 36, 18]),
    ([(60, SAME), (60, SAME), (59, SAME)], [64, 48, 36, 18, 9]),
])  # fmt: skip
def test_batches_that_make_no_difference_are_not_lowered_without_end(
    details: list[tuple[int | None, str]], tried: list[int]
) -> None:
    sizes, plan = ladder_of(details)
    assert sizes == tried
    expected = "attempts" if len(tried) == 8 else "no_difference"
    assert plan.because == expected


def test_the_reason_names_the_batches_that_made_no_difference() -> None:
    reason = ladder_of([(60, SAME)])[1].reason
    assert mentions(reason, "step 60", "3 attempts", "2.00 GiB", "train.py:18", "batch_size 64 → 48 → 36")
    assert mentions(ladder_of([(None, SAME)])[1].reason, "first step", "3 attempts")


@table("kind, history, reach, causes", [
    ("nan_loss", OOM, STUCK, "out of GPU memory 2×, so recovery changed batch_size 64 → 16; then "),
    ("nan_loss", OOM, FURTHER, "out of GPU memory 2×, so recovery changed batch_size 64 → 16; then "),
    ("nan_loss", [past("cuda_oom", 1, batch_size=16)], STUCK, "out of GPU memory; then "),
    ("nan_loss", [past("killed", 1)], STUCK, "killed from outside; then "),
    ("nan_loss", [past("killed", 1)], FURTHER, ""),
    ("nan_loss", [past("killed", 1), past("hang", 2, progressed=True)], STUCK, "no progress; then "),
    ("nan_loss", [past("killed", 1), *OOM[1:], past("killed", 3)], STUCK,
     "out of GPU memory, so recovery changed batch_size 48 → 16, killed from outside 2×; then "),
    ("nan_loss", [*OOM, PastDecision(3, "cuda_oom", 0, verdict="stop", progressed=False, changed=False)], STUCK, ""),
    ("cuda_oom", OOM, STUCK, ""),
])  # fmt: skip
def test_the_reason_of_an_end_begins_with_what_recovery_reacted_to(
    kind: str, history: list[PastDecision], reach: AttemptReach, causes: str
) -> None:
    policy = replace(STANDARD, max_attempts=len(history) + 1)
    failed = FailedAttempt(
        run_id="job-1", number=9, incident=incident(kind), reach=reach, spec=spec(), params=PARAMS,
        policy=policy, history=history,
    )  # fmt: skip
    plan = RecoveryPlan("stop", "the policy allows no more attempts", "attempts", dict(PARAMS))
    assert reason_of_end(failed, plan) == f"{causes}rank 1 met {kind}; the policy allows no more attempts"


def test_the_reason_of_batches_that_made_no_difference_is_the_whole_reason() -> None:
    failed = FailedAttempt(
        run_id="job-1",
        number=3,
        incident=incident("cuda_oom"),
        reach=STUCK,
        spec=spec(),
        params=PARAMS,
        policy=STANDARD,
    )
    plan = ladder_of([(60, SAME)])[1]
    assert reason_of_end(failed, plan) == plan.reason


def test_another_remedy_is_tried_when_smaller_batches_made_no_difference() -> None:
    params = PARAMS | {"batch_size": 9}
    history = [
        PastDecision(
            number,
            "cuda_oom",
            0,
            verdict="retry",
            progressed=False,
            changed=True,
            actions=("shrink_batch",),
            replaced={"batch_size": size},
            step=40,
            detail=f"{SAME})",
        )
        for number, size in ((1, 16), (2, 12))
    ]
    failure = replace(incident("cuda_oom"), summary=f"rank 1 ran out of GPU memory ({SAME})")
    plan = plan_for("cuda_oom", history=history, progress=STUCK, params=params, more={"incident": failure})
    assert plan.changed == {"gradient_checkpointing": True}


def test_then_checkpoints_gradients_then_stops() -> None:
    second = plan_for("cuda_oom", history=[retry("cuda_oom", 0, changed=True)], progress=STUCK)
    assert second.changed == {"gradient_checkpointing": True}
    assert second.rung == 1
    third = plan_for(
        "cuda_oom",
        history=[retry("cuda_oom", 0, changed=True), retry("cuda_oom", 1, attempt=2, changed=True)],
        progress=STUCK,
        params=PARAMS | {"batch_size": 1, "gradient_checkpointing": True},
    )
    assert (third.verdict, third.because) == ("stop", "exhausted")
    assert third.changed == {}


def test_what_was_tried_is_told_in_words() -> None:
    params = PARAMS | {"batch_size": 1, "gradient_checkpointing": True}
    smaller = PastDecision(1, "cuda_oom", 1, verdict="retry", progressed=False, changed=True, actions=("shrink_batch",))
    plan = plan_for("cuda_oom", history=[smaller], params=params, progress=STUCK)
    assert plan.because == "exhausted"
    assert mentions(plan.reason, "a smaller batch")


def test_progress_climbs_down_again() -> None:
    plan = plan_for("cuda_oom", history=[retry("cuda_oom", 1, changed=True)], progress=AttemptReach(90, 40))
    assert plan.rung == 0
    assert "batch_size" in plan.changed


def test_progress_of_an_attempt_in_between_counts() -> None:
    history = [retry("cuda_oom", 1, changed=True), retry("killed", 0, attempt=2, progressed=True)]
    assert plan_for("cuda_oom", history=history, progress=STUCK).rung == 0


def test_an_action_without_its_parameter_is_skipped_and_the_ladder_goes_on() -> None:
    plan = plan_for("cuda_oom", params={"gradient_checkpointing": False})
    assert plan.rung == 1
    assert plan.changed == {"gradient_checkpointing": True}
    assert skipped(plan) == ["shrink_batch"]
    nothing = plan_for("cuda_oom", params={"lr": 0.1})
    assert nothing.verdict == "stop"
    assert mentions(nothing.reason, "a smaller batch", "batch_size", "gradient_checkpointing")
    assert "shrink_batch" not in nothing.reason
    assert [action.to_json()["applied"] for action in nothing.actions] == [False, False]


def test_a_crash_restarts_unchanged_from_the_newest_checkpoint() -> None:
    plan = plan_for("killed")
    assert plan.verdict == "retry"
    assert plan.changed == {}
    assert plan.params == PARAMS
    assert plan.resume_from == "/c/step_00000040.pt"
    assert 1.5 <= plan.delay_seconds <= 2.0
    assert "waiting 2 s before" in plan.reason


@table("kind", [name for name, kind in KINDS.items() if kind.retry == "never"])
@table("policy", ["restart-only", "standard", "aggressive"])
def test_what_would_fail_again_is_never_retried(kind: str, policy: str) -> None:
    plan = plan_for(kind, policy=POLICIES[policy])
    assert (plan.verdict, plan.because) == ("stop", "deterministic")


@table("kind", ["user_exception", "nonzero_exit"])
def test_an_error_before_the_first_step_is_never_retried(kind: str) -> None:
    plan = plan_for(kind, progress=AttemptReach(), checkpoints=[])
    assert (plan.verdict, plan.because) == ("stop", "before_first_step")
    assert plan_for(kind, progress=AttemptReach(last_step=0)).verdict == "retry"
    # The second attempt did not reach a step, but the first one did.
    assert plan_for(kind, progress=AttemptReach(best_step_before=40), history=[retry("killed", 0)]).verdict == "retry"


@table("kind, summary, visible, is_advised", [
    ("user_exception", f"invalid literal for int() with base 10: '{UUID}'", "uuid", True),
    ("user_exception", "invalid literal for int() with base 10: 'GPU'", "uuid", True),
    ("user_exception", f"Invalid device string: 'cuda:{UUID}'", "uuid", True),
    ("config_error", f"argument --gpu: invalid int value: '{UUID},{UUID}'", "uuid", True),
    ("user_exception", f"invalid literal for int() with base 10: '{UUID}'", "index", False),
    ("user_exception", "KeyError: 'GPU-count'", "uuid", False), ("cuda_init", f"no device {UUID}", "uuid", False),
])  # fmt: skip
def test_a_script_that_cannot_parse_uuids_is_told_the_key(
    kind: str, summary: str, visible: str, is_advised: bool
) -> None:
    early = AttemptReach()
    plan = plan_for(
        kind, run=spec(visible=visible), progress=early, more={"incident": replace(incident(kind), summary=summary)}
    )
    assert plan.verdict == "stop"
    assert ("visible: index" in plan.reason) is is_advised


def test_a_run_without_metrics_is_past_its_set_up_after_a_minute() -> None:
    run = spec(metrics=())
    assert plan_for("user_exception", run=run, progress=AttemptReach(ran_seconds=5.0)).verdict == "stop"
    assert plan_for("user_exception", run=run, progress=AttemptReach(ran_seconds=600.0)).verdict == "retry"
    assert plan_for("user_exception", progress=AttemptReach(ran_seconds=600.0)).verdict == "stop"


def test_the_policy_off_does_nothing() -> None:
    plan = plan_for("killed", policy=POLICIES["off"])
    assert (plan.verdict, plan.because) == ("stop", "off")


@table("kind", ["stopped_outside", "interrupted", "overheating"])
def test_what_needs_a_person_stops(kind: str) -> None:
    plan = plan_for(kind)
    assert (plan.verdict, plan.because) == ("stop", "exhausted")


# --- the limits -------------------------------------------------------------------------------------------------------


def test_the_budget_of_attempts_counts_the_first_one() -> None:
    history = [retry("killed", 0, attempt=n, progressed=True) for n in range(1, 7)]
    assert plan_for("killed", history=history).verdict == "retry"
    full = plan_for("killed", history=[*history, retry("killed", 0, attempt=7, progressed=True)])
    assert (full.verdict, full.because) == ("stop", "attempts")
    assert mentions(full.reason, "max_attempts: 8")


def test_a_stop_begins_the_count_anew() -> None:
    history = [retry("killed", 0, attempt=n) for n in range(1, 8)]
    history.append(PastDecision(8, "killed", 2, verdict="stop", progressed=False, changed=False))
    plan = plan_for("killed", history=history, progress=STUCK)
    assert plan.verdict == "retry"
    assert plan.rung == 0


def test_three_fruitless_attempts_in_a_row_are_a_crash_loop() -> None:
    history = [retry("killed", 0), retry("segfault", 0, attempt=2)]
    plan = plan_for("port_in_use", history=history, progress=STUCK)
    assert (plan.verdict, plan.because) == ("stop", "crash_loop")
    assert mentions(plan.reason, "3 attempts")


def test_waiting_grows_with_fruitless_attempts_and_is_bounded() -> None:
    backoff = Backoff(base_seconds=2, factor=3, max_seconds=30, jitter=0.0)
    assert [backoff.delay(n, 0.5) for n in range(5)] == [2, 6, 18, 30, 30]
    assert backoff.delay(10_000, 0.0) == 30
    jittered = Backoff(base_seconds=2, factor=3, max_seconds=30, jitter=0.5)
    assert jittered.delay(1, 0.0) == 6
    assert jittered.delay(1, 0.999) == pytest.approx(3, abs=0.01)


# --- where to resume --------------------------------------------------------------------------------------------------


def test_damaged_checkpoints_are_passed_over_and_named() -> None:
    plan = plan_for(
        checkpoints=[checkpoint(60, valid=False, why="does not match the SHA-256 in x.sha256"), checkpoint(40)]
    )
    assert plan.resume_from == "/c/step_00000040.pt"
    assert skipped(plan) == ["resuming from step_00000060.pt"]


def test_without_a_valid_checkpoint_it_starts_from_the_beginning_and_says_so() -> None:
    plan = plan_for(checkpoints=[checkpoint(60, valid=False, why="is empty")])
    assert plan.resume_from is None
    assert mentions(plan.reason, "no valid checkpoint")
    unnamed = plan_for(run=spec(checkpoints=None), checkpoints=[])
    assert unnamed.resume_from is None
    assert "which checkpoint to load" in unnamed.reason


def test_what_only_the_target_sees_is_chosen_there() -> None:
    plan = plan_for(more={"checkpoints": None})
    assert plan.verdict == "retry"
    assert plan.resume_from is None
    assert mentions(plan.reason, "on its target")
    again = [retry("nan_loss", 0)]
    plan = plan_for("nan_loss", history=again, progress=STUCK, attempt=2, more={"checkpoints": None})
    assert plan.verdict == "retry"
    assert skipped(plan) == ["rollback"]


def test_rolling_back_goes_one_checkpoint_further_and_tightens_the_clip() -> None:
    plan = plan_for(
        "nan_loss",
        step=50,
        history=[retry("nan_loss", 0)],
        progress=STUCK,
        checkpoints=[checkpoint(40), checkpoint(20)],
    )
    assert plan.resume_from == "/c/step_00000020.pt"
    assert plan.changed == {"grad_clip": 0.5}


def test_a_script_that_loads_a_later_checkpoint_by_itself_is_not_rolled_back_again() -> None:
    progress = AttemptReach(last_step=90, best_step_before=74, resumption="later")
    assert plan_for("nan_loss", step=90, progress=progress).because == "not_resumed"
    assert plan_for("killed", progress=progress).verdict == "retry"


def test_a_rollback_goes_to_older_ones_only() -> None:
    """Checkpoints that cannot be checked come behind whole ones, though they may be newer."""
    newer = checkpoint(60)
    older = checkpoint(20)
    plan = plan_for(
        "nan_loss", history=[retry("nan_loss", 0)], progress=STUCK, checkpoints=[checkpoint(40), newer, older]
    )
    assert plan.resume_from == "/c/step_00000020.pt"


def test_checkpoints_that_cannot_be_read_now_are_no_reason_to_begin_anew() -> None:
    plan = plan_for(checkpoints=[], more={"unreadable": "/c: Stale file handle"})
    assert (plan.verdict, plan.because) == ("stop", "unreadable")
    assert "/c: Stale file handle" in plan.reason


@table(("study_id", "verdict"), [(None, "stop"), ("lr-1", "retry")])
def test_checkpoints_that_may_be_of_another_run_are_written_over_by_a_trial_alone(
    study_id: str | None, verdict: str
) -> None:
    doubt = {"doubted": "step_40.pt may be of job-2"}
    plan = plan_for(run=replace(spec(), study_id=study_id), checkpoints=[], more=doubt)
    assert plan.verdict == verdict
    assert (plan.because == "doubted") is (study_id is None)


@table(
    ("kind", "step"),
    [
        ("import_error", None), ("nonzero_exit", None), ("nonzero_exit", 40), ("gpu_lost", 40), ("user_exception", 40),
    ],
)  # fmt: skip
def test_an_exit_code_that_the_policy_names_is_retried_within_its_limits(kind: str, step: int | None) -> None:
    policy = policy_from({"policy": "restart-only", "retry_on_exit": [3]})
    stuck = AttemptReach(last_step=step, best_step_before=step)

    def plan(code: int | None, fruitless: int, fruitful: int = 0) -> RecoveryPlan:
        # So many retries use the incident's own ladder up.
        past = [
            retry(kind, 9, attempt=number + 1, progressed=number < fruitful) for number in range(fruitful + fruitless)
        ]
        failed = replace(incident(kind, step), exit_code=code)
        return plan_for(kind, step=step, history=past, progress=stuck, policy=policy, more={"incident": failed})

    allowed = plan(3, 1)
    assert (allowed.verdict, allowed.changed) == ("retry", {})
    assert mentions(allowed.reason, "retry_on_exit", "exit code 3")
    assert allowed.delay_seconds > 0
    for code in (4, None):
        assert plan(code, 1).verdict == "stop"
    assert (plan(3, 2).verdict, plan(3, 2).because) == ("stop", "crash_loop")
    assert (plan(3, 1, fruitful=7).verdict, plan(3, 1, fruitful=7).because) == ("stop", "attempts")


def test_an_exit_code_leaves_an_incident_its_own_ladder() -> None:
    policy = policy_from({"retry_on_exit": [3]})
    failed = replace(incident("cuda_oom", 40), exit_code=3)
    assert plan_for("cuda_oom", policy=policy, more={"incident": failed}).changed["batch_size"] == 12
