"""The story of a run in sentences, made from stored rows. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby

from gputui.core.text import clean
from gputui.core.units import count_of, duration, parameter
from gputui.recovery.classify import detail_of
from gputui.recovery.costs import in_words
from gputui.recovery.kinds import kind_of
from gputui.recovery.resumptions import Resumption
from gputui.recovery.run_history import Failure, RunHistory, queued_by_person, total_cost
from gputui.runs.checkpoint_names import step_words
from gputui.runs.stored_spec import known_spec
from gputui.store.attempts import Attempt, ended_seconds
from gputui.store.rows import json_mapping
from gputui.store.run_history import DecisionView, IncidentView, TransitionView
from gputui.store.run_states import RunState
from gputui.store.runs import KILL, PHASE_OVER, TIME_OVER, Run

AGENT = "agent"
"""The actor of transitions without a person."""


def tell(
    history: RunHistory, failures: Sequence[Failure], resumptions: Mapping[int, Resumption], *, now: float
) -> list[str]:
    """The story of a run: its launch, a paragraph per attempt, and its state.

    Args:
        failures: those of `RunHistory.failures`.
        resumptions: from where each attempt really went on: `RunHistory.resumptions`.
        now: UTC unix seconds.

    Returns:
        The paragraphs, each one line of harmless text.
    """
    run = history.run
    of_attempt = {failure.incident.attempt: failure for failure in failures}
    paragraphs = [[_launch_sentence(run, history.transitions)]]
    before: Attempt | None = None
    for alike in _alike_attempts(history, of_attempt, resumptions):
        first, *repeats = alike
        failure = of_attempt.get(first.number)
        sentences = [
            *_request_sentences(history.transitions, before, first),
            _attempt_sentence(run, first, now, resumptions.get(first.number)),
        ]
        if failure is None:
            sentences.append(_end_sentence(run, first, history.transitions))
        else:
            sentences += [_incident_sentence(failure.incident, first), _evidence_sentence(failure.incident)]
            sentences += _reaction_sentences([failure])
        paragraphs.append(sentences)
        if repeats:
            repeated = [of_attempt[attempt.number] for attempt in repeats]
            paragraphs.append([_repetition_sentence(repeats, now), *_reaction_sentences(repeated)])
        before = alike[-1]
    # The last attempt's paragraph may already explain the end of the run.
    is_explained = before is not None and _has_reason(of_attempt.get(before.number))
    paragraphs.append([_state_sentence(run, history.attempts, now, is_explained), *_total_sentences(failures)])
    return [clean(" ".join(" ".join(sentences).split())) for sentences in paragraphs]


def _has_reason(failure: Failure | None) -> bool:
    """Return whether the paragraph of a failed attempt says why the run did not go on."""
    return failure is not None and (failure.decision is None or failure.decision.verdict != "retry")


def _request_sentences(transitions: Sequence[TransitionView], before: Attempt | None, attempt: Attempt) -> list[str]:
    """The last restart or resume by a person, or end of a phase, that led to an attempt after the one before."""
    since = -math.inf if before is None else before.created_at
    sentences = [
        _request_sentence(move)
        for move in queued_by_person(transitions)
        if move.from_state is not None and since < move.at <= attempt.created_at
    ]
    return sentences[-1:]


def _launch_sentence(run: Run, transitions: Sequence[TransitionView]) -> str:
    by = next((f" by {move.actor}" for move in transitions if move.from_state is None), "")
    spec = known_spec(run)
    source = f"from the profile {run.profile}"
    if spec is not None and spec.typed:
        source = f"as {shlex.join(spec.typed)}"
    return f"{run.run_id} was launched{by} {clean(source)}."


def _total_sentences(failures: Sequence[Failure]) -> list[str]:
    """What several incidents cost together; nothing for one, or if that is unknown."""
    together = total_cost(failures)
    if together is None or together.incidents <= 1:
        return []
    price = in_words(together)
    if not price:
        return []
    if together.unknown:
        price = f"at least {price}"
    return [f"Its {together.incidents} incidents together cost {price}."]


def _alike_attempts(
    history: RunHistory, of_attempt: Mapping[int, Failure], resumptions: Mapping[int, Resumption]
) -> list[list[Attempt]]:
    """The attempts in their order, in groups that failed in the same way.

    A single repetition is a group of its own: it is told as briefly.
    """

    def way(attempt: Attempt) -> tuple[object, ...]:
        failure = of_attempt.get(attempt.number)
        has_resumed = resumptions.get(attempt.number) in (None, "resumed", "recounted")
        if failure is None or not has_resumed:
            return (attempt.number,)
        request_count = sum(move.at <= attempt.created_at for move in queued_by_person(history.transitions))
        incident = failure.incident
        return (request_count, incident.kind, incident.step, detail_of(incident.summary))

    ordered = sorted(history.attempts, key=lambda row: row.number)
    groups: list[list[Attempt]] = []
    for _, alike in groupby(ordered, key=way):
        rows = list(alike)
        if len(rows) > 2:
            groups.append(rows)
        else:
            groups += [[row] for row in rows]
    return groups


def _repetition_sentence(repeats: Sequence[Attempt], now: float) -> str:
    """``Attempts 2 to 6 failed in the same way, after 1 min 12 s together, with batch_size 48 → 36 → 18.``"""
    spent = [seconds for attempt in repeats if (seconds := attempt.ran_seconds(now)) is not None]
    details = []
    if len(spent) == len(repeats):
        details.append(f"after {duration(sum(spent))} together")
    changes = []
    for name in repeats[0].params:
        values = [value for value, _ in groupby(attempt.params.get(name) for attempt in repeats)]
        if len(values) > 1:
            changes.append(f"{name} {' → '.join(map(parameter, values))}")
    if changes:
        details.append(f"with {' and '.join(changes)}")
    link = "and" if len(repeats) == 2 else "to"
    sentence = f"Attempts {repeats[0].number} {link} {repeats[-1].number} failed in the same way"
    return f"{', '.join([sentence, *details])}."


def _reaction_sentences(failures: Sequence[Failure]) -> list[str]:
    """The decision on the last of one or more failures, and the cost of all of them."""
    sentences = []
    decision = failures[-1].decision
    if decision is not None:
        reaction = decision.reason
        if decision.verdict != "retry":
            reaction = f"stopped here: {reaction}"
        sentences.append(f"gputui {reaction}.")
    cost = total_cost(failures)
    if cost is not None and (price := in_words(cost)):
        sentences.append(f"That cost {price}.")
    return sentences


def causes_of(reason: str, decision: DecisionView | None) -> str:
    """The causes in the reason of a run that failed, without the decision that it may end with."""
    if decision is None:
        return reason
    return reason.removesuffix(f"; {decision.reason}")


def _request_sentence(move: TransitionView) -> str:
    if move.cause == PHASE_OVER:
        return "The next phase of its profile began."
    who = "A person" if move.actor == AGENT else move.actor
    return f"{who} asked for a {move.cause}."


def _attempt_sentence(run: Run, attempt: Attempt, now: float, resumption: Resumption | None) -> str:
    is_over = attempt.ended_at is not None
    placement = attempt.placement
    end = attempt.ended_at
    if end is None:
        end = now
    if run.target is not None and attempt.started_at is None:
        verb = "did not begin" if is_over else "has not begun"
        waited = duration(end - attempt.created_at)
        return f"Attempt {attempt.number} {verb} its command on {run.target} within {waited}."
    seconds = attempt.ran_seconds(now)
    if seconds is None:
        seconds = max(0.0, end - attempt.created_at)
    lasted = duration(seconds)
    if placement is not None and placement.queued_seconds >= 1:
        lasted += f", after {duration(placement.queued_seconds)} in the queue"
    where = _location(run, attempt)
    resumed = _resumption_clause(attempt, resumption)
    if is_over and (attempt.first_step is None or attempt.last_step is None):
        where += " without a step in its metrics"
    ran = f"ran on {where} for {lasted}"
    if not is_over:
        ran = f"has been running on {where} for {lasted} so far"
    return f"Attempt {attempt.number} {ran}{resumed}.{_steps_sentence(attempt)}{_requeue_sentence(attempt)}"


def _steps_sentence(attempt: Attempt) -> str:
    """The steps in the metrics of an attempt, which may have made others; "" without any."""
    first = attempt.first_step
    last = attempt.last_step
    if first is None or last is None:
        return ""
    if first == last:
        return f" It reported step {first}."
    return f" It reported steps {first} to {last}."


def _location(run: Run, attempt: Attempt) -> str:
    """``2 GPUs of lab (n1, n2)``, ``4 GPUs``, ``2 CPU ranks`` or ``the CPU``."""
    gpus = ""
    if attempt.gpu_count:
        gpus = count_of(attempt.gpu_count, "GPU")
    if run.target is not None:
        target = run.target
        if attempt.placement is not None and attempt.placement.nodes:
            target = f"{target} ({', '.join(attempt.placement.nodes)})"
        if gpus:
            return f"{gpus} of {target}"
        return target
    ranks = json_mapping(run.spec_json).get("nproc")
    if gpus:
        return gpus
    if isinstance(ranks, int) and ranks > 1:
        return f"{ranks} CPU ranks"
    return "the CPU"


def _requeue_sentence(attempt: Attempt) -> str:
    """How often the target put the job back into its queue, and why; "" if it did not."""
    placement = attempt.placement
    if placement is None or not placement.restarts:
        return ""
    at_limit = placement.limit_restarts
    preemptions = placement.restarts - placement.limit_restarts
    reasons = []
    if at_limit:
        reasons.append(f"{count_of(at_limit, 'time')} at its time limit")
    if preemptions:
        reasons.append(f"{count_of(preemptions, 'time')} by the cluster, as for a job of a higher priority")
    return f" Its job was requeued {' and '.join(reasons)}, and continued in this attempt."


def _resumption_clause(attempt: Attempt, resumption: Resumption | None) -> str:
    if resumption == "unaided":
        return f"; it went on by itself (step {attempt.first_step}), from what the script had saved"
    if attempt.resumed_from is None:
        return ""
    name = attempt.resumed_from.rstrip("/").rsplit("/", 1)[-1]
    first = attempt.first_step
    if resumption == "beginning":
        return f"; it started from the beginning (step {first}) although {name} was given"
    if resumption == "uncertain":
        return f"; it counts its steps from {first} again, and whether it loaded {name} cannot be seen"
    if resumption == "recounted":
        return f", resumed from {name}, as its loss shows, although it counts its steps from {first} again"
    if resumption in ("earlier", "later") and attempt.resumed_step is not None:
        checkpoint = f"{name} ({step_words(name, attempt.resumed_step)})"
        if resumption == "earlier":
            return f"; it went on from step {first} although {checkpoint} was given"
        later = f"a later checkpoint than {checkpoint}, which was given"
        return f"; it went on from step {first}, from {later}"
    # Without a step it is unknown whether the attempt loaded the checkpoint.
    if first is None:
        return f", given {name}"
    return f", resumed from {name}"


def _incident_sentence(incident: IncidentView, attempt: Attempt) -> str:
    summary = incident.summary[:1].upper() + incident.summary[1:]
    if incident.step is None:
        return f"{summary}."
    if attempt.last_step is not None and incident.step <= attempt.last_step:
        return f"{summary}, after step {incident.step}."
    return f"{summary}, at step {incident.step}."


def _evidence_sentence(incident: IncidentView) -> str:
    """Evidence that the summary does not contain."""
    quoted = []
    for line, witness in zip(incident.evidence, incident.witnesses, strict=False):
        # A finding that names a size which the summary leaves out.
        is_size = witness == "finding" and kind_of(incident.kind).missing_memory is not None
        is_new = str(line).rpartition("raised at ")[2] not in incident.summary
        if witness in ("kernel", "launcher") or (is_size and is_new):
            quoted.append(str(line).rstrip("."))
    if quoted:
        return f"Evidence: {'; '.join(quoted[:2])}."
    return ""


def _end_sentence(run: Run, attempt: Attempt, transitions: Sequence[TransitionView]) -> str:
    """The end of an attempt without an incident; "" while it lives."""
    record = attempt.exit or {}
    if isinstance(early := record.get("short_of"), list):
        last_step, total_steps = early
        return f"It ended by itself, with exit code 0, at step {last_step} of {total_steps}."
    if attempt.state == "stopped" or attempt.stop_requested:
        return _stop_sentence(run, attempt, transitions)
    if attempt.state != "succeeded":
        return ""
    remarks = record.get("remarks")
    if isinstance(remarks, list):
        return f"It succeeded, but {'; '.join(map(str, remarks))}."
    return "It succeeded."


def _stop_sentence(run: Run, attempt: Attempt, transitions: Sequence[TransitionView]) -> str:
    """Who or what stopped an attempt, and how."""
    if attempt.stop_requested == PHASE_OVER:
        if attempt.ended_at is None:
            return "Its phase of the profile is over."
        return "Its phase of the profile ended."
    if attempt.stop_requested == TIME_OVER:
        return "Its time limit was over: gputui asked it to stop."
    stop = _stop_by_others(attempt, transitions)
    if stop is not None and run.study_id is not None and stop.actor == f"study {run.study_id}":
        return f"Its study ended it as planned: {stop.cause}."
    # A user's name is not capitalized, even at the beginning of a sentence.
    who = "A person" if stop is None else stop.actor
    if attempt.ended_at is None:
        return f"{who} asked it to stop."
    if attempt.stop_requested == KILL:
        return f"{who} had it killed at once."
    is_forced = (attempt.exit or {}).get("forced") is True
    how = "it had to be killed" if is_forced else "it did"
    return f"{who} asked it to stop, and {how}."


def _stop_by_others(attempt: Attempt, transitions: Sequence[TransitionView]) -> TransitionView | None:
    """The first move to a stop in the life of an attempt that the agent did not make itself."""
    ended_at = math.inf if attempt.ended_at is None else attempt.ended_at
    for move in transitions:
        is_stop = move.to_state in (RunState.STOPPING, RunState.STOPPED)
        if is_stop and move.actor != AGENT and attempt.created_at <= move.at <= ended_at:
            return move
    return None


def _state_sentence(run: Run, attempts: Sequence[Attempt], now: float, is_explained: bool) -> str:
    """A sentence on the run's state; ``is_explained``: an attempt's paragraph has the reason."""
    tries = count_of(len(attempts), "attempt")
    match run.state:
        case RunState.SUCCEEDED:
            if took := ended_seconds(attempts):
                return f"The run succeeded with {tries} that took {duration(took)}."
            return f"The run succeeded with {tries}."
        case RunState.FAILED | RunState.STOPPED:
            # Of a trial the last attempt's paragraph has the reason.
            if not is_explained and run.study_id is None and run.reported_reason:
                return f"The run {run.state} after {tries}: {run.reported_reason}."
            return f"The run {run.state} after {tries}."
        case RunState.QUEUED if run.waiting_for:
            return f"It is waiting to start ({run.waiting_for})."
        case RunState.QUEUED:
            return "It is waiting to start."
        case RunState.RECOVERING | RunState.STARTING | RunState.RUNNING if run.waiting_for:
            return f"It {run.waiting_for}."
        case RunState.RECOVERING:
            if run.not_before is not None and run.not_before > now:
                return f"It will start again in {duration(run.not_before - now)}."
            return "It will start again now."
        case RunState.STOPPING:
            return "It is being stopped."
        case _:
            return f"It is {run.state}."
