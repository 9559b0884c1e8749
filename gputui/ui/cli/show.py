"""`gputui show`."""

from __future__ import annotations

import time
from contextlib import closing

import click

from gputui.core import units
from gputui.core.redaction import Redactor
from gputui.runs.code_version import code_words
from gputui.runs.command import shown_param, sinks_of
from gputui.runs.executors import chooses_start
from gputui.runs.redaction import secrets_of
from gputui.runs.spec import SpecError, known_spec
from gputui.runs.submission import SPEC_FILE, read_spec
from gputui.store import checkpoints, json_shapes
from gputui.store.attempts import RunCost, read_attempts, run_cost
from gputui.store.metrics import intake
from gputui.store.metrics.intake import intake_words
from gputui.store.metrics.step_times import StepTimes
from gputui.store.rows import json_mapping
from gputui.store.run_history import read_decisions, read_incidents
from gputui.store.runs import Run
from gputui.ui.cli.context import EXIT_REFUSED, EXIT_USAGE, Session, fail, json_option, print_json, print_table, say
from gputui.ui.tui.data.progress import row_of
from gputui.ui.tui.data.snapshot_json import row_shape
from gputui.ui.tui.layout.run_words import placement_words, tag_words


@click.command("show")
@click.argument("run", required=False)
@click.option("--diff", "with_diff", is_flag=True, help="How the code that ran differed from its git commit.")
@click.option("--against", metavar="RUN", help="With --diff: how it differed from the code of that run.")
@json_option
@click.pass_obj
def command(session: Session, run: str | None, with_diff: bool, against: str | None, as_json: bool) -> None:
    """One run (the newest, if none is named): parameters, attempts, how each ended, what failures cost."""
    from gputui.recovery.checkpoints.attempt_spans import spans_of
    from gputui.recovery.checkpoints.resumable import candidates, checkpoints_shape, refused
    from gputui.recovery.costs import by_incident, in_words, total
    from gputui.recovery.costs import costs as costs_of
    from gputui.recovery.history import resumptions

    if against is not None and not with_diff:
        fail("--against goes with --diff", EXIT_USAGE)
    with closing(session.reader()) as connection:
        view = session.find_run(connection, run)
        if with_diff:
            _print_diff(session, view, None if against is None else session.find_run(connection, against))
            return
        attempts = read_attempts(connection, view.run_id)
        incidents = read_incidents(connection, view.run_id)
        decisions = read_decisions(connection, view.run_id)
        taken = run_cost(connection, view.run_id, time.time())
        lines = intake.intake(connection, view.run_id)
        saved = checkpoints.of_run(connection, view.run_id)
        clock = StepTimes(connection, view.run_id)
        is_chosen_there = chooses_start(known_spec(view))
        costs = costs_of(attempts, incidents, decisions, clock, start_is_chosen_there=is_chosen_there)
        went_on = resumptions(attempts, clock, saved)
        row = row_of(connection, view)
    together = total(costs.values())
    spans = spans_of(view, attempts, time.time())
    if as_json:
        sums = None if together is None else together.sum_json()
        shape = json_shapes.show_shape(view, attempts, incidents, decisions, by_incident(costs), sums, taken)
        shape["attempts"] = [{**each, "went_on": went_on.get(each["number"])} for each in shape["attempts"]]
        sinks = sinks_of(view, session.workspace.run_dir(view.run_id))
        code = json_mapping(view.spec_json).get("code")
        print_json(
            {**shape, **row_shape(row), "sinks": sinks, "checkpoints": checkpoints_shape(saved, spans), "code": code}
        )
        return
    now = time.time()
    say(f"{view.run_id}  {view.state}" + (f"  ({view.told_reason})" if view.told_reason else ""))
    if view.is_renamed:
        say(f"name        {view.name}")
    if view.tags:
        say(f"tags        {tag_words(view)}")
    if view.note:
        say(f"note        {view.note}")
    say(f"profile     {view.profile}")
    if view.target is not None:
        say("target      " + placement_words(view, now)[0])
    say("parameters  " + ("  ".join(f"{name}={shown_param(value)}" for name, value in view.params.items()) or "none"))
    code = json_mapping(view.spec_json).get("code") or {}
    if (words := code_words(code)) is not None:
        more = f"; gputui show {view.run_id} --diff" if code.get("changed_files") else ""
        say(f"code        {words}{more}")
    if (trouble := intake_words(lines)) is not None:
        say(f"metrics     {trouble}")
    if taken.gpu_hours:
        say("took        " + cost_words(taken))
    sinks = sinks_of(view, session.workspace.run_dir(view.run_id))
    for position, (name, target) in enumerate(sinks.items()):
        say(f"{'sinks' if position == 0 else '':12}{name} → {target}")
    if saved:
        usable, passed = candidates(saved, spans), refused(saved, spans)
        newest = f", latest {usable[0].name}" if usable else ""
        more = f"; {len(passed)} passed over: gputui explain {view.run_id} says why" if passed else ""
        say(f"checkpoints {len(usable)} to resume from{newest}{more}")
    if view.waiting_for:
        say(f"waiting     {view.waiting_for}")
    causes = {incident.attempt: incident.summary for incident in incidents}
    rows = [
        (
            str(attempt.number),
            attempt.state,
            units.duration((attempt.ended_at or now) - attempt.started_at) if attempt.started_at else "–",
            steps(attempt.first_step, attempt.last_step),
            "; ".join(filter(None, (_NOT_RESUMED.get(went_on.get(attempt.number)), causes.get(attempt.number)))),
        )
        for attempt in attempts
    ]
    if rows:
        say("")
        print_table(("ATTEMPT", "STATE", "TIME", "STEPS", ""), rows)
    if together is not None and in_words(together):
        say("")
        incidents_word = "1 incident" if together.incidents == 1 else f"{together.incidents} incidents"
        say(f"{incidents_word} cost {'at least ' if together.unknown else ''}{in_words(together)}")


