"""A study's report: what was asked and found, what was cut short and why, what to train next. Pure.

It is made as blocks once; `markdown` and `page` write them down.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gputui.charts.export import svg_text
from gputui.charts.picture import Drawing, picture
from gputui.charts.safe_text import clean
from gputui.charts.units import UNKNOWN, duration, metric_value, percent
from gputui.reports import html
from gputui.runs.spec import Scalar
from gputui.store.studies import RungValue, StudyRecord, TrialRecord, TrialState
from gputui.studies import pictures
from gputui.studies.analysis import counted, importances, ranked
from gputui.studies.spec import StudySpec

BEST_SHOWN = 5
TRAINED_AGAIN = 2
"""Trials for which the report has a command."""

_SIZE, _HALF_SIZE = (1000, 360), (600, 360)
_CODE = re.compile(r"`([^`]*)`")


@dataclass(frozen=True, slots=True)
class StudyFindings:
    """What a report is made of. ``rungs`` are by trial, ``now`` is UTC unix seconds."""

    study: StudyRecord
    spec: StudySpec
    trials: Sequence[TrialRecord]
    rungs: Mapping[int, Sequence[RungValue]]
    gpu_hours: float
    now: float


@dataclass(frozen=True, slots=True)
class _Heading:
    text: str


@dataclass(frozen=True, slots=True)
class _Sentence:
    """Plain text; words between backticks are names."""

    text: str


@dataclass(frozen=True, slots=True)
class _Rows:
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class _Command:
    text: str


@dataclass(frozen=True, slots=True)
class _Pictures:
    """Drawings beside each other where there is room; by the name of their file."""

    drawings: Mapping[str, Drawing]


_Block = _Heading | _Sentence | _Rows | _Command | _Pictures


# --- as files


def markdown(findings: StudyFindings, *, with_pictures: bool = False) -> str:
    """The report as Markdown. ``with_pictures`` refers to the files of `contents`, beside it."""
    lines = [f"# {_title(findings)}"]
    for block in _blocks(findings):
        match block:
            case _Heading():
                lines += ["", f"## {block.text}"]
            case _Sentence():
                lines += ["", clean(block.text)]
            case _Command():
                lines += ["", "```", clean(block.text), "```"]
            case _Rows():
                lines += ["", *_markdown_table(block)]
            case _Pictures() if with_pictures:
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
    """The files of a report, by name: Markdown with its pictures, and the page, which needs none of them."""
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


# --- what is in it


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


def _title(findings: StudyFindings) -> str:
    return f"Study {clean(findings.study.study_id)}"


def _blocks(findings: StudyFindings) -> Iterator[_Block]:
    yield from _head(findings)
    yield from _best(findings)
    yield from _courses(findings)
    yield from _mattered(findings)
    yield from _lineage(findings)
    yield from _rest(findings.trials)


def _head(findings: StudyFindings) -> Iterator[_Block]:
    study, spec = findings.study, findings.spec
    goal = " and ".join(f"{one.direction} `{one.metric}` ({one.over})" for one in spec.objectives)
    how = "population-based training" if spec.pbt is not None else f"{spec.sampler.kind} sampler"
    how += "" if spec.pbt is not None or spec.pruner.kind == "none" else f", {spec.pruner.kind} pruner"
    yield _Sentence(f"Goal: {goal}. Profile `{spec.profile}`, {how}, seed {spec.seed}.")
    states = counted(findings.trials)
    counts = ", ".join(f"{states[state]} {state}" for state in TrialState if states.get(state))
    took = duration(max(0.0, (study.ended_at if study.ended_at is not None else findings.now) - study.created_at))
    used = f", {findings.gpu_hours:.3g} GPU-hours" if findings.gpu_hours else ""
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
            str(one.number),
            one.run_id or UNKNOWN,
            *(metric_value(value) for value in one.values),
            *(_plain(one.params.get(name)) for name in spec.tuned),
        ]
        for one in (best if is_front else best[:BEST_SHOWN])
    ]
    yield _Rows(["trial", "run", *(one.metric for one in spec.objectives), *spec.tuned], rows)
    for place, one in enumerate(best[: 1 if is_front else TRAINED_AGAIN]):
        yield _Sentence(f"Train {'the second best' if place else 'the best'}, trial {one.number}, as a run of its own:")
        yield _Command(winner_command(spec, one))


def _courses(findings: StudyFindings) -> Iterator[_Block]:
    spec, trials = findings.spec, findings.trials
    if not any(one.ended_at is not None for one in trials):
        return
    yield _Heading("What was found when")
    yield _Pictures({"values": pictures.values_by_trial(trials, findings.rungs, spec.objectives[0])})
    if len(spec.objectives) > 1:
        yield _Pictures({"front": pictures.front(trials, spec.objectives)})
    drawing = pictures.courses(trials, findings.rungs, spec)
    if any(len(curve.bins) > 1 for curve in drawing.curves):
        yield _Sentence(f"The best {pictures.COLOURED_COURSES} trials in colours, all others grey:")
        yield _Pictures({"courses": drawing})


def _mattered(findings: StudyFindings) -> Iterator[_Block]:
    spec = findings.spec
    found = importances(findings.trials, spec.space, spec.objectives[0])
    if found is None:
        return
    yield _Heading("What mattered")
    words = {1: "larger is better", -1: "smaller is better", 0: ""}
    rows = [[one.name, percent(one.share * 100), words[one.sign]] for one in found]
    yield _Rows(["parameter", "explains of the ranking", ""], rows)
    by_name = {one.name: one for one in spec.space}
    shown = [by_name[one.name] for one in found]
    yield _Pictures(
        {
            f"over-{_file_word(one.name)}": pictures.over_parameter(
                findings.trials, findings.rungs, one, spec.objectives[0]
            )
            for one in shown
        }
    )


def _lineage(findings: StudyFindings) -> Iterator[_Block]:
    moved = [one for one in findings.trials if one.parent is not None]
    if not moved:
        return
    yield _Heading("Who went on from whom")
    yield _Rows(
        ["member", "continues from", "after milestone", *findings.spec.tuned],
        [
            [
                str(one.number),
                f"trial {one.parent}",
                UNKNOWN if one.generation is None else str(one.generation),
                *(_plain(one.params.get(name)) for name in findings.spec.tuned),
            ]
            for one in moved
        ],
    )


def _rest(trials: Sequence[TrialRecord]) -> Iterator[_Block]:
    rest = [one for one in trials if one.state.is_over and one.state is not TrialState.COMPLETE]
    if not rest:
        return
    yield _Heading("Not complete")
    rows = [[str(one.number), one.state, one.reason or UNKNOWN, _point(one.params)] for one in rest]
    yield _Rows(["trial", "state", "why", "point"], rows)


def _file_word(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "-", name)


def _point(params: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_plain(value)}" for name, value in params.items())


def _plain(value: Scalar | None) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return UNKNOWN if value is None else str(value).lower() if isinstance(value, bool) else str(value)
