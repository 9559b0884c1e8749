"""The decision after a failed attempt. Pure: the same input gives the same plan."""

from __future__ import annotations

import functools
import hashlib
import math
import operator
import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

from msgspec.structs import replace

from gputui.core.units import count, duration
from gputui.recovery.actions import ACTIONS, action_title, tuned_by_study
from gputui.recovery.batches import SHRINK
from gputui.recovery.classify import detail_of, names_request
from gputui.recovery.effects import (
    NO_EFFECT,
    ActionContext,
    AppliedAction,
    Change,
    Effect,
    Params,
    Result,
    SkippedAction,
    apply_changes,
    role_parameter,
    show,
    whole,
)
from gputui.recovery.kinds import KINDS, kind_title
from gputui.recovery.plans import UNDO, Because, FailedAttempt, PastDecision, RecoveryPlan, ResumePoint
from gputui.recovery.policies import RESTART, Rung

# A GPU's UUID in an error message of a script, or the part of it before its first dash.
_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{4}|'(?:GPU|MIG)'")
MOST_GENTLE = 2  # smaller batches in a row; then it is halved
# Smaller batches with the same failure, after which no smaller one is tried. The same tensor missing its memory in the
# same line of the same step shows that what came before it needs as much with any batch. A line alone may request less
# each time, so that a halved batch must have failed in it too.
FUTILE_WITH_REQUEST = 2
FUTILE_WITHOUT_REQUEST = 3


def decide(failed: FailedAttempt) -> RecoveryPlan:
    """The plan after a failed attempt."""
    return _Decision(failed).plan()


def reason_of_end(failed: FailedAttempt, plan: RecoveryPlan) -> str:
    """The reason of a run whose plan is to stop: what recovery reacted to before, the last cause, the decision.

    ``out of GPU memory 7×, so recovery changed batch_size 64 → 1; then rank 0 saw a loss that …``"""
    last = f"{failed.incident.summary}; {plan.reason}"
    if plan.because == "no_difference":
        last = plan.reason
    earlier = _earlier_causes(failed)
    if earlier:
        return f"{', '.join(earlier)}; then {last}"
    return last


def _earlier_causes(failed: FailedAttempt) -> list[str]:
    """The other kinds of incidents to which recovery reacted, oldest first, in words.

    Of those that progress followed, only what still has changed parameters counts.
    """
    causes: dict[str, list[PastDecision]] = {}
    is_overcome = failed.reach.made
    for past in reversed(_retries(failed.history)):
        if past.kind != failed.incident.kind and (past.changed or not is_overcome):
            causes.setdefault(past.kind, []).insert(0, past)
        is_overcome = is_overcome or past.progressed
    return [_cause_in_words(kind, pasts, failed.params) for kind, pasts in reversed(causes.items())]


def _cause_in_words(kind: str, pasts: Sequence[PastDecision], params: Params) -> str:
    """``out of GPU memory 7×, so recovery changed batch_size 64 → 1``."""
    times = f" {len(pasts)}×" if len(pasts) > 1 else ""
    before = {name: value for past in reversed(pasts) for name, value in past.replaced.items()}
    changes = [
        f"{name} {show(value)} → {show(params[name])}"
        for name, value in before.items()
        if name in params and params[name] != value
    ]
    changed = ""
    if changes:
        changed = f", so recovery changed {' and '.join(changes)}"
    return f"{kind_title(kind)}{times}{changed}"


class _RungResult(NamedTuple):
    """What the actions of a rung came to.

    Attributes:
        results: of each action.
        back: the index of the checkpoint to resume from, among the usable ones.
        wait_seconds: the delay that they ask for.
    """

    results: tuple[Result, ...]
    back: int
    wait_seconds: float


