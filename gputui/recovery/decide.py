"""What to do about an incident. Pure: the same incident, history and policy always give the same plan."""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gputui.charts.units import duration
from gputui.recovery.action_results import NO_EFFECT, Change, Effect, show, whole
from gputui.recovery.actions import ACTIONS, AppliedAction, Result, SkippedAction, apply_changes, tuned_by_study
from gputui.recovery.checkpoint_ledger import rolled_back
from gputui.recovery.checkpoints import CheckpointInfo
from gputui.recovery.classify import Incident
from gputui.recovery.kinds import KINDS
from gputui.recovery.machine_actions import ELSEWHERE, Case, MachineContext
from gputui.recovery.policies import Policy, Rung
from gputui.runs.spec import RunSpec, Scalar
from gputui.store.checkpoints import CheckpointRow

# Of checkpoints that cannot be resumed from.
MOST_SHOWN = 3
# A run without metrics that lived this long is past its set-up.
SETTLED_SECONDS = 60.0
# How a script ends that refuses its parameters; other ends at a start have other causes.
REFUSALS = frozenset({"user_exception", "nonzero_exit", "config_error", "incompatible_checkpoint", "unknown"})
SHRINK = "shrink_batch"
EXCLUDE = "exclude_gpu"
UNDO = "undo"
"""The action that takes back what another one changed; ladders cannot name it."""

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
]


@dataclass(frozen=True, slots=True)
class PastDecision:
    """An earlier decision of the same run, made at the end of ``attempt``.

    ``progressed`` says whether that attempt had got further than those before it; ``changed`` whether the decision
    changed parameters; ``actions`` are the names of those applied; ``replaced`` are the values that the ladder's
    actions put others in the place of.
    """

    attempt: int
    kind: str
    rung: int
    verdict: Verdict
    progressed: bool
    changed: bool
    actions: tuple[str, ...] = ()
    replaced: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttemptReach:
    """How far the attempt that ended has got. Unknown is None.

    Attributes:
        last_step: the last step it reached; best_step_before: the furthest of the attempts before it.
        new_checkpoint: it wrote a checkpoint.
        ran_seconds: how long it lived.
    """

    last_step: int | None = None
    best_step_before: int | None = None
    new_checkpoint: bool = False
    ran_seconds: float | None = None

    @property
    def made(self) -> bool:
        """Whether the attempt got further than every one before it."""
        if self.last_step is None:
            return self.new_checkpoint
        return self.best_step_before is None or self.last_step > self.best_step_before


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What happens next, and why.

    Attributes:
        actions: those applied and those skipped, in the order they were looked at.
        params: all parameters of the next attempt; changed: those that differ.
        rung: the place on the ladder, counted from 0.
        reason: one plain sentence without its full stop.
        because: the same for programs.
        effect: what is to be done besides starting with other parameters.
    """

    verdict: Verdict
    reason: str
    because: Because
    params: dict[str, Scalar]
    rung: int = 0
    actions: tuple[Result, ...] = ()
    changed: dict[str, Scalar] = field(default_factory=dict)
    resume_from: str | None = None
    delay_seconds: float = 0.0
    effect: Effect = NO_EFFECT

    def applied_to(self, rows: Sequence[CheckpointRow]) -> Sequence[CheckpointRow]:
        """The ledger after the plan: a rollback leaves for good what was written behind the point it goes back to."""
        is_rollback = any(isinstance(action, AppliedAction) and action.name == "rollback" for action in self.actions)
        if not is_rollback or self.resume_from is None:
            return rows
        return rolled_back(rows, self.resume_from, f"was left by a rollback to {Path(self.resume_from).name}")

    def actions_json(self) -> list[dict[str, Any]]:
        """The actions as they are stored."""
        return [action.to_json() for action in self.actions]


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The checkpoints that may be resumed from, the best first, and why others are not among them.

    ``configured`` says whether the profile names checkpoints at all; ``chosen_there``, that only the run's target sees
    them and chooses when the attempt begins.
    """

    usable: tuple[CheckpointInfo, ...]
    rejected: tuple[SkippedAction, ...]
    configured: bool
    chosen_there: bool = False

    def path(self, back: int) -> str | None:
        """The checkpoint ``back`` places before the best, None if there is none: the beginning."""
        return str(self.usable[back].path) if back < len(self.usable) else None

    def rollback(self, count: int) -> tuple[Result, int]:
        """Going back ``count`` checkpoints further than the best, or as far as there are any that are older."""
        if not self.configured:
            return SkippedAction("rollback", "the profile names no checkpoints"), 0
        if self.chosen_there:
            return SkippedAction("rollback", ELSEWHERE), 0
        older = [place for place in range(1, len(self.usable)) if self._is_older(place)]
        if not older:
            return SkippedAction("rollback", "there is no older valid checkpoint"), 0
        back = min(count, len(older))
        steps = "one checkpoint" if back == 1 else f"{back} checkpoints"
        return AppliedAction("rollback", f"went back {steps} before the newest usable one"), older[back - 1]

    def _is_older(self, place: int) -> bool:
        best, other = self.usable[0].modified_at, self.usable[place].modified_at
        return best is None or other is None or other <= best

    def describe(self, back: int) -> str:
        """Where the next attempt begins, as the end of a sentence."""
        if back < len(self.usable):
            return f"resuming from {self.usable[back].path.name}"
        if not self.configured:
            return "starting from the beginning because the profile names no checkpoints"
        if self.chosen_there:
            return "resuming from the newest valid checkpoint on its target"
        return "starting from the beginning because there is no valid checkpoint"


