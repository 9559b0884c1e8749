"""Metrics as JSON lines: one object per line, appended, never rewritten.

Each line goes out in a single write to a file opened for appending, so the lines of several ranks never mix and a
reader sees whole lines. Writing can fail (a full disk, a directory taken away): that is reported once and counted, and
never reaches the training step.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from trainer.console import show

Value = float | int | str | None


class MetricsWriter:
    """Appends metrics to one file. The time of a line is UTC unix seconds.

    `repair` ends a half line that a killed predecessor may have left; one process of a run does that, before the others
    open the file. Raises OSError where the file cannot be opened.
    """

    def __init__(self, path: Path, *, repair: bool = True) -> None:
        self.failures = 0
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # Whether what was written last is half a line, so that the next one must not continue it.
        self._half_line = repair and self._ends_in_half_line()

    def write(self, step: int, /, **values: Value | Sequence[float]) -> None:
        """Appends one line; names that are no identifiers come in by ``**{"val/loss": 0.5}``. NaN stays NaN."""
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
        """Closes the file; a write after this counts as a failure."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _ends_in_half_line(self) -> bool:
        size = os.fstat(self._descriptor).st_size
        return size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"
