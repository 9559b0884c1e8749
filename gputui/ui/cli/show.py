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
from gputui.recovery import costs
from gputui.recovery.checkpoints.attempt_spans import AttemptSpan, spans_of
from gputui.recovery.checkpoints.resumable import candidates, checkpoints_shape, own_words, refused
from gputui.recovery.resumptions import Resumption
from gputui.recovery.run_history import RunHistory
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

MOST_NAMES, EXAMPLE_CHARACTERS = 6, 100

_NOT_RESUMED: dict[str | None, str] = {
    "beginning": "started from the beginning although a checkpoint was given",
    "uncertain": "counts its steps from the first again; whether it loaded its checkpoint cannot be seen",
    "earlier": "went on from an earlier step than its checkpoint's",
    "later": "loaded a later checkpoint than the one it was given",
    "unaided": "went on by itself, from what the script had saved",
}


class RunDetails(Struct, frozen=True):
    """One run with everything that is stored about it. ``costs`` are those of its incidents by
    their ids, ``went_on`` says of each attempt from where it really went on."""

    row: RunRow
    history: RunHistory
    took: RunCost
    costs: dict[int, costs.Cost]
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
            other = None if against is None else session.find_run(connection, against)
            print_diff(session, view, other)
            return
        details = read_details(session, connection, view, now)
    if as_json:
        print_json(details_shape(details))
        return
    say(f"{view.run_id}  {view.state}" + (f"  ({view.reported_reason})" if view.reported_reason else ""))
    for label, text in _facts(details, now):
        say(f"{label:12}{text}")
    if details.history.attempts:
        say("")
        rows = [_cells(details, attempt, now) for attempt in details.history.attempts]
        print_table(("ATTEMPT", "STATE", "TIME", "STEPS", ""), rows)
    together = costs.total(details.costs.values())
    if together is not None and (words := costs.in_words(together)):
        say("")
        counted = units.count_of(together.incidents, "incident")
        say(f"{counted} cost {'at least ' if together.unknown else ''}{words}")


def read_details(session: Session, connection: sqlite3.Connection, run: Run, now: float) -> RunDetails:
    history = RunHistory.read(connection, run)
    line_counts, loss_problem = intake.intake(connection, run.run_id), None
    if run.state.is_over or line_counts.accepted >= FIRST_LINES:
        loss_problem = without_loss_words(run.run_id, run.roles, stored_names(connection, run.run_id))
    return RunDetails(
        row=RunRow(run, progress_now(connection, run)),
        history=history,
        took=run_cost(connection, run.run_id, now),
        costs=history.costs(),
        went_on=history.resumptions(),
        spans=spans_of(run, history.attempts, now),
        sinks=dict(sinks_of(run, session.workspace.run_dir(run.run_id))),
        code=json_mapping(run.spec_json).get("code"),
        metrics_problem=intake.intake_words(line_counts),
        sources=source_reports(connection, run.run_id),
        loss_problem=loss_problem,
        size_bytes=sizes_of(session, [run])[run.run_id],
    )


def details_shape(found: RunDetails) -> dict[str, Any]:
    """The JSON of ``gputui show --json``."""
    together = costs.total(found.costs.values())
    shape = json_shapes.show_shape(
        found.row.run,
        found.history.attempts,
        found.history.incidents,
        found.history.decisions,
        costs.by_incident(found.costs),
        None if together is None else together.sum_json(),
        found.took,
    )
    return {
        **shape,
        "attempts": [{**each, "went_on": found.went_on.get(each["number"])} for each in shape["attempts"]],
        **row_shape(found.row),
        "sinks": found.sinks,
        "metric_sources": [report.to_json() for report in found.sources],
        "checkpoints": checkpoints_shape(found.history.checkpoints, found.spans),
        "code": found.code,
        "size_bytes": found.size_bytes,
    }


