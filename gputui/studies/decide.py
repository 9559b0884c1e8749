"""Decisions about a study and its trials. Pure; time is passed in."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.units import bytes_text, count, duration, metric_value
from gputui.recovery.kinds import KINDS, kind_of
from gputui.runs.spec import RunSpec, Scalar
from gputui.store.run_states import RunState
from gputui.store.studies import OUTSIDE, TrialRecord, TrialState
from gputui.studies.analysis import complete_trials, losses, sorted_by_end
from gputui.studies.spec import Budget, Constraints, Objective, StudySpec

Verb = Literal["resume", "restart"]
MOST_STARTS = 4
"""Starts of a point, the first included, if the machine and not the point causes the failures."""
HEADROOM = 1.1
"""How much more GPU memory than the largest earlier trial a trial may use."""


# --- a trial's verdict ------------------------------------------------------------------------------------------------


class RunEnd(Struct, frozen=True):
    """The end of a trial's run.

    Attributes:
        state: the run's state.
        reason: why it ended, in words.
        incident: the kind of its last incident; None without one.
        has_stepped: it made a step.
        has_checkpoints: it can resume from checkpoints.
    """

    state: RunState
    reason: str | None = None
    incident: str | None = None
    has_stepped: bool = False
    has_checkpoints: bool = False

    @property
    def again(self) -> Verb:
        """The command that starts its run again."""
        if self.has_checkpoints and self.has_stepped:
            return "resume"
        return "restart"


class Ruling(Struct, frozen=True):
    """The ruling about a trial whose run is over.

    Attributes:
        state: the verdict.
        reason: why, in words; None for a complete trial.
        values: a value per objective; empty without usable ones.
        constraints: the violation of each constraint, at most 0 where it is kept.
        again: the command that starts the run again; None if the trial is over.
    """

    state: TrialState
    reason: str | None = None
    values: tuple[float, ...] = ()
    constraints: tuple[float, ...] = ()
    again: Verb | None = None


def judge_trial(
    trial: TrialRecord, end: RunEnd, values: Sequence[float | None], constraints: tuple[float, ...], spec: StudySpec
) -> Ruling:
    """The verdict on a trial whose run has ended.

    Args:
        trial: the trial.
        end: the end of its run.
        values: a value per objective; None if no line reports its metric.
        constraints: the violation of each constraint, as `constraint_values` returns it.
        spec: the study's specification.
    """
    if end.state is RunState.SUCCEEDED:
        return _success_ruling(values, constraints, spec)
    if trial.state is TrialState.PRUNING:
        return Ruling(TrialState.PRUNED, trial.reason)
    if trial.state is TrialState.STOPPING:
        return Ruling(TrialState.STOPPED, trial.reason)
    if end.state is RunState.STOPPED:
        return Ruling(TrialState.STOPPED, end.reason or "stopped")
    if end.incident is None:
        return Ruling(TrialState.FAILED, end.reason)
    fault = kind_of(end.incident).fault
    if fault == "memory":
        return Ruling(TrialState.INFEASIBLE, end.reason)
    if fault != "machine":
        # The point would fail again.
        return Ruling(TrialState.FAILED, end.reason)
    if trial.starts >= MOST_STARTS:
        return Ruling(TrialState.FAILED, f"{end.reason or end.incident}; started {trial.starts} times")
    return Ruling(TrialState.LAUNCHING, again=end.again)


def _success_ruling(values: Sequence[float | None], constraints: tuple[float, ...], spec: StudySpec) -> Ruling:
    for value, objective in zip(values, spec.objectives, strict=True):
        if value is None:
            beside = ""
            if spec.pruner.by != "step":
                beside = f" together with {spec.pruner.by}"
            return Ruling(TrialState.FAILED, f"no line reports {objective.metric}{beside}")
        if not math.isfinite(value):
            return Ruling(TrialState.FAILED, f"{objective.metric} is {metric_value(value)}; its value is withheld")
    reported = tuple(value for value in values if value is not None)
    if any(excess > 0 for excess in constraints):
        return Ruling(TrialState.INFEASIBLE, _broken_words(constraints, spec.constraints), reported, constraints)
    return Ruling(TrialState.COMPLETE, reason=None, values=reported, constraints=constraints)


def _broken_words(constraints: Sequence[float], limits: Constraints) -> str:
    """The constraints that a point breaks, and by how much."""
    limited: list[tuple[str, float, Callable[[float], str]]] = []
    if limits.memory_bytes is not None:
        limited.append(("memory", limits.memory_bytes, bytes_text))
    if limits.step_seconds is not None:
        limited.append(("step_time", limits.step_seconds, lambda seconds: f"{metric_value(seconds)} s"))
    broken = [
        f"{name} {text_of(limit * (1 + excess))}, at most {text_of(limit)}"
        for (name, limit, text_of), excess in zip(limited, constraints, strict=True)
        if excess > 0
    ]
    return f"breaks a constraint: {' and '.join(broken)}"


def constraint_values(spec: StudySpec, peak_bytes: float | None, step_seconds: float | None) -> tuple[float, ...]:
    """The violation of each constraint; at most 0 if it is kept or unknown."""
    limits = spec.constraints
    excesses = []
    if limits.memory_bytes is not None:
        excesses.append(_excess(peak_bytes, limits.memory_bytes))
    if limits.step_seconds is not None:
        excesses.append(_excess(step_seconds, limits.step_seconds))
    return tuple(excesses)


def _excess(value: float | None, limit: float) -> float:
    if value is None:
        return 0.0
    return value / limit - 1


# --- the study --------------------------------------------------------------------------------------------------------


class Usage(Struct, frozen=True):
    """The resources that a study has used.

    Attributes:
        gpu_hours: the GPU-hours of its trials.
        wall_seconds: how long it has run, without its pauses.
    """

    gpu_hours: float = 0.0
    wall_seconds: float = 0.0


class Next(Struct, frozen=True):
    """The next step of a study.

    Attributes:
        launch: launch one more trial.
        stop_trials: stop all active trials for this reason.
        rerun: the trials whose points run again, to the end.
        over: the study is over for this reason.
    """

    launch: bool = False
    stop_trials: str | None = None
    rerun: tuple[int, ...] = ()
    over: str | None = None


def active_trials(trials: Iterable[TrialRecord]) -> list[TrialRecord]:
    """gputui's trials that were launched and are not over."""
    return [
        trial
        for trial in trials
        if not trial.state.is_over and trial.state is not TrialState.ENQUEUED and trial.origin != OUTSIDE
    ]


