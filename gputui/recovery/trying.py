"""What a policy would do about an incident that comes again and again. Pure, and decided by the very function that
decides about real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gputui.recovery.action_results import AppliedAction, Result
from gputui.recovery.checkpoints import CheckpointInfo
from gputui.recovery.classify import Incident
from gputui.recovery.kinds import KINDS
from gputui.recovery.machine_actions import Surroundings
from gputui.recovery.policies import STOP, Action, Policy
from gputui.recovery.policy import PastDecision, Plan, Progress, decide
from gputui.runs.spec import CheckpointSpec, GpuRequest, MetricsSpec, RunSpec, Scalar

STEPS = 100
"""Steps between two assumed checkpoints, and how much further an attempt comes where progress is assumed."""
FIRST_FAILURE = 950
MOST_ATTEMPTS = 100
ATTEMPT_SECONDS = 3600.0
CHECKPOINT_BYTES = 1 << 30

EXAMPLE = RunSpec(
    name="example",
    launcher="torchrun",
    program=("train.py",),
    python="python",
    workdir="/",
    nproc=2,
    gpus=GpuRequest(count=2),
    params={
        "batch_size": 16,
        "grad_accum": 4,
        "gradient_checkpointing": False,
        "lr": 0.1,
        "grad_clip": 1.0,
        "num_workers": 4,
        "timeout": 600,
    },
    metrics=MetricsSpec("jsonl", "{run_dir}/metrics.jsonl"),
    checkpoints=CheckpointSpec("checkpoints", "step_*.pt", ("--resume", "{checkpoint}")),
)
"""A run with a parameter of every usual name, for a look at a policy alone."""


@dataclass(frozen=True, slots=True)
class Situation:
    """How a run stands when the trouble begins. Times are seconds on any one clock; unknown is None.

    Attributes:
        attempt: the number of the attempt that fails first; its parameters are ``params``.
        history: what was decided before it, the oldest first.
        checkpoints: those there are, the newest first; directory: where new ones appear, None where there are none.
        fails_at: the step that the attempt had reached; best_step_before: the furthest of the attempts before it.
        resumed_from, resumed_step, started_at: how and when it began.
        gpus: those it held; no other is free.
    """

    run_id: str
    spec: RunSpec
    params: Mapping[str, Scalar]
    attempt: int = 1
    history: tuple[PastDecision, ...] = ()
    checkpoints: tuple[CheckpointInfo, ...] = ()
    directory: Path | None = None
    fails_at: int | None = FIRST_FAILURE
    best_step_before: int | None = None
    resumed_from: str | None = None
    resumed_step: int | None = None
    started_at: float = 0.0
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """One attempt that met the incident, and what was decided."""

    attempt: int
    step: int | None
    before: Mapping[str, Scalar]
    plan: Plan


def fresh(spec: RunSpec) -> Situation:
    """A run of ``spec`` that has done 950 steps, with a valid checkpoint every 100 where it has checkpoints at all."""
    directory = None if spec.checkpoints is None else Path(spec.checkpoints.directory)
    checkpoints = (
        () if spec.checkpoints is None or directory is None
        else tuple(_checkpoint(directory, spec.checkpoints, step, 0.0) for step in range(900, 0, -STEPS))
    )  # fmt: skip
    gpus = spec.gpus.uuids or tuple(str(place) for place in range(spec.gpus.count))
    return Situation(spec.name, spec, dict(spec.params), checkpoints=checkpoints, directory=directory, gpus=gpus)


def attempts_of(situation: Situation, kind: str, policy: Policy, *, times: int, progress: bool) -> list[Round]:
    """The attempts that meet an incident of ``kind``, at most ``times`` of them, until the policy stops.

    With ``progress`` each attempt comes 100 steps further than the one before it, else each ends at the same step.
    """
    rounds: list[Round] = []
    now = situation
    for _ in range(min(times, MOST_ATTEMPTS)):
        reached = Progress(
            last_step=now.fails_at,
            best_step_before=now.best_step_before,
            new_checkpoint=now.fails_at is None and progress,
            resumed_from=now.resumed_from,
            resumed_step=now.resumed_step,
            started_at=now.started_at,
            ran_seconds=ATTEMPT_SECONDS,
        )
        incident = Incident(kind, 0, now.fails_at, KINDS[kind].says.format(who="rank 0"), kind, ())
        plan = decide(
            incident,
            now.history,
            reached,
            now.spec,
            now.params,
            policy,
            _wanted(now.checkpoints, policy),
            run_id=now.run_id,
            attempt=now.attempt,
            around=Surroundings(now.gpus, notifies=policy.notify is not None),
        )
        rounds.append(Round(now.attempt, now.fails_at, dict(now.params), plan))
        if plan.verdict == "stop":
            break
        now = _next(now, kind, reached, plan, progress)
    return rounds


def effect_of(action: Action, spec: RunSpec, params: Mapping[str, Scalar]) -> Result | None:
    """What an action alone would do to a run of ``spec``; None for ``stop``."""
    if action.name == "stop":
        return None
    alone = Policy("alone", {"unknown": ((action,), STOP)})
    situation = replace(fresh(spec), params=params)
    [only] = attempts_of(situation, "unknown", alone, times=1, progress=True)
    return next((result for result in only.plan.actions if result.name == action.name), None)


def _next(now: Situation, kind: str, reached: Progress, plan: Plan, progress: bool) -> Situation:
    """How the run stands when the next attempt fails."""
    past = PastDecision(
        attempt=now.attempt,
        kind=kind,
        rung=plan.rung,
        verdict=plan.verdict,
        progressed=reached.made,
        changed=bool(plan.changed),
        actions=tuple(result.name for result in plan.actions if isinstance(result, AppliedAction)),
    )
    started_at = now.started_at + ATTEMPT_SECONDS + plan.delay_seconds
    used = next((info for info in now.checkpoints if str(info.path) == plan.resume_from), None)
    fails_at = now.fails_at if now.fails_at is None or not progress else now.fails_at + STEPS
    steps = [step for step in (now.best_step_before, now.fails_at) if step is not None]
    return replace(
        now,
        params=plan.params,
        attempt=now.attempt + 1,
        history=(*now.history, past),
        checkpoints=_written(now, None if used is None else used.step, fails_at, started_at),
        fails_at=fails_at,
        best_step_before=max(steps, default=None),
        resumed_from=plan.resume_from,
        resumed_step=None if used is None else used.step,
        started_at=started_at,
        gpus=(*(gpu for gpu in now.gpus if gpu not in plan.effect.quarantine), *plan.effect.replacements),
    )


def _written(now: Situation, begin: int | None, end: int | None, at: float) -> tuple[CheckpointInfo, ...]:
    """The checkpoints after an attempt went from step ``begin`` to ``end``: those of its way are written anew."""
    checkpoints = now.spec.checkpoints
    if end is None or now.directory is None or checkpoints is None:
        return now.checkpoints
    kept = [
        replace(info, modified_at=at) if info.step is not None and (begin or 0) < info.step <= end else info
        for info in now.checkpoints
    ]
    newest = max((info.step for info in kept if info.step is not None), default=0)
    new = [
        _checkpoint(now.directory, checkpoints, step, at)
        for step in range((newest // STEPS + 1) * STEPS, end + 1, STEPS)
        if step > max(now.fails_at or 0, newest)
    ]
    return (*reversed(new), *kept)


def _wanted(checkpoints: Sequence[CheckpointInfo], policy: Policy) -> list[CheckpointInfo]:
    """The newest ones up to as many valid ones as a decision gets to see."""
    found: list[CheckpointInfo] = []
    for info in checkpoints:
        found.append(info)
        if sum(one.valid for one in found) >= policy.checkpoints_wanted:
            break
    return found


def _checkpoint(directory: Path, spec: CheckpointSpec, step: int, at: float) -> CheckpointInfo:
    name = spec.pattern.replace("*", f"{step:08d}", 1).replace("*", "") if "*" in spec.pattern else spec.pattern
    return CheckpointInfo(directory / name, step, True, "is assumed", CHECKPOINT_BYTES, at)