def resume_points(checkpoints: Sequence[CheckpointInfo] | None, spec: RunSpec) -> ResumePoint:
    """``checkpoints`` as `gputui.recovery.checkpoint_search.choose` gives them: the usable ones in the order in which
    they may be taken, and those that are passed over, with the reason. None where none can be seen from here."""
    if checkpoints is None:
        return ResumePoint((), (), spec.checkpoints is not None, chosen_there=True)
    usable = tuple(info for info in checkpoints if info.valid)
    rejected = [
        SkippedAction(f"resuming from {info.path.name}", f"it {info.why}") for info in checkpoints if not info.valid
    ]
    return ResumePoint(usable, _summed_up(rejected), spec.checkpoints is not None)


def _summed_up(rejected: Sequence[SkippedAction]) -> tuple[SkippedAction, ...]:
    """A folder may hold thousands of unusable files; the reason of each would be noise."""
    shown, rest = tuple(rejected[:MOST_SHOWN]), rejected[MOST_SHOWN:]
    if not rest:
        return shown
    noun = "one more" if len(rest) == 1 else f"{len(rest)} more"
    return (*shown, SkippedAction(f"resuming from {noun}", "of the last one, " + rest[-1].why))


def chance_of(run_id: str, attempt: int) -> float:
    """A number in [0, 1) that looks like chance and is always the same for one attempt of one run."""
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
    around: MachineContext | None = None,
    unreadable: str | None = None,
    doubted: str | None = None,
) -> RecoveryPlan:
    """The plan after attempt number ``attempt`` of run ``run_id`` ended with an incident.

    ``params`` are those of that attempt. ``history`` holds the decisions since a person last started the run, the
    oldest first (see `gputui.recovery.history`); ``checkpoints`` are those of the run's course that may be resumed
    from, the best first, and those that are passed over, None where none can be seen from here; ``unreadable`` says why
    they cannot be read now, ``doubted`` which of them may be another run's or not whole; ``around`` is what is known of
    the machine.
    """
    kind = KINDS[incident.kind]
    retries = _series(history)
    fruitless = _fruitless(retries, progress)
    refused = _refused(incident, retries, progress, spec)
    rung = _rung(incident.kind, retries, progress) if refused is None else refused.rung

    def stop(because: Because, reason: str, actions: tuple[Result, ...] = ()) -> RecoveryPlan:
        return RecoveryPlan("stop", reason, because, dict(params), rung, actions)

    if not policy.enabled:
        return stop("off", "recovery is off for this run")
    if kind.deterministic and refused is None:
        return stop("deterministic", f"{kind.title}: another attempt would end in the same way")
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
        # A trial is short and its study waits for it; what any other run would write over may be of days.
        return stop(
            "doubted",
            f"its checkpoints are in doubt ({doubted}), and the beginning would write over them; "
            f"gputui resume {run_id} --from PATH chooses one, gputui restart {run_id} begins without them",
        )
    points = resume_points(checkpoints, spec)
    pause = policy.backoff.delay(fruitless, chance_of(run_id, attempt))
    around = replace(around or MachineContext(), sees_checkpoints=checkpoints is not None)
    case = Case(incident, spec, params, None, checkpoints or (), around)
    if refused is not None:
        return _without(refused, case, retries, policy, points, pause)
    return _climb(case, retries, rung, policy, points, pause)