def fruitless_count(trials: Sequence[TrialRecord], objectives: Sequence[Objective], since: float) -> int:
    """The number of trials that ended in a row, after ``since``, without a value that no earlier
    one beats or equals."""
    usable = {trial.number for trial in complete_trials(trials)}
    best: list[tuple[float, ...]] = []
    in_a_row = 0
    for trial in sorted_by_end(trials):
        loss = losses(trial, objectives)
        if trial.number in usable and not any(all(map(operator.le, earlier, loss)) for earlier in best):
            best.append(loss)
            in_a_row = 0
        elif trial.origin != "warm" and trial.state is not TrialState.STOPPED and (trial.ended_at or 0.0) > since:
            in_a_row += 1
    return in_a_row


def next_move(
    spec: StudySpec,
    trials: Sequence[TrialRecord],
    usage: Usage,
    room: int,
    reached: Mapping[int, float] | None = None,
    since: float = 0.0,
) -> Next:
    """Decide the next step of a running study.

    Args:
        spec: the study's specification.
        trials: all its trials.
        usage: the resources that it has used.
        room: the number of trials that fit at a time.
        reached: the value of each trial at its last rung.
        since: when the study was begun, resumed or extended last, in UTC unix seconds.
    """
    active = active_trials(trials)
    spent = spent_words(spec.budget, usage)
    if spent is not None:
        if active:
            return Next(stop_trials=spent)
        return Next(over=spent)
    is_waiting = any(trial.state is TrialState.ENQUEUED and trial.origin != OUTSIDE for trial in trials)
    done = _done_words(spec, trials, since)
    if done is not None and not is_waiting:
        if active:
            return Next()
        if again := trials_to_rerun(spec, trials, reached or {}):
            return Next(rerun=again)
        return Next(over=done)
    # At most one trial is in the queue, so that its point is chosen just before it starts.
    queued = any(trial.state is TrialState.LAUNCHING for trial in active)
    # A pruned trial saves nothing and ends at once, so the next one is launched meanwhile.
    staying = sum(trial.state is not TrialState.PRUNING for trial in active)
    return Next(launch=staying < room and not queued)


def _done_words(spec: StudySpec, trials: Sequence[TrialRecord], since: float) -> str | None:
    """A sentence why a study begins no other trial; None while it may."""
    sampled = [trial for trial in trials if trial.origin not in ("warm", "rerun", OUTSIDE)]
    begun = len(sampled) - sum(trial.state is TrialState.ENQUEUED for trial in sampled)
    if spec.pbt is None:
        limit = spec.budget.trials
    else:
        limit = spec.pbt.members
    if limit is not None and begun >= limit:
        return f"its {count(begun)} trials have ended"
    if spec.is_grid and grid_point(spec, trials) is None:
        return "every point of its grid is done"
    if spec.stop_after is not None and fruitless_count(trials, spec.objectives, since) >= spec.stop_after:
        return f"{count(spec.stop_after)} trials in a row brought nothing better"
    return None


