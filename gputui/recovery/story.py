"""The story of a run in sentences, and the cost of its incidents: repeated steps, lost time, and
the GPU-hours of that time. Made from stored rows; pure but for `StepTimes`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gputui.core.text import clean
from gputui.core.units import count, duration, gpu_hours
from gputui.recovery.history import queued_by_person, resumptions
from gputui.recovery.plans import Resumption
from gputui.runs.checkpoint_names import step_words
from gputui.store.attempts import Attempt, ended_seconds
from gputui.store.database import json_mapping
from gputui.store.metrics.step_times import StepTimes
from gputui.store.run_history import DecisionView, IncidentView, TransitionView
from gputui.store.run_states import RunState
from gputui.store.runs import KILL, Run

_OUT_OF_MEMORY = ("cuda_oom", "shared_gpu_oom", "host_oom")
"""Kinds whose findings are quoted: they name sizes that the summary leaves out."""

AGENT = "agent"
"""The actor of transitions without a person."""


def tell(
    run: Run,
    attempts: Sequence[Attempt],
    incidents: Sequence[IncidentView],
    decisions: Sequence[DecisionView],
    transitions: Sequence[TransitionView],
    *,
    now: float,
    costs: Mapping[int, Cost] | None = None,
    went_on: Mapping[int, Resumption] | None = None,
) -> list[str]:
    """The story of a run: its launch, a paragraph per attempt, and its state.

    ``now`` is UTC unix seconds; ``costs`` are by incident (`costs`), ``went_on`` by
    attempt (`gputui.recovery.history`). Every paragraph is one line of harmless text.
    """
    went_on = resumptions(attempts) if went_on is None else went_on
    costs = costs or {}
    of_attempt = {incident.attempt: incident for incident in incidents}
    decided = {decision.incident_id: decision for decision in decisions}
    first = next((f" by {move.actor}" for move in transitions if move.from_state is None), "")
    paragraphs = [[f"{run.run_id} was launched{first} from the profile {run.profile}."]]
    since, is_explained = float("-inf"), False
    for attempt in sorted(attempts, key=lambda row: row.number):
        incident = of_attempt.get(attempt.number)
        decision = None if incident is None else decided.get(incident.incident_id)
        # The restart or resume by a person that led to this attempt.
        asked = [
            f"{move.actor} asked for a {move.cause}."
            for move in queued_by_person(transitions)
            if move.from_state is not None and since < move.at <= attempt.created_at
        ]
        sentences = [*asked[-1:], _ran(run, attempt, now, went_on.get(attempt.number))]
        if incident is None:
            sentences.append(_ended(attempt, transitions))
        else:
            sentences += [_met(incident, attempt), _evidence(incident)]
            if decision is not None:
                verb = "" if decision.verdict == "retry" else "stopped here: "
                sentences.append(f"gputui {verb}{decision.reason}.")
            cost = costs.get(incident.incident_id)
            if cost is not None and (words := in_words(cost)):
                sentences.append(f"That cost {words}.")
        paragraphs.append(sentences)
        since = attempt.created_at
        # The last attempt's paragraph may already explain the end of the run.
        is_retry = decision is not None and decision.verdict == "retry"
        is_explained = incident is not None and not is_retry
    paragraphs.append([_state(run, attempts, now, is_explained)])
    together = total(costs.values())
    if together is not None and together.incidents > 1 and (words := in_words(together)):
        least = "at least " if together.unknown else ""
        paragraphs[-1].append(f"Its {together.incidents} incidents together cost {least}{words}.")
    return [clean(" ".join(" ".join(sentences).split())) for sentences in paragraphs]


def _ran(run: Run, attempt: Attempt, now: float, went_on: Resumption | None) -> str:
    ranks = json_mapping(run.spec_json).get("nproc")
    where = f"{ranks} CPU ranks" if isinstance(ranks, int) and ranks > 1 else "the CPU"
    if attempt.gpus:
        where = f"{len(attempt.gpus)} GPU{'' if len(attempt.gpus) == 1 else 's'}"
    began = attempt.started_at if attempt.started_at is not None else attempt.created_at
    is_over = attempt.ended_at is not None
    lasted = duration(max(0.0, (now if attempt.ended_at is None else attempt.ended_at) - began))
    steps = " without a step in its metrics" if is_over else ""
    if attempt.first_step is not None and attempt.last_step is not None:
        steps = f" from step {attempt.first_step} to {attempt.last_step}"
    verb, so_far = ("ran", "") if is_over else ("has been running", " so far")
    resumed = _resumed(attempt, went_on)
    return f"Attempt {attempt.number} {verb} on {where}{steps} for {lasted}{so_far}{resumed}."


def _resumed(attempt: Attempt, went_on: Resumption | None) -> str:
    if attempt.resumed_from is None:
        return ""
    name, first = attempt.resumed_from.rstrip("/").rsplit("/", 1)[-1], attempt.first_step
    if went_on == "beginning":
        return f"; it started from the beginning (step {first}) although {name} was given"
    if went_on in ("earlier", "later") and attempt.resumed_step is not None:
        given = f"{name} ({step_words(name, attempt.resumed_step)})"
        if went_on == "earlier":
            return f"; it went on from step {first} although {given} was given"
        later = f"a later checkpoint than {given}, which was given"
        return f"; it went on from step {first}, from {later}"
    # Without a step it is unknown whether the attempt loaded the checkpoint.
    return f", given {name}" if first is None else f", resumed from {name}"


def _met(incident: IncidentView, attempt: Attempt) -> str:
    summary = incident.summary[:1].upper() + incident.summary[1:]
    if incident.step is None:
        return f"{summary}."
    is_done = attempt.last_step is not None and incident.step <= attempt.last_step
    return f"{summary}, {'after' if is_done else 'at'} step {incident.step}."


def _evidence(incident: IncidentView) -> str:
    """Evidence that the summary does not contain."""
    quoted = []
    for line, witness in zip(incident.evidence, incident.witnesses, strict=False):
        is_size = witness == "finding" and incident.kind in _OUT_OF_MEMORY
        is_new = str(line).rpartition("raised at ")[2] not in incident.summary
        if witness in ("kernel", "launcher") or (is_size and is_new):
            quoted.append(str(line).rstrip("."))
    return f"Evidence: {'; '.join(quoted[:2])}." if quoted else ""


def _ended(attempt: Attempt, transitions: Sequence[TransitionView]) -> str:
    """The end of an attempt without an incident; "" while it lives."""
    record = attempt.exit or {}
    if attempt.state != "stopped" and not attempt.stop_requested:
        if attempt.state != "succeeded":
            return ""
        remarks = record.get("remarks")
        but = f", but {'; '.join(map(str, remarks))}" if isinstance(remarks, list) else ""
        return f"It succeeded{but}."
    ended = attempt.ended_at if attempt.ended_at is not None else float("inf")
    # A user's name is not capitalized, even at the beginning of a sentence.
    who = next(
        (
            move.actor
            for move in transitions
            if move.to_state in (RunState.STOPPING, RunState.STOPPED)
            and move.actor != AGENT
            and attempt.created_at <= move.at <= ended
        ),
        "A person",
    )
    if attempt.ended_at is None:
        return f"{who} asked it to stop."
    if attempt.stop_requested == KILL:
        return f"{who} had it killed at once."
    how = "it had to be killed" if record.get("forced") is True else "it did"
    return f"{who} asked it to stop, and {how}."


def _state(run: Run, attempts: Sequence[Attempt], now: float, is_explained: bool) -> str:
    """The run's state; ``is_explained``: an attempt's paragraph has the reason."""
    tries = f"{len(attempts)} attempt{'' if len(attempts) == 1 else 's'}"
    match run.state:
        case RunState.SUCCEEDED:
            took = ended_seconds(attempts)
            return f"The run succeeded with {tries}{f' that took {duration(took)}' if took else ''}."
        case RunState.FAILED | RunState.STOPPED:
            reason = None if is_explained else run.told_reason
            return f"The run {run.state} after {tries}{f': {reason}' if reason else ''}."
        case RunState.QUEUED:
            return f"It is waiting to start{f' ({run.waiting_for})' if run.waiting_for else ''}."
        case RunState.RECOVERING | RunState.STARTING | RunState.RUNNING if run.waiting_for:
            return f"It {run.waiting_for}."
        case RunState.RECOVERING:
            left = 0.0 if run.not_before is None else run.not_before - now
            return f"It will start again {f'in {duration(left)}' if left > 0 else 'now'}."
        case RunState.STOPPING:
            return "It is being stopped."
        case _:
            return f"It is {run.state}."


# --- cost -------------------------------------------------------------------------------------
#
# The time is counted from the last kept step (that of the checkpoint from which the next attempt
# with a step resumed) to the next attempt's first step. An attempt without a step belongs to the
# incident before it. Spans never overlap, so that costs can be added: a resume from before an
# attempt begins loses earlier steps too, but their time is counted once.


class Cost(Struct, frozen=True):
    """The cost of one or several incidents; None is unknown, or not over yet.

    ``incidents`` is their number; ``unknown`` the number of those without a figure, so that the sum
    is a lower bound. A run without GPUs costs 0 GPU-hours. ``is_at_least``: more steps may be lost,
    because lines arrive only with checkpoints.
    """

    lost_steps: int | None
    lost_seconds: float | None
    lost_gpu_hours: float | None
    incidents: int = 1
    unknown: int = 0
    is_at_least: bool = False

    def to_json(self) -> dict[str, Any]:
        seconds, hours = self.lost_seconds, self.lost_gpu_hours
        return {
            "lost_steps": self.lost_steps,
            "lost_seconds": None if seconds is None else round(seconds, 3),
            "lost_gpu_hours": None if hours is None else round(hours, 6),
            "lost_steps_is_at_least": self.is_at_least,
        }

    def sum_json(self) -> dict[str, Any]:
        return {**self.to_json(), "incidents": self.incidents, "unknown": self.unknown}


def costs(
    attempts: Sequence[Attempt],
    incidents: Sequence[IncidentView],
    decisions: Sequence[DecisionView],
    clock: StepTimes,
    *,
    start_is_chosen_there: bool = False,
) -> dict[int, Cost]:
    """The cost of every incident by its id. If an attempt has several, the first has the cost.

    ``start_is_chosen_there``: the target chooses the checkpoint when an attempt begins
    (`gputui.runs.executors.chooses_start`).
    """
    if not incidents:
        return {}
    went_on = resumptions(attempts, clock)
    is_at_least = clock.come_with_checkpoints()
    stopped = {row.incident_id for row in decisions if row.verdict == "stop"}
    given_up = {row.attempt for row in incidents if row.incident_id in stopped}
    failed = {row.attempt for row in incidents}
    first = {row.attempt: row for row in sorted(incidents, key=lambda row: -row.incident_id)}
    ordered = sorted(attempts, key=lambda row: row.number)
    by_id: dict[int, Cost] = {}
    for place, attempt in enumerate(ordered):
        later, incident = ordered[place + 1 :], first.get(attempt.number)
        if incident is None:
            continue
        kept = None
        if later:
            # A person's start after a stop inherits nothing.
            heirs = (row for row in later if row.first_step is not None or row.number in given_up)
            heir = next(heirs, later[0])
            kept = _kept(heir, went_on.get(heir.number), start_is_chosen_there)
        cost = _cost(
            attempt,
            later[0] if later else None,
            kept,
            clock,
            is_stopped=incident.incident_id in stopped,
            had_predecessor=attempt.number - 1 in failed,
        )
        is_least = is_at_least and cost.lost_steps is not None
        by_id[incident.incident_id] = replace(cost, is_at_least=is_least)
    return by_id


def total(costs: Iterable[Cost]) -> Cost | None:
    """The sum of all costs without unknown figures, which are counted; None if there are none."""
    parts = list(costs)
    if not parts:
        return None
    steps = [part.lost_steps for part in parts if part.lost_steps is not None]
    seconds = [part.lost_seconds for part in parts if part.lost_seconds is not None]
    hours = [part.lost_gpu_hours for part in parts if part.lost_gpu_hours is not None]
    return Cost(
        sum(steps) if steps else None,
        sum(seconds) if seconds else None,
        sum(hours) if hours else None,
        len(parts),
        sum(part.lost_steps is None or part.lost_seconds is None for part in parts),
        any(part.is_at_least for part in parts),
    )


def in_words(cost: Cost) -> str:
    """``9 steps, 13 s and 0.02 GPU-hours``; "" if nothing is known."""
    parts = []
    if cost.is_at_least and not cost.lost_steps:
        parts.append("an unknown number of steps")
    elif cost.lost_steps is not None:
        noun = "step" if cost.lost_steps == 1 else "steps"
        parts.append(f"{'at least ' if cost.is_at_least else ''}{count(cost.lost_steps)} {noun}")
    if cost.lost_seconds is not None:
        parts.append(duration(cost.lost_seconds))
    if cost.lost_gpu_hours:
        parts.append(f"{gpu_hours(cost.lost_gpu_hours)} GPU-hours")
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def _cost(
    attempt: Attempt,
    following: Attempt | None,
    kept: int | None,
    clock: StepTimes,
    *,
    is_stopped: bool,
    had_predecessor: bool,
) -> Cost:
    # A person who restarts a stopped run discards its progress, which is no cost of the incident.
    if following is None or (is_stopped and following.resumed_from is None):
        return Cost(None, None, None)
    steps = None
    if attempt.last_step is not None and kept is not None:
        steps = max(0, attempt.last_step - kept)
    first = attempt.first_step
    if not steps and first is not None and clock.repeats(attempt.number, first):
        # Steps restart with each epoch, so the difference is not the number of lost steps.
        steps = None
    # The time after which nothing of the attempt was kept.
    if attempt.last_step is None:
        # Its time belongs to the incident before it, if there is one.
        began = attempt.started_at if attempt.started_at is not None else attempt.created_at
        begin = attempt.ended_at if had_predecessor else began
    else:
        useful = None if kept is None else clock.last_at(attempt.number, kept)
        begin = useful if kept is None or useful is not None else _first_step_at(attempt, clock)
    end = _first_step_at(following, clock)
    end = following.ended_at if end is None else end
    if begin is None or end is None:
        return Cost(steps, None, None)
    # After a stop the GPUs were free until a person asked for the next attempt.
    ended = attempt.ended_at if attempt.ended_at is not None else following.created_at
    idle_from = following.created_at if is_stopped else ended
    own = max(0.0, ended - begin) * len(attempt.gpus)
    next_one = max(0.0, end - idle_from) * len(following.gpus)
    return Cost(steps, max(0.0, end - begin), (own + next_one) / 3600.0)


def _kept(heir: Attempt, went_on: Resumption | None, is_chosen_there: bool) -> int | None:
    """The last kept step as the metrics number it, by where the next attempt really continued.

    A checkpoint named 40 contains 40 steps. If the next attempt's first step is 40 too, steps count
    from 0, and the last kept one is 39.
    """
    first, resumed = heir.first_step, heir.resumed_step
    is_unclear = is_chosen_there and heir.started_at is None
    if went_on == "beginning" or (heir.resumed_from is None and not is_unclear):
        resumed = 0
    if resumed is None or (went_on == "earlier" and first is not None):
        return None if first is None else first - 1
    return resumed - 1 if first == resumed else resumed


def _first_step_at(attempt: Attempt, clock: StepTimes) -> float | None:
    first = clock.first_at(attempt.number)
    return first if first is not None else attempt.first_step_at


def by_incident(costs: Mapping[int, Cost]) -> dict[int, dict[str, Any]]:
    """Costs as JSON, for `gputui.store.json_shapes`."""
    return {incident_id: cost.to_json() for incident_id, cost in costs.items()}
