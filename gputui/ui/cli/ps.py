"""`gputui ps`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import click

from gputui.core import units
from gputui.core.text import clean
from gputui.metrics.progress import progress_now
from gputui.runs.selection import RunFilter
from gputui.runs.stored_spec import known_spec
from gputui.store import queue
from gputui.store.metrics import intake
from gputui.store.runs import Run, read_runs
from gputui.store.studies import read_studies
from gputui.ui.cli.context import Session, is_wide, print_json, print_table, say, verb
from gputui.ui.cli.queue import pause_line
from gputui.ui.cli.selection import filter_options, sizes_of
from gputui.ui.views.run_words import activity, awaits_step, placement_words, tag_words, time_left
from gputui.ui.views.snapshot import RunRow
from gputui.ui.views.snapshot_json import row_shape
from gputui.ui.views.words import run_state_text

ORDERS = ("loss", "size", "started")
_SPARE = ("SIZE", "TAGS", "PROFILE", "NAME", "GPUS", "ETA", "TIME")
"""The columns that narrow terminals do without, the first ones first."""


@verb("ps", changes=False, has_json=True)
@click.option("--active", is_flag=True, help="Only runs that are not over.")
@click.option("--sort", "order", type=click.Choice(ORDERS), help="Lowest loss, largest or newest first.")
@filter_options()
def command(session: Session, as_json: bool, active: bool, order: str | None, only: RunFilter) -> None:
    """List the runs, newest first."""
    connection = session.reader_or_empty()
    now = time.time()
    runs = [run for run in read_runs(connection, active_only=active) if only.matches(run, now)]
    sizes: dict[str, int | None] = {}
    if as_json or order == "size" or is_wide():
        sizes = sizes_of(session, runs)
    rows = _in_order([RunRow(run, progress_now(connection, run)) for run in runs], order, sizes)
    if as_json:
        print_json([{**row_shape(row), "size_bytes": sizes[row.run.run_id]} for row in rows])
        return
    is_active = any(not run.state.is_over for run in runs)
    if not is_active:
        is_active = any(study.state.needs_agent for study in read_studies(connection))
    session.note_missing_agent(is_active=is_active)
    pause = queue.pause(connection)
    if pause is not None:
        say(pause_line(pause, now))
    if only and not runs:
        say("no run matches")
        return
    if not runs:
        over_count = len(read_runs(connection, over_only=True))
        say(_no_runs_words(session, over_count))
        return
    unread = intake.without_metrics(connection)
    has_own_metrics = any(row.progress.has_own_metric for row in rows)
    _print_runs(
        [_row(row, unread.get(row.run.run_id), now, has_own_metrics, sizes.get(row.run.run_id)) for row in rows],
        is_sized=bool(sizes),
        has_usual_names=all(run.run_id.rpartition("-")[0] == run.profile for run in runs),
        order=order,
    )


def _print_runs(
    table: Sequence[Mapping[str, str]], *, is_sized: bool, has_usual_names: bool, order: str | None
) -> None:
    """Print a table without the columns that say nothing.

    Args:
        table: the cells of each run, by the heads of the columns.
        is_sized: whether the sizes of the runs are known.
        has_usual_names: whether each id has the name of the run's profile.
        order: the column that the runs are sorted by; narrow terminals have it, too.
    """
    unused = [head for head in ("NAME", "TAGS") if not any(row[head] for row in table)]
    if has_usual_names:
        unused.append("PROFILE")
    if not is_sized:
        unused.append("SIZE")
    heads = [head for head in table[0] if head not in unused]
    spare = [head for head in _SPARE if head.lower() != order]
    print_table(heads, [[row[head] for head in heads] for row in table], spare=spare)


def _no_runs_words(session: Session, over_count: int) -> str:
    """What to do where no run is listed: ``no active run; gputui ps lists 3 that are over``."""
    if over_count == 1:
        return "no active run; gputui ps lists 1 that is over"
    if over_count:
        return f"no active run; gputui ps lists {over_count} that are over"
    return f"no runs yet in {session.workspace.state}; gputui profile list shows what can run"


def _in_order(rows: list[RunRow], order: str | None, sizes: Mapping[str, int | None]) -> list[RunRow]:
    """The rows, newest first, in one of `ORDERS`: unknown values come last."""

    def rank(row: RunRow) -> float:
        run = row.run
        loss = row.progress.loss
        if order == "loss":
            if loss is None or math.isnan(loss):
                return math.inf
            return loss
        value = run.started_at
        if order == "size":
            value = sizes[run.run_id]
        if value is None:
            return math.inf
        return -value

    if order is None:
        return rows
    return sorted(rows, key=rank)


def _row(row: RunRow, unread: str | None, now: float, has_own_metrics: bool, size_bytes: int | None) -> dict[str, str]:
    """The cells of a run by their column. ``unread`` says why the run has no metrics."""
    run = row.run
    progress = row.progress
    name, value = progress.listed_metric
    metric = units.metric_value(value)
    metric_head = "LOSS"
    if has_own_metrics:
        metric_head = "METRIC"
        if value is not None:
            metric = f"{clean(name)} {metric}"
    step = eta = "–"
    if progress.step is not None:
        step = units.count(progress.step)
        if progress.total_steps is not None:
            step += f"/{units.count(progress.total_steps)}"
    if activity(row, now) is None:
        eta = time_left(progress).removesuffix(" left") or "–"
    return {
        "RUN": run.run_id,
        "NAME": run.name if run.is_renamed else "",
        "PROFILE": run.profile,
        "TAGS": tag_words(run),
        "STATE": run_state_text(run),
        "GPUS": _gpus(run),
        "STEP": step,
        metric_head: metric,
        "TIME": units.duration(run.trained_seconds(now)),
        "ETA": eta,
        "SIZE": units.bytes_text(size_bytes),
        "": " · ".join(part for part in (_remark(row, unread, now), run.note) if part),
    }


def _gpus(run: Run) -> str:
    """The number of a run's GPUs, or the part of one that it asked for."""
    spec = known_spec(run)
    if spec is not None and spec.gpus.share < 1 and run.study_id is None and run.gpu_total == 1:
        return f"{spec.gpus.share:g}"
    return str(run.gpu_total or "–")


def _remark(row: RunRow, unread: str | None, now: float) -> str:
    """A remark about a run: what it does or waits for, why it has no metrics, or its end."""
    run = row.run
    doing = activity(row, now)
    if doing is not None and not (unread and awaits_step(row)):
        return doing[0]
    if run.waiting_for or run.reported_reason:
        return run.waiting_for or run.reported_reason or ""
    if run.target is not None and run.ended_at is None and (place := placement_words(run, now)[0]):
        return place
    if unread:
        return f"no metrics: {unread}"
    return ""
