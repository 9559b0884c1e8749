"""A study's report: goal, results, pruned trials, and commands to train the best points. Pure.

The sections are data; the templates of `gputui.reports` say how a page and Markdown show them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any

from markupsafe import Markup
from msgspec import Struct

from gputui.core.units import UNKNOWN, duration, gpu_hours, metric_value, percent
from gputui.metrics.draw.export import svg_text
from gputui.metrics.draw.picture import Drawing, picture
from gputui.reports.pages import render
from gputui.runs.command import assignments
from gputui.runs.spec import Scalar
from gputui.store.studies import OUTSIDE, RungValue, StudyRecord, TrialRecord, TrialState
from gputui.studies import pictures
from gputui.studies.analysis import by_objective, counted, ranked
from gputui.studies.importances import importances
from gputui.studies.spec import Objective, StudySpec

BEST_SHOWN = 5
TRAINED_AGAIN = 2
"""How many trials get a command in the report; all of a Pareto front do."""

_SIZE, _HALF_SIZE = (1000, 360), (600, 360)


class StudyFindings(Struct, frozen=True):
    """The input of a report. ``rungs`` are by trial; ``now`` is UTC unix seconds;
    ``running_seconds`` is how long the study ran, without its pauses. ``run_words`` are the words
    of a command that name the profile and, where they differ from it, the GPUs of a trial."""

    study: StudyRecord
    spec: StudySpec
    trials: Sequence[TrialRecord]
    rungs: Mapping[int, Sequence[RungValue]]
    gpu_hours: float
    running_seconds: float
    now: float
    run_words: Sequence[str]


class _Section(Struct, frozen=True):
    """A heading with a table, commands with what they do, and drawings by their file's name."""

    title: str
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    commands: Sequence[tuple[str, str]] = ()
    drawings: Mapping[str, Drawing] = {}


# --- rendering


def markdown(findings: StudyFindings, *, with_pictures: bool = False) -> str:
    """The report as Markdown. ``with_pictures`` refers to the files of `contents`, beside it."""
    sections = _sections(findings)
    if not with_pictures:
        sections = [section for section in sections if section.heads or not section.drawings]
    return _render("study.md.j2", findings, sections, with_pictures=with_pictures)


def page(findings: StudyFindings) -> str:
    """The report as one HTML page."""
    made = datetime.fromtimestamp(findings.now, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return _render("study.html.j2", findings, _sections(findings), note=f"gputui, {made}", svg=_safe_svg)


def contents(findings: StudyFindings) -> dict[str, bytes]:
    """The files of a report by name: Markdown with its pictures, and a self-contained page."""
    drawn = {f"{name}.svg": _svg(part, name).encode() for part in _sections(findings) for name in part.drawings}
    text = markdown(findings, with_pictures=True) + "\n"
    return {**drawn, "report.md": text.encode(), "report.html": page(findings).encode()}


def _render(template: str, findings: StudyFindings, sections: Sequence[_Section], **more: Any) -> str:
    study, spec = findings.study, findings.spec
    states = counted(findings.trials)
    counts = ", ".join(f"{states[state]} {state}" for state in TrialState if states.get(state))
    used = f", {gpu_hours(findings.gpu_hours)} GPU-hours" if findings.gpu_hours else ""
    why = f" ({study.reason})" if study.reason else ""
    outcome = f"{study.state.capitalize()}{why} after {duration(findings.running_seconds)}{used}."
    method = spec.method if spec.pbt is not None else f"{spec.method} sampler"
    method += "" if spec.pruner.kind == "none" else f", {spec.pruner.kind} pruner"
    saved = saved_share(spec, findings.trials)
    return render(
        template,
        title=_title(findings),
        goals=[asdict(objective) for objective in spec.objectives],
        profile=spec.profile,
        target=None if spec.target is None else spec.target["name"],
        method=f"{method}, seed {spec.seed}",
        outcome=f"{outcome} Trials: {counts or 'none'}.",
        saved=None if saved is None else percent(saved * 100),
        sections=sections,
        **more,
    )


def _svg(section: _Section, name: str) -> str:
    return svg_text(picture(section.drawings[name], *(_SIZE if len(section.drawings) == 1 else _HALF_SIZE)))


def _safe_svg(section: _Section, name: str) -> Markup:
    """A drawing as a part of a page; it escapes its labels."""
    return Markup(_svg(section, name))  # noqa: S704


def _title(findings: StudyFindings) -> str:
    return f"Study {findings.study.study_id}"


# --- content


def winner_command(findings: StudyFindings, trial: TrialRecord) -> str:
    """The command that trains a trial's point, to the last digit, as a separate run. A member of a
    population goes through its whole course again."""
    if findings.spec.pbt is not None:
        file = f"{findings.study.study_id}-t{trial.number}.yaml"
        export = ["gputui", "study", "export", findings.study.study_id, file, "--lineage", "--trial", str(trial.number)]
        return f"{shlex.join(export)} && {shlex.join(['gputui', 'run', f'./{file}'])}"
    values = {**findings.spec.params, **trial.params}
    words = [word for each in assignments(values) for word in ("--set", each)]
    return shlex.join(["gputui", "run", *findings.run_words, *words])


def saved_share(spec: StudySpec, trials: Sequence[TrialRecord]) -> float | None:
    """The share of the rungs of full runs that pruning saved; None if no trial was pruned or a rung
    is unknown."""
    over = [
        trial
        for trial in trials
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) and trial.origin not in ("warm", OUTSIDE)
    ]
    pruned = [trial for trial in over if trial.state is TrialState.PRUNED]
    if not pruned or any(trial.rung is None for trial in pruned):
        return None
    return sum(1 - (trial.rung or 0) / spec.pruner.rungs for trial in pruned) / len(over)