def trials_to_rerun(spec: StudySpec, trials: Sequence[TrialRecord], reached: Mapping[int, float]) -> tuple[int, ...]:
    """The pruned trials among those with the best ``spec.rerun`` values, best first, without those
    that a person cut short. The best of a study should be known from full runs."""
    again = {trial.parent for trial in trials if trial.origin == "rerun"}
    values = {trial.number: trial.values[0] for trial in trials if trial.state is TrialState.COMPLETE and trial.values}
    cut = {
        trial.number: reached[trial.number]
        for trial in trials
        if trial.state is TrialState.PRUNED
        and trial.request is None
        and trial.number in reached
        and trial.number not in again
    }
    sign = spec.objectives[0].sign
    best = sorted({**values, **cut}.items(), key=lambda item: (sign * item[1], item[0]))[: spec.rerun]
    return tuple(number for number, _ in best if number in cut)[: max(0, spec.rerun - len(again))]


def spent_words(budget: Budget, usage: Usage) -> str | None:
    """A sentence if the budget is spent, else None."""
    if budget.gpu_hours is not None and usage.gpu_hours >= budget.gpu_hours:
        return f"budget: {usage.gpu_hours:.2f} of {budget.gpu_hours:g} GPU-hours used"
    if budget.wall_seconds is not None and usage.wall_seconds >= budget.wall_seconds:
        return f"budget: {duration(budget.wall_seconds)} are over"
    return None


def room_for(spec: StudySpec, gpus: int, others: int, cores: int, ranks: int, share: int = 1) -> int:
    """The number of trials that may run at the same time.

    One trial may always wait in the queue, where it holds back later runs of its priority: a trial
    that needs many GPUs is not overtaken for ever by those that need few. GPUs and cores of this
    machine say nothing about a target.

    Args:
        spec: the study's specification.
        gpus: the GPUs in service.
        others: how many of them are leased to, or awaited by, runs outside this study.
        cores: the cores that this process may use.
        ranks: the cores that a trial without GPUs takes.
        share: the number of trials that fit on one GPU.
    """
    if spec.target is not None or not spec.gpus_per_trial:
        return spec.parallel or max(1, cores // max(1, ranks))
    fitting = max(1, max(0, gpus - others) // spec.gpus_per_trial * share)
    if spec.parallel is None:
        return fitting
    return min(spec.parallel, fitting)


def grid_point(spec: StudySpec, trials: Sequence[TrialRecord]) -> dict[str, Scalar] | None:
    """The first point of the grid that none of gputui's trials has; None if every point is taken."""
    used = {frozenset(trial.params.items()) for trial in trials if trial.origin != OUTSIDE}
    return next((point for point in spec.grid() if frozenset(point.items()) not in used), None)


def trials_on_gpu(limit: int, total_bytes: int | None, foreign_bytes: int | None, peak_bytes: int | None) -> int:
    """The number of trials that fit on a GPU; 1 if a value is unknown or not even one fits.

    Args:
        limit: the most trials that may share a GPU.
        total_bytes: the GPU's memory.
        foreign_bytes: what processes outside the study use of it.
        peak_bytes: the most that a trial uses; some headroom is added.
    """
    if limit < 2 or total_bytes is None or foreign_bytes is None or not peak_bytes:
        return 1
    return max(1, min(limit, int((total_bytes - foreign_bytes) / (peak_bytes * HEADROOM))))


def trial_spec(base: RunSpec, spec: StudySpec, study_id: str, number: int, params: Mapping[str, Any]) -> RunSpec:
    """The specification of a trial's run: the study's, with the point's parameters. Recovery does
    not change tuned values or the number of GPUs, does not restart a diverged trial, and restarts one
    that crashed once, unless the profile has ladders of its own for that."""
    recovery = dict(base.recovery)
    if recovery.get("policy") != "off":
        # Most likely the point causes these, though another start may succeed.
        uncertain = (kind for kind in KINDS.values() if kind.fault == "parameters" and kind.retry != "never")
        once = {kind.name: ["restart"] for kind in uncertain}
        diverged = {"nan_loss": ["stop"], "loss_spike": ["stop"]}
        recovery["ladders"] = {**once, **(recovery.get("ladders") or {}), **diverged}
    share = 1.0
    if spec.gpus_per_trial == 1:
        share = 1 / spec.trials_per_gpu
    return replace(
        base,
        params={**base.params, **params},
        priority=spec.priority,
        gpus=replace(base.gpus, min_count=None, share=share),
        recovery=recovery,
        study_id=study_id,
        trial=number,
        tuned=spec.tuned,
    )
