"""Wait for a run to end, and show its events."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import time
from contextlib import closing

import click

from gputui.core import units
from gputui.core.text import clean, clip
from gputui.metrics.progress import Progress, RunTracker
from gputui.store.database import data_version
from gputui.store.events import read_events
from gputui.store.run_history import read_incidents
from gputui.store.run_states import RunState
from gputui.store.runs import Run, find_run
from gputui.ui.cli.context import Exit, Session, print_json, say
from gputui.ui.views.run_words import activity, time_left
from gputui.ui.views.snapshot import RunRow
from gputui.ui.views.words import SEVERITY_GLYPHS, dated_clock

POLL_SECONDS = 0.1  # a script waits no longer than it must
LINE_SECONDS = 0.5  # a faster line cannot be read
AGENT_SECONDS = 5.0
"""How often an agent is started if none supervises the run."""


class StatusLine:
    """A line at the bottom of a terminal that is rewritten; nothing without a terminal."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout is not None and sys.stdout.isatty()
        self._shown = ""

    def show(self, text: str) -> None:
        """Replace the line, with control characters removed."""
        if not self._is_terminal:
            return
        text = clip(clean(text), max(1, shutil.get_terminal_size().columns - 1))
        if text != self._shown:
            click.echo(f"\r\x1b[2K{text}", nl=False)
            self._shown = text

    def clear(self) -> None:
        """Remove the line before other output."""
        if self._shown:
            click.echo("\r\x1b[2K", nl=False)
            self._shown = ""


def wait_until_over(session: Session, run_id: str, as_json: bool, *, is_quiet: bool = False) -> int:
    """Follow a run until it is over; returns the exit code. An interrupt leaves the run alone.

    On a terminal one line is rewritten (``step 140/300 · loss 0.02 · 40 s left``). Every event is a
    separate line. After an incident the history of the run follows. ``is_quiet`` prints nothing,
    ``as_json`` only the end.
    """
    with closing(session.reader()) as connection:
        try:
            view = _follow(session, connection, run_id, is_shown=not (is_quiet or as_json))
        except KeyboardInterrupt:
            say(f"{run_id} continues; gputui stop {run_id} ends it")
            return Exit.INTERRUPTED
        if as_json:
            print_json({"id": run_id, "state": view.state})
        elif not is_quiet:
            _print_end(connection, view)
    if view.state is RunState.SUCCEEDED:
        return Exit.OK
    return Exit.RUN_FAILED


def _follow(session: Session, connection: sqlite3.Connection, run_id: str, *, is_shown: bool) -> Run:
    """Show the run until it is over; returns its final state."""
    line = StatusLine()
    tracker = RunTracker(run_id)
    waits_for: str | None = None
    event_id = 0
    version = -1
    agent_seen_at = line_at = -AGENT_SECONDS
    try:
        while True:
            now = time.monotonic()
            if is_shown and (changed := data_version(connection)) != version:
                version = changed
                for event in read_events(connection, run_id, after_id=event_id):
                    event_id = event.event_id
                    line.clear()
                    mark = SEVERITY_GLYPHS.get(event.severity, " ")
                    say(f"{dated_clock(event.at, time.time())} {mark} {event.message}")
            view = find_run(connection, run_id)
            if view.state.is_over:
                return view
            if is_shown and view.waiting_for != waits_for:
                waits_for = view.waiting_for
                if waits_for:
                    line.clear()
                    say(f"{run_id} {view.state}: {waits_for}")
            if is_shown and now - line_at >= LINE_SECONDS:
                line_at = now
                tracker.read(connection, view.attempt)
                line.show(status_words(view, tracker.progress(view), time.time()))
            if now - agent_seen_at > AGENT_SECONDS:
                session.need_agent()
                agent_seen_at = now
            time.sleep(POLL_SECONDS)
    finally:
        line.clear()


def status_words(run: Run, progress: Progress, now: float) -> str:
    """``oom-1 running · attempt 2 · step 140/300 · loss 0.02 · 40 s left``, as far as known."""
    parts = [f"{run.run_id} {run.state}"]
    if run.attempt > 1:
        parts.append(f"attempt {run.attempt}")
    row = RunRow(run, progress)
    doing = activity(row, now)
    if run.state == "running" and progress.step is not None:
        step = f"step {units.count(progress.step)}"
        if progress.total_steps is not None:
            step += f"/{units.count(progress.total_steps)}"
        parts.append(step)
        if progress.loss is not None:
            parts.append(f"loss {units.metric_value(progress.loss)}")
    if doing is not None:
        parts.append(doing[0])
    elif run.waiting_for:
        parts.append(run.waiting_for)
    else:
        parts.append(time_left(progress))
    return " · ".join(part for part in parts if part)


def _print_end(connection: sqlite3.Connection, view: Run) -> None:
    had_incidents = bool(read_incidents(connection, view.run_id))
    if had_incidents:
        from gputui.ui.cli.explain import print_paragraphs, story_of

        say("")
        print_paragraphs(story_of(connection, view))
        say("")
    end = f"{view.run_id} {view.state}"
    if view.reason:
        end += f": {view.reason}"
    elif view.ended_seconds is not None:
        end += f" after {units.duration(view.ended_seconds)}"
    say(end)
    if had_incidents:
        say(f"gputui explain {view.run_id} --evidence names the folders of evidence")
