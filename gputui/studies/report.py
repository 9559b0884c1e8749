"""A study's report: goal, results, pruned trials, and commands to train the best points. Pure.

It is built once as blocks, which `markdown` and `page` render.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from gputui.core.text import clean
from gputui.core.units import UNKNOWN, duration, gpu_hours, metric_value, percent
from gputui.metrics.draw.export import svg_text
from gputui.metrics.draw.picture import Drawing, picture
from gputui.reports import html
from gputui.runs.command import assignments
from gputui.runs.spec import Scalar
from gputui.store.studies import RungValue, StudyRecord, TrialRecord, TrialState
from gputui.studies import pictures
from gputui.studies.analysis import by_objective, counted, importances, ranked
from gputui.studies.spec import Objective, StudySpec

BEST_SHOWN = 5
TRAINED_AGAIN = 2
"""How many trials get a command in the report."""

_SIZE, _HALF_SIZE = (1000, 360), (600, 360)
_CODE = re.compile(r"`([^`]*)`")


class StudyFindings(Struct, frozen=True):
    """The input of a report. ``rungs`` are by trial; ``now`` is UTC unix seconds; ``running_seconds`` is how long the
    study ran, without its pauses. ``run_words`` are the words of a command that name the profile and, where they differ
    from it, the GPUs of a trial."""

    study: StudyRecord
    spec: StudySpec
    trials: Sequence[TrialRecord]
    rungs: Mapping[int, Sequence[RungValue]]
    gpu_hours: float
    running_seconds: float
    now: float
    run_words: Sequence[str]


class _Heading(Struct, frozen=True):
    text: str


class _Sentence(Struct, frozen=True):
    """Plain text with names in backticks."""

    text: str


class _Rows(Struct, frozen=True):
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


class _Command(Struct, frozen=True):
    text: str


class _Pictures(Struct, frozen=True):
    """Drawings, side by side if there is room, by their file's name."""

    drawings: Mapping[str, Drawing]


_Block = _Heading | _Sentence | _Rows | _Command | _Pictures


# --- rendering


def markdown(findings: StudyFindings, *, with_pictures: bool = False) -> str:
    """The report as Markdown. ``with_pictures`` refers to the files of `contents`, beside it."""
    lines = [f"# {_title(findings)}"]
    for block in _blocks(findings, with_pictures=with_pictures):
        match block:
            case _Heading():
                lines += ["", f"## {block.text}"]
            case _Sentence():
                lines += ["", clean(block.text)]
            case _Command():
                lines += ["", "```", clean(block.text), "```"]
            case _Rows():
                lines += ["", *_markdown_table(block)]
            case _Pictures():
                lines += [line for name in block.drawings for line in ("", f"![{name.replace('-', ' ')}]({name}.svg)")]
    return "\n".join(lines)