def _facts(found: RunDetails, now: float) -> Iterator[tuple[str, str]]:
    """The lines of ``gputui show`` above its table, each with its label."""
    run = found.row.run
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
        yield "target", placement_words(run, now)[0]
    if spec is not None and spec.time_limit_seconds is not None:
        yield "time limit", units.duration(spec.time_limit_seconds)
    yield "parameters", "  ".join(f"{name}={units.parameter(value)}" for name, value in run.params.items()) or "none"
    if (words := code_words(found.code or {})) is not None:
        has_diff = bool((found.code or {}).get("changed_files"))
        yield "code", f"{words}; gputui show {run.run_id} --diff" if has_diff else words
    if found.metrics_problem is not None:
        yield "metrics", found.metrics_problem
    yield from _source_facts(found)
    if run.roles.loss is not None:
        yield "loss", clean(run.roles.loss)
    if found.loss_problem is not None:
        yield "loss", clean(found.loss_problem)
    if found.took.gpu_hours:
        yield "took", cost_words(found.took)
    for position, (name, target) in enumerate(found.sinks.items()):
        yield "" if position else "sinks", f"{name} → {target}"
    if found.history.checkpoints:
        if spec is not None and spec.checkpoints is None:
            words = f"{len(found.history.checkpoints)} seen, {own_words(found.history.checkpoints)}"
            yield "checkpoints", f"{words}; a new attempt of the script is given none"
        else:
            usable, passed = (
                candidates(found.history.checkpoints, found.spans),
                refused(found.history.checkpoints, found.spans),
            )
            latest = f", latest {usable[0].name}" if usable else ""
            more = f"; {len(passed)} passed over: gputui explain {run.run_id} says why" if passed else ""
            yield "checkpoints", f"{len(usable)} to resume from{latest}{more}"
    yield "size", units.bytes_text(found.size_bytes)
    if run.waiting_for:
        yield "waiting", run.waiting_for


def _source_facts(found: RunDetails) -> Iterator[tuple[str, str]]:
    """Where the run's metrics come from, and what was learned of its output."""
    for report in found.sources:
        where = "its output" if report.format == "output" else shown_path(Path(report.path))
        names = ", ".join(clip_middle(clean(name), LONGEST_CELLS) for name in report.names[:MOST_NAMES])
        more = len(report.names) - MOST_NAMES
        if report.lines:
            yield "metrics", f"{names}{f' and {more} more' if more > 0 else ''}, from {where}"
        else:
            yield "metrics", f"none from {where}, in attempt {found.row.run.attempt}"
        for form in report.forms:
            yield "", f"lines like {clip(clean(form.example.strip()), EXAMPLE_CHARACTERS)}"
        for remark in report.remarks:
            yield "", clean(remark)


def _cells(found: RunDetails, attempt: Attempt, now: float) -> tuple[str, ...]:
    cause = next((one.summary for one in reversed(found.history.incidents) if one.attempt == attempt.number), None)
    not_resumed = _NOT_RESUMED.get(found.went_on.get(attempt.number))
    return (
        str(attempt.number),
        attempt.state,
        units.duration(attempt.ran_seconds(now)),
        steps(attempt.first_step, attempt.last_step),
        "; ".join(filter(None, (not_resumed, cause))),
    )


def steps(first: int | None, last: int | None) -> str:
    if first is None or last is None:
        return "–"
    return f"{units.count(first)}–{units.count(last)}"


def cost_words(taken: RunCost) -> str:
    """``3.2 GPU-hours, 2.14 kWh``; "at least" if some energy counters were unavailable."""
    words = f"{units.gpu_hours(taken.gpu_hours)} GPU-hours"
    if taken.energy_kwh is None:
        return words
    energy = taken.energy_kwh
    amount = f"{units.short_number(energy)} kWh" if energy >= 0.1 else f"{units.short_number(energy * 1000)} Wh"
    return f"{words}, {'at least ' if taken.energy_is_partial else ''}{amount}"


def print_diff(session: Session, view: Run, other: Run | None) -> None:
    """Print the diff of the code from its commit or from another run, without secrets."""
    from gputui.runs.code_diff import run_code_diff

    if other is not None:
        lines = list(run_code_diff(session.workspace.runs, other.run_id, view.run_id))
    else:
        spec = read_spec(session.workspace.run_dir(view.run_id) / SPEC_FILE)
        if spec.code is None:
            fail(f"{view.run_id} did not run in a git checkout", Exit.REFUSED)
        hide = Redactor(secrets_of(spec))
        lines = [hide.text(line) for line in str(spec.code.get("diff") or "").splitlines()]
    for line in lines:
        say(line)
