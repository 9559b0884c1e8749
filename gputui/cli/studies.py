"""`gputui studies`."""

from __future__ import annotations

import time

import click

from gputui.charts import units
from gputui.cli.context import Session, print_json, say, typed_moment
from gputui.cli.study_shapes import study_shape
from gputui.cli.table import columns
from gputui.store.studies import TrialState, read_studies, read_trials
from gputui.studies.analysis import best_trials


@click.command("studies")
@click.option("--at", metavar="TIME", help="As it was at a past moment.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
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
        over = sum(one.state.is_over for one in trials)
        pruned = sum(one.state is TrialState.PRUNED for one in trials)
        best = best_trials(study, trials)
        value = units.metric_value(best[0].value) if best else "–"
        took = units.duration((study.ended_at or moment or now) - study.created_at)
        rows.append(
            (study.study_id, study.state, f"{over}/{len(trials)}", str(pruned), value, took, study.reason or "")
        )
    for line in columns(("STUDY", "STATE", "TRIALS", "PRUNED", "BEST", "TIME", ""), rows):
        say(line)
