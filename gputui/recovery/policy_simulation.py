"""Simulation of a policy against a recurring incident. Pure; it uses the same `decide` as the agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gputui.recovery.checkpoints import ledger
from gputui.recovery.checkpoints.formats import CheckpointInfo
from gputui.recovery.checkpoints.ledger import NUMERIC_INCIDENTS, AttemptSpan, UnsoundLoss
from gputui.recovery.checkpoints.search import choose
from gputui.recovery.classify import Incident
from gputui.recovery.decide import UNDO, AttemptReach, PastDecision, RecoveryPlan, decide
from gputui.recovery.kinds import KINDS
from gputui.recovery.machine_actions import AppliedAction, MachineContext, Result
from gputui.recovery.policies import STOP, Policy, PolicyAction
from gputui.runs.launchers import FOR_RANKS
from gputui.runs.spec import CheckpointSpec, GpuRequest, MetricsSpec, RunSpec, Scalar
from gputui.store.checkpoints import CheckpointRow

STEPS = 100
"""Steps between assumed checkpoints, and the assumed progress of an attempt."""
FIRST_FAILURE = 950
MOST_ATTEMPTS = 100
ATTEMPT_SECONDS = 3600.0
CHECKPOINT_BYTES = 1 << 30

EXAMPLE = RunSpec(
    name="example",
    launcher=FOR_RANKS.name,
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
    metrics=(MetricsSpec("jsonl", "{run_dir}/metrics.jsonl"),),
    checkpoints=CheckpointSpec("checkpoints", "step_*.pt", ("--resume", "{checkpoint}")),
)
"""A run with all common parameters, to show a policy without a profile."""


class Situation(Struct, frozen=True):
    """A run's state at an incident. Times are seconds of one clock; unknown is None.

    Attributes:
        attempt: the number of the failing attempt; its parameters are ``params``.
        history: earlier decisions, oldest first.
        checkpoints: the run's ledger; directory: where new checkpoints appear, None without checkpoints.
        chosen_there: only the run's target sees its checkpoints, and chooses.
        fails_at: the attempt's last step; best_step_before: the furthest step of the attempts before it.
        resumed_from, started_at: how and when it began; before: the attempts before it, oldest first.
        gpus: its GPUs; no other is free.
    """

    run_id: str
    spec: RunSpec
    params: Mapping[str, Scalar]
    attempt: int = 1
    history: tuple[PastDecision, ...] = ()
    checkpoints: tuple[CheckpointRow, ...] = ()
    directory: Path | None = None
    chosen_there: bool = False
    fails_at: int | None = FIRST_FAILURE
    best_step_before: int | None = None
    resumed_from: str | None = None
    started_at: float = 0.0
    before: tuple[AttemptSpan, ...] = ()
    gpus: tuple[str, ...] = ()


class SimulatedAttempt(Struct, frozen=True):
    """One attempt with an incident of ``kind``, and the decision."""

    attempt: int
    step: int | None
    kind: str
    before: Mapping[str, Scalar]
    plan: RecoveryPlan


def fresh(spec: RunSpec) -> Situation:
    """A run of ``spec`` at step 950, with a valid checkpoint every 100 steps if it has checkpoints."""
    directory = None if spec.checkpoints is None else Path(spec.checkpoints.directory)
    checkpoints = (
        () if spec.checkpoints is None or directory is None
        else tuple(_checkpoint(directory, spec.checkpoints, step, 1, step) for step in range(900, 0, -STEPS))
    )  # fmt: skip
    gpus = spec.gpus.uuids or tuple(str(place) for place in range(spec.gpus.count))
    return Situation(spec.name, spec, dict(spec.params), checkpoints=checkpoints, directory=directory, gpus=gpus)


def attempts_of(
    situation: Situation, kind: str, policy: Policy, *, times: int, progress: bool, refuses: bool = False
) -> list[SimulatedAttempt]:
    """Simulate attempts that end with an incident of ``kind``, at most ``times``, until the policy stops.

    With ``progress`` each attempt gets 100 steps further, else all end at the same step. With ``refuses`` the script
    raises an exception before its first step whenever parameters were changed.
    """
    rounds: list[SimulatedAttempt] = []
    now = situation
    for _ in range(min(times, MOST_ATTEMPTS)):
        is_refused = refuses and bool(now.history) and bool(now.history[-1].replaced)
        incident_kind, step = ("user_exception", None) if is_refused else (kind, now.fails_at)
        reached = AttemptReach(
            last_step=step,
            best_step_before=now.best_step_before,
            new_checkpoint=step is None and progress and not is_refused,
            ran_seconds=0.0 if is_refused else ATTEMPT_SECONDS,
        )
        incident = Incident(incident_kind, 0, step, KINDS[incident_kind].says.format(who="rank 0"), incident_kind, ())
        spans = (*now.before, _span(now, step))
        trouble = None
        if incident_kind in NUMERIC_INCIDENTS and step is not None:
            named = {row.seen: row.step for row in now.checkpoints if row.step is not None}
            trouble = UnsoundLoss(step, {now.attempt: (step - 1, 0.0)}, named)
        rows = ledger.attempt_ended(now.checkpoints, spans, now.attempt, incident_kind, trouble)
        check = partial(_assumed_info, rows)
        choice = choose(rows, spans, policy.checkpoints_wanted, check, is_same=lambda _: True)
        now = replace(now, checkpoints=choice.rows)
        plan = decide(
            incident,
            now.history,
            reached,
            now.spec,
            now.params,
            policy,
            None if now.chosen_there else choice.infos,
            run_id=now.run_id,
            attempt=now.attempt,
            machine=MachineContext(now.gpus, notifies=policy.notify is not None),
        )
        rounds.append(SimulatedAttempt(now.attempt, step, incident_kind, dict(now.params), plan))
        if plan.verdict == "stop":
            break
        now = _next(now, incident_kind, reached, plan, progress and not is_refused)
    return rounds


def effect_of(action: PolicyAction, spec: RunSpec, params: Mapping[str, Scalar]) -> Result | None:
    """The result of a single action for a run of ``spec``; None for ``stop``."""
    if action.name == "stop":
        return None
    alone = Policy("alone", {"unknown": ((action,), STOP)})
    situation = replace(fresh(spec), params=params)
    [only] = attempts_of(situation, "unknown", alone, times=1, progress=True)
    return next((result for result in only.plan.actions if result.name == action.name), None)


def _next(now: Situation, kind: str, reached: AttemptReach, plan: RecoveryPlan, progress: bool) -> Situation:
    """The run's state when the next attempt fails."""
    past = PastDecision(
        attempt=now.attempt,
        kind=kind,
        rung=plan.rung,
        verdict=plan.verdict,
        progressed=reached.made,
        changed=bool(plan.changed),
        actions=tuple(result.name for result in plan.actions if isinstance(result, AppliedAction)),
        replaced={
            change.parameter: change.before
            for result in plan.actions
            if isinstance(result, AppliedAction) and result.name != UNDO
            for change in result.changes
        },
    )
    started_at = now.started_at + ATTEMPT_SECONDS + plan.delay_seconds
    used = next((row for row in now.checkpoints if row.path == plan.resume_from), None)
    fails_at = now.fails_at if now.fails_at is None or not progress else now.fails_at + STEPS
    steps = [step for step in (now.best_step_before, reached.last_step) if step is not None]
    before = (*now.before, _span(now, reached.last_step))
    rows = plan.applied_to(now.checkpoints)
    following = replace(
        now,
        params=plan.params,
        attempt=now.attempt + 1,
        history=(*now.history, past),
        checkpoints=ledger.attempt_begins(rows, before, now.attempt + 1, plan.resume_from),
        fails_at=fails_at,
        best_step_before=max(steps, default=None),
        resumed_from=plan.resume_from,
        started_at=started_at,
        gpus=(*(gpu for gpu in now.gpus if gpu not in plan.effect.quarantine), *plan.effect.replacements),
        before=before,
    )
    return replace(following, checkpoints=_written(following, 0 if used is None else used.step))


