"""`gputui show`."""

from __future__ import annotations

import shlex
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from gputui.core import units
from gputui.core.redaction import Redactor
from gputui.core.text import clean, clip, clip_middle
from gputui.core.yaml_forms.problems import shown_path
from gputui.metrics.progress import progress_now
from gputui.metrics.source_report import SourceReport, source_reports
from gputui.recovery.checkpoints.resumable import (
    AttemptSpan,
    candidates,
    checkpoints_shape,
    own_words,
    refused,
    spans_of,
)
from gputui.recovery.costs import in_words
from gputui.recovery.resumptions import Resumption
from gputui.recovery.run_history import Failure, RunHistory, total_cost
from gputui.runs.code_version import code_words
from gputui.runs.command import sinks_of
from gputui.runs.redaction import secrets_of
from gputui.runs.stored_spec import known_spec
from gputui.runs.submission import SPEC_FILE, read_spec
from gputui.store import json_shapes
from gputui.store.attempts import Attempt, RunCost, run_cost
from gputui.store.metrics import intake
from gputui.store.metrics.roles import FIRST_LINES, stored_names, without_loss_words
from gputui.store.rows import json_mapping
from gputui.store.runs import Run
from gputui.ui.cli import completers
from gputui.ui.cli.context import (
    LONGEST_CELLS,
    Exit,
    Session,
    fail,
    print_json,
    print_table,
    say,
    verb,
)
from gputui.ui.cli.selection import sizes_of
from gputui.ui.views.run_words import placement_words, tag_words
from gputui.ui.views.snapshot import RunRow
from gputui.ui.views.snapshot_json import row_shape

MOST_NAMES = 6  # about a line
EXAMPLE_CHARACTERS = 100  # about a line

_NOT_RESUMED: dict[str | None, str] = {
    "beginning": "started from the beginning although a checkpoint was given",
    "uncertain": "counts its steps from the first again; whether it loaded its checkpoint cannot be seen",
    "earlier": "went on from an earlier step than its checkpoint's",
    "later": "loaded a later checkpoint than the one it was given",
    "unaided": "went on by itself, from what the script had saved",
}


class RunDetails(Struct, frozen=True):
    """One run with everything that is stored about it.

    Attributes:
        took: the GPU-hours and energy of all attempts.
        failures: its incidents with the decisions on them and their costs.
        went_on: from where each attempt really went on, by its number.
        spans: when each attempt lived, which dates the checkpoints.
        sinks: the targets of its live exports, by their names.
        code: the version of its code as stored; None without a git checkout.
        metrics_problem: a sentence if metrics are missing; None if none are.
        sources: where its metrics come from.
        loss_problem: a sentence if its loss is not finite; None otherwise.
        size_bytes: the size of its folder; None if there was no time to measure it.
    """

    row: RunRow
    history: RunHistory
    took: RunCost
    failures: list[Failure]
    went_on: Mapping[int, Resumption]
    spans: tuple[AttemptSpan, ...]
    sinks: dict[str, str]
    code: dict[str, Any] | None
    metrics_problem: str | None
    sources: list[SourceReport]
    loss_problem: str | None
    size_bytes: int | None


@verb("show", changes=False, has_json=True)
@click.argument("run", required=False, shell_complete=completers.runs)
@click.option("--diff", "with_diff", is_flag=True, help="How the code that ran differed from its git commit.")
@click.option(
    "--against",
    metavar="RUN",
    shell_complete=completers.runs,
    help="With --diff: how it differed from the code of that run.",
)
def command(session: Session, run: str | None, with_diff: bool, against: str | None, as_json: bool) -> None:
    """One run (the newest, if none is named): parameters, attempts, how each ended, what failures cost."""
    if against is not None and not with_diff:
        fail("--against goes with --diff", Exit.USAGE)
    now = time.time()
    with closing(session.reader()) as connection:
        view = session.find_run(connection, run)
        if with_diff:
            base = None if against is None else session.find_run(connection, against)
            print_diff(session, view, base)
            return
        details = read_details(session, connection, view, now)
    if as_json:
        print_json(details_shape(details))
        return
    _say_details(details, now)


