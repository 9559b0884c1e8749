"""What follows for a study and its trials. Pure: values come in, decisions go out, time is passed in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gputui.charts.units import count, duration, metric_value
from gputui.runs.spec import RunSpec, Scalar
from gputui.store.run_states import RunState
from gputui.store.studies import TrialRecord, TrialState
from gputui.studies.spec import Budget, Objective, PrunerSpec, StudySpec

MOST_STARTS = 4
"""How often a point is started, the first time included, when the machine and not the point was at fault."""
SAME_ERRORS = 2
"""After so many trials that failed alike in their set-up the study ends."""

OUT_OF_MEMORY = frozenset({"cuda_oom", "host_oom", "memory_leak", "shm_full"})
OF_THE_POINT = frozenset(
    {
        "nan_loss", "loss_spike", "user_exception", "nonzero_exit", "config_error", "import_error", "launch_failed",
        "incompatible_checkpoint", "stopped_outside", "unknown",
    }
)  # fmt: skip
"""Kinds of incident that would come again with the same point. All others are the machine's."""


# --- what a trial has reached -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ObjectivePoint:
    """A value of an objective's metric. ``position`` is in units of the rungs; ``value`` may be NaN or infinite;
    ``at`` is UTC unix seconds."""

    position: float
    step: int
    value: float
    attempt: int
    at: float


@dataclass(slots=True)
class ObjectiveCourse:
    """The values of one metric over the attempts of a trial: where an attempt began again from an earlier position, its
    values take the place of those behind it."""

    points: list[ObjectivePoint] = field(default_factory=list)

    def add(self, point: ObjectivePoint) -> None:
        if self.points and point.attempt > self.points[-1].attempt:
            while self.points and self.points[-1].position >= point.position:
                self.points.pop()
        self.points.append(point)


def objective_value(points: Sequence[ObjectivePoint], objective: Objective) -> float | None:
    """What counts of the values; None where there are none, NaN where none of those that count is a number."""
    values = [point.value for point in points]
    if not values:
        return None
    if objective.over == "last":
        return values[-1]
    if objective.over == "mean":
        newest = values[-objective.count :]
        return sum(newest) / len(newest)
    numbers = [value for value in values if not math.isnan(value)]
    if not numbers:
        return math.nan
    return min(numbers) if objective.direction == "minimize" else max(numbers)


class PassedRung(NamedTuple):
    """What a trial had reached at a rung, by the line that passed it. ``value`` is None where that is no number."""

    rung: int
    step: int
    value: float | None
    attempt: int


def rungs_passed(
    points: Sequence[ObjectivePoint], pruner: PrunerSpec, objective: Objective, *, behind: int
) -> list[PassedRung]:
    """Every rung after the rung ``behind`` that the values have passed, in order: what is known of a trial does not
    depend on when it is looked at."""
    found: list[PassedRung] = []
    last = rung_passed(points[-1].position, pruner) if points else 0
    place = 0
    for rung in range(behind + 1, last + 1):
        while rung_passed(points[place].position, pruner) < rung:
            place += 1
        value = objective_value(points[: place + 1], objective)
        number = None if value is None or math.isnan(value) else value
        found.append(PassedRung(rung, points[place].step, number, points[place].attempt))
    return found


def rung_passed(position: float, pruner: PrunerSpec) -> int:
    """The last rung at or before a position, 0 before the first."""
    if not pruner.length:
        return 0
    return min(pruner.rungs, math.floor(position * pruner.rungs / pruner.length + 1e-9))


def place_words(rung: int, value: float, others: Iterable[float], objective: Objective) -> str:
    """``pruned at rung 3: 7th of 9``, among those that passed the rung."""
    known = [one for one in others if not math.isnan(one)]
    place = 1 + sum(objective.is_better(one, value) for one in known)
    return f"pruned at rung {rung}: {_ordinal(place)} of {len(known) + 1}"


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


