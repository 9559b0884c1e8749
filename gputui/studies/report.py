"""A study's report: goal, results, pruned trials, and commands to train the best points.

The sections are data; the templates of `gputui.reports` say how a page and Markdown show them.
"""

from __future__ import annotations

import re
import shlex
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup
from msgspec import Struct

from gputui.core.config import Workspace
from gputui.core.redaction import redact_argv
from gputui.core.units import UNKNOWN, duration, gpu_hours, metric_value, parameter, percent
from gputui.core.yaml_forms.problems import ProfileError
from gputui.metrics.draw.export import svg_text
from gputui.metrics.draw.parts import Chart
from gputui.metrics.draw.picture import picture
from gputui.profiles.profile_file import ProfileNotFoundError, find, load
from gputui.reports.pages import render
from gputui.runs.command import assignments
from gputui.runs.spec import RunSpec, SpecError
from gputui.runs.submission import read_spec
from gputui.store.studies import OUTSIDE, StudyRecord, TrialRecord, TrialState
from gputui.studies import pictures
from gputui.studies.analysis import rank_trials, split_by_objective, state_counts
from gputui.studies.importances import evaluate_importances
from gputui.studies.results import StudyResults, read_results
from gputui.studies.rows import SPEC_FILE
from gputui.studies.spec import Objective, StudySpec
from gputui.studies.study_file import gpus_of

BEST_SHOWN = 5  # more are in the journal and the list of trials
TRAINED_AGAIN = 2
"""How many trials get a command in the report; all of a Pareto front do."""
_SIZE = (1000, 360)
_HALF_SIZE = (600, 360)


class StudyFindings(Struct, frozen=True):
    """The input of a report.

    Attributes:
        now: the time of the results, UTC unix seconds.
        run_words: the words of `gputui run` that name the profile and, where they differ from it,
            the GPUs of a trial.
        typed: the command that was typed for a study without a profile; empty with one.
    """

    results: StudyResults
    now: float
    run_words: Sequence[str]
    typed: Sequence[str] = ()


class _Section(Struct, frozen=True):
    """A heading with a table, commands and drawings.

    Attributes:
        title: the heading.
        heads: the heads of the table's columns; empty without a table.
        rows: the cells of each row.
        commands: pairs of what a command does and the command.
        drawings: the drawings by the name of their file, without its suffix.
    """

    title: str
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    commands: Sequence[tuple[str, str]] = ()
    drawings: Mapping[str, Chart] = {}


def read_findings(
    connection: sqlite3.Connection, workspace: Workspace, study: StudyRecord, now: float, at: float | None = None
) -> StudyFindings:
    """The findings of a study, now or at a past time. Raises sqlite3.Error."""
    results = read_results(connection, study, now, at)
    base: RunSpec | None = None
    with suppress(SpecError):
        base = read_spec(workspace.studies / study.study_id / SPEC_FILE)
    typed = () if base is None else redact_argv(base.typed)
    moment = now if at is None else at
    return StudyFindings(results, moment, _run_words(workspace, base, results.spec), typed)


def _run_words(workspace: Workspace, base: RunSpec | None, spec: StudySpec) -> list[str]:
    """The words of `gputui run` that name the study's profile, by its path where its name means none
    or another one here, its target, and the GPUs of a trial where they differ from the profile's."""
    on = []
    if spec.target is not None:
        on = ["--on", str(spec.target["name"])]
    if base is not None and base.typed:
        return [*on, "--gpus", str(spec.gpus_per_trial)]
    try:
        path = Path((base and base.profile_path) or "")
        profile = load(path)
    except ProfileError:
        return [spec.profile, *on]
    try:
        is_found = find(spec.profile, workspace, Path.cwd()).resolve() == path.resolve()
    except ProfileNotFoundError:
        is_found = False
    gpus = []
    if spec.gpus_per_trial != gpus_of(profile):
        gpus = ["--gpus", str(spec.gpus_per_trial)]
    if is_found:
        return [spec.profile, *on, *gpus]
    return [str(path), *on, *gpus]


# --- rendering --------------------------------------------------------------------------------------------------------


def markdown(findings: StudyFindings, *, with_pictures: bool = False) -> str:
    """The report as Markdown. ``with_pictures`` refers to the files of `contents`, beside it."""
    sections = _sections(findings)
    if not with_pictures:
        sections = [section for section in sections if section.heads or not section.drawings]
    return _render("study.md.j2", findings, sections, with_pictures=with_pictures)


