"""The end of a run's log, followed as it grows: each read takes only new bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gputui.core.text import clean
from gputui.runs.log_lines import LevelReader
from gputui.runs.logs import RankLog, last_state, printed_lines, read_window, shown_logs
from gputui.ui.views.snapshot import LogTail

TAIL_BYTES = 128 * 1024
"""How far back a log is read when its page opens."""

DEEP_BYTES = 4 * 1024 * 1024
"""How far back a log is read for a search, or at the upper end of the loaded part."""

MOST_LINES = 40_000  # some megabytes of memory
UNFINISHED_BYTES = 8 * 1024  # the rewritten line of a progress bar is shorter
EARLIER_ATTEMPTS = 3
"""How many earlier attempts offer their logs."""

OF_ATTEMPT = " of attempt "
"""Part of the labels of earlier attempts' logs."""


class LogReader:
    """Follows the logs of one attempt, and offers those of earlier attempts."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._earlier: dict[str, RankLog] = {}
        self._key: object = None
        self._file: _FollowedFile | None = None
        self._tail = LogTail()

    def read(self, attempt_dir: Path, label: str | None, *, deep: bool = False) -> LogTail:
        """The newest lines of a log, as harmless text. An unchanged log is the same tail.

        Args:
            attempt_dir: the folder of the newest attempt.
            label: the label of the log; None for the most useful one of this attempt.
            deep: whether to read further back.
        """
        if attempt_dir != self._directory:
            # Logs of ended attempts do not change.
            self._directory = attempt_dir
            self._earlier = dict(_earlier_logs(attempt_dir))
        newest = {_label(log): log for log in shown_logs(attempt_dir)}
        written = {name: log for name, log in newest.items() if _size(log.path)[0] > 0}
        labels = (*written, *self._earlier)
        logs = {**newest, **self._earlier}
        if label not in logs:
            # The first rank's standard output, else the first log that is not empty.
            ranks = [name for name, log in written.items() if log.rank is not None and log.stream == "stdout"]
            label = next(iter([*ranks, *written, *newest]), None)
        if label is None:
            return LogTail(labels=labels)
        log = logs[label]
        key = (log.path, *_size(log.path), labels, deep)
        if key != self._key:
            self._tail = self._follow(log, label, labels, deep=deep)
            self._key = key
        return self._tail

    def _follow(self, log: RankLog, name: str, labels: tuple[str, ...], *, deep: bool) -> LogTail:
        if self._file is None or self._file.path != log.path:
            self._file = _FollowedFile(log.path)
        file = self._file
        try:
            unfinished = file.read(deep=deep)
        except OSError as error:
            self._file = None
            return LogTail(name, labels, problem=f"Cannot read {log.path}: {error.strerror or error}.")
        levels = bytes(file.levels) + bytes(len(unfinished))
        lines = (*file.lines, *unfinished)
        return LogTail(
            name, labels, lines, levels=levels, first=file.first, is_whole=file.is_whole, source=str(log.path)
        )


class _FollowedFile:
    """The newest lines of one file.

    Attributes:
        lines: the newest lines of the file, `MOST_LINES` at most.
        levels: the level of each of the lines.
        first: the number of the first of the lines. Lines keep their numbers while others come and go; those before
            the offset where reading began are negative.
        is_whole: whether the lines begin with the file's first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[str] = []
        self.levels = bytearray()
        self.first = 0
        self.is_whole = False
        self._end: int | None = None
        self._begun = ""
        self._is_deep = self._is_cut = False
        self._level_reader = LevelReader()

    def read(self, *, deep: bool) -> Sequence[str]:
        """Read what was written since the last time; returns the unfinished line. Raises OSError."""
        size = self.path.stat().st_size
        end = self._end
        newest = self.first + len(self.lines)
        loaded_bytes = DEEP_BYTES if self._is_deep else TAIL_BYTES
        if end is None or size < end or size - end > loaded_bytes:
            # A new file, a truncated one, or one that grew far beyond the kept lines.
            depth = DEEP_BYTES if deep else TAIL_BYTES
            self._begin(max(0, size - depth))
            self.first = newest
            self._is_deep = deep
        elif deep and not self._is_deep:
            self._is_deep = True
            if not self.is_whole:
                # Known lines keep their numbers.
                self._begin(max(0, end - DEEP_BYTES))
                self._read_on(end)
                self.first = newest - len(self.lines)
        self._read_on(None)
        rest = read_window(self.path, self._end or 0, UNFINISHED_BYTES, partial=True, as_written=True).text
        if self._begun or rest:
            return [clean(last_state(self._begun + rest))]
        return []

    def _begin(self, start: int) -> None:
        self.lines = []
        self.levels = bytearray()
        self._level_reader = LevelReader()
        self.is_whole = start == 0
        self._is_cut = start > 0
        self._end = start
        self._begun = ""

    def _read_on(self, stop: int | None) -> None:
        """Read complete lines up to a place in the file, or to its end."""
        while (end := self._end or 0) != stop:
            most = DEEP_BYTES if stop is None else stop - end
            window = read_window(self.path, end, most, as_written=True)
            if window.end <= end:
                break
            text = window.text
            if self._is_cut:
                # The rest of a line is skipped; if it has no end, its rest is better than nothing.
                text = text[text.find("\n") + 1 :]
            lines, self._begun = printed_lines(text, self._begun)
            self._end = window.end
            self._is_cut = False
            harmless = [clean(line) for line in lines]
            self.lines += harmless
            self.levels += bytes(map(self._level_reader.level, harmless))
            surplus = len(self.lines) - MOST_LINES
            if surplus > 0:
                del self.lines[:surplus], self.levels[:surplus]
                self.first += surplus
                self.is_whole = False


def _label(log: RankLog) -> str:
    """The label of a log: ``rank 0``, ``rank 0 stderr``, ``launcher``, ``job``."""
    if log.rank is None and log.stream == "job":
        return "job"
    if log.rank is None:
        return "launcher"
    if log.stream == "stdout":
        return f"rank {log.rank}"
    return f"rank {log.rank} stderr"


def _earlier_logs(attempt_dir: Path) -> Iterator[tuple[str, RankLog]]:
    """The non-empty logs of earlier attempts, the newest attempt first."""
    number = 0
    if attempt_dir.name.isascii() and attempt_dir.name.isdigit():
        number = int(attempt_dir.name)
    for before in range(number - 1, max(0, number - 1 - EARLIER_ATTEMPTS), -1):
        for log in shown_logs(attempt_dir.with_name(str(before))):
            if _size(log.path)[0] > 0:
                yield f"{_label(log)}{OF_ATTEMPT}{before}", log


def _size(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns
