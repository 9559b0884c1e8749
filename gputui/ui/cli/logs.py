"""`gputui logs`."""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from contextlib import closing
from pathlib import Path

import click

from gputui.core.text import clean
from gputui.runs.log_lines import stop_report
from gputui.runs.logs import RankLog, read_window, shown_logs, tail_text
from gputui.store.attempts import get_attempt
from gputui.store.runs import find_run
from gputui.ui.cli import completers
from gputui.ui.cli.context import Exit, Session, fail, verb

TAIL_BYTES = 256 << 10  # thousands of lines, read at once also from a slow disk
WINDOW_BYTES = 256 << 10  # read at a time, so that memory stays small
FOLLOW_SECONDS = 0.2  # a person sees no delay
STOP_BYTES = 8 << 10  # the launcher's report of a stop is shorter


@verb("logs", changes=False)
@click.argument("run", required=False, shell_complete=completers.runs)
@click.option("-f", "--follow", is_flag=True, help="Follow over attempts until the run ends.")
@click.option("--rank", type=click.IntRange(0), help="Only this rank (else everything).")
@click.option("--attempt", type=click.IntRange(1), help="An earlier attempt (else the newest).")
@click.option(
    "-n", "--lines", type=click.IntRange(0), default=200, show_default=True, help="Lines per file; 0 for all."
)
def command(session: Session, run: str | None, follow: bool, rank: int | None, attempt: int | None, lines: int) -> None:
    """Print the output of a run (by default the newest): the launcher's, each rank's, its job's on a target."""
    with closing(session.reader()) as connection:
        view = session.find_run(connection, run)
        number = attempt or view.attempt
        if number < 1:
            fail(f"{view.run_id} has not started yet ({view.waiting_for or view.state})", Exit.REFUSED)
        attempts = session.workspace.run_dir(view.run_id) / "attempts"
        files = rank_logs(attempts / str(number), rank)
        if not files and not follow:
            subject = f"attempt {number}"
            if rank is not None:
                subject += f", rank {rank}"
            fail(f"{view.run_id} has no output of {subject} in {attempts / str(number)}", Exit.REFUSED)
        positions = {
            log.path: print_tail(log.path, label(log, len(files) > 1), lines, with_rest=not follow) for log in files
        }
        if follow:
            number = _follow(connection, view.run_id, attempts, rank=rank, number=number, positions=positions)
        newest = get_attempt(connection, view.run_id, number)
        if newest is None or newest.state != "stopped":
            return
        for log in rank_logs(attempts / str(number), rank):
            report = stop_report(tail_text(log.path, STOP_BYTES).splitlines())
            if report is not None:
                text = f"(attempt {number} was stopped: the {report.exception} above is how its launcher reports that)"
                # On standard error, so that a pipe gets only lines of the log.
                click.echo(text, err=True)
                return


def _follow(
    connection: sqlite3.Connection,
    run_id: str,
    attempts: Path,
    rank: int | None,
    number: int,
    positions: dict[Path, int],
) -> int:
    """Print what is added from attempt ``number`` on until the run is over; returns its last attempt.

    Args:
        attempts: the folder of the run's attempts.
        rank: the rank whose output is printed; None for all.
        positions: how far each file was printed, which this moves on.
    """
    while True:
        run = find_run(connection, run_id)
        is_over = run.state.is_over or run.attempt != number
        if follow_once(attempts / str(number), rank, positions, with_rest=is_over):
            continue
        if run.attempt != number:
            number = run.attempt
        elif is_over:
            return number
        else:
            time.sleep(FOLLOW_SECONDS)


def rank_logs(folder: Path, rank: int | None) -> list[RankLog]:
    """The log files of one rank, or of all, that are not empty."""
    return [log for log in shown_logs(folder) if rank is None or log.rank == rank]


def print_tail(path: Path, prefix: str, count: int, *, with_rest: bool) -> int:
    """Print the last lines of a file, all for 0; returns the offset of what was not printed."""
    offset = 0
    if count:
        offset = max(0, path.stat().st_size - TAIL_BYTES)
    is_cut = offset > 0
    tail = deque[str](maxlen=count)
    while True:
        lines, end = new_lines(path, offset, with_rest=with_rest)
        if end == offset:
            break
        tail.extend(lines[is_cut:])
        is_cut = False
        offset = end
        if count == 0:
            for line in lines:
                click.echo(prefix + clean(line))
    for line in tail:
        click.echo(prefix + clean(line))
    return offset


def follow_once(folder: Path, rank: int | None, positions: dict[Path, int], *, with_rest: bool) -> bool:
    """Print what was added to the logs of an attempt's folder; returns whether there was something."""
    files = rank_logs(folder, rank)
    has_printed = False
    for log in files:
        lines, positions[log.path] = new_lines(log.path, positions.get(log.path, 0), with_rest=with_rest)
        for line in lines:
            click.echo(label(log, len(files) > 1) + clean(line))
            has_printed = True
    return has_printed


def new_lines(path: Path, offset: int, *, with_rest: bool) -> tuple[list[str], int]:
    """The next whole lines of a file from an offset on, at most a window of them, and where they end.
    Where there are none, a last line without an end counts too ``with_rest``."""
    window = read_window(path, offset, WINDOW_BYTES)
    if window.end == offset and with_rest:
        window = read_window(path, offset, WINDOW_BYTES, partial=True)
    return window.text.splitlines(), window.end


def label(log: RankLog, several: bool) -> str:
    """The prefix of a line if there are several files."""
    if not several:
        return ""
    if log.rank is not None:
        return f"[rank {log.rank}] "
    if log.stream == "job":
        return "[job] "
    return "[launcher] "
