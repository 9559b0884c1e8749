"""The cost of incidents: repeated steps, lost time, and the GPU-hours of attempts in that time.

The time is counted from the last kept step (that of the checkpoint from which the next attempt with
a step resumed) to the next attempt's first step. An attempt without a step belongs to the incident
before it. Spans never overlap, so that costs can be added: a resume from before an attempt begins
loses earlier steps too, but their time is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.units import count_of, duration, gpu_hours, sum_of_known
from gputui.recovery.resumptions import Resumption, resumptions
from gputui.runs.checkpoint_names import tells_step
from gputui.store.attempts import SECONDS_PER_HOUR, Attempt
from gputui.store.json_shapes import rounded
from gputui.store.metrics.step_lines import StepLines, up_to_step
from gputui.store.run_history import DecisionView, IncidentView


class Cost(Struct, frozen=True):
    """The cost of one or several incidents; None is unknown, or not over yet.

    Attributes:
        lost_gpu_hours: 0 for a run without GPUs.
        incidents: how many.
        unknown: how many of them have no figure, so that the sum is a lower bound.
        is_at_least: more steps may be lost, because lines arrive only with checkpoints, or the script does not say
            which one it loaded.
        is_about: the checkpoint's step was inferred from when it was saved.
    """

    lost_steps: int | None
    lost_seconds: float | None
    lost_gpu_hours: float | None
    incidents: int = 1
    unknown: int = 0
    is_at_least: bool = False
    is_about: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "lost_steps": self.lost_steps,
            "lost_seconds": rounded(self.lost_seconds, 3),
            "lost_gpu_hours": rounded(self.lost_gpu_hours, 6),
            "lost_steps_is_at_least": self.is_at_least,
        }

    def sum_json(self) -> dict[str, Any]:
        return {**self.to_json(), "incidents": self.incidents, "unknown": self.unknown}


def costs_of(
    attempts: Sequence[Attempt],
    incidents: Sequence[IncidentView],
    decisions: Sequence[DecisionView],
    lines: StepLines,
    *,
    start_is_chosen_there: bool = False,
) -> dict[int, Cost]:
    """The cost of every incident by its id. If an attempt has several, the first has the cost.

    Args:
        start_is_chosen_there: the target chooses the checkpoint when an attempt begins
            (`gputui.runs.executors.chooses_start`).
    """
    if not incidents:
        return {}
    went_on = resumptions(attempts, lines)
    come_with_checkpoints = lines.come_with_checkpoints()
    stopped = {row.incident_id for row in decisions if row.verdict == "stop"}
    given_up = {row.attempt for row in incidents if row.incident_id in stopped}
    first_incidents = {row.attempt: row for row in sorted(incidents, key=lambda row: -row.incident_id)}
    ordered = sorted(attempts, key=lambda row: row.number)
    by_id: dict[int, Cost] = {}
    for index, attempt in enumerate(ordered):
        incident = first_incidents.get(attempt.number)
        if incident is None:
            continue
        later = ordered[index + 1 :]
        following = next(iter(later), None)
        # A person's start after a stop inherits nothing.
        heirs = (row for row in later if row.first_step is not None or row.number in given_up)
        heir = next(heirs, following)
        kept_step = None
        continuation = None
        if heir is not None:
            continuation = went_on.get(heir.number)
            kept_step = _last_kept_step(heir, continuation, start_is_chosen_there)
        cost = _cost(
            attempt,
            following,
            kept_step,
            lines,
            is_stopped=incident.incident_id in stopped,
            had_predecessor=attempt.number - 1 in first_incidents,
        )
        if cost.lost_steps is not None:
            cost = replace(
                cost,
                # The first line of one that was unaided may be several steps after what it loaded.
                is_at_least=come_with_checkpoints or continuation == "unaided",
                is_about=heir is not None and kept_step == heir.resumed_step and _is_inferred(heir),
            )
        by_id[incident.incident_id] = cost
    return by_id


def total(summands: Iterable[Cost]) -> Cost | None:
    """The sum of all costs without unknown figures, which are counted; None if there are none."""
    parts = list(summands)
    if not parts:
        return None
    return Cost(
        sum_of_known(part.lost_steps for part in parts),
        sum_of_known(part.lost_seconds for part in parts),
        sum_of_known(part.lost_gpu_hours for part in parts),
        incidents=len(parts),
        unknown=sum(part.lost_steps is None or part.lost_seconds is None for part in parts),
        is_at_least=any(part.is_at_least for part in parts),
        is_about=any(part.is_about for part in parts),
    )


def in_words(cost: Cost) -> str:
    """``9 steps, 13 s and 0.02 GPU-hours``; "" if nothing is known."""
    parts = []
    steps = _steps_in_words(cost)
    if steps is not None:
        parts.append(steps)
    if cost.lost_seconds is not None:
        parts.append(duration(cost.lost_seconds))
    if cost.lost_gpu_hours:
        parts.append(f"{gpu_hours(cost.lost_gpu_hours)} GPU-hours")
    if len(parts) < 2:
        return "".join(parts)
    *first_parts, last_part = parts
    return f"{', '.join(first_parts)} and {last_part}"


def _steps_in_words(cost: Cost) -> str | None:
    if cost.is_at_least and not cost.lost_steps:
        return "an unknown number of steps"
    if cost.lost_steps is None:
        return None
    steps = count_of(cost.lost_steps, "step")
    if cost.is_at_least:
        return f"at least {steps}"
    if cost.is_about:
        return f"about {steps}"
    return steps


def _cost(
    attempt: Attempt,
    following: Attempt | None,
    kept_step: int | None,
    lines: StepLines,
    *,
    is_stopped: bool,
    had_predecessor: bool,
) -> Cost:
    """The cost of an attempt's incident.

    Args:
        following: the next attempt.
        kept_step: the last step that was kept.
        is_stopped: the run stopped for the incident.
        had_predecessor: the attempt before failed.
    """
    # A person who restarts a stopped run discards its progress, which is no cost of the incident.
    if following is None or (is_stopped and following.resumed_from is None):
        return Cost(lost_steps=None, lost_seconds=None, lost_gpu_hours=None)
    steps = _lost_steps(attempt, kept_step, lines)
    begin = _lost_since(attempt, kept_step, lines, had_predecessor)
    end = _first_step_at(following, lines)
    if end is None and following.state == "succeeded":
        # It worked without steps: where it went on cannot be seen.
        return Cost(lost_steps=None, lost_seconds=None, lost_gpu_hours=None)
    if end is None:
        end = following.ended_at
    if begin is None or end is None:
        return Cost(steps, lost_seconds=None, lost_gpu_hours=None)
    lost_gpu_seconds = _gpu_seconds(attempt, begin, end) + _gpu_seconds(following, begin, end)
    return Cost(steps, max(0.0, end - begin), lost_gpu_seconds / SECONDS_PER_HOUR)


def _gpu_seconds(attempt: Attempt, begin: float, end: float) -> float:
    """The GPU time of an attempt in a span (UTC unix seconds), without waiting between attempts; 0 if its GPUs are
    unknown."""
    if attempt.command_ended_at is not None:
        end = min(end, attempt.command_ended_at)
    return attempt.gpu_seconds(max(begin, attempt.began_at), end) or 0.0


def _lost_steps(attempt: Attempt, kept_step: int | None, lines: StepLines) -> int | None:
    """The steps after the last kept one; None if steps start again with each epoch."""
    steps = None
    if attempt.last_step is not None and kept_step is not None:
        steps = max(0, attempt.last_step - kept_step)
    if steps or attempt.first_step is None:
        return steps
    if lines.repeats(attempt.number, attempt.first_step):
        return None
    return steps


def _lost_since(attempt: Attempt, kept_step: int | None, lines: StepLines, had_predecessor: bool) -> float | None:
    """The time after which nothing of the attempt was kept."""
    if attempt.last_step is None:
        # Its time belongs to the incident before it, if there is one.
        if had_predecessor:
            return attempt.ended_at
        return attempt.began_at
    if kept_step is None:
        return None
    line = lines.newest(attempt.number, up_to_step(kept_step))
    if line is not None:
        return line.at
    return _first_step_at(attempt, lines)


def _is_inferred(heir: Attempt) -> bool:
    """Return whether the step of the checkpoint that an attempt resumed from is not in its name."""
    if heir.resumed_from is None or heir.resumed_step is None:
        return False
    return not tells_step(PurePath(heir.resumed_from).name, heir.resumed_step)


def _last_kept_step(heir: Attempt, went_on: Resumption | None, is_chosen_there: bool) -> int | None:
    """The last kept step as the metrics number it, by where the next attempt really continued; None if
    that cannot be seen.

    A checkpoint named 40 contains 40 steps. If the next attempt's first step is 40 too, steps count
    from 0, and the last kept one is 39.
    """
    before_first = None
    if heir.first_step is not None:
        before_first = heir.first_step - 1
    if went_on == "uncertain":
        return None
    if went_on in ("earlier", "unaided") and before_first is not None:
        return before_first
    is_chosen_later = is_chosen_there and heir.started_at is None
    was_given_none = heir.resumed_from is None and not is_chosen_later
    resumed = heir.resumed_step
    if went_on == "beginning" or was_given_none:
        resumed = 0
    if resumed is None or heir.first_step == resumed:
        return before_first
    return resumed


def _first_step_at(attempt: Attempt, lines: StepLines) -> float | None:
    first = lines.first(attempt.number)
    if first is None:
        return attempt.first_step_at
    return first.at
