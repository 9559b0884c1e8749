"""The story of a run in sentences, made from stored rows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gputui.core.text import clean
from gputui.core.units import duration
from gputui.recovery.cost import Cost, in_words, total
from gputui.recovery.decide import Resumption
from gputui.recovery.history import resumptions
from gputui.runs.checkpoint_names import step_words
from gputui.store import json_columns
from gputui.store.attempts import Attempt, ended_seconds
from gputui.store.run_history import DecisionView, IncidentView, TransitionView
from gputui.store.run_states import RunState
from gputui.store.runs import KILL, Run

_QUOTED = ("kernel", "launcher")
"""Witnesses whose evidence is quoted, because an incident's summary does not."""

_OUT_OF_MEMORY = ("cuda_oom", "shared_gpu_oom", "host_oom")
"""Kinds of incidents whose findings are quoted: they name sizes that the summary leaves out."""

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

    ``now`` is UTC unix seconds; ``costs`` are by incident (`gputui.recovery.cost`), ``went_on`` by attempt
    (`gputui.recovery.history`). Every paragraph is one line of harmless text; wrapping is the caller's.
    """
    went_on = resumptions(attempts) if went_on is None else went_on
    of_attempt = {incident.attempt: incident for incident in incidents}
    decided: dict[int, DecisionView] = {decision.incident_id: decision for decision in decisions}
    paragraphs = [_launch(run, transitions)]
    before: Attempt | None = None
    for attempt in sorted(attempts, key=lambda row: row.number):
        incident = of_attempt.get(attempt.number)
        decision = None if incident is None else decided.get(incident.incident_id)
        paragraphs.append(
            _join(
                _began_by_person(attempt, before, transitions),
                _ran(run, attempt, now, went_on.get(attempt.number)),
                *_ended(attempt, incident, transitions),
                _decision(decision),
                _cost(None if incident is None or costs is None else costs.get(incident.incident_id)),
            )
        )
        before = attempt
    # The last attempt's paragraph may already explain the end of the run.
    last = None if before is None else of_attempt.get(before.number)
    decision = None if last is None else decided.get(last.incident_id)
    is_explained = last is not None and (decision is None or decision.verdict != "retry")
    paragraphs.append(_join(_state(run, attempts, now, is_explained=is_explained), _all_costs(costs)))
    return [clean(" ".join(paragraph.split())) for paragraph in paragraphs if paragraph]


def _launch(run: Run, transitions: Sequence[TransitionView]) -> str:
    first = next((move for move in transitions if move.from_state is None), None)
    who = "" if first is None else f" by {first.actor}"
    return f"{run.run_id} was launched{who} from the profile {run.profile}."


def _ended(attempt: Attempt, incident: IncidentView | None, transitions: Sequence[TransitionView]) -> tuple[str, ...]:
    if incident is not None:
        return _met(incident, attempt), _evidence(incident)
    if attempt.state == "stopped" or attempt.stop_requested:
        return (_stopped(attempt, transitions),)
    if attempt.state != "succeeded":
        return ()
    remarks = (attempt.exit or {}).get("remarks")
    return (f"It succeeded, but {'; '.join(map(str, remarks))}." if isinstance(remarks, list) else "It succeeded.",)


def _began_by_person(attempt: Attempt, before: Attempt | None, transitions: Sequence[TransitionView]) -> str:
    """The restart or resume by a person that led to this attempt."""
    since = float("-inf") if before is None else before.created_at
    requests = [
        move
        for move in transitions
        if move.to_state == RunState.QUEUED
        and move.from_state not in (None, RunState.RECOVERING)
        and since < move.at <= attempt.created_at
    ]
    return f"{requests[-1].actor} asked for a {requests[-1].cause}." if requests else ""


def _ran(run: Run, attempt: Attempt, now: float, went_on: Resumption | None) -> str:
    where = _devices(run, attempt)
    resumed = _resumed(attempt, went_on)
    began = attempt.started_at if attempt.started_at is not None else attempt.created_at
    if attempt.ended_at is None:
        lasted = f" for {duration(max(0.0, now - began))} so far"
        verb = "has been running"
    else:
        lasted = f" for {duration(max(0.0, attempt.ended_at - began))}"
        verb = "ran"
    if attempt.first_step is not None and attempt.last_step is not None:
        steps = f" from step {attempt.first_step} to {attempt.last_step}"
    else:
        steps = " without a step in its metrics" if attempt.ended_at is not None else ""
    return f"Attempt {attempt.number} {verb} on {where}{steps}{lasted}{resumed}."


def _resumed(attempt: Attempt, went_on: Resumption | None) -> str:
    if attempt.resumed_from is None:
        return ""
    name = attempt.resumed_from.rstrip("/").rsplit("/", 1)[-1]
    match went_on:
        case "beginning":
            return f"; it started from the beginning (step {attempt.first_step}) although {name} was given"
        case "earlier" if attempt.resumed_step is not None:
            given = f"{name} ({step_words(name, attempt.resumed_step)})"
            return f"; it went on from step {attempt.first_step} although {given} was given"
        case "later" if attempt.resumed_step is not None:
            given = f"{name} ({step_words(name, attempt.resumed_step)})"
            return f"; it went on from step {attempt.first_step}, from a later checkpoint than {given}, which was given"
        case _:
            # Without a step it is unknown whether the attempt loaded the checkpoint.
            return f", resumed from {name}" if attempt.first_step is not None else f", given {name}"


def _devices(run: Run, attempt: Attempt) -> str:
    if attempt.gpus:
        return "1 GPU" if len(attempt.gpus) == 1 else f"{len(attempt.gpus)} GPUs"
    ranks = json_columns.mapping(run.spec_json).get("nproc")
    if isinstance(ranks, int) and ranks > 1:
        return f"{ranks} CPU ranks"
    return "the CPU"


def _met(incident: IncidentView, attempt: Attempt) -> str:
    summary = incident.summary[:1].upper() + incident.summary[1:]
    if incident.step is None:
        return f"{summary}."
    if attempt.last_step is not None and incident.step <= attempt.last_step:
        return f"{summary}, after step {incident.step}."
    return f"{summary}, at step {incident.step}."


def _evidence(incident: IncidentView) -> str:
    """Evidence that the summary does not contain."""
    lines = zip(incident.evidence, incident.witnesses, strict=False)
    quoted = [
        str(line).rstrip(".")
        for line, witness in lines
        if witness in _QUOTED
        or (
            witness == "finding"
            and incident.kind in _OUT_OF_MEMORY
            and str(line).rpartition("raised at ")[2] not in incident.summary
        )
    ]
    return f"Evidence: {'; '.join(quoted[:2])}." if quoted else ""


def _stopped(attempt: Attempt, transitions: Sequence[TransitionView]) -> str:
    ended = attempt.ended_at if attempt.ended_at is not None else float("inf")
    requests = [
        move
        for move in transitions
        if move.to_state in (RunState.STOPPING, RunState.STOPPED)
        and move.actor != AGENT
        and attempt.created_at <= move.at <= ended
    ]
    # A user's name is not capitalized, even at the beginning of a sentence.
    who = requests[0].actor if requests else "A person"
    if attempt.ended_at is None:
        return f"{who} asked it to stop."
    if attempt.stop_requested == KILL:
        return f"{who} had it killed at once."
    force = isinstance(attempt.exit, Mapping) and attempt.exit.get("forced") is True
    return f"{who} asked it to stop" + (", and it had to be killed." if force else ", and it did.")


def _decision(decision: DecisionView | None) -> str:
    """The decision's reason, which is a sentence without its subject."""
    if decision is None:
        return ""
    return f"gputui {decision.reason}." if decision.verdict == "retry" else f"gputui stopped here: {decision.reason}."


