"""The cost of incidents: repeated steps, lost time, and the GPU-hours of that time. Pure.

The time is counted from the last kept step (that of the checkpoint from which the next attempt with a step resumed) to
the next attempt's first step. An attempt without a step belongs to the incident before it. Spans never overlap, so that
costs can be added: a resume from before an attempt begins loses earlier steps too, but their time is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.units import count, duration, gpu_hours
from gputui.recovery.decide import Resumption
from gputui.recovery.history import StepLines, resumptions
from gputui.store.attempts import Attempt
from gputui.store.run_history import DecisionView, IncidentView

SECONDS_PER_HOUR = 3600.0


class StepClock(StepLines, Protocol):
    """Times of steps in UTC unix seconds; None is unknown. See `gputui.store.metrics.step_times`."""

    def first_at(self, attempt: int) -> float | None: ...

    def last_at(self, attempt: int, step: int) -> float | None: ...

    def come_with_checkpoints(self) -> bool: ...


class Cost(Struct, frozen=True):
    """The cost of one or several incidents; None is unknown, or not over yet.

    ``incidents`` is their number; ``unknown`` the number of those without a figure, so that the sum is a lower bound. A
    run without GPUs costs 0 GPU-hours. ``is_at_least``: more steps may be lost, because lines arrive only with
    checkpoints.
    """

    lost_steps: int | None
    lost_seconds: float | None
    lost_gpu_hours: float | None
    incidents: int = 1
    unknown: int = 0
    is_at_least: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "lost_steps": self.lost_steps,
            "lost_seconds": None if self.lost_seconds is None else round(self.lost_seconds, 3),
            "lost_gpu_hours": None if self.lost_gpu_hours is None else round(self.lost_gpu_hours, 6),
            "lost_steps_is_at_least": self.is_at_least,
        }

    def sum_json(self) -> dict[str, Any]:
        return {**self.to_json(), "incidents": self.incidents, "unknown": self.unknown}


def costs(
    attempts: Sequence[Attempt],
    incidents: Sequence[IncidentView],
    decisions: Sequence[DecisionView],
    clock: StepClock,
    *,
    start_is_chosen_there: bool = False,
) -> dict[int, Cost]:
    """The cost of every incident by its id. If an attempt has several incidents, the first has the cost.

    ``start_is_chosen_there``: the target chooses the checkpoint when an attempt begins
    (`gputui.runs.executors.chooses_start`).
    """
    went_on = resumptions(attempts, clock) if incidents else {}
    is_at_least = bool(incidents) and clock.come_with_checkpoints()
    numbered = {attempt.number: attempt for attempt in attempts}
    verdicts = {decision.incident_id: decision.verdict for decision in decisions}
    given_up = {incident.attempt for incident in incidents if verdicts.get(incident.incident_id) == "stop"}
    by_id: dict[int, Cost] = {}
    charged: set[int] = set()
    for incident in sorted(incidents, key=lambda row: row.incident_id):
        attempt = numbered.get(incident.attempt)
        if attempt is None or attempt.number in charged:
            continue
        charged.add(attempt.number)
        later = sorted((row for row in attempts if row.number > attempt.number), key=lambda row: row.number)
        following = later[0] if later else None
        stopped = verdicts.get(incident.incident_id) == "stop"
        had_predecessor = any(row.attempt == attempt.number - 1 for row in incidents)
        kept_step = None
        if following is not None:
            # A person's start after a stop inherits nothing.
            heir = next((row for row in later if row.first_step is not None or row.number in given_up), following)
            kept_step = _kept(heir, went_on.get(heir.number), start_is_chosen_there=start_is_chosen_there)
        cost = _cost(attempt, following, kept_step, clock, stopped, had_predecessor)
        by_id[incident.incident_id] = replace(cost, is_at_least=is_at_least and cost.lost_steps is not None)
    return by_id


def total(costs: Iterable[Cost]) -> Cost | None:
    """The sum of all costs without unknown figures, which are counted; None if there are no costs."""
    parts = list(costs)
    if not parts:
        return None
    steps = [part.lost_steps for part in parts if part.lost_steps is not None]
    seconds = [part.lost_seconds for part in parts if part.lost_seconds is not None]
    hours = [part.lost_gpu_hours for part in parts if part.lost_gpu_hours is not None]
    return Cost(
        lost_steps=sum(steps) if steps else None,
        lost_seconds=sum(seconds) if seconds else None,
        lost_gpu_hours=sum(hours) if hours else None,
        incidents=len(parts),
        unknown=sum(part.lost_steps is None or part.lost_seconds is None for part in parts),
        is_at_least=any(part.is_at_least for part in parts),
    )


def in_words(cost: Cost) -> str:
    """``9 steps, 13 s and 0.02 GPU-hours``; "" if nothing is known."""
    parts = []
    if cost.is_at_least and not cost.lost_steps:
        parts.append("an unknown number of steps")
    elif cost.lost_steps is not None:
        parts.append(
            ("at least " if cost.is_at_least else "")
            + f"{count(cost.lost_steps)} step"
            + ("" if cost.lost_steps == 1 else "s")
        )
    if cost.lost_seconds is not None:
        parts.append(duration(cost.lost_seconds))
    if cost.lost_gpu_hours:
        parts.append(f"{gpu_hours(cost.lost_gpu_hours)} GPU-hours")
    return parts[0] if len(parts) == 1 else " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def _cost(
    attempt: Attempt,
    following: Attempt | None,
    kept_step: int | None,
    clock: StepClock,
    stopped: bool,
    had_predecessor: bool,
) -> Cost:
    # A person who restarts a stopped run discards its progress, which is no cost of the incident.
    if following is None or (stopped and following.resumed_from is None):
        return Cost(None, None, None)
    steps = None
    if attempt.last_step is not None and kept_step is not None:
        steps = max(0, attempt.last_step - kept_step)
    if not steps and attempt.first_step is not None and clock.repeats(attempt.number, attempt.first_step):
        # Steps restart with each epoch, so the difference is not the number of lost steps.
        steps = None
    begin = _begin(attempt, kept_step, clock, had_predecessor)
    end = _end(following, clock)
    if begin is None or end is None:
        return Cost(steps, None, None)
    # After a stop the GPUs were free until a person asked for the next attempt.
    ended = attempt.ended_at if attempt.ended_at is not None else following.created_at
    idle_from = following.created_at if stopped else ended
    gpu_seconds = max(0.0, ended - begin) * len(attempt.gpus) + max(0.0, end - idle_from) * len(following.gpus)
    return Cost(steps, max(0.0, end - begin), gpu_seconds / SECONDS_PER_HOUR)


def _kept(following: Attempt, went_on: Resumption | None, *, start_is_chosen_there: bool) -> int | None:
    """The last kept step as the metrics number it, by where the next attempt really continued.

    A checkpoint named 40 contains 40 steps. If the next attempt's first step is 40 too, steps count from 0, and the
    last kept one is 39.
    """
    if went_on == "earlier" and following.first_step is not None:
        return following.first_step - 1
    is_anew = following.resumed_from is None and not (start_is_chosen_there and following.started_at is None)
    resumed = 0 if is_anew or went_on == "beginning" else following.resumed_step
    if resumed is None:
        return None if following.first_step is None else following.first_step - 1
    return resumed - 1 if following.first_step == resumed else resumed


def _begin(attempt: Attempt, kept_step: int | None, clock: StepClock, had_predecessor: bool) -> float | None:
    """The time after which nothing of the attempt was kept."""
    if attempt.last_step is None:
        # Its time belongs to the incident before it, if there is one.
        began = attempt.started_at if attempt.started_at is not None else attempt.created_at
        return attempt.ended_at if had_predecessor else began
    if kept_step is None:
        return None
    useful = clock.last_at(attempt.number, kept_step)
    return useful if useful is not None else _first_step_at(attempt, clock)


def _end(following: Attempt, clock: StepClock) -> float | None:
    """The time of the next attempt's first step, or of its end without one."""
    first = _first_step_at(following, clock)
    return first if first is not None else following.ended_at


def _first_step_at(attempt: Attempt, clock: StepClock) -> float | None:
    first = clock.first_at(attempt.number)
    return first if first is not None else attempt.first_step_at


def by_incident(costs: Mapping[int, Cost]) -> dict[int, dict[str, Any]]:
    """Costs as JSON, for `gputui.store.json_shapes`."""
    return {incident_id: cost.to_json() for incident_id, cost in costs.items()}