class _Decision:
    """One decision.

    Attributes:
        retries: the retries since the last stop.
        refused: the retry whose changed parameters the script has refused, if it has.
        same: the retries in a row whose attempts ended as this one, without progress since.
        points: where the next attempt may resume.
    """

    def __init__(self, failed: FailedAttempt) -> None:
        self.failed = failed
        self.retries = _retries(failed.history)
        self.refused = self._refused_change()
        self.same = self._same_failures()
        self.points = ResumePoint.of(failed.checkpoints, failed.spec)

    def plan(self) -> RecoveryPlan:
        failed = self.failed
        refused = self.refused
        rung = self._first_rung() if refused is None else refused.rung
        stop = self._stop_reason()
        if stop is not None:
            because, reason = stop
            return RecoveryPlan("stop", reason, because, dict(failed.params), rung)
        context = ActionContext(
            failed.incident,
            failed.spec,
            failed.params,
            checkpoints=failed.checkpoints or (),
            machine=replace(failed.machine, sees_checkpoints=failed.checkpoints is not None),
            below=self._half_batch(),
        )
        plan = self._climb(context, rung) if refused is None else self._revert(refused, context)
        if plan.verdict == "stop" or not self._is_asked():
            return plan
        return replace(plan, reason=f"{plan.reason}; retry_on_exit has its exit code {failed.incident.exit_code}")

    # --- whether to go on -------------------------------------------------------------------------

    def _stop_reason(self) -> tuple[Because, str] | None:
        """The reason why no ladder is tried, as a keyword and in words; None if one is."""
        failed = self.failed
        policy = self.failed.policy
        run_id = self.failed.run_id
        kind = KINDS[failed.incident.kind]
        attempt_count = len(self.retries) + 1
        fruitless = self._fruitless()
        if not policy.enabled:
            return "off", "recovery is off for this run"
        may_give_up = self.refused is None and not self._is_asked()
        if kind.retry == "never" and may_give_up:
            return "deterministic", f"{kind.title}: another attempt would fail in the same way{self._advice()}"
        if kind.retry == "after_first_step" and may_give_up and not self._has_worked():
            text = f"{kind.title} before the first step: looks like a set-up error; not retried{self._advice()}"
            return "before_first_step", text
        if attempt_count >= policy.max_attempts:
            return "attempts", f"the policy allows no more attempts (max_attempts: {policy.max_attempts})"
        if fruitless >= policy.max_without_progress:
            loop = f"{fruitless} attempts in a row ended without getting any further"
            return "crash_loop", f"crash loop: {loop} (max_without_progress)"
        if failed.unreadable is not None:
            return "unreadable", (
                f"its checkpoints cannot be read now ({failed.unreadable}), and the beginning would lose what "
                f"they hold; gputui resume {run_id} when they can, gputui restart {run_id} without them"
            )
        # A trial is short, and its study waits for it; another run might overwrite days of work.
        if failed.doubted is not None and failed.spec.study_id is None:
            return "doubted", (
                f"its checkpoints are in doubt ({failed.doubted}), and the beginning would write over them; "
                f"gputui resume {run_id} --from PATH chooses one, gputui restart {run_id} begins "
                "without them"
            )
        if failed.reach.resumption == "later" and kind.fault == "training":
            return "not_resumed", (
                f"{kind.title}: the script does not load the checkpoint that it is given, but a later "
                "one from after the trouble; pass it {checkpoint} or $GPUTUI_CHECKPOINT, or move the "
                "later ones away"
            )
        return None

    def _advice(self) -> str:
        """What repairs a script that cannot parse the UUIDs of its GPUs; "" for any other one."""
        failed = self.failed
        is_of_script = KINDS[failed.incident.kind].fault == "parameters" and not self._has_worked()
        if failed.spec.visible == "index" or not is_of_script or not _UUID.search(failed.incident.summary):
            return ""
        return "; CUDA_VISIBLE_DEVICES holds UUIDs, and visible: index in the profile makes them numbers"

    def _is_asked(self) -> bool:
        """Return whether the policy starts the run again for its exit code."""
        return self.failed.incident.exit_code in self.failed.policy.retry_on_exit

    def _has_worked(self) -> bool:
        """Return whether any attempt since a person started the run has finished its setup."""
        reach = self.failed.reach
        has_progressed = any(decision.progressed for decision in self.retries)
        return reach.has_begun(self.failed.spec) or reach.best_step_before is not None or has_progressed

    def _fruitless(self) -> int:
        """Number of attempts in a row, with this one, without progress or changed parameters."""
        without = takewhile(lambda past: not (past.changed or past.progressed), reversed(self.retries))
        if self.failed.reach.made:
            return 0
        return 1 + sum(1 for _ in without)

    # --- the ladder -------------------------------------------------------------------------------

    def _first_rung(self) -> int:
        """The first rung to try: one above the last one for this kind, or one below it if there was progress since.

        A smaller batch, as the last rung, is repeated.
        """
        kind = self.failed.incident.kind
        retries = self.retries
        index = next((at for at in reversed(range(len(retries))) if retries[at].kind == kind), None)
        if index is None:
            return 0
        if self.failed.reach.made or any(later.progressed for later in retries[index + 1 :]):
            return max(0, retries[index].rung - 1)
        ladder = self.failed.policy.ladder(kind)
        top = len(ladder) - 2
        repeats = top >= 0 and any(action.name == SHRINK for action in ladder[top])
        if repeats:
            return min(retries[index].rung + 1, top)
        return retries[index].rung + 1

    def _climb(self, context: ActionContext, first_rung: int) -> RecoveryPlan:
        """Climb the ladder to the first rung with an applicable action."""
        ladder = self.failed.policy.ladder(context.incident.kind)
        skipped: tuple[Result, ...] = ()
        for rung in range(first_rung, len(ladder)):
            if any(action.name == "stop" for action in ladder[rung]):
                break
            attempted = self._try_rung(ladder[rung], context)
            if any(isinstance(result, AppliedAction) for result in attempted.results):
                return self._retry(context, rung, skipped, attempted)
            skipped += tuple(result for result in attempted.results if result not in skipped)
        if self._is_asked():
            return self._retry(context, len(ladder) - 1, skipped, self._try_rung(RESTART, context))
        because, reason = self._exhausted_reason(context.incident.kind, skipped)
        stays = min(first_rung, len(ladder) - 1)
        effect = _effect(skipped)
        return RecoveryPlan(
            "stop", reason, because, params=dict(context.params), rung=stays, actions=skipped, effect=effect
        )

    def _try_rung(self, rung: Rung, context: ActionContext) -> _RungResult:
        """Apply the actions of a rung, each to the parameters that the one before has left."""
        results: list[Result] = []
        back = 0
        seconds = 0.0
        for action in rung:
            apply = ACTIONS[action.name].apply
            if action.name == SHRINK and (futile := self._futile_batches()) is not None:
                result: Result = SkippedAction(SHRINK, futile)
            elif apply is not None:
                result = apply(replace(context, argument=action.argument))
            else:
                result, back = self.points.rollback(int(action.argument or 1))
            if isinstance(result, AppliedAction):
                if (name := tuned_by_study(context.spec, result)) is not None:
                    result = SkippedAction(action.name, f"{name} is tuned by the run's study")
                elif action.name == "wait":
                    seconds += action.argument or 0.0
            context = replace(context, params=apply_changes(context.params, (result,)))
            results.append(result)
        return _RungResult(tuple(results), back, seconds)

    def _retry(
        self, context: ActionContext, rung: int, skipped: tuple[Result, ...], attempted: _RungResult
    ) -> RecoveryPlan:
        """The plan of a rung; ``skipped`` are the results of the rungs before it."""
        results = attempted.results
        params = apply_changes(context.params, results)
        changed = {name: value for name, value in params.items() if value != context.params.get(name)}
        # A back-off helps against transient causes; with changed parameters it is pointless.
        delay = attempted.wait_seconds
        if not changed:
            delay = max(delay, self._backoff_seconds())
        actions = skipped + results + self.points.rejected
        notes = " and ".join(action.note for action in actions if isinstance(action, AppliedAction))
        begin = self.points.describe(attempted.back)
        if delay:
            begin = f"waiting {duration(math.ceil(delay))} before {begin}"
        if skips := _skips(actions):
            begin = f"{begin} ({'; '.join(skips)})"
        return RecoveryPlan(
            verdict="retry",
            reason=f"{notes}, {begin}",
            because="ladder",
            params=params,
            rung=rung,
            actions=actions,
            changed=changed,
            resume_from=self.points.path(attempted.back),
            delay_seconds=delay,
            effect=_effect(result for result in results if isinstance(result, AppliedAction)),
        )

    def _backoff_seconds(self) -> float:
        """The delay of the policy, with a random part that is the same for the same attempt."""
        digest = hashlib.sha256(f"{self.failed.run_id}\n{self.failed.number}".encode()).digest()
        chance = int.from_bytes(digest[:6], "big") / 2**48
        return self.failed.policy.backoff.delay(self._fruitless(), chance)

    def _exhausted_reason(self, kind: str, skipped: Sequence[Result]) -> tuple[Because, str]:
        """The reason to stop on the last rung, as a keyword and in words."""
        title = KINDS[kind].title
        policy = self.failed.policy.name
        futile = self._futile_batches()
        if futile is not None:
            where = "before the first step"
            if self.failed.step is not None:
                where = f"at step {count(self.failed.step)}"
            detail = detail_of(self.failed.incident.summary)
            return "no_difference", f"{title} {where} in {len(self.same) + 1} attempts ({detail}); {futile}"
        names = (name for past in self.retries if past.kind == kind for name in past.actions)
        tried = [action_title(name) for name in dict.fromkeys(names) if name != UNDO]
        if not tried and not skipped:
            return "exhausted", f"{title}: the policy {policy} does not try again after that"
        reasons = _skips(skipped)
        if tried:
            reasons = [f"the same after {' and '.join(tried)}", *reasons]
        return "exhausted", f"{title}: {'; '.join(reasons)}; policy {policy} has no further step"

    # --- changed parameters -----------------------------------------------------------------------

    def _half_batch(self) -> int | None:
        """The size that the next batch must be below; None for the usual step.

        After two smaller ones without progress it is half of the batch plus one, so that few attempts lead to a batch
        of 1.
        """
        failed = self.failed
        retries = self.retries
        _, value = role_parameter(failed.spec, "batch_size", failed.params)
        batch = whole(value)
        if batch is None or batch < 2 or failed.reach.made:
            return None
        since = next((at for at in reversed(range(len(retries))) if retries[at].progressed), 0)
        shrunk = sum(SHRINK in decision.actions for decision in retries[since:])
        if shrunk >= MOST_GENTLE:
            return batch // 2 + 1
        return None

    def _same_failures(self) -> list[PastDecision]:
        """The value of `same`, oldest first."""
        failed = self.failed
        incident = failed.incident
        detail = detail_of(failed.incident.summary)
        same: list[PastDecision] = []
        if failed.reach.made or not detail:
            return same
        for past in reversed(self.retries):
            if (past.kind, past.step, past.detail) != (incident.kind, failed.step, detail):
                break
            same.append(past)
            if past.progressed:
                break
        return same[::-1]

    def _futile_batches(self) -> str | None:
        """The smaller batches that made no difference, in words; None if they may have made one."""
        name = self.failed.spec.role("batch_size", self.failed.params)
        shrunk = [past for past in self.same if SHRINK in past.actions and name in past.replaced]
        needed = FUTILE_WITHOUT_REQUEST
        if names_request(detail_of(self.failed.incident.summary)):
            needed = FUTILE_WITH_REQUEST
        if name is None or len(shrunk) < needed:
            return None
        sizes = [*(past.replaced[name] for past in shrunk), self.failed.params[name]]
        return f"{name} {' → '.join(map(show, sizes))} made no difference"

    def _refused_change(self) -> PastDecision | None:
        """The decision whose changed parameters the script refused, as it seems; None if there is none.

        The attempt ended before its first step with an incident that parameters can cause, other than the one that they
        were changed for.
        """
        if not self.retries or self.failed.reach.has_begun(self.failed.spec):
            return None
        last = self.retries[-1]
        if not last.replaced:
            return None
        kind = self.failed.incident.kind
        # Without an exclusion's change, the parameters do not fit the remaining GPUs.
        is_other = KINDS[kind].fault == "parameters" and kind != last.kind
        if is_other and "exclude_gpu" not in last.actions:
            return last
        return None

    def _revert(self, refused: PastDecision, context: ActionContext) -> RecoveryPlan:
        """Revert a refused change, and try the next smaller batch, or the next rung."""
        now = context.params
        params = {**now, **refused.replaced}
        changes = tuple(
            Change(name, now.get(name), value) for name, value in refused.replaced.items() if now.get(name) != value
        )
        listed = " and ".join(f"{c.parameter} {show(c.after)} → {show(c.before)}" for c in changes)
        undone = AppliedAction(UNDO, f"took {listed} back, with which the run did not start", changes)
        limit = _refused_batch(refused, context)
        rung = refused.rung if limit is not None else refused.rung + 1
        incident = replace(context.incident, kind=refused.kind)
        reverted = replace(context, incident=incident, params=params, below=limit)
        plan = self._climb(reverted, rung)
        if plan.verdict == "stop":
            return replace(plan, params=dict(now), reason=f"{undone.note}; {plan.reason}")
        return replace(
            plan,
            reason=f"{undone.note}, and {plan.reason}",
            actions=(undone, *plan.actions),
            changed={name: value for name, value in plan.params.items() if value != now.get(name)},
        )


def _refused_batch(refused: PastDecision, context: ActionContext) -> int | None:
    """The smaller batch that a script refused; None if its batch was not changed."""
    name = context.spec.role("batch_size", context.params)
    if name is None or SHRINK not in refused.actions or name not in refused.replaced:
        return None
    return whole(context.params[name])


def _retries(history: Sequence[PastDecision]) -> list[PastDecision]:
    """The retries since the last stop. A retry that reverted a change counts for the incident that
    the change was made for."""
    series: list[PastDecision] = []
    for decision in history:
        if series and UNDO in decision.actions:
            decision = replace(decision, kind=series[-1].kind)
        series.append(decision)
        if decision.verdict == "stop":
            series.clear()
    return series


def _effect(results: Iterable[Result]) -> Effect:
    return functools.reduce(operator.or_, (result.effect for result in results), NO_EFFECT)


def _skips(results: Iterable[Result]) -> list[str]:
    skipped = (result for result in results if isinstance(result, SkippedAction))
    return [f"{action_title(result.name)} was skipped: {result.why}" for result in skipped]
