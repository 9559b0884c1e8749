"""The text log: what is said on the console and what happens, line by line with UTC times, a new file every day."""

from __future__ import annotations

import logging
import logging.handlers
import sys
import time
from pathlib import Path

from trainer.console import show


class TextLog:
    """OUTPUT_DIR/logs/trainer.log; yesterday's is ``trainer.log.2026-11-20``.

    Rank 0 writes everything there. Another rank has a file of its own, ``trainer.rank3.log``, which appears with the
    first thing it has to say. Writing can fail: that is reported once on stderr and never reaches the training step.
    """

    def __init__(self, folder: Path, rank: int = 0) -> None:
        """Raises OSError where the folder cannot be made or, on rank 0, the file not be opened."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / ("trainer.log" if rank == 0 else f"trainer.rank{rank}.log")
        self._handler = _DailyFile(self.path, when="midnight", utc=True, encoding="utf-8", delay=rank != 0)
        formatter = logging.Formatter("%(asctime)sZ %(levelname)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S")
        formatter.converter = time.gmtime
        self._handler.setFormatter(formatter)

    def write(self, text: str, *, error: bool = False) -> None:
        """Appends one line; line breaks in `text` become spaces."""
        level = logging.ERROR if error else logging.INFO
        one_line = " ".join(text.splitlines())
        self._handler.handle(logging.LogRecord("trainer", level, "", 0, one_line, None, None))

    def close(self) -> None:
        self._handler.close()


class _DailyFile(logging.handlers.TimedRotatingFileHandler):
    failures = 0

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if self.failures == 0:
            why = sys.exc_info()[1]
            show(f"trainer: cannot write the text log {self.baseFilename}: {why}; training goes on", error=True)
        self.failures += 1
