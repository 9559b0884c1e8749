"""What an incident cost: steps that had to be done again, the time until the run was where it had been, and the
GPU-hours that were held meanwhile. Pure.

The time is counted from the last step that was kept (the one of the checkpoint that the next attempt resumed from) to
the next attempt's first step. Where an attempt did no step at all, it belongs to the incident before it: spans never
overlap, so that they may be added up. Going back behind an attempt's own beginning loses its steps and those before,
but the time of those before is not counted a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gputui.charts.units import UNKNOWN, count, duration
from gputui.recovery.history import Resumption, resumptions
from gputui.store.attempts import Attempt
from gputui.store.run_history import DecisionView, IncidentView

SECONDS_PER_HOUR = 3600.0


class StepClock(Protocol):
    """When steps were done, in UTC unix seconds; None is unknown. See `gputui.store.metrics.step_times`."""

    def first_at(self, attempt: int) -> float | None: ...

    def last_at(self, attempt: int, step: int) -> float | None: ...

    def repeats(self, attempt: int, step: int) -> bool: ...

    def come_with_checkpoints(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Cost:
    """What one incident cost, or several together; None is unknown, or not over yet.

    ``incidents`` is how many are counted; ``unknown`` how many of them lack a figure, so that the sum is at least so
    much. A run without GPUs costs 0 GPU-hours. ``is_at_least``: there may be more lost steps than are known, as lines
    arrive only with checkpoints.
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
    """The cost of every incident by its id. Of several incidents of one attempt the first bears it.

    ``start_is_chosen_there``: which checkpoint an attempt continues from is known once it has begun
    (`gputui.runs.executors.chooses_start`).
    """
    went_on = resumptions(attempts, clock.repeats) if incidents else {}
    is_at_least = bool(incidents) and clock.come_with_checkpoints()
    numbered = {attempt.number: attempt for attempt in attempts}
    verdicts = {decision.incident_id: decision.verdict for decision in decisions}
    found: dict[int, Cost] = {}
    charged: set[int] = set()
    for incident in sorted(incidents, key=lambda row: row.incident_id):
        attempt = numbered.get(incident.attempt)
        if attempt is None or attempt.number in charged:
            continue
        charged.add(attempt.number)
        later = [row for row in attempts if row.number > attempt.number]
        following = min(later, key=lambda row: row.number, default=None)
        stopped = verdicts.get(incident.incident_id) == "stop"
        had_predecessor = any(row.attempt == attempt.number - 1 for row in incidents)
        kept = None
        if following is not None:
            kept = _kept(following, went_on.get(following.number), start_is_chosen_there=start_is_chosen_there)
        cost = _cost(attempt, following, kept, clock, stopped, had_predecessor)
        found[incident.incident_id] = replace(cost, is_at_least=is_at_least and cost.lost_steps is not None)
    return found


def total(found: Iterable[Cost]) -> Cost | None:
    """All of them together, what is unknown left out and counted; None if there are none."""
    parts = list(found)
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
    """``9 steps, 13 s and 0.02 GPU-hours``; "" where nothing is known."""
    parts = []
    if cost.is_at_least and not cost.lost_steps:
        parts.append("the steps since then, which are not known")
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


def gpu_hours(hours: float | None) -> str:
    """GPU-hours with two digits that say something: "0.0042", "1.5", "310"."""
    if hours is None:
        return UNKNOWN
    return f"{hours:.0f}" if hours >= 100 else f"{hours:.2g}"


def _cost(
    attempt: Attempt,
    following: Attempt | None,
    kept: int | None,
    clock: StepClock,
    stopped: bool,
    had_predecessor: bool,
) -> Cost:
    # A person who restarts a stopped run gives up its progress; the incident did not cost that.
    if following is None or (stopped and following.resumed_from is None):
        return Cost(None, None, None)
    steps = None
    if attempt.last_step is not None and kept is not None:
        steps = max(0, attempt.last_step - kept)
    if not steps and attempt.first_step is not None and clock.repeats(attempt.number, attempt.first_step):
        # The last step of an epoch does not tell how many were done.
        steps = None
    begin = _begin(attempt, kept, clock, had_predecessor)
    end = _end(following, clock)
    if begin is None or end is None:
        return Cost(steps, None, None)
    # After a stop the GPUs were given back until somebody asked for the next attempt.
    ended = attempt.ended_at if attempt.ended_at is not None else following.created_at
    idle_from = following.created_at if stopped else ended
    held = max(0.0, ended - begin) * len(attempt.gpus) + max(0.0, end - idle_from) * len(following.gpus)
    return Cost(steps, max(0.0, end - begin), held / SECONDS_PER_HOUR)


def _kept(following: Attempt, went_on: Resumption | None, *, start_is_chosen_there: bool) -> int | None:
    """The last step that was not lost, as the metrics number it: by what the attempt did, not by what it was given.

    A checkpoint called 40 holds 40 steps. Where the attempt that resumed from it calls its first step 40 too, steps
    are counted from 0, and the last one kept is 39.
    """
    if went_on == "earlier" and following.first_step is not None:
        return following.first_step - 1
    is_anew = following.resumed_from is None and not (start_is_chosen_there and following.started_at is None)
    resumed = 0 if is_anew or went_on == "beginning" else following.resumed_step
    if resumed is None:
        return None if following.first_step is None else following.first_step - 1
    return resumed - 1 if following.first_step == resumed else resumed


def _begin(attempt: Attempt, kept: int | None, clock: StepClock, had_predecessor: bool) -> float | None:
    """From when on nothing of the attempt was kept."""
    if attempt.last_step is None:
        # It did nothing; what it took is part of the incident before it, if there is one.
        began = attempt.started_at if attempt.started_at is not None else attempt.created_at
        return attempt.ended_at if had_predecessor else began
    if kept is None:
        return None
    useful = clock.last_at(attempt.number, kept)
    return useful if useful is not None else _first_step_at(attempt, clock)


def _end(following: Attempt, clock: StepClock) -> float | None:
    """When the next attempt went on, or gave up without a step."""
    first = _first_step_at(following, clock)
    return first if first is not None else following.ended_at


def _first_step_at(attempt: Attempt, clock: StepClock) -> float | None:
    first = clock.first_at(attempt.number)
    return first if first is not None else attempt.first_step_at


def by_incident(found: Mapping[int, Cost]) -> dict[int, dict[str, Any]]:
    """The same as plain data, for `gputui.store.json_shapes`."""
    return {incident_id: cost.to_json() for incident_id, cost in found.items()}