def _refused(
    incident: Incident, retries: Sequence[PastDecision], progress: AttemptReach, spec: RunSpec
) -> PastDecision | None:
    """The decision whose other parameters the script seems to have refused: the attempt that began with them ended
    before its first step, by something that parameters can cause, and not by what they were changed for."""
    last = retries[-1] if retries else None
    if last is None or not last.replaced or incident.kind == last.kind or incident.kind not in REFUSALS:
        return None
    if EXCLUDE in last.actions:
        # The parameters fit the GPUs that are left.
        return None
    is_over = progress.last_step is not None or progress.new_checkpoint
    if is_over or (not spec.metrics and (progress.ran_seconds or 0.0) >= SETTLED_SECONDS):
        return None
    return last


def _without(
    refused: PastDecision,
    case: Case,
    retries: Sequence[PastDecision],
    policy: Policy,
    points: ResumePoint,
    pause: float,
) -> RecoveryPlan:
    """Take a refused change back, and try the next smaller batch, or what the ladder has next for that trouble."""
    params = {**case.params, **refused.replaced}
    changes = tuple(
        Change(name, case.params.get(name), value)
        for name, value in refused.replaced.items()
        if case.params.get(name) != value
    )
    listed = " and ".join(f"{change.parameter} {show(change.after)} → {show(change.before)}" for change in changes)
    undone = AppliedAction(UNDO, f"took {listed} back, with which the run did not start", changes)
    batch_name = case.spec.role("batch_size", params)
    shrunk = SHRINK in refused.actions and batch_name in refused.replaced
    below = whole(case.params[batch_name]) if shrunk and batch_name is not None else None
    trouble = replace(case.incident, kind=refused.kind)
    again = replace(case, incident=trouble, params=params, below=below)
    rung = refused.rung if below is not None else refused.rung + 1
    plan = _climb(again, retries, rung, policy, points, pause)
    if plan.verdict == "stop":
        return replace(plan, params=dict(case.params), reason=f"{undone.note}; {plan.reason}")
    return replace(
        plan,
        reason=f"{undone.note}, and {plan.reason}",
        actions=(undone, *plan.actions),
        changed={name: value for name, value in plan.params.items() if value != case.params.get(name)},
    )


def _climb(
    case: Case,
    retries: Sequence[PastDecision],
    first: int,
    policy: Policy,
    points: ResumePoint,
    pause: float,
) -> RecoveryPlan:
    """Go up the ladder to the first rung of which something can be done."""
    ladder, params = policy.ladder(case.incident.kind), case.params
    skipped: tuple[Result, ...] = ()
    for rung in range(first, len(ladder)):
        if any(action.name == "stop" for action in ladder[rung]):
            break
        results, back, seconds = _try(ladder[rung], case, points)
        # To tell somebody is no attempt at anything.
        if not any(isinstance(result, AppliedAction) and result.name != "notify" for result in results):
            skipped += results
            continue
        changed_params = apply_changes(params, results)
        changed = {name: value for name, value in changed_params.items() if value != params.get(name)}
        # Waiting helps against what passes by itself; with other parameters there is nothing to wait for.
        delay = max(seconds, 0.0 if changed else pause)
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
    reason = _exhausted_reason(case.incident, retries, skipped, policy)
    stays = min(first, len(ladder) - 1)
    return RecoveryPlan("stop", reason, "exhausted", dict(params), stays, skipped, effect=_effect(skipped))