def _print_diff(session: Session, view: Run, other: Run | None) -> None:
    """Print the diff of the code from its commit, or from the code of another run, without secrets."""
    if other is not None:
        from gputui.runs.code_diff import CodeUnknownError, run_code_diff

        try:
            for line in run_code_diff(session.workspace.runs, other.run_id, view.run_id):
                say(line)
        except (CodeUnknownError, SpecError) as error:
            fail(str(error), EXIT_REFUSED)
        return
    try:
        spec = read_spec(session.workspace.run_dir(view.run_id) / SPEC_FILE)
    except SpecError as error:
        fail(str(error), EXIT_REFUSED)
    if spec.code is None:
        fail(f"{view.run_id} did not run in a git checkout, or was launched by an older gputui", EXIT_REFUSED)
    hide = Redactor(secrets_of(spec))
    for line in str(spec.code.get("diff") or "").splitlines():
        say(hide.text(line))


_NOT_RESUMED: dict[str | None, str] = {
    "beginning": "started from the beginning although a checkpoint was given",
    "earlier": "went on from an earlier step than its checkpoint's",
    "later": "loaded a later checkpoint than the one it was given",
}


def steps(first: int | None, last: int | None) -> str:
    return "–" if first is None or last is None else f"{units.count(first)}–{units.count(last)}"


def cost_words(taken: RunCost) -> str:
    """``3.2 GPU-hours, 2.14 kWh``; "at least" if some energy counters were unavailable."""
    words = f"{units.gpu_hours(taken.gpu_hours)} GPU-hours"
    if taken.energy_kwh is None:
        return words
    energy = taken.energy_kwh
    amount = f"{units.short_number(energy)} kWh" if energy >= 0.1 else f"{units.short_number(energy * 1000)} Wh"
    return f"{words}, {'at least ' if taken.energy_is_partial else ''}{amount}"
