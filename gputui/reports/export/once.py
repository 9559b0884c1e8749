"""Export a run once, with everything that it has so far."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import time
from pathlib import Path

from gputui.reports.export.formats import FORMATS, Format
from gputui.reports.export.line_file import LineFile, cannot_write
from gputui.reports.export.sink import ExportError, Sink
from gputui.reports.export.sink_factory import key_of, make_sink
from gputui.reports.export.subject import Subject
from gputui.store.metrics.exported import ExportProgress, HistoryLostError, RunGoneError, read_piece

PIECE_LINES = 2000


def export(connection: sqlite3.Connection, subject: Subject, name: Format, target: str, *, replace: bool) -> int:
    """Write a run to an absolute target; returns the lines or steps. A file is written completely or not at all.
    ``replace``: an existing file is replaced, and a tracker gets another run.

    Raises ExportError. Nothing is left behind, except in a tracker that failed.
    """
    if FORMATS[name].is_folder or FORMATS[name].is_address:
        run = subject.run
        key = secrets.token_hex(8) if replace else key_of(name, run.run_id, run.created_at, target, subject.wanted)
        sink = make_sink(name, subject, target, key)
        if not (replace and FORMATS[name].is_address):
            sink.refuse_taken()
        return _write_all(connection, sink, subject.run.run_id, Path(target))
    path = Path(target)
    if replace:
        LineFile(path).refuse_other_than_files()
    else:
        LineFile(path).refuse_taken()
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        written = _write_all(connection, make_sink(name, subject, str(beside)), subject.run.run_id, path)
        beside.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    return written


def _write_all(connection: sqlite3.Connection, sink: Sink, run_id: str, shown: Path) -> int:
    progress = ExportProgress()
    try:
        sink.begin(sink.origin())
        while True:
            piece = read_piece(connection, run_id, progress, PIECE_LINES)
            sink.write(piece.items, piece.has_more)
            progress = piece.progress
            if not piece.has_more:
                sink.finish(piece.state, piece.ended_at or time.time())
                return sink.written
    except OSError as error:
        raise cannot_write(shown, error) from error
    except (RunGoneError, HistoryLostError) as error:
        raise ExportError(f"{run_id} was removed while it was exported") from error
