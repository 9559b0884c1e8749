"""Export what a run has so far, once: a file is written completely or not at all."""

from __future__ import annotations

import secrets
import time
from contextlib import closing
from importlib import import_module
from pathlib import Path

from msgspec.structs import replace

from gputui.core.files import replaced
from gputui.reports.export.files import cannot_write, make_folder, refuse_full_file, refuse_other_than_files
from gputui.reports.export.formats import FORMATS, Format, missing_package
from gputui.reports.export.sink import ExportError, Sink
from gputui.reports.export.subject import Subject
from gputui.store.metrics.exported import ExportProgress, HistoryLostError, RunGoneError, read_piece

PIECE_LINES = 2000
"""Lines that are read at once: some hundred milliseconds of work, and little memory."""


def make_sink(name: Format, subject: Subject, target: str) -> Sink:
    """A sink for an absolute target. Raises ExportError if its library is missing."""
    missing = missing_package(name, target)
    if missing is not None:
        raise ExportError(missing)
    module, _, class_name = FORMATS[name].sink.partition(":")
    sink: Sink = getattr(import_module(f"{__package__}.{module}"), class_name)(subject, target)
    return sink


def export(subject: Subject, name: Format, target: str, *, replaces: bool) -> int:
    """Write what a run has so far to a target; returns the lines or steps.

    A file is written completely or not at all. Nothing but the folder is left behind, except in a tracker that failed.

    Args:
        target: Absolute.
        replaces: A file is replaced, a tracker gets another run.

    Raises:
        ExportError: It cannot be written.
    """
    if FORMATS[name].is_folder or FORMATS[name].is_address:
        if replaces:
            subject = replace(subject, key=secrets.token_hex(8))
        sink = make_sink(name, subject, target)
        if not (replaces and FORMATS[name].is_address):
            sink.refuse_taken()
        make_folder(target)
        return _write_all(sink, subject, Path(target))
    path = Path(target)
    if replaces:
        refuse_other_than_files(path)
    else:
        refuse_full_file(path)
    make_folder(target)
    try:
        with replaced(path) as file:
            return _write_all(make_sink(name, subject, file.name), subject, path)
    except OSError as error:
        raise cannot_write(path, error) from error


def _write_all(sink: Sink, subject: Subject, path: Path) -> int:
    progress = ExportProgress()
    run_id = subject.run.run_id
    try:
        with closing(sink):
            sink.begin({})
            while True:
                piece = read_piece(subject.connection, run_id, progress, PIECE_LINES)
                sink.write(piece.items, piece.has_more)
                progress = piece.progress
                if not piece.has_more:
                    sink.finish(piece.state, piece.ended_at or time.time())
                    return sink.written
    except OSError as error:
        raise cannot_write(path, error) from error
    except (RunGoneError, HistoryLostError) as error:
        raise ExportError(f"{run_id} was removed while it was exported") from error
