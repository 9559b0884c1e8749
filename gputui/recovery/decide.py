"""The decision after an incident. Pure: the same input gives the same plan."""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.core.units import duration
from gputui.recovery.actions import ACTIONS, ELSEWHERE, NO_CHECKPOINTS, tuned_by_study
from gputui.recovery.checkpoints.formats import CheckpointInfo
from gputui.recovery.checkpoints.ledger import NUMERIC_INCIDENTS, WORKED_SECONDS, rolled_back
from gputui.recovery.classify import Incident
from gputui.recovery.effects import (
    NO_EFFECT,
    SHRINK,
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
from gputui.recovery.kinds import KINDS
from gputui.recovery.policies import Policy, Rung
from gputui.runs.spec import RunSpec, Scalar
from gputui.store.checkpoints import CheckpointRow

MOST_SHOWN = 3  # rejected checkpoints in a plan's reason
# Incidents of a script that refuses its parameters.
REFUSALS = frozenset({"user_exception", "nonzero_exit", "config_error", "incompatible_checkpoint", "unknown"})
MOST_GENTLE = 2  # smaller batches in a row; then it is halved
UNDO = "undo"
"""The action that reverts the changes of another one; ladders cannot name it."""

Verdict = Literal["retry", "stop"]
Because = Literal[
    "ladder", "exhausted", "off", "deterministic", "before_first_step", "attempts", "crash_loop",
    "unreadable", "doubted", "not_resumed",
]  # fmt: skip


class PastDecision(Struct, frozen=True):
    """An earlier decision of the same run, made at the end of ``attempt``.

    ``progressed``: that attempt got further than those before it. ``changed``: the decision changed
    parameters. ``actions`` are the names of the applied actions, ``replaced`` the former values of
    changed parameters.
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
"""The attempt continued from the checkpoint that it was given, from an earlier step, from the first
step, or from a later checkpoint that it found itself."""


class AttemptReach(Struct, frozen=True):
    """How far the ended attempt got. Unknown is None.

    Attributes:
        last_step: its last step; best_step_before: the furthest step of the attempts before it.
        new_checkpoint: it wrote a checkpoint; further_checkpoint: beyond those before it, where
            steps start again with every epoch.
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
        is_furthest = self.best_step_before is None or self.last_step > self.best_step_before
        return self.further_checkpoint or is_furthest

    def has_begun(self, spec: RunSpec) -> bool:
        """Whether the attempt has finished its setup."""
        has_shown = self.last_step is not None or self.new_checkpoint
        return has_shown or (not spec.metrics and (self.ran_seconds or 0.0) >= WORKED_SECONDS)


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
        """The ledger after the plan: a rollback leaves what was written after its checkpoint."""
        applied = {each.name for each in self.actions if isinstance(each, AppliedAction)}
        if "rollback" not in applied or self.resume_from is None:
            return rows
        why = f"was left by a rollback to {Path(self.resume_from).name}"
        return rolled_back(rows, self.resume_from, why)

    def actions_json(self) -> list[dict[str, Any]]:
        """The actions in their stored form."""
        return [action.to_json() for action in self.actions]


class ResumePoint(Struct, frozen=True):
    """The checkpoints that may be resumed from, best first, and why others are rejected.

    ``configured``: the profile names checkpoints. ``chosen_there``: only the run's target sees them
    and chooses when the attempt begins. ``is_passed``: an argument tells the script to resume; else
    only $GPUTUI_CHECKPOINT names the checkpoint, which the script may not read.
    """

    usable: tuple[CheckpointInfo, ...]
    rejected: tuple[SkippedAction, ...]
    configured: bool
    chosen_there: bool
    is_passed: bool

    @classmethod
    def of(cls, checkpoints: Sequence[CheckpointInfo] | None, spec: RunSpec) -> ResumePoint:
        """Split ``checkpoints``, as `gputui.recovery.checkpoints.search` chooses them, into usable
        and rejected ones. None: only the target sees them."""
        found = checkpoints or ()
        rejected = [
            SkippedAction(f"resuming from {info.path.name}", f"it {info.why}") for info in found if not info.valid
        ]
        if len(rejected) > MOST_SHOWN:
            more = f"resuming from {len(rejected) - MOST_SHOWN} more"
            rejected[MOST_SHOWN:] = [SkippedAction(more, f"of the last one, {rejected[-1].why}")]
        templates = (*(spec.args or ()), *spec.program, *spec.env.values())
        is_passed = bool(spec.checkpoints and spec.checkpoints.resume)
        return cls(
            tuple(info for info in found if info.valid),
            tuple(rejected),
            spec.checkpoints is not None,
            chosen_there=checkpoints is None,
            is_passed=is_passed or any("{checkpoint}" in text for text in templates),
        )

    def path(self, back: int) -> str | None:
        """The checkpoint ``back`` places before the best; None for a start from scratch."""
        return str(self.usable[back].path) if back < len(self.usable) else None

    def rollback(self, count: int) -> tuple[Result, int]:
        """Go back ``count`` checkpoints before the best, if there are so many; and how many."""
        best = self.usable[0].seen if self.usable else 0
        older = [index for index, info in enumerate(self.usable) if info.seen < best]
        if not self.configured or self.chosen_there or not older:
            why = ELSEWHERE if self.chosen_there else "there is no older valid checkpoint"
            return SkippedAction("rollback", why if self.configured else NO_CHECKPOINTS), 0
        back = min(count, len(older))
        steps = "one checkpoint" if back == 1 else f"{back} checkpoints"
        note = f"went back {steps} before the newest usable one"
        return AppliedAction("rollback", note), older[back - 1]

    def describe(self, back: int) -> str:
        """The start of the next attempt, as the end of a sentence."""
        if back < len(self.usable):
            name = self.usable[back].path.name
            given = f"starting with {name} in $GPUTUI_CHECKPOINT"
            return f"resuming from {name}" if self.is_passed else given
        if self.configured and self.chosen_there:
            return "resuming from the newest valid checkpoint on its target"
        why = "there is no valid checkpoint" if self.configured else NO_CHECKPOINTS
        return f"starting from the beginning because {why}"


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

    ``params`` are those of that attempt. ``history`` has the decisions since a person last started
    the run, the oldest first (see `gputui.recovery.history`); ``checkpoints`` are those of the
    run's course that may be resumed from, the best first, and those that are passed over, None
    where none can be seen from here; ``unreadable`` says why they cannot be read now, ``doubted``
    which of them may be another run's or not whole; ``machine`` is what is known of the machine.
    """
    retries = _retries(history)
    fruitless = _fruitless(retries, progress)
    refused = _refused_change(incident, retries, progress, spec)
    rung = refused.rung if refused else _rung(incident.kind, retries, progress, policy)
    has_worked = (
        progress.has_begun(spec)
        or progress.best_step_before is not None
        or any(decision.progressed for decision in retries)
    )
    stop = _stop_reason(
        incident, policy, run_id, len(retries) + 1, fruitless, has_worked or refused is not None,
        is_refusal=refused is not None,
        unreadable=unreadable,
        # A trial is short, and its study waits for it; another run might overwrite days of work.
        doubted=None if spec.study_id is not None else doubted,
        resumption=progress.resumption,
    )  # fmt: skip
    if stop is not None:
        return RecoveryPlan("stop", stop[1], stop[0], dict(params), rung)
    points = ResumePoint.of(checkpoints, spec)
    digest = hashlib.sha256(f"{run_id}\n{attempt}".encode()).digest()
    chance = int.from_bytes(digest[:6], "big") / 2**48
    backoff_seconds = policy.backoff.delay(fruitless, chance)
    machine = replace(machine or MachineContext(), sees_checkpoints=checkpoints is not None)
    limit = _half_batch(retries, progress, spec, params)
    context = ActionContext(incident, spec, params, None, checkpoints or (), machine, limit)
    if refused is not None:
        return _revert_refused(refused, context, retries, policy, points, backoff_seconds)
    return _climb(context, retries, rung, policy, points, backoff_seconds)


def _stop_reason(
    incident: Incident,
    policy: Policy,
    run_id: str,
    made: int,
    fruitless: int,
    has_worked: bool,
    *,
    is_refusal: bool,
    unreadable: str | None,
    doubted: str | None,
    resumption: Resumption | None,
) -> tuple[Because, str] | None:
    """Why no ladder is tried; None if one is. ``made`` is the number of attempts."""
    kind = KINDS[incident.kind]
    if not policy.enabled:
        return "off", "recovery is off for this run"
    if kind.deterministic and not is_refusal:
        return "deterministic", f"{kind.title}: another attempt would fail in the same way"
    if kind.needs_step and not has_worked:
        why = "looks like a set-up error; not retried"
        return "before_first_step", f"{kind.title} before the first step: {why}"
    if made >= policy.max_attempts:
        tries = "1 attempt was" if made == 1 else f"{made} attempts were"
        return "attempts", f"{tries} made, and the policy allows no more (max_attempts)"
    if fruitless >= policy.max_without_progress:
        loop = f"{fruitless} attempts in a row ended without getting any further"
        return "crash_loop", f"crash loop: {loop} (max_without_progress)"
    if unreadable is not None:
        return "unreadable", (
            f"its checkpoints cannot be read now ({unreadable}), and the beginning would lose what "
            f"they hold; gputui resume {run_id} when they can, gputui restart {run_id} without them"
        )
    if doubted is not None:
        return "doubted", (
            f"its checkpoints are in doubt ({doubted}), and the beginning would write over them; "
            f"gputui resume {run_id} --from PATH chooses one, gputui restart {run_id} begins "
            "without them"
        )
    if resumption == "later" and incident.kind in NUMERIC_INCIDENTS:
        return "not_resumed", (
            f"{kind.title}: the script does not load the checkpoint that it is given, but a later "
            "one from after the trouble; pass it {checkpoint} or $GPUTUI_CHECKPOINT, or move the "
            "later ones away"
        )
    return None


def _refused_change(
    incident: Incident, retries: Sequence[PastDecision], progress: AttemptReach, spec: RunSpec
) -> PastDecision | None:
    """The decision whose changed parameters the script refused, as it seems: the attempt ended
    before its first step with an incident that parameters can cause, other than the one that they
    were changed for."""
    last = retries[-1] if retries else None
    if last is None or not last.replaced or progress.has_begun(spec):
        return None
    # Without an exclusion's change, the parameters do not fit the remaining GPUs.
    is_other = incident.kind in REFUSALS and incident.kind != last.kind
    return last if is_other and "exclude_gpu" not in last.actions else None


def _revert_refused(
    refused: PastDecision,
    context: ActionContext,
    retries: Sequence[PastDecision],
    policy: Policy,
    points: ResumePoint,
    backoff_seconds: float,
) -> RecoveryPlan:
    """Revert a refused change, and try the next smaller batch, or the next rung."""
    now = context.params
    params = {**now, **refused.replaced}
    changes = tuple(
        Change(name, now.get(name), value) for name, value in refused.replaced.items() if now.get(name) != value
    )
    listed = " and ".join(f"{c.parameter} {show(c.after)} → {show(c.before)}" for c in changes)
    undone = AppliedAction(UNDO, f"took {listed} back, with which the run did not start", changes)
    batch_name = context.spec.role("batch_size", params)
    is_shrunk = SHRINK in refused.actions and batch_name in refused.replaced
    limit = whole(now[batch_name]) if is_shrunk and batch_name is not None else None
    incident = replace(context.incident, kind=refused.kind)
    reverted = replace(context, incident=incident, params=params, below=limit)
    rung = refused.rung if limit is not None else refused.rung + 1
    plan = _climb(reverted, retries, rung, policy, points, backoff_seconds)
    if plan.verdict == "stop":
        return replace(plan, params=dict(now), reason=f"{undone.note}; {plan.reason}")
    return replace(
        plan,
        reason=f"{undone.note}, and {plan.reason}",
        actions=(undone, *plan.actions),
        changed={name: value for name, value in plan.params.items() if value != now.get(name)},
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
        applied = [result for result in results if isinstance(result, AppliedAction)]
        # A notification alone changes nothing.
        if all(result.name == "notify" for result in applied):
            skipped += tuple(result for result in results if result not in skipped)
            continue
        new_params = apply_changes(params, results)
        changed = {name: value for name, value in new_params.items() if value != params.get(name)}
        # A back-off helps against transient causes; with changed parameters it is pointless.
        delay = max(seconds, 0.0 if changed else backoff_seconds)
        actions = skipped + results + points.rejected
        notes = " and ".join(each.note for each in actions if isinstance(each, AppliedAction))
        wait = f"waiting {duration(delay)} before " if delay else ""
        skips = _skips(actions)
        why = f" ({'; '.join(skips)})" if skips else ""
        return RecoveryPlan(
            verdict="retry",
            reason=f"{notes}, {wait}{points.describe(back)}{why}",
            because="ladder",
            params=new_params,
            rung=rung,
            actions=actions,
            changed=changed,
            resume_from=points.path(back),
            delay_seconds=delay,
            effect=_effect(applied),
        )
    reason = _exhausted_reason(context.incident, retries, skipped, policy)
    stays = min(first_rung, len(ladder) - 1)
    effect = _effect(skipped)
    return RecoveryPlan("stop", reason, "exhausted", dict(params), stays, skipped, effect=effect)


def _effect(results: Iterable[Result]) -> Effect:
    return functools.reduce(operator.or_, (result.effect for result in results), NO_EFFECT)


def _skips(results: Iterable[Result]) -> list[str]:
    skipped = (result for result in results if isinstance(result, SkippedAction))
    return [f"{result.name} was skipped: {result.why}" for result in skipped]


def _try_rung(rung: Rung, context: ActionContext, points: ResumePoint) -> tuple[tuple[Result, ...], int, float]:
    """Results of a rung's actions, how many checkpoints to go back, and the seconds to wait."""
    results: list[Result] = []
    back, seconds = 0, 0.0
    for action in rung:
        apply = ACTIONS[action.name].apply
        if apply is not None:
            result = apply(replace(context, argument=action.argument))
        else:
            result, back = points.rollback(int(action.argument or 1))
        if isinstance(result, AppliedAction):
            if (name := tuned_by_study(context.spec, result)) is not None:
                result = SkippedAction(action.name, f"{name} is tuned by the run's study")
            elif action.name == "wait":
                seconds += action.argument or 0.0
        context = replace(context, params=apply_changes(context.params, (result,)))
        results.append(result)
    return tuple(results), back, seconds


def _retries(history: Sequence[PastDecision]) -> list[PastDecision]:
    """The retries since the last stop. A retry that reverted a change counts for the incident that
    the change was made for."""
    series: list[PastDecision] = []
    for decision in history:
        if series and UNDO in decision.actions:
            decision = replace(decision, kind=series[-1].kind)
        series = [] if decision.verdict == "stop" else [*series, decision]
    return series


def _fruitless(retries: Sequence[PastDecision], progress: AttemptReach) -> int:
    """Number of attempts in a row, this one included, without progress or changed parameters."""
    without = takewhile(lambda past: not (past.changed or past.progressed), reversed(retries))
    return 0 if progress.made else 1 + sum(1 for _ in without)


def _half_batch(
    retries: Sequence[PastDecision], progress: AttemptReach, spec: RunSpec, params: Mapping[str, Scalar]
) -> int | None:
    """The size that the next batch must be below: half of it plus one after two smaller ones
    without progress, so that few attempts lead to a batch of 1. None for the usual step."""
    name = spec.role("batch_size", params)
    batch = None if name is None else whole(params[name])
    if batch is None or batch < 2 or progress.made:
        return None
    since = next((at for at in reversed(range(len(retries))) if retries[at].progressed), 0)
    shrunk = sum(SHRINK in decision.actions for decision in retries[since:])
    return batch // 2 + 1 if shrunk >= MOST_GENTLE else None


def _rung(kind: str, retries: Sequence[PastDecision], progress: AttemptReach, policy: Policy) -> int:
    """The first rung to try: one above the last one for this kind, or one below it if there was
    progress since. A smaller batch, as the last rung, is repeated."""
    index = next((at for at in reversed(range(len(retries))) if retries[at].kind == kind), None)
    if index is None:
        return 0
    if progress.made or any(later.progressed for later in retries[index + 1 :]):
        return max(0, retries[index].rung - 1)
    ladder = policy.ladder(kind)
    top = len(ladder) - 2
    repeats = top >= 0 and any(action.name == SHRINK for action in ladder[top])
    return min(retries[index].rung + 1, top) if repeats else retries[index].rung + 1


def _exhausted_reason(
    incident: Incident, retries: Sequence[PastDecision], skipped: Sequence[Result], policy: Policy
) -> str:
    title = KINDS[incident.kind].title
    names = (name for past in retries if past.kind == incident.kind for name in past.actions)
    tried = [name for name in dict.fromkeys(names) if name != UNDO]
    if not tried and not skipped:
        return f"{title}: the policy {policy.name} does not try again after that"
    same = [f"the same after {' and '.join(tried)}"] if tried else []
    why = "; ".join([*same, *_skips(skipped)])
    return f"{title}: {why}; policy {policy.name} has no further step"
