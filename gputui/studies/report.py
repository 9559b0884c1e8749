"""A study's report as Markdown: what was asked and found, what was cut short and why, what to train next. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gputui.charts.units import UNKNOWN, duration, metric_value, percent
from gputui.runs.spec import Scalar
from gputui.store.studies import StudyRecord, TrialRecord, TrialState
from gputui.studies.analysis import counted, importances, ranked
from gputui.studies.spec import StudySpec

BEST_SHOWN = 5


def markdown(
    study: StudyRecord, spec: StudySpec, trials: Sequence[TrialRecord], *, gpu_hours: float, now: float
) -> str:
    """The whole report. ``now`` is UTC unix seconds."""
    return "\n".join(
        [*_head(study, spec, trials, gpu_hours, now), *_best(spec, trials), *_mattered(spec, trials), *_rest(trials)]
    )


def winner_command(spec: StudySpec, trial: TrialRecord) -> str:
    """The command that trains a trial's point as a run of its own."""
    values = {**spec.params, **trial.params}
    words = [word for name, value in values.items() for word in ("--set", f"{name}={_plain(value)}")]
    return shlex.join(["gputui", "run", spec.profile, *words])


def saved_share(spec: StudySpec, trials: Sequence[TrialRecord]) -> float | None:
    """The share of the rungs of full runs that pruning saved; None where no trial was pruned, or a rung is unknown."""
    over = [one for one in trials if one.state in (TrialState.COMPLETE, TrialState.PRUNED) and one.origin != "warm"]
    pruned = [one for one in over if one.state is TrialState.PRUNED]
    if not pruned or any(one.rung is None for one in pruned):
        return None
    return sum(1 - (one.rung or 0) / spec.pruner.rungs for one in pruned) / len(over)


def _head(
    study: StudyRecord, spec: StudySpec, trials: Sequence[TrialRecord], gpu_hours: float, now: float
) -> Iterator[str]:
    goal = " and ".join(f"{one.direction} `{one.metric}` ({one.over})" for one in spec.objectives)
    how = "population-based training" if spec.pbt is not None else f"{spec.sampler.kind} sampler"
    how += "" if spec.pbt is not None or spec.pruner.kind == "none" else f", {spec.pruner.kind} pruner"
    yield f"# Study {study.study_id}"
    yield ""
    yield f"Goal: {goal}. Profile `{spec.profile}`, {how}, seed {spec.seed}."
    yield ""
    states = counted(trials)
    counts = ", ".join(f"{states[state]} {state}" for state in TrialState if states.get(state))
    took = duration(max(0.0, (study.ended_at if study.ended_at is not None else now) - study.created_at))
    used = f", {gpu_hours:.3g} GPU-hours" if gpu_hours else ""
    why = f" ({study.reason})" if study.reason else ""
    yield f"{study.state.capitalize()}{why} after {took}{used}. Trials: {counts or 'none'}."
    saved = saved_share(spec, trials)
    if saved is not None:
        yield ""
        yield f"Pruning saved {percent(saved * 100)} of the rungs that full runs of these trials would have taken."


def _best(spec: StudySpec, trials: Sequence[TrialRecord]) -> Iterator[str]:
    best = ranked(trials, spec.objectives)
    if not best:
        yield from ("", "No trial is complete yet.")
        return
    yield from ("", "## Pareto front" if len(spec.objectives) > 1 else "## Best trials", "")
    shown = best if len(spec.objectives) > 1 else best[:BEST_SHOWN]
    heads = ["trial", "run", *(one.metric for one in spec.objectives), *spec.tuned]
    yield from _table(
        heads,
        [
            [
                str(one.number),
                one.run_id or UNKNOWN,
                *(metric_value(value) for value in one.values),
                *(_plain(one.params.get(name)) for name in spec.tuned),
            ]
            for one in shown
        ],
    )
    yield from ("", "Train the best one:", "", "```", winner_command(spec, best[0]), "```")


def _mattered(spec: StudySpec, trials: Sequence[TrialRecord]) -> Iterator[str]:
    found = importances(trials, spec.space, spec.objectives[0])
    if found is None:
        return
    yield from ("", "## What mattered", "")
    words = {1: "larger is better", -1: "smaller is better", 0: ""}
    yield from _table(
        ["parameter", "explains of the ranking", ""],
        [[one.name, percent(one.share * 100), words[one.sign]] for one in found],
    )


def _rest(trials: Sequence[TrialRecord]) -> Iterator[str]:
    rest = [one for one in trials if one.state.is_over and one.state is not TrialState.COMPLETE]
    if not rest:
        return
    yield from ("", "## Not complete", "")
    yield from _table(
        ["trial", "state", "why", "point"],
        [[str(one.number), one.state, one.reason or UNKNOWN, _point(one.params)] for one in rest],
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for cells in (heads, ["---"] * len(heads), *rows):
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _point(params: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_plain(value)}" for name, value in params.items())


def _plain(value: Scalar | None) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return UNKNOWN if value is None else str(value).lower() if isinstance(value, bool) else str(value)
