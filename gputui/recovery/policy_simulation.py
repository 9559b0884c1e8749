"""A policy as text and as JSON, and its simulation against a recurring incident. Pure; it uses the
same `decide` as the agent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.units import duration
from gputui.recovery.actions import ACTIONS
from gputui.recovery.checkpoints import ledger
from gputui.recovery.checkpoints.formats import CheckpointInfo
from gputui.recovery.checkpoints.ledger import NUMERIC_INCIDENTS, AttemptSpan, UnsoundLoss
from gputui.recovery.checkpoints.search import choose
from gputui.recovery.classify import Incident
from gputui.recovery.decide import UNDO, AttemptReach, PastDecision, RecoveryPlan, decide
from gputui.recovery.effects import AppliedAction, MachineContext, Result
from gputui.recovery.kinds import KINDS
from gputui.recovery.policies import ENDS_ON, POLICIES, STOP, Policy, PolicyAction, kinds_with_ladders
from gputui.recovery.watch.silence import EARLY_FACTOR, EVIDENT_SHARE, START_FACTOR
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
    "example", FOR_RANKS.name, ("train.py",), "/", python="python", nproc=2, gpus=GpuRequest(count=2),
    params={"batch_size": 16, "grad_accum": 4, "gradient_checkpointing": False, "lr": 0.1,
            "grad_clip": 1.0, "num_workers": 4, "timeout": 600},
    metrics=(MetricsSpec("jsonl", "{run_dir}/metrics.jsonl"),),
    checkpoints=CheckpointSpec("checkpoints", "step_*.pt", ("--resume", "{checkpoint}")),
)  # fmt: skip
"""A run with all common parameters, to show a policy without a profile."""

SAYS = {
    "off": "nothing: the run stops with its first incident",
    "restart-only": "starts again from the newest valid checkpoint and never changes a parameter",
    "standard": "the same, and changes what makes a run fit: batch size, gradient checkpointing, workers, clipping",
    "aggressive": "longer ladders; also lowers the learning rate, and starts again after a reboot or an outside stop",
}
"""One line per built-in policy."""


# --- simulation -------------------------------------------------------------------------------


class Situation(Struct, frozen=True):
    """A run's state at an incident. Times are seconds of one clock; unknown is None.

    Attributes:
        attempt: the number of the failing attempt; its parameters are ``params``.
        history: earlier decisions, oldest first.
        checkpoints: the run's ledger; directory: where new ones appear, None without checkpoints.
        fails_at: the attempt's last step; best_step_before: the furthest of those before it.
        resumed_from, started_at: how and when it began; before: the earlier ones, oldest first.
        gpus: its GPUs; no other is free.
    """

    run_id: str
    spec: RunSpec
    params: Mapping[str, Scalar]
    attempt: int = 1
    history: tuple[PastDecision, ...] = ()
    checkpoints: tuple[CheckpointRow, ...] = ()
    directory: Path | None = None
    fails_at: int | None = FIRST_FAILURE
    best_step_before: int | None = None
    resumed_from: str | None = None
    started_at: float = 0.0
    before: tuple[AttemptSpan, ...] = ()
    gpus: tuple[str, ...] = ()

    def spans(self, step: int | None) -> tuple[AttemptSpan, ...]:
        """All attempts, with this one's end at ``step``."""
        end = self.started_at + ATTEMPT_SECONDS
        begun = (self.attempt, self.started_at, end, self.resumed_from)
        return (*self.before, AttemptSpan(*begun, step, step is not None))

    def with_saves(self, since: int) -> Situation:
        """After saves every STEPS steps from ``since`` to the failure."""
        spec = self.spec.checkpoints
        if self.fails_at is None or self.directory is None or spec is None:
            return self
        seen = max((row.seen for row in self.checkpoints), default=0)
        new: list[CheckpointRow] = []
        for step in range((since // STEPS + 1) * STEPS, self.fails_at + 1, STEPS):
            name = spec.pattern.replace("*", f"{step:08d}", 1).replace("*", "")
            path, content = str(self.directory / name), f"{self.attempt} {step}"
            row = CheckpointRow(
                path, seen + step, content, "", self.attempt, "run", 0.0, 0.0, 0.0, None, step,
                CHECKPOINT_BYTES, is_settled=True,
            )  # fmt: skip
            new.append(row)
        rewritten = {row.path for row in new}
        kept = (row for row in self.checkpoints if row.path not in rewritten)
        return replace(self, checkpoints=(*new, *kept))


class SimulatedAttempt(Struct, frozen=True):
    """One attempt with an incident of ``kind``, and the decision."""

    attempt: int
    step: int | None
    kind: str
    before: Mapping[str, Scalar]
    plan: RecoveryPlan


def fresh(spec: RunSpec) -> Situation:
    """A run of ``spec`` at step 950, with a valid checkpoint every 100 steps if it has any."""
    directory = None if spec.checkpoints is None else Path(spec.checkpoints.directory)
    gpus = spec.gpus.uuids or tuple(str(place) for place in range(spec.gpus.count))
    return Situation(spec.name, spec, dict(spec.params), directory=directory, gpus=gpus).with_saves(0)


def attempts_of(
    situation: Situation, kind: str, policy: Policy, *, times: int, progress: bool, refuses: bool = False
) -> list[SimulatedAttempt]:
    """Simulate attempts that end with an incident of ``kind``, at most ``times``, until the policy
    stops.

    With ``progress`` each attempt gets 100 steps further, else all end at the same step. With
    ``refuses`` the script raises an exception before its first step whenever parameters changed.
    """
    rounds: list[SimulatedAttempt] = []
    now = situation

    def assumed(path: Path) -> CheckpointInfo:
        """The checkpoint, assumed valid unless it is known to be damaged."""
        row = next(row for row in now.checkpoints if row.path == str(path))
        is_whole, why = row.verdict != "invalid", row.why or "is assumed"
        return CheckpointInfo(path, row.step, is_whole, why, row.size_bytes, row.seen)

    for _ in range(min(times, MOST_ATTEMPTS)):
        is_refused = refuses and bool(now.history) and bool(now.history[-1].replaced)
        incident_kind, step = ("user_exception", None) if is_refused else (kind, now.fails_at)
        gains = progress and not is_refused
        reached = AttemptReach(
            last_step=step,
            best_step_before=now.best_step_before,
            new_checkpoint=step is None and gains,
            ran_seconds=0.0 if is_refused else ATTEMPT_SECONDS,
        )
        says = KINDS[incident_kind].says.format(who="rank 0")
        incident = Incident(incident_kind, 0, step, says, incident_kind, ())
        spans = now.spans(step)
        trouble = None
        if incident_kind in NUMERIC_INCIDENTS and step is not None:
            named = {row.seen: row.step for row in now.checkpoints if row.step is not None}
            trouble = UnsoundLoss(step, {now.attempt: (step - 1, 0.0)}, named)
        rows = ledger.attempt_ended(now.checkpoints, spans, now.attempt, incident_kind, trouble)
        now = replace(now, checkpoints=rows)
        wanted = policy.checkpoints_wanted
        choice = choose(rows, spans, wanted, assumed, is_same=lambda _: True)
        now = replace(now, checkpoints=choice.rows)
        plan = decide(
            incident,
            now.history,
            reached,
            now.spec,
            now.params,
            policy,
            choice.infos,
            run_id=now.run_id,
            attempt=now.attempt,
            machine=MachineContext(now.gpus, notifies=policy.notify is not None),
        )
        before = dict(now.params)
        rounds.append(SimulatedAttempt(now.attempt, step, incident_kind, before, plan))
        if plan.verdict == "stop":
            break
        now = _next(now, incident_kind, reached, plan, gains)
    return rounds


def effect_of(action: PolicyAction, spec: RunSpec, params: Mapping[str, Scalar]) -> Result | None:
    """The result of a single action for a run of ``spec``; None for ``stop``."""
    if action.name == "stop":
        return None
    alone = Policy("alone", {"unknown": ((action,), STOP)})
    situation = replace(fresh(spec), params=params)
    [only] = attempts_of(situation, "unknown", alone, times=1, progress=True)
    return next((result for result in only.plan.actions if result.name == action.name), None)


def _next(now: Situation, kind: str, reached: AttemptReach, plan: RecoveryPlan, gains: bool) -> Situation:
    """The run's state when the next attempt fails."""
    applied = [result for result in plan.actions if isinstance(result, AppliedAction)]
    changes = (change for each in applied if each.name != UNDO for change in each.changes)
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
    used = next((row for row in now.checkpoints if row.path == plan.resume_from), None)
    steps = [step for step in (now.best_step_before, reached.last_step) if step is not None]
    before = now.spans(reached.last_step)
    rows = plan.applied_to(now.checkpoints)
    left = (gpu for gpu in now.gpus if gpu not in plan.effect.quarantine)
    following = replace(
        now,
        params=plan.params,
        attempt=now.attempt + 1,
        history=(*now.history, past),
        checkpoints=ledger.attempt_begins(rows, before, now.attempt + 1, plan.resume_from),
        fails_at=now.fails_at if now.fails_at is None or not gains else now.fails_at + STEPS,
        best_step_before=max(steps, default=None),
        resumed_from=plan.resume_from,
        started_at=now.started_at + ATTEMPT_SECONDS + plan.delay_seconds,
        gpus=(*left, *plan.effect.replacements),
        before=before,
    )
    begin = 0 if used is None else used.step
    return following if begin is None else following.with_saves(begin)


# --- for people -------------------------------------------------------------------------------


def action_words(action: PolicyAction) -> str:
    """``rollback 2``, ``wait 30 s``."""
    if action.argument is None:
        return action.name
    unit = " s" if ACTIONS[action.name].argument == "seconds" else ""
    return f"{action.name} {action.argument:g}{unit}"


def kind_words(kind: str, policy: Policy) -> str:
    """The ladder for a kind of incident: ``restart → rollback 1 + tighter_clip 2 → stop``."""
    if kind in KINDS and KINDS[kind].deterministic:
        return "never retried"
    rungs = (" + ".join(action_words(each) for each in rung) for rung in policy.ladder(kind))
    when = " (not before the first step)" if kind in KINDS and KINDS[kind].needs_step else ""
    return " → ".join(rungs) + when


def limit_lines(policy: Policy) -> list[str]:
    """The policy's limits, one sentence each."""
    lines, backoff = ["nothing is ever tried again"], policy.backoff
    if policy.enabled:
        base, most = duration(backoff.base_seconds), duration(backoff.max_seconds)
        lines = [
            f"at most {policy.max_attempts} attempts (max_attempts)",
            f"at most {policy.max_without_progress} unchanged attempts in a row without progress "
            "(max_without_progress)",
            f"before an unchanged restart a wait of {base}, times {backoff.factor:g} after every "
            f"attempt without progress, at most {most}, less up to {backoff.jitter * 100:g} % "
            "(backoff)",
        ]
    ended = [f"  {kind}: {when}" for kind, when in ENDS_ON.items() if kind in policy.ends_on]
    if ended:
        lines += ["ends an attempt that is alive (ends_on) for", *ended]
    if reported := [kind for kind in ENDS_ON if kind not in policy.ends_on]:
        lines.append(f"only reports {', '.join(reported)} while an attempt is alive (not in ends_on)")
    seconds = policy.hang_after_seconds
    early, start = duration(seconds * EARLY_FACTOR), duration(seconds * START_FACTOR)
    return [
        *lines,
        f"calls no silence of less than {duration(seconds)} a hang, {early} in the first steps and "
        f"{start} before them, in any history (hang_after); {duration(seconds * EVIDENT_SHARE)} "
        "will do where a rank is stopped or all wait for each other",
    ]


def policy_json(policy: Policy) -> dict[str, Any]:
    """The policy as JSON. ``ladders`` has every kind that may be retried, and ``default``."""
    is_on = policy.enabled
    return {
        "name": policy.name,
        "description": SAYS.get(policy.name),
        "enabled": is_on,
        "max_attempts": policy.max_attempts if is_on else 1,
        "max_without_progress": policy.max_without_progress if is_on else None,
        "backoff": msgspec.to_builtins(policy.backoff) if is_on else None,
        "ends_on": sorted(policy.ends_on),
        "watches": [{"kind": kind, "when": when, "ends": kind in policy.ends_on} for kind, when in ENDS_ON.items()],
        "hang_after_seconds": policy.hang_after_seconds,
        "notifies": policy.notify is not None,
        "ladders": {
            kind: [
                [{"action": action.name, "argument": action.argument} for action in rung]
                for rung in policy.ladder(kind)
            ]
            for kind in kinds_with_ladders()
        },
        "never_retried": [name for name, kind in KINDS.items() if kind.deterministic],
        "not_before_first_step": [name for name, kind in KINDS.items() if kind.needs_step],
    }


def own_name(policy: Policy) -> str:
    """The policy's name, marked if the profile changes the built-in policy."""
    is_built_in = POLICIES.get(policy.name) == policy
    return policy.name if is_built_in else f"{policy.name}, changed"


def actions_in(policy: Policy) -> list[PolicyAction]:
    """The distinct actions of the ladders but ``stop``, in the order of the documentation."""
    rungs = (rung for ladder in policy.ladders.values() for rung in ladder)
    found = {action for rung in rungs for action in rung if action.name != "stop"}
    order = list(ACTIONS)
    return sorted(found, key=lambda each: (order.index(each.name), each.argument or 0.0))
