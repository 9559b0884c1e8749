"""The files that a run appends to: metrics as JSON lines, and the text log.

A line of metrics is a single write to a file opened for appending, so lines of several ranks never mix, and readers see
whole lines. A failed write (a full disk, a removed folder) is reported once, counted, and never stops training.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from trainer.errors import show

Value = float | int | str | None


class MetricsWriter:
    """Appends metrics to one file. The time of a line is UTC unix seconds.

    `repair` ends an incomplete line of a killed process; one process of a run does it before the others open the file.
    Raises OSError if the file cannot be opened.
    """

    def __init__(self, path: Path, *, repair: bool = True) -> None:
        self.failures = 0
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # The file ends in an incomplete line, which the next one must not continue.
        self._half_line = repair and self._ends_in_half_line()

    def write(self, step: int, /, **values: Value | Sequence[float]) -> None:
        """Append one line. NaN is written as NaN."""
        try:
            line = json.dumps({"step": step, "time": round(time.time(), 6), **values}).encode() + b"\n"
            if self._half_line:
                line = b"\n" + line
            written = os.write(self._descriptor, line)
            self._half_line = written != len(line)
            if self._half_line:
                raise OSError(f"only {written} of {len(line)} bytes were written")
        except (OSError, TypeError, ValueError) as error:
            if self.failures == 0:
                show(f"trainer: cannot write metrics to {self._path}: {error}; training goes on", error=True)
            self.failures += 1

    def close(self) -> None:
        """Close the file. Later writes fail."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _ends_in_half_line(self) -> bool:
        size = os.fstat(self._descriptor).st_size
        return size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"


class TextLog:
    """OUTPUT_DIR/logs/trainer.log; yesterday's is ``trainer.log.2026-11-20``.

    Rank 0 writes everything there. Another rank has a file such as ``trainer.rank3.log``, created with its first line.
    A failed write is reported once on stderr, and never stops training.
    """

    def __init__(self, folder: Path, rank: int = 0) -> None:
        """Raises OSError if the folder cannot be made or, on rank 0, the file not be opened."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / ("trainer.log" if rank == 0 else f"trainer.rank{rank}.log")
        self._handler = _DailyFile(self.path, when="midnight", utc=True, encoding="utf-8", delay=rank != 0)
        formatter = logging.Formatter("%(asctime)sZ %(levelname)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S")
        formatter.converter = time.gmtime
        self._handler.setFormatter(formatter)

    def write(self, text: str, *, error: bool = False) -> None:
        """Append one line; line breaks in `text` become spaces."""
        level = logging.ERROR if error else logging.INFO
        one_line = " ".join(text.splitlines())
        self._handler.handle(logging.LogRecord("trainer", level, "", 0, one_line, None, None))

    def close(self) -> None:
        self._handler.close()


class _DailyFile(logging.handlers.TimedRotatingFileHandler):
    failures = 0

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if self.failures == 0:
            error = sys.exc_info()[1]
            show(f"trainer: cannot write the text log {self.baseFilename}: {error}; training goes on", error=True)
        self.failures += 1
