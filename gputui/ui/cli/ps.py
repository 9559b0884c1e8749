"""`gputui ps`."""

from __future__ import annotations

import time

import click

from gputui.core import units
from gputui.core.text import clean
from gputui.store import queue
from gputui.store.metrics import intake
from gputui.store.run_states import RunState
from gputui.store.runs import read_runs
from gputui.store.studies import read_studies
from gputui.ui.cli.context import Session, json_option, print_json, print_table, say
from gputui.ui.cli.queue import pause_line
from gputui.ui.tui.data.progress import row_of
from gputui.ui.tui.data.snapshot import RunRow
from gputui.ui.tui.data.snapshot_json import row_shape
from gputui.ui.tui.layout.run_words import (
    outlook,
    placement_words,
    silent_seconds,
    stop_words,
    tag_words,
    time_left,
    unmeasured_words,
)


@click.command("ps")
@json_option
@click.option("--active", is_flag=True, help="Only runs that are not over.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only runs with this tag.")
@click.pass_obj
def command(session: Session, as_json: bool, active: bool, tags: tuple[str, ...]) -> None:
    """List the runs, newest first."""
    connection = session.reader_or_none()
    runs = [] if connection is None else read_runs(connection, active_only=active)
    runs = [run for run in runs if all(tag.removeprefix("#") in run.tags for tag in tags)]
    if as_json:
        print_json([row_shape(row_of(connection, run)) for run in runs] if connection else [])
        return
    is_active = any(not run.state.is_over for run in runs)
    if connection is not None and not is_active:
        is_active = any(study.state.needs_agent for study in read_studies(connection))
    session.note_missing_agent(is_active=is_active)
    pause = None if connection is None else queue.pause(connection)
    if pause is not None:
        say(pause_line(pause, time.time()))
    if tags and not runs:
        say(f"no run has the tag {' '.join(tags)}")
        return
    if connection is None or not runs:
        over = 0 if connection is None else len(read_runs(connection, over_only=True))
        if over:
            say(f"no active run; gputui ps lists {over} that {'is' if over == 1 else 'are'} over")
        else:
            say(f"no runs yet in {session.workspace.state}; gputui profile list shows what can run")
        return
    unread = intake.without_metrics(connection)
    listed = [row_of(connection, run) for run in runs]
    has_own = any(row.progress.has_own_metric for row in listed)
    rows: list[tuple[str, ...]] = [_row(row, unread.get(row.run.run_id), time.time(), has_own) for row in listed]
    heads = ["RUN", "STATE", "ATTEMPT", "GPUS", "STEP", "METRIC" if has_own else "LOSS", "TIME", "ETA", ""]
    for head, cells in (
        ("TAGS", [tag_words(run) for run in runs]),
        ("NAME", [run.name if run.is_renamed else "" for run in runs]),
    ):
        if any(cells):
            heads.insert(1, head)
            rows = [(row[0], cell, *row[1:]) for row, cell in zip(rows, cells, strict=True)]
    print_table(heads, rows)


def _row(row: RunRow, unread: str | None, now: float, with_name: bool) -> tuple[str, ...]:
    run, progress = row.run, row.progress
    name, value = progress.listed_metric
    left = now_words = None
    if run.attempt:
        is_going_on = run.state in (RunState.RUNNING, RunState.STOPPING)
        if run.state is RunState.STARTING and not unread:
            now_words = outlook(row, now)[0]
        elif run.state is RunState.STOPPING:
            now_words = stop_words(row, now)[0]
        elif is_going_on and silent_seconds(row, now):
            now_words = outlook(row, now)[0]
        elif is_going_on:
            left = time_left(progress).removesuffix(" left")
            now_words = unmeasured_words(row) or None
    total = "" if progress.total_steps is None else f"/{units.count(progress.total_steps)}"
    why = (
        now_words
        or run.waiting_for
        or run.told_reason
        or ("" if run.target is None or run.ended_at is not None else placement_words(run, now)[0])
        or (f"no metrics: {unread}" if unread else "")
    )
    return (
        run.run_id,
        run.state,
        str(run.attempt or "–"),
        str(len(run.gpus)) if run.gpus else "–",
        "–" if progress.step is None else units.count(progress.step) + total,
        (f"{clean(name)} " if with_name and value is not None else "") + units.metric_value(value),
        units.duration(run.trained_seconds(now)),
        left or "–",
        " · ".join(part for part in (why, run.note) if part),
    )
