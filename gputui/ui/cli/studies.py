"""`gputui studies`."""

from __future__ import annotations

import time

import click

from gputui.core import units
from gputui.store.studies import TrialState, read_studies, read_trials, study_wall_seconds
from gputui.studies.analysis import best_trials
from gputui.studies.spec import study_spec
from gputui.ui.cli.context import Session, json_option, print_json, print_table, say, typed_moment
from gputui.ui.cli.study_shapes import study_shape


@click.command("studies")
@click.option("--at", metavar="TIME", help="As it was at a past moment.")
@json_option
@click.pass_obj
def command(session: Session, at: str | None, as_json: bool) -> None:
    """List the studies, newest first."""
    list_studies(session, at, as_json=as_json)


def list_studies(session: Session, at: str | None, *, as_json: bool) -> None:
    moment = None if at is None else typed_moment(at)
    connection = session.reader_or_none()
    found = [] if connection is None else read_studies(connection, moment)
    now = time.time()
    if as_json:
        print_json([study_shape(connection, one, now, moment) for one in found if connection is not None])
        return
    session.note_missing_agent(is_active=any(study.state.needs_agent for study in found))
    if connection is None or not found:
        say("no study yet; gputui study run FILE begins one, gputui sweep PROFILE --set lr=0.1,0.05 a grid")
        return
    rows = []
    for study in found:
        trials = read_trials(connection, study.study_id, moment)
        over = sum(trial.state.is_over for trial in trials)
        pruned = sum(trial.state is TrialState.PRUNED for trial in trials)
        spec = study_spec(study)
        best = best_trials(trials, spec.objectives)
        value = units.metric_value(best[0].value) if best else "–"
        if len(spec.objectives) > 1:
            value = f"Pareto front: {units.count_of(len(best), 'trial')}"
        wanted = spec.wanted_trials
        # Points that a person added, reruns and earlier runs count beyond the budget.
        progress = f"{over}/{max(wanted, len(trials))}" if wanted is not None else str(over)
        took = units.duration(study_wall_seconds(connection, study.study_id, now if moment is None else moment))
        rows.append((study.study_id, study.state, progress, str(pruned), value, took, study.reason or ""))
    print_table(("STUDY", "STATE", "TRIALS", "PRUNED", "BEST", "TIME", ""), rows)
