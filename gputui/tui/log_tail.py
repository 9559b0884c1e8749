"""The end of a run's log for its page, read again only when the file has grown."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gputui.charts.safe_text import clean
from gputui.runs.logs import RankLog, lines_of, rank_logs, tail_text
from gputui.tui.snapshot import LogTail

TAIL_BYTES = 64 * 1024
TAIL_LINES = 500
LIST_SECONDS = 2.0


@dataclass(slots=True)
class LogReader:
    """Follows one attempt's logs. ``wanted`` is the label of the log to show; None takes the one that tells most."""

    clock: Callable[[], float] = time.monotonic
    _directory: Path | None = None
    _logs: tuple[RankLog, ...] = ()
    _listed_at: float = float("-inf")
    _key: object = None
    _tail: LogTail = field(default_factory=LogTail)

    def read(self, attempt_dir: Path, wanted: str | None) -> LogTail:
        """The newest lines of the wanted log, made harmless."""
        now = self.clock()
        if attempt_dir != self._directory or now - self._listed_at >= LIST_SECONDS:
            self._directory, self._listed_at = attempt_dir, now
            self._logs = tuple(rank_logs(attempt_dir))
        sized = [(log, *_size(log.path)) for log in self._logs]
        labels = tuple(label(log) for log, size, _ in sized if size > 0)
        chosen = next((item for item in sized if label(item[0]) == wanted), None) or _telling(sized)
        if chosen is None:
            return LogTail(labels=labels)
        log, size, modified = chosen
        key = (log.path, size, modified, labels)
        if key != self._key:
            self._key = key
            self._tail = _tail(log, labels)
        return self._tail


def label(log: RankLog) -> str:
    """How a log is named: ``rank 0``, ``rank 0 stderr``, ``launcher``."""
    if log.rank is None:
        return "launcher"
    return f"rank {log.rank}" if log.stream == "stdout" else f"rank {log.rank} stderr"


def _telling(sized: list[tuple[RankLog, int, int]]) -> tuple[RankLog, int, int] | None:
    """The first rank's standard output, where it says anything; else the first log that does."""
    with_text = [item for item in sized if item[1] > 0]
    ranks = [item for item in with_text if item[0].rank is not None and item[0].stream == "stdout"]
    return next(iter(ranks or with_text or sized), None)


def _size(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _tail(log: RankLog, labels: tuple[str, ...]) -> LogTail:
    try:
        text = tail_text(log.path, TAIL_BYTES)
    except OSError as error:
        return LogTail(label(log), labels, problem=f"Cannot read {log.path}: {error.strerror or error}.")
    return LogTail(label(log), labels, tuple(clean(line) for line in lines_of(text)[-TAIL_LINES:]))
