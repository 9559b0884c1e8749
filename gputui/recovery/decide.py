"""The decision after an incident. Pure: the same incident, history and policy give the same plan."""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.units import duration
from gputui.recovery.actions import ACTIONS, tuned_by_study
from gputui.recovery.checkpoints.formats import CheckpointInfo
from gputui.recovery.checkpoints.ledger import NUMERIC_INCIDENTS, WORKED_SECONDS, rolled_back
from gputui.recovery.classify import Incident
from gputui.recovery.kinds import KINDS
from gputui.recovery.machine_actions import (
    ELSEWHERE,
    NO_EFFECT,
    ActionContext,
    AppliedAction,
    Change,
    Effect,
    MachineContext,
    Result,
    SkippedAction,
    apply_changes,
    show,
    whole,
)
from gputui.recovery.policies import Ladder, Policy, Rung
from gputui.runs.spec import RunSpec, Scalar
from gputui.store.checkpoints import CheckpointRow

# Rejected checkpoints in a plan's reason.
MOST_SHOWN = 3
# Incidents of a script that refuses its parameters.
REFUSALS = frozenset({"user_exception", "nonzero_exit", "config_error", "incompatible_checkpoint", "unknown"})
SHRINK = "shrink_batch"
MOST_GENTLE = 2  # smaller batches in a row; then it is halved
EXCLUDE = "exclude_gpu"
UNDO = "undo"
"""The action that reverts the changes of another one; ladders cannot name it."""

Verdict = Literal["retry", "stop"]
Because = Literal[
    "ladder",
    "exhausted",
    "off",
    "deterministic",
    "before_first_step",
    "attempts",
    "crash_loop",
    "unreadable",
    "doubted",
    "not_resumed",
]


class PastDecision(Struct, frozen=True):
    """An earlier decision of the same run, made at the end of ``attempt``.

    ``progressed``: that attempt got further than those before it. ``changed``: the decision changed parameters.
    ``actions`` are the names of the applied actions, ``replaced`` the former values of changed parameters.
    """

    attempt: int
    kind: str
    rung: int
    verdict: Verdict
    progressed: bool
    changed: bool
    actions: tuple[str, ...] = ()
    replaced: Mapping[str, Scalar] = msgspec.field(default_factory=dict)


Resumption = Literal["resumed", "earlier", "beginning", "later"]
"""The attempt continued from the checkpoint that it was given, from an earlier step, from the first step, or from a
later checkpoint that it found itself."""


class AttemptReach(Struct, frozen=True):
    """How far the ended attempt got. Unknown is None.

    Attributes:
        last_step: its last step; best_step_before: the furthest step of the attempts before it.
        new_checkpoint: it wrote a checkpoint; further_checkpoint: beyond those before it, where steps start again with
            every epoch.
        ran_seconds: its duration.
        resumption: where it began.
    """

    last_step: int | None = None
    best_step_before: int | None = None
    new_checkpoint: bool = False
    further_checkpoint: bool = False
    ran_seconds: float | None = None
    resumption: Resumption | None = None

    @property
    def made(self) -> bool:
        """Whether the attempt got further than every one before it."""
        if self.last_step is None:
            return self.new_checkpoint
        return self.further_checkpoint or self.best_step_before is None or self.last_step > self.best_step_before


class RecoveryPlan(Struct, frozen=True):
    """The decision and its reason.

    Attributes:
        actions: applied and skipped actions in the order of the ladder.
        params: all parameters of the next attempt; changed: those that differ.
        rung: the position on the ladder, counted from 0.
        reason: one sentence without its full stop.
        because: the reason as a keyword for programs.
        effect: effects besides changed parameters.
    """

    verdict: Verdict
    reason: str
    because: Because
    params: dict[str, Scalar]
    rung: int = 0
    actions: tuple[Result, ...] = ()
    changed: dict[str, Scalar] = msgspec.field(default_factory=dict)
    resume_from: str | None = None
    delay_seconds: float = 0.0
    effect: Effect = NO_EFFECT

    def applied_to(self, rows: Sequence[CheckpointRow]) -> Sequence[CheckpointRow]:
        """The ledger after the plan: a rollback strikes off what was written after its checkpoint."""
        is_rollback = any(isinstance(action, AppliedAction) and action.name == "rollback" for action in self.actions)
        if not is_rollback or self.resume_from is None:
            return rows
        return rolled_back(rows, self.resume_from, f"was left by a rollback to {Path(self.resume_from).name}")

    def actions_json(self) -> list[dict[str, Any]]:
        """The actions in their stored form."""
        return [action.to_json() for action in self.actions]