def _effect(results: Iterable[Result]) -> Effect:
    return functools.reduce(operator.or_, (result.effect for result in results), NO_EFFECT)


def _try(rung: Rung, case: Case, points: ResumePoint) -> tuple[tuple[Result, ...], int, float]:
    """What becomes of a rung's actions, how many checkpoints to go back, and how many seconds to wait."""
    results: list[Result] = []
    back, seconds = 0, 0.0
    now = dict(case.params)
    for action in rung:
        kind = ACTIONS[action.name]
        if kind.apply_here is not None:
            result = kind.apply_here(replace(case, params=now, argument=action.argument))
        elif kind.apply is not None:
            result = kind.apply(case.spec, now, action.argument)
        else:
            result, back = points.rollback(int(action.argument or 1))
        if isinstance(result, AppliedAction) and (name := tuned_by_study(case.spec, result)) is not None:
            result = SkippedAction(action.name, f"{name} is tuned by the run's study")
        if action.name == "wait" and isinstance(result, AppliedAction):
            seconds += action.argument or 0.0
        now = apply_changes(now, (result,))
        results.append(result)
    return tuple(results), back, seconds


def _series(history: Sequence[PastDecision]) -> list[PastDecision]:
    """The retries that led to the attempt that ended: those after the last stop. One that took a change back went on
    with the trouble for which that had been made."""
    series: list[PastDecision] = []
    for decision in history:
        if series and UNDO in decision.actions:
            decision = replace(decision, kind=series[-1].kind)
        series = [] if decision.verdict == "stop" else [*series, decision]
    return series


def _fruitless(retries: Sequence[PastDecision], progress: AttemptReach) -> int:
    """How many attempts in a row, this one included, ended without getting further. One that began with other
    parameters restarts the count: it was no repetition."""
    if progress.made:
        return 0
    count = 1
    for decision in reversed(retries):
        if decision.changed or decision.progressed:
            break
        count += 1
    return count


def _rung(kind: str, retries: Sequence[PastDecision], progress: AttemptReach) -> int:
    """Where on the ladder to begin: one up from the last time where nothing was gained since, else one down."""
    for place in range(len(retries) - 1, -1, -1):
        if retries[place].kind == kind:
            gained = progress.made or any(later.progressed for later in retries[place + 1 :])
            return max(0, retries[place].rung - 1) if gained else retries[place].rung + 1
    return 0


def _has_worked(retries: Sequence[PastDecision], progress: AttemptReach, spec: RunSpec) -> bool:
    """Whether any attempt has got past its set-up."""
    if progress.last_step is not None or progress.best_step_before is not None or progress.new_checkpoint:
        return True
    if any(decision.progressed for decision in retries):
        return True
    return not spec.metrics and (progress.ran_seconds or 0.0) >= SETTLED_SECONDS


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
    tried = list(dict.fromkeys(name for past in retries if past.kind == incident.kind for name in past.actions))
    tried = [name for name in tried if name != UNDO]
    if not tried and not skipped:
        return f"{title}: the policy {policy.name} does not try again after that"
    parts = []
    if tried:
        parts.append(f"still so after {' and '.join(tried)}")
    parts += [f"{result.name} was skipped: {result.why}" for result in skipped if isinstance(result, SkippedAction)]
    return f"{title}: {'; '.join(parts)}; the policy {policy.name} has nothing left to try"