# --- a trial's verdict ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a trial's run ended: its state and reason, the kind of its last incident (None without one), whether it ever
    made a step, and whether it may resume from checkpoints."""

    state: RunState
    reason: str | None = None
    incident: str | None = None
    has_stepped: bool = False
    has_checkpoints: bool = False


@dataclass(frozen=True, slots=True)
class Ruling:
    """What becomes of a trial whose run is over: a verdict with its reason and values, or with ``again`` the verb of
    the command that starts the same point once more."""

    state: TrialState
    reason: str | None = None
    values: tuple[float, ...] = ()
    constraints: tuple[float, ...] = ()
    again: str | None = None


def ruling(
    trial: TrialRecord, end: RunEnd, values: Sequence[float | None], constraints: tuple[float, ...], spec: StudySpec
) -> Ruling:
    """The verdict on a trial. ``values`` has one for each objective, None where no line reports its metric."""
    if end.state is RunState.SUCCEEDED:
        return _of_success(values, constraints, spec)
    if trial.state is TrialState.PRUNING:
        return Ruling(TrialState.PRUNED, trial.reason)
    if trial.state is TrialState.STOPPING:
        return Ruling(TrialState.STOPPED, trial.reason)
    if end.state is RunState.STOPPED:
        return Ruling(TrialState.STOPPED, end.reason or "stopped")
    if end.incident in OUT_OF_MEMORY:
        return Ruling(TrialState.INFEASIBLE, end.reason)
    if end.incident in OF_THE_POINT or end.incident is None:
        return Ruling(TrialState.FAILED, end.reason)
    if trial.starts >= MOST_STARTS:
        return Ruling(TrialState.FAILED, f"{end.reason or end.incident}; started {trial.starts} times")
    return Ruling(TrialState.LAUNCHING, again="resume" if end.has_checkpoints and end.has_stepped else "restart")


def _of_success(values: Sequence[float | None], constraints: tuple[float, ...], spec: StudySpec) -> Ruling:
    for value, objective in zip(values, spec.objectives, strict=True):
        if value is None:
            return Ruling(TrialState.FAILED, f"no line reports {objective.metric}")
        if not math.isfinite(value):
            return Ruling(TrialState.FAILED, f"{objective.metric} is {metric_value(value)}; its value is withheld")
    known = tuple(value for value in values if value is not None)
    if any(one > 0 for one in constraints):
        return Ruling(TrialState.INFEASIBLE, "breaks a constraint", known, constraints)
    return Ruling(TrialState.COMPLETE, None, known, constraints)


def constraint_values(spec: StudySpec, peak_bytes: float | None, step_seconds: float | None) -> tuple[float, ...]:
    """How far each constraint is broken, at most 0 where it is kept; what is unknown counts as kept."""
    limits = spec.constraints
    found = []
    if limits.memory_bytes is not None:
        found.append(0.0 if peak_bytes is None else peak_bytes / limits.memory_bytes - 1)
    if limits.step_seconds is not None:
        found.append(0.0 if step_seconds is None else step_seconds / limits.step_seconds - 1)
    return tuple(found)


# --- the study --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """What a study took so far. ``wall_seconds`` is how long it went on."""

    gpu_hours: float = 0.0
    wall_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Next:
    """What the study does now. ``launch``: one more trial may begin; ``stop_trials``: all that live are asked to stop,
    and why; ``rerun``: the points of these trials run once more, to the end; ``over``: the study is over, and why."""

    launch: bool = False
    stop_trials: str | None = None
    rerun: tuple[int, ...] = ()
    over: str | None = None


def next_move(
    spec: StudySpec,
    trials: Sequence[TrialRecord],
    usage: Usage,
    room: int,
    *,
    exhausted: bool,
    reached: Mapping[int, float] | None = None,
) -> Next:
    """What a running study does. ``room`` is how many trials fit at a time; ``exhausted``: the sampler has no other
    point; ``reached`` is the value of each trial at its last rung."""
    own = [trial for trial in trials if trial.origin not in ("warm", "rerun")]
    living = [trial for trial in trials if not trial.state.is_over and trial.state is not TrialState.ENQUEUED]
    spent = spent_words(spec.budget, usage)
    if spent is not None:
        return Next(stop_trials=spent if living else None, over=None if living else spent)
    waiting = any(trial.state is TrialState.ENQUEUED for trial in trials)
    begun = len(own) - sum(trial.state is TrialState.ENQUEUED for trial in own)
    limit = spec.budget.trials if spec.pbt is None else spec.pbt.members
    is_full = limit is not None and begun >= limit
    if (is_full or exhausted) and not waiting:
        again = () if living else to_rerun(spec, trials, reached or {})
        if again:
            return Next(rerun=again)
        done = f"its {count(begun)} trials are done" if is_full else "every point of its grid is done"
        return Next(over=None if living else done)
    # One at a time waits in the queue, so that a point is chosen when it can start.
    queued = any(trial.state is TrialState.LAUNCHING for trial in living)
    # One that is cut short saves nothing and ends at once: the next is prepared meanwhile.
    staying = sum(trial.state is not TrialState.PRUNING for trial in living)
    return Next(launch=staying < room and not queued)


def to_rerun(spec: StudySpec, trials: Sequence[TrialRecord], reached: Mapping[int, float]) -> tuple[int, ...]:
    """The trials with the best ``spec.rerun`` values that were cut short, best first: what they reached is all that is
    known of them, and the best of a study is to be known of full runs."""
    again = {trial.parent for trial in trials if trial.origin == "rerun"}
    values = {trial.number: trial.values[0] for trial in trials if trial.state is TrialState.COMPLETE and trial.values}
    cut = {
        trial.number: reached[trial.number]
        for trial in trials
        if trial.state is TrialState.PRUNED and trial.number in reached and trial.number not in again
    }
    sign = 1.0 if spec.objectives[0].direction == "minimize" else -1.0
    best = sorted({**values, **cut}.items(), key=lambda one: (sign * one[1], one[0]))[: spec.rerun]
    return tuple(number for number, _ in best if number in cut)[: max(0, spec.rerun - len(again))]


def spent_words(budget: Budget, usage: Usage) -> str | None:
    """That the budget is spent, None while it is not."""
    if budget.gpu_hours is not None and usage.gpu_hours >= budget.gpu_hours:
        return f"budget: {usage.gpu_hours:.2f} of {budget.gpu_hours:g} GPU-hours used"
    if budget.wall_seconds is not None and usage.wall_seconds >= budget.wall_seconds:
        return f"budget: {duration(budget.wall_seconds)} are over"
    return None


def same_error(ends: Sequence[tuple[str | None, bool]]) -> bool:
    """Whether the study cannot work: ``ends`` are (fingerprint of the last incident, whether it ever made a step) of
    the trials that are over, in the order of their ends."""
    if any(stepped for _, stepped in ends) or len(ends) < SAME_ERRORS:
        return False
    newest = [fingerprint for fingerprint, _ in ends[-SAME_ERRORS:]]
    return newest[0] is not None and len(set(newest)) == 1


def room_for(spec: StudySpec, gpus: int, others: int, cores: int, ranks: int, share: int = 1) -> int:
    """How many trials may run at a time: of ``gpus`` in service ``others`` are leased to, or awaited by, runs that are
    not of this study, and ``share`` trials fit on one; a trial without GPUs takes ``ranks`` of ``cores``.

    One may always wait in the queue: there it holds back later runs of its priority, so that a trial that needs many
    GPUs is not passed over for ever by those that need few."""
    if not spec.gpus_per_trial:
        return spec.parallel or max(1, cores // max(1, ranks))
    fitting = max(1, max(0, gpus - others) // spec.gpus_per_trial * share)
    return fitting if spec.parallel is None else min(spec.parallel, fitting)


def grid_point(spec: StudySpec, trials: Sequence[TrialRecord]) -> dict[str, Scalar] | None:
    """The first point of the grid that no trial has; None where there is none left."""
    taken = {tuple(trial.params.get(name) for name in spec.tuned) for trial in trials}
    return next((point for point in spec.grid() or () if tuple(point.values()) not in taken), None)


def trial_spec(base: RunSpec, spec: StudySpec, study_id: str, number: int, params: Mapping[str, Any]) -> RunSpec:
    """The specification of a trial's run: that of the study with the point's parameters. Recovery leaves tuned values
    alone, starts no diverged trial again, and goes on with as many GPUs as before or not at all."""
    recovery = dict(base.recovery)
    if recovery.get("policy") != "off":
        recovery["ladders"] = {**(recovery.get("ladders") or {}), "nan_loss": ["stop"], "loss_spike": ["stop"]}
    return replace(
        base,
        params={**base.params, **params},
        priority=spec.priority,
        gpus=replace(base.gpus, min_count=None),
        recovery=recovery,
        study_id=study_id,
        trial=number,
        tuned=spec.tuned,
        trials_per_gpu=spec.trials_per_gpu if spec.gpus_per_trial == 1 else 1,
    )