class ResumePoint(Struct, frozen=True):
    """The checkpoints that may be resumed from, best first, and why others are rejected.

    ``configured``: the profile names checkpoints. ``chosen_there``: only the run's target sees them and chooses when
    the attempt begins. ``is_passed``: an argument tells the script to resume; else only $GPUTUI_CHECKPOINT names the
    checkpoint, which the script may not read.
    """

    usable: tuple[CheckpointInfo, ...]
    rejected: tuple[SkippedAction, ...]
    configured: bool
    chosen_there: bool = False
    is_passed: bool = True

    def path(self, back: int) -> str | None:
        """The checkpoint ``back`` places before the best; None, for a start from scratch, if there is none."""
        return str(self.usable[back].path) if back < len(self.usable) else None

    def rollback(self, count: int) -> tuple[Result, int]:
        """Go back ``count`` checkpoints before the best, or as far as older ones exist; also return that number."""
        if not self.configured:
            return SkippedAction("rollback", "the profile names no checkpoints"), 0
        if self.chosen_there:
            return SkippedAction("rollback", ELSEWHERE), 0
        older = [index for index, info in enumerate(self.usable) if info.seen < self.usable[0].seen]
        if not older:
            return SkippedAction("rollback", "there is no older valid checkpoint"), 0
        back = min(count, len(older))
        steps = "one checkpoint" if back == 1 else f"{back} checkpoints"
        return AppliedAction("rollback", f"went back {steps} before the newest usable one"), older[back - 1]

    def describe(self, back: int) -> str:
        """The start of the next attempt, as the end of a sentence."""
        if back < len(self.usable):
            name = self.usable[back].path.name
            return f"resuming from {name}" if self.is_passed else f"starting with {name} in $GPUTUI_CHECKPOINT"
        if not self.configured:
            return "starting from the beginning because the profile names no checkpoints"
        if self.chosen_there:
            return "resuming from the newest valid checkpoint on its target"
        return "starting from the beginning because there is no valid checkpoint"


def resume_points(checkpoints: Sequence[CheckpointInfo] | None, spec: RunSpec) -> ResumePoint:
    """Split ``checkpoints``, as `gputui.recovery.checkpoints.search` chooses them, into usable and rejected ones. None:
    only the target sees them."""
    if checkpoints is None:
        return ResumePoint((), (), spec.checkpoints is not None, chosen_there=True)
    usable = tuple(info for info in checkpoints if info.valid)
    rejected = [
        SkippedAction(f"resuming from {info.path.name}", f"it {info.why}") for info in checkpoints if not info.valid
    ]
    shown, rest = rejected[:MOST_SHOWN], rejected[MOST_SHOWN:]
    if rest:
        noun = "one more" if len(rest) == 1 else f"{len(rest)} more"
        shown.append(SkippedAction(f"resuming from {noun}", "of the last one, " + rest[-1].why))
    templates = (*(spec.args or ()), *spec.program, *spec.env.values())
    is_passed = any("{checkpoint}" in text for text in templates) or bool(spec.checkpoints and spec.checkpoints.resume)
    return ResumePoint(usable, tuple(shown), spec.checkpoints is not None, is_passed=is_passed)