def page(findings: StudyFindings) -> str:
    """The report as one HTML page."""
    written_at = datetime.fromtimestamp(findings.now, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return _render("study.html.j2", findings, _sections(findings), note=f"gputui, {written_at}", svg=_safe_svg)


def contents(findings: StudyFindings) -> dict[str, bytes]:
    """The files of a report by name: Markdown with its pictures, and a self-contained page."""
    drawn = {f"{name}.svg": _svg(part, name).encode() for part in _sections(findings) for name in part.drawings}
    text = markdown(findings, with_pictures=True) + "\n"
    return {**drawn, "report.md": text.encode(), "report.html": page(findings).encode()}


def _render(template: str, findings: StudyFindings, sections: Sequence[_Section], **more: Any) -> str:
    spec = findings.results.spec
    saved = saved_share(spec, findings.results.trials)
    saved_text = None
    if saved is not None:
        saved_text = percent(saved * 100)
    return render(
        template,
        title=f"Study {findings.results.study.study_id}",
        goals=spec.objectives,
        profile=spec.profile,
        target=spec.target_name,
        method=_method_words(spec),
        outcome=_outcome_words(findings),
        saved=saved_text,
        sections=sections,
        **more,
    )


def _method_words(spec: StudySpec) -> str:
    """``tpe sampler, median pruner, seed 0``."""
    if spec.pbt is not None:
        sampler = spec.method
    else:
        sampler = f"{spec.method} sampler"
    pruner = ""
    if spec.pruner.kind != "none":
        pruner = f", {spec.pruner.kind} pruner"
    return f"{sampler}{pruner}, seed {spec.seed}"


def _outcome_words(findings: StudyFindings) -> str:
    """The state of a study with its reason, duration and cost, and the number of its trials."""
    study = findings.results.study
    states = state_counts(findings.results.trials)
    counts = ", ".join(f"{states[state]} {state}" for state in TrialState if states.get(state))
    used = ""
    if findings.results.gpu_hours:
        used = f", {gpu_hours(findings.results.gpu_hours)} GPU-hours"
    why = ""
    if study.reason:
        why = f" ({study.reason})"
    duration_words = duration(findings.results.running_seconds)
    return f"{study.state.capitalize()}{why} after {duration_words}{used}. Trials: {counts or 'none'}."


def _svg(section: _Section, name: str) -> str:
    size = _SIZE if len(section.drawings) == 1 else _HALF_SIZE
    return svg_text(picture(section.drawings[name], *size))


def _safe_svg(section: _Section, name: str) -> Markup:
    """A drawing as a part of a page; it escapes its labels."""
    return Markup(_svg(section, name))  # noqa: S704


# --- content ----------------------------------------------------------------------------------------------------------


def winner_command(findings: StudyFindings, trial: TrialRecord) -> str:
    """The command that trains a trial's point, to the last digit, as a separate run. A member of a
    population goes through its whole lineage again."""
    if findings.results.spec.pbt is not None and trial.origin != OUTSIDE:
        study_id = findings.results.study.study_id
        file = f"{study_id}-t{trial.number}.yaml"
        export = ["gputui", "study", "export", study_id, file, "--lineage", "--trial", str(trial.number)]
        return f"{shlex.join(export)} && {shlex.join(['gputui', 'run', f'./{file}'])}"
    values = {**findings.results.spec.params, **trial.params}
    command = ["gputui", "run", *findings.run_words]
    for assignment in assignments(values):
        command += ["--set", assignment]
    if findings.typed:
        command += ["--", *findings.typed]
    return shlex.join(command)


def saved_share(spec: StudySpec, trials: Sequence[TrialRecord]) -> float | None:
    """The share of the rungs of full runs that pruning saved; None if no trial was pruned or a rung
    is unknown."""
    launched = [trial for trial in trials if trial.origin not in ("warm", OUTSIDE)]
    pruned = [trial.rung for trial in launched if trial.state is TrialState.PRUNED]
    rungs = [rung for rung in pruned if rung is not None]
    if not rungs or len(rungs) < len(pruned):
        return None
    over = len(pruned) + state_counts(launched)[TrialState.COMPLETE]
    return sum(1 - rung / spec.pruner.rungs for rung in rungs) / over


def _sections(findings: StudyFindings) -> list[_Section]:
    parts = (_best, _curves, _importances, _lineage, _not_complete)
    return [section for part in parts for section in part(findings)]


def _best(findings: StudyFindings) -> Iterator[_Section]:
    spec = findings.results.spec
    best = rank_trials(findings.results.trials, spec.objectives, most=BEST_SHOWN)
    if not best:
        yield _Section("No trial is complete yet")
        return
    is_front = len(spec.objectives) > 1
    rows = [
        [
            str(trial.number),
            trial.run_id or UNKNOWN,
            *map(metric_value, trial.values),
            *(parameter(trial.params.get(name, UNKNOWN)) for name in spec.tuned),
        ]
        for trial in best
    ]
    commands = []
    ranks = ("the best, ", "the second best, ")
    for index, trial in enumerate(best):
        if is_front:
            commands.append((f"Train trial {trial.number} as a run of its own:", winner_command(findings, trial)))
        elif index < len(ranks):
            title = f"Train {ranks[index]}trial {trial.number}, as a run of its own:"
            commands.append((title, winner_command(findings, trial)))
    heads = ["trial", "run", *(objective.metric for objective in spec.objectives), *spec.tuned]
    title = "Pareto front" if is_front else "Best trials"
    yield _Section(title, heads, rows, commands)


def _curves(findings: StudyFindings) -> Iterator[_Section]:
    spec = findings.results.spec
    trials = findings.results.trials
    rungs = findings.results.rungs
    if not any(trial.ended_at is not None for trial in trials):
        return
    for objective, ranked_trials in split_by_objective(trials, spec.objectives):
        title, name = _of_objective(spec, objective, "What was found when", "values")
        yield _Section(title, drawings={name: pictures.draw_values(ranked_trials, rungs, objective)})
    if len(spec.objectives) > 1:
        yield _Section("One objective over the other", drawings={"front": pictures.draw_front(trials, spec.objectives)})
    drawing = pictures.draw_curves(trials, rungs, spec)
    if any(len(curve.bins) > 1 for curve in drawing.curves):
        title = f"The best {pictures.COLOURED_COURSES} trials in colours, all others grey"
        yield _Section(title, drawings={"curves": drawing})


def _importances(findings: StudyFindings) -> Iterator[_Section]:
    spec = findings.results.spec
    dimensions = {dimension.name: dimension for dimension in spec.space}
    by_importance = evaluate_importances(findings.results.trials, spec)
    for objective, trials in split_by_objective(findings.results.trials, spec.objectives):
        rows = []
        drawings = {}
        for importance in (candidate for candidate in by_importance if candidate.objective == objective.metric):
            title, name = _of_objective(spec, objective, "What mattered", f"over-{_file_name(importance.name)}")
            rows.append([importance.name, percent(importance.share * 100)])
            drawings[name] = pictures.draw_over_parameter(
                trials, findings.results.rungs, dimensions[importance.name], objective
            )
        if rows:
            yield _Section(title, ["parameter", "importance"], rows, drawings=drawings)


def _of_objective(spec: StudySpec, objective: Objective, title: str, name: str) -> tuple[str, str]:
    """A title and a picture's name that tell one of several objectives."""
    if len(spec.objectives) == 1:
        return title, name
    return f"{title} for {objective.metric}", f"{name}-of-{_file_name(objective.metric)}"


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "-", name)


def _lineage(findings: StudyFindings) -> Iterator[_Section]:
    tuned = findings.results.spec.tuned
    rows = [
        [
            str(trial.number),
            f"trial {trial.parent}",
            str(trial.generation),
            *(parameter(trial.params.get(name, UNKNOWN)) for name in tuned),
        ]
        for trial in findings.results.trials
        if trial.generation is not None and trial.parent is not None
    ]
    if rows:
        yield _Section("Who went on from whom", ["member", "continues from", "after milestone", *tuned], rows)


def _not_complete(findings: StudyFindings) -> Iterator[_Section]:
    rows = []
    for trial in findings.results.trials:
        if trial.state.is_over and trial.state is not TrialState.COMPLETE:
            point = " ".join(f"{name}={parameter(value)}" for name, value in trial.params.items())
            rows.append([str(trial.number), trial.state, trial.reason or UNKNOWN, point])
    if rows:
        yield _Section("Not complete", ["trial", "state", "why", "point"], rows)