def _say_details(details: RunDetails, now: float) -> None:
    """Print the facts of a run, the table of its attempts and what its failures cost."""
    run = details.row.run
    heading = f"{run.run_id}  {run.state}"
    if run.reported_reason:
        heading += f"  ({run.reported_reason})"
    say(heading)
    for label, text in _facts(details, now):
        say(f"{label:12}{text}")
    if details.history.attempts:
        say("")
        rows = [_cells(details, attempt, now) for attempt in details.history.attempts]
        print_table(("ATTEMPT", "STATE", "TIME", "STEPS", ""), rows)
    total = total_cost(details.failures)
    if total is not None and (price := in_words(total)):
        bound = "at least " if total.unknown else ""
        say("")
        say(f"{units.count_of(total.incidents, 'incident')} cost {bound}{price}")


def read_details(session: Session, connection: sqlite3.Connection, run: Run, now: float) -> RunDetails:
    """Everything that is stored about a run. Raises sqlite3.Error."""
    history = RunHistory.read(connection, run)
    line_counts = intake.intake(connection, run.run_id)
    loss_problem = None
    if run.state.is_over or line_counts.accepted >= FIRST_LINES:
        loss_problem = without_loss_words(run.run_id, run.roles, stored_names(connection, run.run_id))
    return RunDetails(
        row=RunRow(run, progress_now(connection, run)),
        history=history,
        took=run_cost(connection, run.run_id, now),
        failures=history.failures(),
        went_on=history.resumptions(),
        spans=spans_of(run, history.attempts, now),
        sinks=dict(sinks_of(run, session.workspace.run_dir(run.run_id))),
        code=json_mapping(run.spec_json).get("code"),
        metrics_problem=intake.intake_words(line_counts),
        sources=source_reports(connection, run.run_id),
        loss_problem=loss_problem,
        size_bytes=sizes_of(session, [run])[run.run_id],
    )


def details_shape(details: RunDetails) -> dict[str, Any]:
    """The JSON of ``gputui show --json``."""
    total = total_cost(details.failures)
    cost_of_all = None if total is None else total.sum_json()
    cost_of = {
        failure.incident.incident_id: failure.cost.to_json() for failure in details.failures if failure.cost is not None
    }
    shape = json_shapes.show_shape(
        details.row.run,
        details.history.attempts,
        details.history.incidents,
        decisions=details.history.decisions,
        lost=json_shapes.FailureCosts(cost_of, cost_of_all),
        used=details.took,
    )
    return {
        **shape,
        "attempts": [{**attempt, "went_on": details.went_on.get(attempt["number"])} for attempt in shape["attempts"]],
        **row_shape(details.row),
        "sinks": details.sinks,
        "metric_sources": [report.to_json() for report in details.sources],
        "checkpoints": checkpoints_shape(details.history.checkpoints, details.spans),
        "code": details.code,
        "size_bytes": details.size_bytes,
    }


def _facts(details: RunDetails, now: float) -> Iterator[tuple[str, str]]:
    """The lines of ``gputui show`` above its table, each with its label."""
    run = details.row.run
    if run.is_renamed:
        yield "name", run.name
    if run.tags:
        yield "tags", tag_words(run)
    if run.note:
        yield "note", run.note
    spec = known_spec(run)
    if spec is not None and spec.typed:
        yield "command", shlex.join(spec.typed)
    else:
        yield "profile", run.profile
    if run.target is not None:
        place, _ = placement_words(run, now)
        yield "target", place
    if spec is not None and spec.time_limit_seconds is not None:
        yield "time limit", units.duration(spec.time_limit_seconds)
    yield "parameters", "  ".join(f"{name}={units.parameter(value)}" for name, value in run.params.items()) or "none"
    code = details.code or {}
    if (version := code_words(code)) is not None:
        if code.get("changed_files"):
            version += f"; gputui show {run.run_id} --diff"
        yield "code", version
    if details.metrics_problem is not None:
        yield "metrics", details.metrics_problem
    yield from _source_facts(details)
    if run.roles.loss is not None:
        yield "loss", clean(run.roles.loss)
    if details.loss_problem is not None:
        yield "loss", clean(details.loss_problem)
    if details.took.gpu_hours:
        yield "took", cost_words(details.took)
    label = "sinks"
    for name, target in details.sinks.items():
        yield label, f"{name} → {target}"
        label = ""
    if details.history.checkpoints:
        yield "checkpoints", _checkpoints_text(details)
    yield "size", units.bytes_text(details.size_bytes)
    if run.waiting_for:
        yield "waiting", run.waiting_for