def _span(now: Situation, step: int | None) -> AttemptSpan:
    ended_at = now.started_at + ATTEMPT_SECONDS
    return AttemptSpan(now.attempt, now.started_at, ended_at, now.resumed_from, step, step is not None)


def _written(now: Situation, begin: int | None) -> tuple[CheckpointRow, ...]:
    """The ledger after the attempt continued from step ``begin`` and wrote a checkpoint every STEPS steps."""
    checkpoints = now.spec.checkpoints
    if now.fails_at is None or begin is None or now.directory is None or checkpoints is None:
        return now.checkpoints
    seen = max((row.seen for row in now.checkpoints), default=0)
    new = [
        _checkpoint(now.directory, checkpoints, step, now.attempt, seen + step)
        for step in range((begin // STEPS + 1) * STEPS, now.fails_at + 1, STEPS)
    ]
    rewritten = {row.path for row in new}
    return (*new, *(row for row in now.checkpoints if row.path not in rewritten))


def _assumed_info(rows: Sequence[CheckpointRow], path: Path) -> CheckpointInfo:
    """The checkpoint, assumed valid unless it is known to be damaged."""
    row = next(row for row in rows if row.path == str(path))
    is_whole = row.verdict != "invalid"
    return CheckpointInfo(path, row.step, is_whole, row.why or "is assumed", row.size_bytes, row.seen)


def _checkpoint(directory: Path, spec: CheckpointSpec, step: int, attempt: int, seen: int) -> CheckpointRow:
    name = spec.pattern.replace("*", f"{step:08d}", 1).replace("*", "") if "*" in spec.pattern else spec.pattern
    path, content = str(directory / name), f"{attempt} {step}"
    return CheckpointRow(path, seen, content, "", attempt, "run", 0.0, 0.0, 0.0, None, step, CHECKPOINT_BYTES, True)
