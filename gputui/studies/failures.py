"""Failures that would repeat in every other trial of a study, and end or pause it."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence

from gputui.core.yaml_forms.problems import nearest
from gputui.recovery.kinds import kind_of
from gputui.store.metrics.queries import metric_names
from gputui.store.run_states import RunState
from gputui.store.studies import OUTSIDE, StudyState, TrialRecord, TrialState
from gputui.studies.decide import RunEnd, active_trials
from gputui.studies.run_queries import ObjectiveReader, has_stepped, last_incident, objective_values
from gputui.studies.spec import PrunerSpec, StudySpec

SAME_ERRORS = 2
"""The study ends after so many trials with the same error before their first step, if no trial went
better."""
SAME_OF_SPACE = 4
"""As SAME_ERRORS, of trials that diverged or ran out of memory; where half of the space does, one
study of 16 begins so."""
OF_SPACE = {"diverged": "diverged", "out_of_memory": "ran out of memory"}
"""The causes by which a part of the space fails, in words: the loss or the objective is not a
number, or the point does not fit the machine."""


def common_failure(
    connection: sqlite3.Connection, spec: StudySpec, trials: Sequence[TrialRecord], failed: TrialRecord, end: RunEnd
) -> tuple[StudyState, str] | None:
    """Tell whether a failure would repeat in every other trial of a study.

    Args:
        connection: the open database.
        spec: the study's specification.
        trials: all its trials.
        failed: the trial that failed.
        end: the end of that trial's run.

    Returns:
        The state that the study is to have, and why; None if the failure need not repeat.
    """
    values = _values(connection, spec, failed)
    if end.state is RunState.SUCCEEDED and None in values and not any(trial.values for trial in trials):
        metric = spec.objectives[values.index(None)].metric
        missing = _unreported(metric, spec.pruner, metric_names(connection, failed.run_id or ""))
        return StudyState.PAUSED, f"no line of trial {failed.number} reports {missing}"
    launched = [trial for trial in trials if trial.origin not in ("warm", OUTSIDE)]
    cause = _shared_cause(connection, spec, launched)
    if cause is None:
        return None
    if cause in OF_SPACE:
        what = f"{SAME_OF_SPACE} trials in a row {OF_SPACE[cause]} and none was complete"
        reason = f"{what}: give smaller ranges, or fix the script (gputui explain {failed.run_id})"
    else:
        explain = f"gputui explain {failed.run_id}"
        reason = f"{SAME_ERRORS} trials failed alike at their start ({explain}): {end.reason}"
    if active_trials(launched):
        return StudyState.STOPPING, reason
    return StudyState.FAILED, reason


def _shared_cause(connection: sqlite3.Connection, spec: StudySpec, launched: Sequence[TrialRecord]) -> str | None:
    """The cause by which every trial fails; None while one works or may work."""
    # One that violates a constraint has its values.
    if any(trial.state in (TrialState.COMPLETE, TrialState.PRUNED) or trial.values for trial in launched):
        return None
    failures = (trial for trial in launched if trial.state in (TrialState.FAILED, TrialState.INFEASIBLE))
    over = sorted(failures, key=lambda trial: trial.ended_at or 0.0)
    causes = [_cause(connection, spec, trial) for trial in over]
    if not same_cause(causes):
        return None
    # A trial that works takes longer than one that fails: those that have made a step must fail alike.
    stepped = (trial for trial in launched if trial not in over and has_stepped(connection, trial.run_id))
    if all(_cause(connection, spec, trial) == causes[-1] for trial in stepped):
        return causes[-1]
    return None


def _values(connection: sqlite3.Connection, spec: StudySpec, trial: TrialRecord) -> list[float | None]:
    if trial.run_id is None:
        return objective_values({}, spec)
    return objective_values(ObjectiveReader(connection).read(spec, trial), spec)


def _cause(connection: sqlite3.Connection, spec: StudySpec, trial: TrialRecord) -> str | None:
    """The cause that failed a trial, or soon will, and may fail every other one; see `same_cause`."""
    kind, fingerprint = last_incident(connection, trial.run_id) or (None, None)
    values = _values(connection, spec, trial)
    fault = None if kind is None else kind_of(kind).fault
    if fault == "training" or any(value is not None and not math.isfinite(value) for value in values):
        return "diverged"
    if fault == "memory":
        return "out_of_memory"
    if has_stepped(connection, trial.run_id):
        return None
    return fingerprint


def same_cause(causes: Sequence[str | None]) -> bool:
    """Return whether every trial fails alike. ``causes`` are those of all that are over, in the
    order of their ends: one of OF_SPACE, the fingerprint of an incident before the first step, or None."""
    needed = SAME_OF_SPACE if causes[-1] in OF_SPACE else SAME_ERRORS
    return None not in causes and len(causes) >= needed and len(set(causes[-needed:])) == 1


def _unreported(metric: str, pruner: PrunerSpec, names: Sequence[str]) -> str:
    """A sentence about a metric that no line of a trial reports, and what is there instead.
    ``names`` are the metrics of its run."""
    if metric in names:
        return f"{metric} together with {pruner.by}, which the pruner counts by"
    meant = nearest(metric, names)
    if meant:
        hint = f"did you mean {meant}?"
    else:
        hint = f"there are {', '.join(names) or 'none'}"
    return f"{metric}; {hint}"