def _checkpoints_text(details: RunDetails) -> str:
    """How many checkpoints a run has, and what a new attempt makes of them."""
    run = details.row.run
    rows = details.history.checkpoints
    spec = known_spec(run)
    if spec is not None and spec.checkpoints is None:
        return f"{len(rows)} seen, {own_words(rows)}; a new attempt of the script is given none"
    usable = candidates(rows, details.spans)
    passed_over = refused(rows, details.spans)
    text = f"{len(usable)} to resume from"
    if usable:
        text += f", latest {usable[0].name}"
    if passed_over:
        text += f"; {len(passed_over)} passed over: gputui explain {run.run_id} says why"
    return text


def _source_facts(details: RunDetails) -> Iterator[tuple[str, str]]:
    """Where the run's metrics come from, and what was learned of its output."""
    for report in details.sources:
        where = "its output" if report.format == "output" else shown_path(Path(report.path))
        if report.lines:
            names = ", ".join(clip_middle(clean(name), LONGEST_CELLS) for name in report.names[:MOST_NAMES])
            if len(report.names) > MOST_NAMES:
                names += f" and {len(report.names) - MOST_NAMES} more"
            yield "metrics", f"{names}, from {where}"
        else:
            yield "metrics", f"none from {where}, in attempt {details.row.run.attempt}"
        for form in report.forms:
            yield "", f"lines like {clip(clean(form.example.strip()), EXAMPLE_CHARACTERS)}"
        for remark in report.remarks:
            yield "", clean(remark)


def _cells(details: RunDetails, attempt: Attempt, now: float) -> tuple[str, ...]:
    incidents = [incident for incident in details.history.incidents if incident.attempt == attempt.number]
    cause = incidents[-1].summary if incidents else None
    not_resumed = _NOT_RESUMED.get(details.went_on.get(attempt.number))
    return (
        str(attempt.number),
        attempt.state,
        units.duration(attempt.ran_seconds(now)),
        step_range(attempt.first_step, attempt.last_step),
        "; ".join(filter(None, (not_resumed, cause))),
    )


def step_range(first: int | None, last: int | None) -> str:
    """``1–400``; a dash if no step is known."""
    if first is None or last is None:
        return "–"
    return f"{units.count(first)}–{units.count(last)}"


def cost_words(cost: RunCost) -> str:
    """``3.2 GPU-hours, 2.14 kWh``; "at least" if some energy counters were unavailable."""
    hours = f"{units.gpu_hours(cost.gpu_hours)} GPU-hours"
    if cost.energy_kwh is None:
        return hours
    energy = f"{units.short_number(cost.energy_kwh)} kWh"
    if cost.energy_kwh < 0.1:
        energy = f"{units.short_number(cost.energy_kwh * 1000)} Wh"
    if cost.energy_is_partial:
        energy = f"at least {energy}"
    return f"{hours}, {energy}"


def print_diff(session: Session, view: Run, base: Run | None) -> None:
    """Print the diff of a run's code from its commit or from the run ``base``, without secrets."""
    from gputui.runs.code_diff import run_code_diff

    if base is not None:
        lines = list(run_code_diff(session.workspace.runs, base.run_id, view.run_id))
    else:
        spec = read_spec(session.workspace.run_dir(view.run_id) / SPEC_FILE)
        if spec.code is None:
            fail(f"{view.run_id} did not run in a git checkout", Exit.REFUSED)
        hide = Redactor(secrets_of(spec))
        lines = [hide.text(line) for line in str(spec.code.get("diff") or "").splitlines()]
    for line in lines:
        say(line)
