"""The simulation of a policy against a recurring incident. Pure; it uses the same `decide` as the
agent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.recovery.classify import Incident
from gputui.recovery.decide import decide
from gputui.recovery.effects import AppliedAction, MachineContext, Result
from gputui.recovery.kinds import KINDS
from gputui.recovery.plans import UNDO, AttemptReach, FailedAttempt, PastDecision, RecoveryPlan
from gputui.recovery.policies import STOP, Policy, PolicyAction
from gputui.runs.checkpoint_formats import CheckpointInfo
from gputui.runs.launchers import FOR_RANKS
from gputui.runs.spec import CheckpointSpec, GpuRequest, MetricsSpec, RunSpec, Scalar, asked_steps

STEPS = 100
"""Steps between assumed checkpoints, and the assumed progress of an attempt; fewer in a run of less than 20 times as
many, so that it fails before its end."""
MOST_ATTEMPTS = 100  # more than any ladder has
ATTEMPT_SECONDS = 3600.0  # any time in which a run gets further
CHECKPOINT_BYTES = 1 << 30  # any size

EXAMPLE = RunSpec(
    "example", FOR_RANKS.name, ("train.py",), "/", python="python", nproc=2, gpus=GpuRequest(count=2),
    params={"batch_size": 16, "grad_accum": 4, "gradient_checkpointing": False, "lr": 0.1,
            "grad_clip": 1.0, "num_workers": 4, "timeout": 600},
    metrics=(MetricsSpec("jsonl", "{run_dir}/metrics.jsonl"),),
    checkpoints=CheckpointSpec("checkpoints", "step_*.pt", ("--resume", "{checkpoint}")),
)  # fmt: skip
"""A run with all common parameters, to show a policy without a profile."""


class Situation(Struct, frozen=True):
    """A run's state at an incident.

    Attributes:
        params: those of the failing attempt.
        attempt: its number.
        history: earlier decisions, oldest first.
        checkpoints: the run's, the newest first.
        resumed_from: the checkpoint that the attempt began from.
        fails_at: the attempt's last step.
        every: the steps between two checkpoints.
        best_step_before: the furthest step of the attempts before it.
        gpus: its GPUs; no other is free.
    """

    spec: RunSpec
    params: Mapping[str, Scalar]
    attempt: int = 1
    history: tuple[PastDecision, ...] = ()
    checkpoints: tuple[CheckpointInfo, ...] = ()
    resumed_from: str | None = None
    fails_at: int = 0
    every: int = STEPS
    best_step_before: int | None = None
    gpus: tuple[str, ...] = ()


class SimulatedAttempt(Struct, frozen=True):
    """One attempt with an incident of ``kind``, and the decision."""

    attempt: int
    step: int | None
    kind: str
    before: Mapping[str, Scalar]
    plan: RecoveryPlan


def fresh(spec: RunSpec) -> Situation:
    """A run of ``spec`` before its tenth checkpoint, with all of them valid if it has any."""
    gpus = spec.gpus.uuids or tuple(str(place) for place in range(spec.gpus.count))
    length = asked_steps(spec.params) or 20 * STEPS
    every = min(STEPS, max(1, length // 20))
    fails_at = min(every * 19 // 2, length)
    return Situation(
        spec,
        dict(spec.params),
        1,
        history=(),
        checkpoints=_saves(spec, fails_at, every),
        resumed_from=None,
        fails_at=fails_at,
        every=every,
        gpus=gpus,
    )


def _saves(spec: RunSpec, last_step: int, every: int) -> tuple[CheckpointInfo, ...]:
    """The checkpoints of a run that has saved ``every`` so many steps, the newest first."""
    if spec.checkpoints is None:
        return ()
    saves = []
    for step in range(last_step // every * every, 0, -every):
        name = spec.checkpoints.pattern.replace("*", f"{step:08d}", 1).replace("*", "")
        path = Path(spec.checkpoints.directory) / name
        saves.append(CheckpointInfo(path, step, valid=True, why="is assumed", size_bytes=CHECKPOINT_BYTES, place=step))
    return tuple(saves)


def attempts_of(
    situation: Situation, kind: str, policy: Policy, *, times: int, progress: bool, refuses: bool = False
) -> list[SimulatedAttempt]:
    """Simulate attempts that end with an incident of a kind until the policy stops.

    Args:
        times: at most so many attempts.
        progress: each attempt gets a checkpoint further, else all end at the same step.
        refuses: the script raises an exception before its first step whenever parameters changed.
    """
    rounds: list[SimulatedAttempt] = []
    now = situation
    for _ in range(min(times, MOST_ATTEMPTS)):
        incident = _incident(kind, now.fails_at)
        reached = AttemptReach(
            last_step=now.fails_at, best_step_before=now.best_step_before, ran_seconds=ATTEMPT_SECONDS
        )
        gained = now.every if progress else 0
        is_refused = refuses and bool(now.history) and bool(now.history[-1].replaced)
        if is_refused:
            incident = _incident("user_exception", None)
            reached = AttemptReach(last_step=None, best_step_before=now.best_step_before, ran_seconds=0.0)
            gained = 0
            now = replace(now, checkpoints=_doubted(now))
        plan = decide(_failed_attempt(now, incident, reached, policy))
        rounds.append(SimulatedAttempt(now.attempt, incident.step, incident.kind, dict(now.params), plan))
        if plan.verdict == "stop":
            break
        now = _next(now, incident.kind, reached, plan, gained)
    return rounds


def _incident(kind: str, step: int | None) -> Incident:
    """An incident of rank 0 at a step, None before the first."""
    return Incident(kind, 0, step, summary=KINDS[kind].title, fingerprint=kind, evidence_lines=())


def _failed_attempt(now: Situation, incident: Incident, reached: AttemptReach, policy: Policy) -> FailedAttempt:
    """The input of the decision after an attempt."""
    usable = [info for info in now.checkpoints if info.valid][: policy.checkpoints_wanted]
    passed_over = [info for info in now.checkpoints if not info.valid]
    return FailedAttempt(
        run_id=now.spec.name,
        number=now.attempt,
        incident=incident,
        reach=reached,
        spec=now.spec,
        params=now.params,
        policy=policy,
        history=now.history,
        checkpoints=[*usable, *passed_over],
        machine=MachineContext(now.gpus),
    )


def _doubted(now: Situation) -> tuple[CheckpointInfo, ...]:
    """The checkpoints after an attempt that made no step from the one that it began from."""
    why = f"was resumed from by attempt {now.attempt}, which ended before its first step"
    checkpoints = []
    for info in now.checkpoints:
        if str(info.path) == now.resumed_from:
            info = info._replace(valid=False, why=why)
        checkpoints.append(info)
    return tuple(checkpoints)


def effect_of(action: PolicyAction, spec: RunSpec, params: Mapping[str, Scalar]) -> Result | None:
    """The result of a single action for a run of ``spec``; None for ``stop``."""
    if action.name == "stop":
        return None
    alone = Policy("alone", description="", ladders={"unknown": ((action,), STOP)})
    situation = replace(fresh(spec), params=params)
    [only] = attempts_of(situation, "unknown", alone, times=1, progress=True)
    return next((result for result in only.plan.actions if result.name == action.name), None)


def _next(now: Situation, kind: str, reached: AttemptReach, plan: RecoveryPlan, gained: int) -> Situation:
    """The run's state when the next attempt fails, ``gained`` steps later."""
    applied = [result for result in plan.actions if isinstance(result, AppliedAction)]
    changes = (change for action in applied if action.name != UNDO for change in action.changes)
    past = PastDecision(
        attempt=now.attempt,
        kind=kind,
        rung=plan.rung,
        verdict=plan.verdict,
        progressed=reached.made,
        changed=bool(plan.changed),
        actions=tuple(result.name for result in applied),
        replaced={change.parameter: change.before for change in changes},
    )
    checkpoints = now.checkpoints
    if reached.last_step is not None:
        checkpoints = _saves(now.spec, now.fails_at + gained, now.every)
    steps = [step for step in (now.best_step_before, reached.last_step) if step is not None]
    remaining = (gpu for gpu in now.gpus if gpu not in plan.effect.quarantine)
    return replace(
        now,
        params=plan.params,
        attempt=now.attempt + 1,
        history=(*now.history, past),
        checkpoints=checkpoints,
        resumed_from=plan.resume_from,
        fails_at=now.fails_at + gained,
        best_step_before=max(steps, default=None),
        gpus=(*remaining, *plan.effect.replacements),
    )