def chance_of(run_id: str, attempt: int) -> float:
    """A pseudo-random number in [0, 1) that depends only on run and attempt."""
    digest = hashlib.sha256(f"{run_id}\n{attempt}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def decide(
    incident: Incident,
    history: Sequence[PastDecision],
    progress: AttemptReach,
    spec: RunSpec,
    params: Mapping[str, Scalar],
    policy: Policy,
    checkpoints: Sequence[CheckpointInfo] | None,
    *,
    run_id: str,
    attempt: int,
    machine: MachineContext | None = None,
    unreadable: str | None = None,
    doubted: str | None = None,
) -> RecoveryPlan:
    """The plan after attempt ``attempt`` of run ``run_id`` ended with an incident.

    ``params`` are those of that attempt. ``history`` has the decisions since a person last started the run, the
    oldest first (see `gputui.recovery.history`); ``checkpoints`` are those of the run's course that may be resumed
    from, the best first, and those that are passed over, None where none can be seen from here; ``unreadable`` says why
    they cannot be read now, ``doubted`` which of them may be another run's or not whole; ``machine`` is what is known
    of the machine.
    """
    kind = KINDS[incident.kind]
    retries = _retries(history)
    fruitless = _fruitless(retries, progress)
    refused = _refused_change(incident, retries, progress, spec)
    ladder = policy.ladder(incident.kind)
    rung = _rung(incident.kind, retries, progress, ladder) if refused is None else refused.rung

    def stop(because: Because, reason: str, actions: tuple[Result, ...] = ()) -> RecoveryPlan:
        return RecoveryPlan("stop", reason, because, dict(params), rung, actions)

    if not policy.enabled:
        return stop("off", "recovery is off for this run")
    if kind.deterministic and refused is None:
        return stop("deterministic", f"{kind.title}: another attempt would fail in the same way")
    if kind.needs_step and refused is None and not _has_worked(retries, progress, spec):
        return stop(
            "before_first_step",
            f"{kind.title} before the first step: looks like a set-up error; not retried",
        )
    if len(retries) + 1 >= policy.max_attempts:
        count = len(retries) + 1
        made = "1 attempt was" if count == 1 else f"{count} attempts were"
        return stop("attempts", f"{made} made, and the policy allows no more (max_attempts)")
    if fruitless >= policy.max_without_progress:
        return stop(
            "crash_loop",
            f"crash loop: {fruitless} attempts in a row ended without getting any further (max_without_progress)",
        )
    if unreadable is not None:
        return stop(
            "unreadable",
            f"its checkpoints cannot be read now ({unreadable}), and the beginning would lose what they hold; "
            f"gputui resume {run_id} when they can, gputui restart {run_id} without them",
        )
    if doubted is not None and spec.study_id is None:
        # A trial is short, and its study waits for it; another run might overwrite the work of days.
        return stop(
            "doubted",
            f"its checkpoints are in doubt ({doubted}), and the beginning would write over them; "
            f"gputui resume {run_id} --from PATH chooses one, gputui restart {run_id} begins without them",
        )
    if progress.resumption == "later" and incident.kind in NUMERIC_INCIDENTS:
        return stop(
            "not_resumed",
            f"{kind.title}: the script does not load the checkpoint that it is given, but a later one from after the "
            "trouble; pass it {checkpoint} or $GPUTUI_CHECKPOINT, or move the later ones away",
        )
    points = resume_points(checkpoints, spec)
    backoff_seconds = policy.backoff.delay(fruitless, chance_of(run_id, attempt))
    machine = replace(machine or MachineContext(), sees_checkpoints=checkpoints is not None)
    limit = _half_batch(retries, progress, spec, params)
    context = ActionContext(incident, spec, params, None, checkpoints or (), machine, limit)
    if refused is not None:
        return _revert_refused(refused, context, retries, policy, points, backoff_seconds)
    return _climb(context, retries, rung, policy, points, backoff_seconds)


def _refused_change(
    incident: Incident, retries: Sequence[PastDecision], progress: AttemptReach, spec: RunSpec
) -> PastDecision | None:
    """The decision whose changed parameters the script refused, as it seems: the attempt ended before its first step
    with an incident that parameters can cause, other than the one that they were changed for."""
    last = retries[-1] if retries else None
    if last is None or not last.replaced or incident.kind == last.kind or incident.kind not in REFUSALS:
        return None
    if EXCLUDE in last.actions:
        # Without the change, the parameters do not fit the remaining GPUs.
        return None
    is_over = progress.last_step is not None or progress.new_checkpoint
    if is_over or (not spec.metrics and (progress.ran_seconds or 0.0) >= WORKED_SECONDS):
        return None
    return last


