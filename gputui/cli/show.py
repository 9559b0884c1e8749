"""`gputui show`."""

from __future__ import annotations

import time
from contextlib import closing

import click

from gputui.charts import units
from gputui.cli.context import Session, print_json, say
from gputui.cli.table import columns
from gputui.metrics.intake_words import intake_words
from gputui.runs.command import sinks_of
from gputui.store import checkpoints, json_shapes
from gputui.store.costs import RunCost, run_cost
from gputui.store.metrics import intake
from gputui.store.metrics.step_times import StepTimes
from gputui.store.runs import read_attempts, read_decisions, read_incidents
from gputui.tui.layout.run_words import placement_words


@click.command("show")
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.pass_obj
def command(session: Session, run: str | None, as_json: bool) -> None:
    """One run (the newest, if none is named): parameters, attempts, how each ended, what failures cost."""
    from gputui.recovery import cost
    from gputui.recovery.checkpoint_ledger import candidates, refused, spans_of
    from gputui.recovery.checkpoint_words import checkpoints_shape
    from gputui.recovery.history import resumptions

    with closing(session.reader()) as connection:
        view = session.find_run(connection, run)
        attempts = read_attempts(connection, view.run_id)
        incidents = read_incidents(connection, view.run_id)
        decisions = read_decisions(connection, view.run_id)
        taken = run_cost(connection, view.run_id, time.time())
        lines = intake.intake(connection, view.run_id)
        saved = checkpoints.of_run(connection, view.run_id)
        clock = StepTimes(connection, view.run_id)
        costs = cost.costs(attempts, incidents, decisions, clock)
        went_on = resumptions(attempts, clock.repeats)
    together = cost.total(costs.values())
    spans = spans_of(view, attempts, time.time())
    if as_json:
        sums = None if together is None else together.sum_json()
        shape = json_shapes.show_shape(view, attempts, incidents, decisions, cost.by_incident(costs), sums, taken)
        shape["attempts"] = [{**each, "went_on": went_on.get(each["number"])} for each in shape["attempts"]]
        sinks = sinks_of(view, session.workspace.run_dir(view.run_id))
        print_json({**shape, "sinks": sinks, "checkpoints": checkpoints_shape(saved, spans)})
        return
    now = time.time()
    say(f"{view.run_id}  {view.state}" + (f"  ({view.told_reason})" if view.told_reason else ""))
    say(f"profile     {view.profile}")
    if view.target is not None:
        say("target      " + placement_words(view, now)[0])
    say("parameters  " + ("  ".join(f"{name}={value}" for name, value in view.params.items()) or "none"))
    if (trouble := intake_words(lines)) is not None:
        say(f"metrics     {trouble}")
    if taken.gpu_hours:
        say("took        " + taken_words(taken))
    sinks = sinks_of(view, session.workspace.run_dir(view.run_id))
    for position, (name, target) in enumerate(sinks.items()):
        say(f"{'sinks' if position == 0 else '':12}{name} → {target}")
    if saved:
        usable, passed = candidates(saved, spans), refused(saved, spans)
        newest = f", the next one {usable[0].name}" if usable else ""
        more = f"; {len(passed)} passed over: gputui explain {view.run_id} says why" if passed else ""
        say(f"checkpoints {len(usable)} can be resumed from{newest}{more}")
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
        for line in columns(("ATTEMPT", "STATE", "TIME", "STEPS", ""), rows):
            say(line)
    if together is not None and cost.in_words(together):
        say("")
        incidents_word = "1 incident" if together.incidents == 1 else f"{together.incidents} incidents"
        say(f"{incidents_word} cost {'at least ' if together.unknown else ''}{cost.in_words(together)}")


_NOT_RESUMED: dict[str | None, str] = {
    "beginning": "started from the beginning although a checkpoint was given",
    "earlier": "went on from an earlier step than its checkpoint's",
}


def steps(first: int | None, last: int | None) -> str:
    return "–" if first is None or last is None else f"{units.count(first)}–{units.count(last)}"


def taken_words(taken: RunCost) -> str:
    """``3.2 GPU-hours, 2.14 kWh``; what the energy counters did not tell is not in the second."""
    words = f"{units.short_number(taken.gpu_hours)} GPU-hours"
    if taken.energy_kwh is None:
        return words
    energy = taken.energy_kwh
    said = f"{units.short_number(energy)} kWh" if energy >= 0.1 else f"{units.short_number(energy * 1000)} Wh"
    return f"{words}, {'at least ' if taken.energy_is_partial else ''}{said}"
