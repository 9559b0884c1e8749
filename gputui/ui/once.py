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
from typing import TextIO

import click
from msgspec.structs import replace

from gputui.core.units import age
from gputui.metrics.draw.glyphs import Characters, ascii_line, characters_for, translator
from gputui.metrics.draw.parts import Line
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
WIDTH_WITHOUT_TERMINAL = 100
LEAST_WIDTH = 40

READS = 3
"""Most reads of one frame: the curves of long runs take several."""

LINES_BESIDE_GPUS = 5
"""Lines of the GPU panel beside one for each GPU: its frame, headings and totals."""

EVENTS_SHOWN = 12
"""Events of a frame without a height."""

ENDED_RUNS_SHOWN = 10
"""Runs that are over, of a frame without a height."""


def once(session: Session, *, at: str | None, as_json: bool) -> int:
    """Print one frame of the overview, now or at the moment ``at``; returns the exit code.

    Without ``at`` an agent is started if none runs, so that the values are current; it ends by
    itself. A read-only view starts none and prints the age of the values.
    """
    moment = None
    if (moment_at := typed_moment(at)) is not None:
        moment = Moment(moment_at)
    is_live = moment is None and not session.is_readonly
    problem = _start_agent(session) if is_live else None
    with closing(session.reader()) as connection:
        if is_live and problem is None:
            _await_sample(connection)
        snapshot = _read(session, connection, moment)
    is_running = read_identity(session.workspace) is not None
    notice = problem
    if notice is None and moment is None and not is_running:
        notice = _age_notice(snapshot)
    if as_json:
        print_json(snapshot_shape(snapshot, running=is_running, home=str(session.workspace.place)))
    else:
        _print_frame(snapshot, notice)
    if notice is None or session.is_readonly:
        return Exit.OK
    return Exit.UNREACHABLE


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


def _print_frame(snapshot: Snapshot, notice: str | None) -> None:
    width, height = frame_size(os.environ, sys.stdout)
    lines = overview_frame(snapshot, width, height, host_name=socket.gethostname(), notice=notice)
    is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    characters = characters_for("auto", os.environ)
    click.echo(as_text(lines, characters=characters, is_coloured=is_coloured), nl=False, color=True)


def frame_size(environ: Mapping[str, str], output: TextIO) -> tuple[int, int | None]:
    """The columns and lines of a frame: COLUMNS and LINES, else the terminal without a line for the
    prompt. Without a terminal the height is unlimited."""
    columns, lines = (_number(environ.get(name)) for name in ("COLUMNS", "LINES"))
    if output.isatty():
        size = shutil.get_terminal_size((80, 24))
        columns = columns or size.columns
        lines = lines or size.lines - 1
    return max(LEAST_WIDTH, columns or WIDTH_WITHOUT_TERMINAL), lines


def _number(text: str | None) -> int | None:
    if text is not None and text.isdigit() and int(text) > 0:
        return int(text)
    return None


def _read(session: Session, connection: sqlite3.Connection, moment: Moment | None) -> Snapshot:
    reader = SnapshotReader(session.workspace)
    for _ in range(READS):
        snapshot = reader.read(connection, time.time(), Interest(moment=moment))
        if not reader.is_behind:
            break
    return snapshot


def _await_sample(connection: sqlite3.Connection) -> None:
    """Wait until a new agent has sampled something, or cannot."""
    begin = time.monotonic()
    deadline = begin + FIRST_SAMPLE_SECONDS
    while time.monotonic() < deadline:
        agent = read_agent(connection)
        host = read_host(connection)
        if agent is not None and agent.source is not None and host is not None and host.at >= agent.started_at:
            # Rates and CPU load need two samples.
            if host.cpu_percent is None and time.monotonic() - begin < SECOND_SAMPLE_SECONDS:
                time.sleep(POLL_SECONDS)
                continue
            if has_samples(agent, read_gpus(connection, time.time())):
                return
        time.sleep(POLL_SECONDS)


def _age_notice(snapshot: Snapshot) -> str | None:
    """The age of the values if no agent runs."""
    newest = max((gpu.at for gpu in snapshot.gpus if gpu.at is not None), default=None)
    if snapshot.host is not None:
        newest = max(newest or 0.0, snapshot.host.at)
    if newest is None:
        return "No agent runs, and nothing was sampled yet."
    seconds = snapshot.at - newest
    if seconds < 1:
        return "No agent runs; the values are of just now."
    return f"No agent runs; the values are {age(seconds)} old."


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
    entries = with_studies(snapshot.runs, snapshot.studies)
    notes: list[Line] = []
    if height is None:
        entries, left_out = _without_older(entries)
        if left_out:
            notes = [fit_line([(f"  … {left_out} older ones; gputui ps lists all", "dim")], width)]
        newest = replace(snapshot, events=snapshot.events[-EVENTS_SHOWN:])
        rows = Rows(
            gpus=gpu_height(snapshot, width, len(snapshot.gpus) + LINES_BESIDE_GPUS),
            runs=1 + max(1, len(entries)),
            events=1 + max(1, len(event_rows(newest, width))),
        )
    else:
        needs = AreaNeeds(
            gpus=lambda most: gpu_height(snapshot, width, most),
            runs=len(entries),
            processes=0,
            others=0,
            hidden=0,
            events=len(event_rows(snapshot, width)),
            has_charts=False,
        )
        rows = share_rows(width, max(0, height - len(head)), needs, is_framed=False)
    lines = [
        *head,
        *gpu_panel(snapshot, width, rows.gpus),
        *runs_panel(entries, RunsState(), snapshot, width, rows.runs, has_keys=False),
        *notes,
        *events_panel(snapshot, width, rows.events),
    ]
    if height is None:
        return lines
    return lines[:height]


def _without_older(entries: Sequence[Entry]) -> tuple[list[Entry], int]:
    """The rows of the table without runs that ended long ago, and how many these are."""
    ended = [entry for entry in entries if isinstance(entry, RunRow) and entry.run.state.is_over]
    older = {id(entry) for entry in ended[ENDED_RUNS_SHOWN:]}
    return [entry for entry in entries if id(entry) not in older], len(older)


def as_text(lines: Sequence[Line], *, characters: Characters = "braille", is_coloured: bool = False) -> str:
    """The lines, each with a line feed and without trailing blanks."""
    return "".join(_line(line, characters, is_coloured) + "\n" for line in lines)


def _line(line: Line, characters: Characters, is_coloured: bool) -> str:
    parts: list[tuple[str, str]] = [(_shown(text, characters), key) for text, key in line]
    while parts and not parts[-1][0].rstrip():
        parts.pop()
    if parts:
        parts[-1] = (parts[-1][0].rstrip(), parts[-1][1])
    if not is_coloured:
        return "".join(text for text, _ in parts)
    # Rich is not needed for text without colours.
    from rich.color import ColorSystem

    from gputui.ui.tui.theme.colors import ANSI

    return "".join(ANSI.style(key).render(text, color_system=ColorSystem.STANDARD) for text, key in parts)


def _shown(text: str, characters: Characters) -> str:
    if characters == "ascii":
        return ascii_line(text)
    turn = translator(characters)
    if turn is None:
        return text
    return "".join(turn(list(text)))
