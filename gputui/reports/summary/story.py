"""The verdict on runs in a sentence, and the story of their recoveries. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gputui.core.units import UNKNOWN, count, count_of, duration, metric_value, parameter
from gputui.recovery.costs import in_words
from gputui.recovery.run_history import Failure
from gputui.reports.summary.facts import Best, RunFacts
from gputui.runs.checkpoint_names import step_words
from gputui.runs.spec import RunSpec
from gputui.store.attempts import Attempt
from gputui.store.metrics.roles import is_held_out
from gputui.store.run_history import DecisionView

_PLAIN = ("restart", "wait", "rollback")
"""Actions that the beginning of the next attempt tells of."""


def recoveries(failures: Sequence[Failure], spec: RunSpec | None) -> tuple[str, ...]:
    """A sentence about each failure, what gputui changed, and from where it continued.

    Example: ``Attempt 1 → 2: batch 16 × 3 → 12 × 4, from step_30.pt (step 30), because CUDA ran out of memory on
    rank 0, at step 35; it cost 5 steps and 9 s.``

    Args:
        failures: Oldest first.
        spec: None if the stored specification cannot be read.
    """
    return tuple(_recovery_sentence(failure, spec) for failure in failures)


def _recovery_sentence(failure: Failure, spec: RunSpec | None) -> str:
    incident = failure.incident
    reason = f"because {incident.summary}"
    if incident.step is not None and f"step {incident.step}" not in incident.summary:
        reason += f", at step {count(incident.step)}"
    cost = ""
    if failure.cost is not None:
        cost = in_words(failure.cost)
    if cost:
        return f"{_outcome(failure, spec)}, {reason}; it cost {cost}."
    return f"{_outcome(failure, spec)}, {reason}."


def _outcome(failure: Failure, spec: RunSpec | None) -> str:
    """``Attempt 1 → 2: batch 16 × 3 → 12 × 4, from step_30.pt (step 30)``, or ``Attempt 3: stopped``."""
    number = failure.incident.attempt
    decision = failure.decision
    if decision is not None and decision.verdict == "stop":
        return f"Attempt {number}: stopped"
    parts = []
    if failure.attempt is not None and decision is not None:
        before = failure.attempt.params
        parts.append(_change(before, {**before, **decision.params}, spec))
        parts += _notes(decision)
    if failure.next_attempt is not None:
        parts.append(_start(failure.next_attempt))
    measures = ", ".join(filter(None, parts)) or "tried again"
    return f"Attempt {number} → {number + 1}: {measures}"


def _notes(decision: DecisionView) -> list[str]:
    """Effects of a decision beside changes of parameters: ``took another GPU in place of GPU 7``."""
    notes = []
    for action in decision.actions:
        if not isinstance(action, dict) or not action["applied"]:
            continue
        is_told_elsewhere = action["changes"] or action["action"] in _PLAIN
        if action["action"] == "exclude_gpu" or not is_told_elsewhere:
            notes.append(action["note"])
    return notes


def _change(before: Mapping[str, Any], after: Mapping[str, Any], spec: RunSpec | None) -> str:
    """``batch 16 × 3 → 12 × 4, lr 0.1 → 0.05``."""
    changed = [name for name in after if before.get(name) != after[name]]
    changes = []
    batch = accumulation = None
    if spec is not None:
        batch = spec.role("batch_size", after)
        accumulation = spec.role("grad_accum", after)
    if batch in changed and accumulation in changed:
        sizes = [f"{params.get(batch, 1)} × {params.get(accumulation, 1)}" for params in (before, after)]
        changes.append(f"batch {' → '.join(sizes)}")
        changed = [name for name in changed if name not in (batch, accumulation)]
    for name in changed:
        changes.append(f"{name} {parameter(before.get(name, UNKNOWN))} → {parameter(after[name])}")
    return ", ".join(changes)


def _start(attempt: Attempt) -> str:
    if attempt.resumed_from is None:
        return "from the start"
    _, _, name = attempt.resumed_from.rstrip("/").rpartition("/")
    if attempt.resumed_step is None:
        return f"from {name}"
    return f"from {name} ({step_words(name, attempt.resumed_step)})"


def best_of(run: RunFacts) -> Best | None:
    """The best value of the metric that matters most: the one that its study or profile names, a validation metric,
    else the loss."""
    bests = {best.name: best for best in run.measured.best}
    roles = run.run.roles
    names = [run.run.metric, roles.validation, *filter(is_held_out, bests), roles.training, *bests]
    return next((bests[name] for name in names if name in bests), None)


def verdict(run: RunFacts) -> str:
    """The result of a run in one sentence."""
    parts = [_course(run)]
    best = best_of(run)
    if best is not None:
        parts.append(f"best {best.name} {metric_value(best.value)}")
        if best.step is not None:
            parts[-1] += f" (step {count(best.step)})"
    if run.lost is not None:
        parts.append(count_of(run.lost.incidents, "failure"))
        if cost := in_words(run.lost):
            parts[-1] += f" cost {cost}"
    sentence = "; ".join(parts)
    if run.run.reported_reason and run.run.state != "succeeded":
        return f"{sentence}: {run.run.reported_reason}."
    return f"{sentence}."


def _course(run: RunFacts) -> str:
    """``vit-1 is running at step 400 with 2 attempts that took 3 h``."""
    verb = " is" if run.run.ended_at is None else ""
    text = f"{run.run.run_id}{verb} {run.run.state}"
    if run.last_step is not None:
        text += f" at step {count(run.last_step)}"
    text += f" with {count_of(run.attempts, 'attempt')}"
    if run.took_seconds is not None:
        text += f" that took {duration(run.took_seconds)}"
    return text


def verdict_on_all(runs: Sequence[RunFacts]) -> str:
    """The result of several runs in one sentence."""
    states = Counter(str(run.run.state) for run in runs)
    counted = ", ".join(f"{number} {state}" for state, number in states.most_common())
    parts = [f"{count_of(len(runs), 'run')}: {counted}"]
    measured = [(run, best) for run in runs if (best := best_of(run)) is not None]
    if len({best.name for _, best in measured}) == 1:
        run, best = _leader(measured)
        parts.append(f"{run.run.run_id} has the best {best.name}, {metric_value(best.value)}")
    failures = sum(run.lost.incidents for run in runs if run.lost is not None)
    if failures:
        parts.append(count_of(failures, "failure"))
    return f"{'; '.join(parts)}."


def _leader(measured: Sequence[tuple[RunFacts, Best]]) -> tuple[RunFacts, Best]:
    """The run with the best value of the metric that all have."""
    _, first_best = measured[0]
    if first_best.better == "more":
        return max(measured, key=_best_value)
    return min(measured, key=_best_value)


def _best_value(measured: tuple[RunFacts, Best]) -> float:
    _, best = measured
    return best.value