def _revert_refused(
    refused: PastDecision,
    context: ActionContext,
    retries: Sequence[PastDecision],
    policy: Policy,
    points: ResumePoint,
    backoff_seconds: float,
) -> RecoveryPlan:
    """Revert a refused change, and try the next smaller batch or the ladder's next rung for that incident."""
    params = {**context.params, **refused.replaced}
    changes = tuple(
        Change(name, context.params.get(name), value)
        for name, value in refused.replaced.items()
        if context.params.get(name) != value
    )
    listed = " and ".join(f"{change.parameter} {show(change.after)} → {show(change.before)}" for change in changes)
    undone = AppliedAction(UNDO, f"took {listed} back, with which the run did not start", changes)
    batch_name = context.spec.role("batch_size", params)
    shrunk = SHRINK in refused.actions and batch_name in refused.replaced
    batch_limit = whole(context.params[batch_name]) if shrunk and batch_name is not None else None
    earlier_incident = replace(context.incident, kind=refused.kind)
    reverted = replace(context, incident=earlier_incident, params=params, below=batch_limit)
    rung = refused.rung if batch_limit is not None else refused.rung + 1
    plan = _climb(reverted, retries, rung, policy, points, backoff_seconds)
    if plan.verdict == "stop":
        return replace(plan, params=dict(context.params), reason=f"{undone.note}; {plan.reason}")
    return replace(
        plan,
        reason=f"{undone.note}, and {plan.reason}",
        actions=(undone, *plan.actions),
        changed={name: value for name, value in plan.params.items() if value != context.params.get(name)},
    )


def _climb(
    context: ActionContext,
    retries: Sequence[PastDecision],
    first_rung: int,
    policy: Policy,
    points: ResumePoint,
    backoff_seconds: float,
) -> RecoveryPlan:
    """Climb the ladder to the first rung with an applicable action."""
    ladder, params = policy.ladder(context.incident.kind), context.params
    skipped: tuple[Result, ...] = ()
    for rung in range(first_rung, len(ladder)):
        if any(action.name == "stop" for action in ladder[rung]):
            break
        results, back, seconds = _try_rung(ladder[rung], context, points)
        # A notification alone changes nothing.
        if not any(isinstance(result, AppliedAction) and result.name != "notify" for result in results):
            skipped += tuple(result for result in results if result not in skipped)
            continue
        changed_params = apply_changes(params, results)
        changed = {name: value for name, value in changed_params.items() if value != params.get(name)}
        # A back-off helps against transient causes; with changed parameters it is pointless.
        delay = max(seconds, 0.0 if changed else backoff_seconds)
        actions = skipped + results + points.rejected
        return RecoveryPlan(
            verdict="retry",
            reason=_retry_reason(actions, points.describe(back), delay),
            because="ladder",
            params=changed_params,
            rung=rung,
            actions=actions,
            changed=changed,
            resume_from=points.path(back),
            delay_seconds=delay,
            effect=_effect(result for result in results if isinstance(result, AppliedAction)),
        )
    reason = _exhausted_reason(context.incident, retries, skipped, policy)
    stays = min(first_rung, len(ladder) - 1)
    return RecoveryPlan("stop", reason, "exhausted", dict(params), stays, skipped, effect=_effect(skipped))


def _effect(results: Iterable[Result]) -> Effect:
    return functools.reduce(operator.or_, (result.effect for result in results), NO_EFFECT)


def _try_rung(rung: Rung, context: ActionContext, points: ResumePoint) -> tuple[tuple[Result, ...], int, float]:
    """Results of a rung's actions, the number of checkpoints to go back, and the seconds to wait."""
    results: list[Result] = []
    back, seconds = 0, 0.0
    params = dict(context.params)
    for action in rung:
        kind = ACTIONS[action.name]
        if kind.apply_here is not None:
            result = kind.apply_here(replace(context, params=params, argument=action.argument))
        elif kind.apply is not None:
            result = kind.apply(context.spec, params, action.argument)
        else:
            result, back = points.rollback(int(action.argument or 1))
        if isinstance(result, AppliedAction) and (name := tuned_by_study(context.spec, result)) is not None:
            result = SkippedAction(action.name, f"{name} is tuned by the run's study")
        if action.name == "wait" and isinstance(result, AppliedAction):
            seconds += action.argument or 0.0
        params = apply_changes(params, (result,))
        results.append(result)
    return tuple(results), back, seconds