def _cost(cost: Cost | None) -> str:
    words = "" if cost is None else in_words(cost)
    return f"That cost {words}." if words else ""


def _all_costs(costs: Mapping[int, Cost] | None) -> str:
    """The total cost of several incidents."""
    together = total((costs or {}).values())
    if together is None or together.incidents < 2 or not in_words(together):
        return ""
    least = "at least " if together.unknown else ""
    return f"Its {together.incidents} incidents together cost {least}{in_words(together)}."


def _state(run: Run, attempts: Sequence[Attempt], now: float, *, is_explained: bool) -> str:
    """The run's state; ``is_explained``: an attempt's paragraph has the reason, an incident or a decision."""
    count = len(attempts)
    tries = f"{count} attempt" + ("" if count == 1 else "s")
    match run.state:
        case RunState.SUCCEEDED:
            took = ended_seconds(attempts)
            return f"The run succeeded with {tries}" + (f" that took {duration(took)}." if took else ".")
        case RunState.FAILED | RunState.STOPPED:
            reason = None if is_explained else run.told_reason
            return f"The run {run.state} after {tries}" + (f": {reason}." if reason else ".")
        case RunState.QUEUED:
            return f"It is waiting to start{f' ({run.waiting_for})' if run.waiting_for else ''}."
        case RunState.RECOVERING | RunState.STARTING | RunState.RUNNING if run.waiting_for:
            return f"It {run.waiting_for}."
        case RunState.RECOVERING:
            seconds_left = None if run.not_before is None else run.not_before - now
            return "It will start again" + (
                f" in {duration(seconds_left)}." if seconds_left is not None and seconds_left > 0 else " now."
            )
        case RunState.STOPPING:
            return "It is being stopped."
        case _:
            return f"It is {run.state}."


def _join(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)