def page(findings: StudyFindings) -> str:
    """The report as one HTML page."""
    parts: list[str] = []
    for block in _blocks(findings):
        match block:
            case _Heading():
                parts.append(f"<h2>{html.plain(block.text)}</h2>")
            case _Sentence():
                words = _CODE.sub(r"<code>\1</code>", html.plain(block.text))
                parts.append(f"<p>{words}</p>")
            case _Command():
                parts.append(f"<pre><code>{html.plain(block.text)}</code></pre>")
            case _Rows():
                parts.append(html.table(block.heads, block.rows))
            case _Pictures():
                drawn = [html.wide(_svg(block, name)) for name in block.drawings]
                parts += drawn if len(drawn) == 1 else ['<div class="beside">', *drawn, "</div>"]
    made = datetime.fromtimestamp(findings.now, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return html.document(_title(findings), f"gputui, {made}", parts)


def contents(findings: StudyFindings) -> dict[str, bytes]:
    """The files of a report by name: Markdown with its pictures, and a self-contained page."""
    drawn = {
        f"{name}.svg": _svg(block, name).encode()
        for block in _blocks(findings)
        if isinstance(block, _Pictures)
        for name in block.drawings
    }
    text = markdown(findings, with_pictures=True) + "\n"
    return {**drawn, "report.md": text.encode(), "report.html": page(findings).encode()}


def _svg(block: _Pictures, name: str) -> str:
    return svg_text(picture(block.drawings[name], *(_SIZE if len(block.drawings) == 1 else _HALF_SIZE)))


def _markdown_table(table: _Rows) -> Iterator[str]:
    for cells in (table.heads, ["---"] * len(table.heads), *table.rows):
        yield "| " + " | ".join(clean(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


# --- content


def winner_command(findings: StudyFindings, trial: TrialRecord) -> str:
    """The command that trains a trial's point, to the last digit, as a separate run. A member of a population goes
    through its whole course again."""
    if findings.spec.pbt is not None:
        file = f"{findings.study.study_id}-t{trial.number}.yaml"
        export = ["gputui", "study", "export", findings.study.study_id, file, "--lineage", "--trial", str(trial.number)]
        return f"{shlex.join(export)} && {shlex.join(['gputui', 'run', f'./{file}'])}"
    values = {**findings.spec.params, **trial.params}
    words = [word for each in assignments(values) for word in ("--set", each)]
    return shlex.join(["gputui", "run", *findings.run_words, *words])


def saved_share(spec: StudySpec, trials: Sequence[TrialRecord]) -> float | None:
    """The share of the rungs of full runs that pruning saved; None if no trial was pruned or a rung is unknown."""
    over = [
        trial for trial in trials if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) and trial.origin != "warm"
    ]
    pruned = [trial for trial in over if trial.state is TrialState.PRUNED]
    if not pruned or any(trial.rung is None for trial in pruned):
        return None
    return sum(1 - (trial.rung or 0) / spec.pruner.rungs for trial in pruned) / len(over)


def _title(findings: StudyFindings) -> str:
    return f"Study {clean(findings.study.study_id)}"


def _blocks(findings: StudyFindings, *, with_pictures: bool = True) -> Iterator[_Block]:
    yield from _head(findings)
    yield from _best(findings)
    if with_pictures:
        yield from _courses(findings)
    yield from _importances(findings, with_pictures=with_pictures)
    yield from _lineage(findings)
    yield from _rest(findings.trials)


def _head(findings: StudyFindings) -> Iterator[_Block]:
    study, spec = findings.study, findings.spec
    goal = " and ".join(
        f"{objective.direction} `{objective.metric}` ({objective.over})" for objective in spec.objectives
    )
    how = spec.method if spec.pbt is not None else f"{spec.method} sampler"
    how += "" if spec.pruner.kind == "none" else f", {spec.pruner.kind} pruner"
    on = "" if spec.target is None else f" on `{spec.target['name']}`"
    yield _Sentence(f"Goal: {goal}. Profile `{spec.profile}`{on}, {how}, seed {spec.seed}.")
    states = counted(findings.trials)
    counts = ", ".join(f"{states[state]} {state}" for state in TrialState if states.get(state))
    took = duration(findings.running_seconds)
    used = f", {gpu_hours(findings.gpu_hours)} GPU-hours" if findings.gpu_hours else ""
    why = f" ({study.reason})" if study.reason else ""
    yield _Sentence(f"{study.state.capitalize()}{why} after {took}{used}. Trials: {counts or 'none'}.")
    saved = saved_share(spec, findings.trials)
    if saved is not None:
        yield _Sentence(f"Pruning saved {percent(saved * 100)} of the compute that full runs of these trials take.")


def _best(findings: StudyFindings) -> Iterator[_Block]:
    spec = findings.spec
    best = ranked(findings.trials, spec.objectives)
    if not best:
        yield _Sentence("No trial is complete yet.")
        return
    is_front = len(spec.objectives) > 1
    yield _Heading("Pareto front" if is_front else "Best trials")
    rows = [
        [
            str(trial.number),
            trial.run_id or UNKNOWN,
            *(metric_value(value) for value in trial.values),
            *(_plain(trial.params.get(name)) for name in spec.tuned),
        ]
        for trial in (best if is_front else best[:BEST_SHOWN])
    ]
    yield _Rows(["trial", "run", *(objective.metric for objective in spec.objectives), *spec.tuned], rows)
    for place, trial in enumerate(best if is_front else best[:TRAINED_AGAIN]):
        rank = "the second best" if place else "the best"
        which = f"trial {trial.number}" if is_front else f"{rank}, trial {trial.number},"
        yield _Sentence(f"Train {which} as a run of its own:")
        yield _Command(winner_command(findings, trial))


def _courses(findings: StudyFindings) -> Iterator[_Block]:
    spec, trials = findings.spec, findings.trials
    if not any(trial.ended_at is not None for trial in trials):
        return
    yield _Heading("What was found when")
    for objective, own in by_objective(trials, spec.objectives):
        yield _Pictures({f"values{_of(spec, objective)}": pictures.values_by_trial(own, findings.rungs, objective)})
    if len(spec.objectives) > 1:
        yield _Pictures({"front": pictures.front(trials, spec.objectives)})
    drawing = pictures.courses(trials, findings.rungs, spec)
    if any(len(curve.bins) > 1 for curve in drawing.curves):
        yield _Sentence(f"The best {pictures.COLOURED_COURSES} trials in colours, all others grey:")
        yield _Pictures({"courses": drawing})


def _importances(findings: StudyFindings, *, with_pictures: bool) -> Iterator[_Block]:
    spec = findings.spec
    by_name = {dimension.name: dimension for dimension in spec.space}
    for objective, trials in by_objective(findings.trials, spec.objectives):
        found = importances(trials, spec.space, objective)
        if found is None:
            return
        yield _Heading("What mattered" + (f" for {clean(objective.metric)}" if len(spec.objectives) > 1 else ""))
        rows = [[parameter.name, percent(parameter.share * 100), parameter.trend] for parameter in found]
        yield _Rows(["parameter", "explains of the ranking", ""], rows)
        if with_pictures:
            yield _Pictures(
                {
                    f"over-{_file_name(one.name)}{_of(spec, objective)}": pictures.over_parameter(
                        trials, findings.rungs, by_name[one.name], objective
                    )
                    for one in found
                }
            )


def _of(spec: StudySpec, objective: Objective) -> str:
    """The part of a picture's name that tells objectives apart."""
    return f"-of-{_file_name(objective.metric)}" if len(spec.objectives) > 1 else ""


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "-", name)


def _lineage(findings: StudyFindings) -> Iterator[_Block]:
    moved = [trial for trial in findings.trials if trial.parent is not None]
    if not moved:
        return
    yield _Heading("Who went on from whom")
    yield _Rows(
        ["member", "continues from", "after milestone", *findings.spec.tuned],
        [
            [
                str(trial.number),
                f"trial {trial.parent}",
                UNKNOWN if trial.generation is None else str(trial.generation),
                *(_plain(trial.params.get(name)) for name in findings.spec.tuned),
            ]
            for trial in moved
        ],
    )


def _rest(trials: Sequence[TrialRecord]) -> Iterator[_Block]:
    rest = [trial for trial in trials if trial.state.is_over and trial.state is not TrialState.COMPLETE]
    if not rest:
        return
    yield _Heading("Not complete")
    rows = []
    for trial in rest:
        point = " ".join(f"{name}={_plain(value)}" for name, value in trial.params.items())
        rows.append([str(trial.number), trial.state, trial.reason or UNKNOWN, point])
    yield _Rows(["trial", "state", "why", "point"], rows)


def _plain(value: Scalar | None) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return UNKNOWN if value is None else str(value).lower() if isinstance(value, bool) else str(value)