def _retries(history: Sequence[PastDecision]) -> list[PastDecision]:
    """The retries since the last stop. A retry that reverted a change counts for the incident that the change was made
    for."""
    series: list[PastDecision] = []
    for decision in history:
        if series and UNDO in decision.actions:
            decision = replace(decision, kind=series[-1].kind)
        series = [] if decision.verdict == "stop" else [*series, decision]
    return series


def _fruitless(retries: Sequence[PastDecision], progress: AttemptReach) -> int:
    """Number of consecutive attempts, this one included, without progress. Changed parameters restart the count."""
    if progress.made:
        return 0
    count = 1
    for decision in reversed(retries):
        if decision.changed or decision.progressed:
            break
        count += 1
    return count


def _half_batch(
    retries: Sequence[PastDecision], progress: AttemptReach, spec: RunSpec, params: Mapping[str, Scalar]
) -> int | None:
    """The size that the next batch must be below: half of it plus one after two smaller ones without progress, so that
    few attempts lead to a batch of 1. None for the usual step."""
    name = spec.role("batch_size", params)
    batch = None if name is None else whole(params[name])
    if batch is None or batch < 2 or progress.made:
        return None
    since = next((at for at in reversed(range(len(retries))) if retries[at].progressed), 0)
    shrunk = sum(SHRINK in decision.actions for decision in retries[since:])
    return batch // 2 + 1 if shrunk >= MOST_GENTLE else None


def _rung(kind: str, retries: Sequence[PastDecision], progress: AttemptReach, ladder: Ladder) -> int:
    """The first rung to try: one above the last one for this kind, or one below it if there was progress since. A
    smaller batch, as the last rung, is repeated."""
    for index in range(len(retries) - 1, -1, -1):
        if retries[index].kind == kind:
            gained = progress.made or any(later.progressed for later in retries[index + 1 :])
            if gained:
                return max(0, retries[index].rung - 1)
            top = len(ladder) - 2
            repeats = top >= 0 and any(action.name == SHRINK for action in ladder[top])
            return min(retries[index].rung + 1, top) if repeats else retries[index].rung + 1
    return 0


def _has_worked(retries: Sequence[PastDecision], progress: AttemptReach, spec: RunSpec) -> bool:
    """Whether any attempt has finished its setup."""
    if progress.last_step is not None or progress.best_step_before is not None or progress.new_checkpoint:
        return True
    if any(decision.progressed for decision in retries):
        return True
    return not spec.metrics and (progress.ran_seconds or 0.0) >= WORKED_SECONDS


def _retry_reason(results: tuple[Result, ...], where: str, delay_seconds: float) -> str:
    done = [result.note for result in results if isinstance(result, AppliedAction)]
    skips = [f"{result.name} was skipped: {result.why}" for result in results if isinstance(result, SkippedAction)]
    wait = f"waiting {duration(delay_seconds)} before " if delay_seconds else ""
    reason = f"{' and '.join(done)}, {wait}{where}"
    return f"{reason} ({'; '.join(skips)})" if skips else reason


def _exhausted_reason(
    incident: Incident, retries: Sequence[PastDecision], skipped: tuple[Result, ...], policy: Policy
) -> str:
    title = KINDS[incident.kind].title
    tried_actions = list(dict.fromkeys(name for past in retries if past.kind == incident.kind for name in past.actions))
    tried_actions = [name for name in tried_actions if name != UNDO]
    if not tried_actions and not skipped:
        return f"{title}: the policy {policy.name} does not try again after that"
    parts = []
    if tried_actions:
        parts.append(f"the same after {' and '.join(tried_actions)}")
    parts += [f"{result.name} was skipped: {result.why}" for result in skipped if isinstance(result, SkippedAction)]
    return f"{title}: {'; '.join(parts)}; policy {policy.name} has no further step"