def _sections(findings: StudyFindings) -> list[_Section]:
    return [
        *_best(findings),
        *_courses(findings),
        *_importances(findings),
        *_lineage(findings),
        *_rest(findings.trials),
    ]


def _best(findings: StudyFindings) -> Iterator[_Section]:
    spec = findings.spec
    best = ranked(findings.trials, spec.objectives)
    is_front = len(spec.objectives) > 1
    if not best:
        yield _Section("No trial is complete yet")
        return
    shown = best if is_front else best[:BEST_SHOWN]
    heads = ["trial", "run", *(objective.metric for objective in spec.objectives), *spec.tuned]
    rows = [
        [
            str(trial.number),
            trial.run_id or UNKNOWN,
            *(metric_value(value) for value in trial.values),
            *(_plain(trial.params.get(name)) for name in spec.tuned),
        ]
        for trial in shown
    ]
    commands = []
    for place, trial in enumerate(best if is_front else best[:TRAINED_AGAIN]):
        rank = f"the second best, trial {trial.number}," if place else f"the best, trial {trial.number},"
        which = f"trial {trial.number}" if is_front else rank
        commands.append((f"Train {which} as a run of its own:", winner_command(findings, trial)))
    yield _Section("Pareto front" if is_front else "Best trials", heads, rows, commands)


def _courses(findings: StudyFindings) -> Iterator[_Section]:
    spec, trials = findings.spec, findings.trials
    if not any(trial.ended_at is not None for trial in trials):
        return
    for objective, own in by_objective(trials, spec.objectives):
        drawing = pictures.values_by_trial(own, findings.rungs, objective)
        yield _Section(
            f"What was found when{_for(spec, objective)}", drawings={f"values{_of(spec, objective)}": drawing}
        )
    if len(spec.objectives) > 1:
        yield _Section("One objective over the other", drawings={"front": pictures.front(trials, spec.objectives)})
    drawing = pictures.courses(trials, findings.rungs, spec)
    if any(len(curve.bins) > 1 for curve in drawing.curves):
        title = f"The best {pictures.COLOURED_COURSES} trials in colours, all others grey"
        yield _Section(title, drawings={"courses": drawing})


def _importances(findings: StudyFindings) -> Iterator[_Section]:
    spec = findings.spec
    by_name = {dimension.name: dimension for dimension in spec.space}
    known = importances(findings.trials, spec)
    for objective, trials in by_objective(findings.trials, spec.objectives):
        found = [one for one in known if one.objective == objective.metric]
        if found:
            over = partial(pictures.over_parameter, trials, findings.rungs)
            yield _Section(
                f"What mattered{_for(spec, objective)}",
                ["parameter", "importance"],
                [[one.name, percent(one.share * 100)] for one in found],
                drawings={
                    f"over-{_file_name(one.name)}{_of(spec, objective)}": over(by_name[one.name], objective)
                    for one in found
                },
            )


def _for(spec: StudySpec, objective: Objective) -> str:
    return f" for {objective.metric}" if len(spec.objectives) > 1 else ""


def _of(spec: StudySpec, objective: Objective) -> str:
    """The part of a picture's name that tells objectives apart."""
    return f"-of-{_file_name(objective.metric)}" if len(spec.objectives) > 1 else ""


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "-", name)


def _lineage(findings: StudyFindings) -> Iterator[_Section]:
    moved = [trial for trial in findings.trials if trial.generation is not None and trial.parent is not None]
    if moved:
        tuned = findings.spec.tuned
        yield _Section(
            "Who went on from whom",
            ["member", "continues from", "after milestone", *tuned],
            [
                [
                    str(one.number),
                    f"trial {one.parent}",
                    str(one.generation),
                    *(_plain(one.params.get(n)) for n in tuned),
                ]
                for one in moved
            ],
        )


def _rest(trials: Sequence[TrialRecord]) -> Iterator[_Section]:
    rest = [trial for trial in trials if trial.state.is_over and trial.state is not TrialState.COMPLETE]
    if rest:
        rows = []
        for trial in rest:
            point = " ".join(f"{name}={_plain(value)}" for name, value in trial.params.items())
            rows.append([str(trial.number), trial.state, trial.reason or UNKNOWN, point])
        yield _Section("Not complete", ["trial", "state", "why", "point"], rows)


def _plain(value: Scalar | None) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return UNKNOWN if value is None else str(value).lower() if isinstance(value, bool) else str(value)
