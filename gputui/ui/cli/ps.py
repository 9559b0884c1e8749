"""`gputui ps`."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Mapping, Sequence

import click

from gputui.core import units
from gputui.core.text import clean
from gputui.metrics.progress import Progress, progress_now
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
    session.note_missing_agent(is_active=_needs_agent(connection, runs))
    pause = queue.pause(connection)
    if pause is not None:
        say(pause_line(pause, now))
    if runs:
        _print_runs(connection, rows, sizes, order, now)
    elif only:
        say("no run matches")
    else:
        say(_no_runs_words(session, over_count=len(read_runs(connection, over_only=True))))


def _needs_agent(connection: sqlite3.Connection, runs: Sequence[Run]) -> bool:
    """Whether one of the runs or of all studies makes no progress without an agent."""
    if any(not run.state.is_over for run in runs):
        return True
    return any(study.state.needs_agent for study in read_studies(connection))


def _print_runs(
    connection: sqlite3.Connection,
    rows: Sequence[RunRow],
    sizes: Mapping[str, int | None],
    order: str | None,
    now: float,
) -> None:
    """Print a table without the columns that say nothing.

    Args:
        sizes: the bytes of each run's folder, by run id; empty if they are not to be shown.
        order: the column that the runs are sorted by; narrow terminals have it, too.
    """
    unread = intake.without_metrics(connection)
    has_own_metrics = any(row.progress.has_own_metric for row in rows)
    table = [_cells(row, unread.get(row.run.run_id), now, has_own_metrics, sizes.get(row.run.run_id)) for row in rows]
    unused = [head for head in ("NAME", "TAGS") if not any(cells[head] for cells in table)]
    if all(_has_usual_name(row.run) for row in rows):
        unused.append("PROFILE")
    if not sizes:
        unused.append("SIZE")
    heads = [head for head in table[0] if head not in unused]
    spare = [head for head in _SPARE if head.lower() != order]
    print_table(heads, [[cells[head] for head in heads] for cells in table], spare=spare)


def _has_usual_name(run: Run) -> bool:
    """Whether the id of a run has the name of its profile."""
    name, _, _ = run.run_id.rpartition("-")
    return name == run.profile


def _no_runs_words(session: Session, *, over_count: int) -> str:
    """What to do where no run is listed: ``no active run; gputui ps lists 3 that are over``."""
    if over_count == 1:
        return "no active run; gputui ps lists 1 that is over"
    if over_count:
        return f"no active run; gputui ps lists {over_count} that are over"
    return f"no runs yet in {session.workspace.state}; gputui profile list shows what can run"


def _in_order(rows: list[RunRow], order: str | None, sizes: Mapping[str, int | None]) -> list[RunRow]:
    """The rows, newest first, in one of `ORDERS`: unknown values come last."""

    def rank(row: RunRow) -> float:
        if order == "loss":
            loss = row.progress.loss
            return math.inf if loss is None or math.isnan(loss) else loss
        value = sizes[row.run.run_id] if order == "size" else row.run.started_at
        return math.inf if value is None else -value

    if order is None:
        return rows
    return sorted(rows, key=rank)


def _cells(
    row: RunRow, unread: str | None, now: float, has_own_metrics: bool, size_bytes: int | None
) -> dict[str, str]:
    """The cells of a run by their column.

    Args:
        unread: why the run has no metrics; None if it has.
        has_own_metrics: whether one of the listed runs has another metric than a loss.
        size_bytes: the bytes of the run's folder; None if unknown.
    """
    run = row.run
    eta = ""
    if activity(row, now) is None:
        eta = time_left(row.progress).removesuffix(" left")
    metric_head = "METRIC" if has_own_metrics else "LOSS"
    return {
        "RUN": run.run_id,
        "NAME": run.name if run.is_renamed else "",
        "PROFILE": run.profile,
        "TAGS": tag_words(run),
        "STATE": run_state_text(run),
        "GPUS": _gpus(run),
        "STEP": _step(row.progress),
        metric_head: _metric(row.progress, is_named=has_own_metrics),
        "TIME": units.duration(run.trained_seconds(now)),
        "ETA": eta or "–",
        "SIZE": units.bytes_text(size_bytes),
        "": " · ".join(part for part in (_remark(row, unread, now), run.note) if part),
    }


def _step(progress: Progress) -> str:
    """``400/1 000``; a dash if no step is known."""
    if progress.step is None:
        return "–"
    if progress.total_steps is None:
        return units.count(progress.step)
    return f"{units.count(progress.step)}/{units.count(progress.total_steps)}"


def _metric(progress: Progress, *, is_named: bool) -> str:
    """The newest value of the metric that is listed, with its name if asked for."""
    name, value = progress.listed_metric
    if is_named and value is not None:
        return f"{clean(name)} {units.metric_value(value)}"
    return units.metric_value(value)


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
    is_unread = bool(unread) and awaits_step(row)
    if doing is not None and not is_unread:
        text, _ = doing
        return text
    if run.waiting_for:
        return run.waiting_for
    if run.reported_reason:
        return run.reported_reason
    if run.target is not None and run.ended_at is None:
        place, _ = placement_words(run, now)
        if place:
            return place
    if unread:
        return f"no metrics: {unread}"
    return ""
