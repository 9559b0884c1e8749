"""`gputui --once`: one frame of the screen as text or JSON, without a terminal."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import NamedTuple, TextIO

import click
from msgspec.structs import replace

from gputui.core.units import age
from gputui.metrics.draw.glyphs import Characters, ascii_line, characters_for, translator
from gputui.metrics.draw.parts import Line, Span
from gputui.runs.agent_process import AgentStoppedError, AgentUnreachableError, ensure_agent, read_identity
from gputui.store.agent import read_agent
from gputui.store.hardware import read_gpus, read_host
from gputui.ui.cli.context import Exit, Session, fail, print_json, report_progress, typed_moment
from gputui.ui.cli.gpus import FIRST_SAMPLE_SECONDS, has_samples
from gputui.ui.tui.data.reader import SnapshotReader
from gputui.ui.tui.layout.columns import fit_line
from gputui.ui.tui.layout.moments import time_line
from gputui.ui.tui.layout.strips import alert_strip, head_line, notice_lines
from gputui.ui.tui.pages.overview.areas import AreaNeeds, Rows, share_rows
from gputui.ui.tui.pages.overview.events import event_rows, events_panel
from gputui.ui.tui.pages.overview.gpus import gpu_height, gpu_panel
from gputui.ui.tui.pages.overview.run_order import Entry, with_studies
from gputui.ui.tui.pages.overview.runs import RunsState, runs_panel
from gputui.ui.views.snapshot import Interest, Moment, RunRow, Snapshot
from gputui.ui.views.snapshot_json import snapshot_shape

SECOND_SAMPLE_SECONDS = 2.0
"""How long to wait for the CPU load and rates, which need two samples."""

POLL_SECONDS = 0.02
"""How often to look for a sample: a person waits, and a look is one small read."""

READS = 3
"""Most reads of one frame: the curves of long runs take several."""

WIDTH_WITHOUT_TERMINAL = 100
"""Columns of a frame in a file: wide enough for most columns of the tables, narrow enough for an editor."""

LEAST_WIDTH = 40

LINES_BESIDE_GPUS = 5
"""Lines of the GPU panel beside one for each GPU: its frame, headings and totals."""

EVENTS_SHOWN = 12
ENDED_RUNS_SHOWN = 10
"""Events, and runs that are over, of a frame without a height: what just happened; gputui ps lists all runs."""


class OnceView(NamedTuple):
    """What is printed.

    Attributes:
        notice: a sentence if no agent keeps the values current; None otherwise.
        exit_code: `Exit.UNREACHABLE` if there should be an agent and is none.
    """

    snapshot: Snapshot
    notice: str | None = None
    exit_code: int = Exit.OK


def once(session: Session, *, at: str | None, as_json: bool) -> int:
    """Print one frame of the overview, now or at the moment ``at``; returns the exit code.

    Without ``at`` an agent is started if none runs, so that the values are current; it ends by
    itself. A read-only view starts none and prints the age of the values.
    """
    moment_at = typed_moment(at)
    if moment_at is not None:
        view = OnceView(_read(session, Moment(moment_at)))
    elif session.is_readonly:
        snapshot = _read(session)
        view = OnceView(snapshot, _age_notice(session, snapshot))
    else:
        view = _live_view(session)
    if as_json:
        is_running = read_identity(session.workspace) is not None
        print_json(snapshot_shape(view.snapshot, running=is_running, home=str(session.workspace.place)))
    else:
        _print_frame(view.snapshot, view.notice)
    return view.exit_code


# --- what is read


def _live_view(session: Session) -> OnceView:
    """The present, with an agent if one can be started."""
    problem = _start_agent(session)
    if problem is None:
        _await_sample(session)
    snapshot = _read(session)
    notice = problem or _age_notice(session, snapshot)
    if notice is None:
        return OnceView(snapshot)
    return OnceView(snapshot, notice, Exit.UNREACHABLE)


def _start_agent(session: Session) -> str | None:
    """Start an agent if none runs; a sentence if that is not possible, and the last values are shown."""
    try:
        ensure_agent(session.workspace, report=report_progress)
    except AgentStoppedError as error:
        return error.sentence
    except AgentUnreachableError as error:
        if not session.workspace.database.exists():
            fail(str(error), Exit.UNREACHABLE)
        return f"The agent does not start: {str(error).rstrip('.')}."
    return None


def _read(session: Session, moment: Moment | None = None) -> Snapshot:
    reader = SnapshotReader(session.workspace)
    with closing(session.reader()) as connection:
        for _ in range(READS):
            snapshot = reader.read(connection, time.time(), Interest(moment=moment))
            if not reader.is_behind:
                break
    return snapshot


def _await_sample(session: Session) -> None:
    """Wait until a new agent has sampled something, or cannot."""
    begin = time.monotonic()
    with closing(session.reader()) as connection:
        while (waited := time.monotonic() - begin) < FIRST_SAMPLE_SECONDS:
            if _is_sampled(connection, with_rates=waited < SECOND_SAMPLE_SECONDS):
                return
            time.sleep(POLL_SECONDS)


def _is_sampled(connection: sqlite3.Connection, *, with_rates: bool) -> bool:
    """Return whether the running agent has sampled the host and the GPUs, also what needs two samples if
    ``with_rates``."""
    agent = read_agent(connection)
    host = read_host(connection)
    if agent is None or agent.source is None or host is None or host.at < agent.started_at:
        return False
    if with_rates and host.cpu_percent is None:
        return False
    return has_samples(agent, read_gpus(connection, time.time()))


def _age_notice(session: Session, snapshot: Snapshot) -> str | None:
    """The age of the values if no agent runs; None if one does."""
    if read_identity(session.workspace) is not None:
        return None
    newest = max((gpu.at for gpu in snapshot.gpus if gpu.at is not None), default=None)
    if snapshot.host is not None:
        newest = max(newest or 0.0, snapshot.host.at)
    if newest is None:
        return "No agent runs, and nothing was sampled yet."
    seconds = snapshot.at - newest
    if seconds < 1:
        return "No agent runs; the values are of just now."
    return f"No agent runs; the values are {age(seconds)} old."


# --- the frame


def _print_frame(snapshot: Snapshot, notice: str | None) -> None:
    width, height = frame_size(os.environ, sys.stdout)
    lines = overview_frame(snapshot, width, height, host_name=socket.gethostname(), notice=notice)
    is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    characters = characters_for("auto", os.environ)
    click.echo(as_text(lines, characters=characters, is_coloured=is_coloured), nl=False, color=True)


def frame_size(environ: Mapping[str, str], output: TextIO) -> tuple[int, int | None]:
    """The columns and lines of a frame: COLUMNS and LINES, else the terminal without a line for the
    prompt. Without a terminal the height is unlimited."""
    columns = _positive(environ.get("COLUMNS"))
    lines = _positive(environ.get("LINES"))
    if output.isatty():
        size = shutil.get_terminal_size((80, 24))
        columns = columns or size.columns
        lines = lines or size.lines - 1
    return max(LEAST_WIDTH, columns or WIDTH_WITHOUT_TERMINAL), lines


def _positive(text: str | None) -> int | None:
    if text is not None and text.isdigit() and int(text) > 0:
        return int(text)
    return None


def overview_frame(
    snapshot: Snapshot, width: int, height: int | None, *, host_name: str, notice: str | None = None
) -> list[Line]:
    """Head, notices, GPUs, host, runs and events, in ``height`` lines or, for None, in as many as they need."""
    head = [head_line(snapshot, width, host_name, demo=False, readonly=False)]
    if snapshot.past is not None:
        head.append(time_line(snapshot.past, snapshot.at, width))
    head += notice_lines(snapshot, notice, width)
    alerts = alert_strip(snapshot, width)
    if alerts is not None:
        head.append(alerts)
    if height is None:
        return [*head, *_whole_body(snapshot, width)]
    body = _body_in(snapshot, width, max(0, height - len(head)))
    return [*head, *body][:height]


def _whole_body(snapshot: Snapshot, width: int) -> list[Line]:
    """GPUs, runs and events in as many lines as they need."""
    entries, left_out = _without_older(with_studies(snapshot.runs, snapshot.studies))
    notes: list[Line] = []
    if left_out:
        notes = [fit_line([(f"  … {left_out} older ones; gputui ps lists all", "dim")], width)]
    newest = replace(snapshot, events=snapshot.events[-EVENTS_SHOWN:])
    rows = Rows(
        gpus=gpu_height(snapshot, width, len(snapshot.gpus) + LINES_BESIDE_GPUS),
        runs=1 + max(1, len(entries)),
        events=1 + max(1, len(event_rows(newest, width))),
    )
    return _body(snapshot, width, rows, entries, notes)


def _body_in(snapshot: Snapshot, width: int, height: int) -> list[Line]:
    """GPUs, runs and events in the lines that there are."""
    entries = with_studies(snapshot.runs, snapshot.studies)
    needs = AreaNeeds(
        gpus=lambda most: gpu_height(snapshot, width, most),
        runs=len(entries),
        processes=0,
        others=0,
        hidden=0,
        events=len(event_rows(snapshot, width)),
        has_charts=False,
    )
    return _body(snapshot, width, share_rows(width, height, needs, is_framed=False), entries)


def _body(
    snapshot: Snapshot, width: int, rows: Rows, entries: Sequence[Entry], notes: Sequence[Line] = ()
) -> list[Line]:
    """GPUs, runs with ``notes`` below them, and events, in the lines of ``rows``."""
    return [
        *gpu_panel(snapshot, width, rows.gpus),
        *runs_panel(entries, RunsState(), snapshot, width, rows.runs, has_keys=False),
        *notes,
        *events_panel(snapshot, width, rows.events),
    ]


def _without_older(entries: Sequence[Entry]) -> tuple[list[Entry], int]:
    """The rows of the table without runs that ended long ago, and how many these are."""
    recent: list[Entry] = []
    ended_count = 0
    for entry in entries:
        is_ended = isinstance(entry, RunRow) and entry.run.state.is_over
        ended_count += is_ended
        if not is_ended or ended_count <= ENDED_RUNS_SHOWN:
            recent.append(entry)
    return recent, len(entries) - len(recent)


# --- text


def as_text(lines: Sequence[Line], *, characters: Characters = "braille", is_coloured: bool = False) -> str:
    """The lines, each with a line feed and without trailing blanks."""
    texts = []
    for line in lines:
        spans = _without_trailing_blanks([(_translated(text, characters), key) for text, key in line])
        if is_coloured:
            texts.append(_coloured(spans))
        else:
            texts.append("".join(text for text, _ in spans))
    return "".join(text + "\n" for text in texts)


def _translated(text: str, characters: Characters) -> str:
    """A text in the characters that the terminal has."""
    if characters == "ascii":
        return ascii_line(text)
    translate = translator(characters)
    if translate is None:
        return text
    return "".join(translate(list(text)))


def _without_trailing_blanks(spans: Sequence[Span]) -> list[Span]:
    before = list(spans)
    while before:
        text, key = before.pop()
        if text.rstrip():
            return [*before, (text.rstrip(), key)]
    return []


def _coloured(spans: Sequence[Span]) -> str:
    # Rich is not needed for text without colours.
    from rich.color import ColorSystem

    from gputui.ui.tui.theme.colors import ANSI

    return "".join(ANSI.style(key).render(text, color_system=ColorSystem.STANDARD) for text, key in spans)
