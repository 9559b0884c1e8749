"""The log files of an attempt, read in bounded pieces.

Each node of the attempt has a folder, ``nodes/<number>``. torchrun writes each rank's streams there
to ``ranks/<id>_<random>/attempt_0/<local rank>/{stdout,stderr}.log``. The output of the launcher,
or of the only process of a run without torchrun, is in ``output.log``. The text is not sanitized:
pass it through `gputui.core.text.clean` before it reaches a terminal.
"""

from __future__ import annotations

import codecs
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec import Struct

from gputui.core.files import open_regular
from gputui.runs.foreign_json import read_foreign_json

Stream = Literal["output", "stdout", "stderr", "job"]

NODES = "nodes"
"""Below an attempt's folder: a folder for each node, by its number."""

FIRST_NODE = f"{NODES}/0"
"""Below an attempt's folder: logs, error files and reports of its first node."""

JOB_LOG = "remote/job.log"
"""Below an attempt's folder: what the job of a target printed beside the attempt."""

MAX_LINE_CHARACTERS = 4000
"""A longer line is cut and ends in "…"."""

# Progress bars end each state with a carriage return alone.
_LINE_END = re.compile(r"\r\n|\r|\n")


class RankLog(Struct, frozen=True):
    """One log file.

    ``rank`` is None for ``output.log``, which belongs to the launcher, and for what a target's job printed itself.
    """

    rank: int | None
    stream: Stream
    path: Path


class LogWindow(Struct, frozen=True):
    """A piece of a log.

    Attributes:
        start: the byte offset where it begins: not the requested one if the file has shrunk, or a gap begins there.
        end: the byte offset behind it.
        size: the file's, in bytes.
    """

    text: str
    start: int
    end: int
    size: int


def node_folders(attempt_dir: Path) -> list[tuple[int, Path]]:
    """The folders of an attempt's nodes, each with the number of its first rank."""
    first = (0, attempt_dir / FIRST_NODE)
    others = [path for path in _below(attempt_dir, f"{NODES}/[1-9]*") if path.name.isdigit()]
    try:
        ranks = int(read_foreign_json(attempt_dir / "attempt.json")["asks"]["ranks"]) if others else 0
    except (OSError, ValueError, KeyError, TypeError):
        return [first]
    return [first, *sorted((int(path.name) * ranks, path) for path in others)]


def rank_logs(attempt_dir: Path) -> list[RankLog]:
    """The log files of an attempt that can be read: the launcher's, then the newest of each rank."""
    log_paths: dict[tuple[int, Stream], Path] = {}
    nodes = node_folders(attempt_dir)
    streams: tuple[Stream, ...] = ("stdout", "stderr")
    for first_rank, node in nodes:
        for stream in streams:
            paths = _below(node, f"ranks/*/attempt_*/*/{stream}.log")
            for path in sorted(filter(_is_readable, paths), key=_modified_ns):
                if path.parent.name.isdecimal():
                    log_paths[first_rank + int(path.parent.name), stream] = path
    logs = [
        RankLog(rank, stream, log_paths[rank, stream]) for rank, stream in sorted(log_paths, key=lambda key: key[0])
    ]
    launchers = [RankLog(rank=None, stream="output", path=node / "output.log") for _, node in nodes]
    return [*(log for log in launchers if _is_readable(log.path)), *logs]


def output_state(attempt_dir: Path) -> tuple[tuple[str, int, int], ...]:
    """The path, size and time of change of each log of an attempt: another state means that something was printed."""
    state = []
    for log in rank_logs(attempt_dir):
        with suppress(OSError):
            status = log.path.stat()
            state.append((str(log.path), status.st_size, status.st_mtime_ns))
    return tuple(state)


def written_at(attempt_dir: Path) -> float | None:
    """The last time that a log of an attempt changed (UTC unix seconds); None without logs."""
    return max((changed_ns / 1e9 for _, _, changed_ns in output_state(attempt_dir)), default=None)


def shown_logs(attempt_dir: Path) -> list[RankLog]:
    """The log files of an attempt for a person: the last is what its job on a target printed."""
    job = RankLog(rank=None, stream="job", path=attempt_dir / JOB_LOG)
    logs = rank_logs(attempt_dir)
    if _is_readable(job.path) and job.path.stat().st_size > 0:
        return [*logs, job]
    return logs


def _below(folder: Path, pattern: str) -> list[Path]:
    """The paths that match a glob below a folder. A colleague may not look into each folder yet."""
    with suppress(PermissionError):
        return list(folder.glob(pattern))
    return []


def _is_readable(path: Path) -> bool:
    return os.access(path, os.R_OK) and path.is_file()


def lines_of(text: str, max_characters: int = MAX_LINE_CHARACTERS) -> list[str]:
    """The lines of a log, of at most ``max_characters``; carriage returns end lines."""
    lines = _LINE_END.split(text)
    if lines and not lines[-1]:
        lines.pop()
    return [_cut(line, max_characters) for line in lines]


def printed_lines(text: str, begun: str = "") -> tuple[list[str], str]:
    """The lines of a log as a terminal shows them: of the states that carriage returns overwrite, such as those of a
    progress bar, the last that is not blank.

    Returns:
        The lines, and an unfinished one, which is ``begun`` for the next piece.
    """
    *complete, rest = (begun + text).split("\n")
    lines = [last_state(line) for line in complete]
    if rest and not rest.endswith("\r"):
        return [*lines, last_state(rest)], ""
    if rest:
        rest = last_state(rest) + "\r"
    return lines, rest


def last_state(line: str) -> str:
    """The visible state of a line that carriage returns overwrite."""
    return _cut(next((state for state in reversed(line.split("\r")) if state.strip()), ""))


def _cut(line: str, most: int = MAX_LINE_CHARACTERS) -> str:
    if len(line) <= most:
        return line
    return line[: most - 1] + "…"


def tail_text(path: Path, max_bytes: int, max_characters: int = MAX_LINE_CHARACTERS) -> str:
    """The whole lines in the last ``max_bytes`` of a log, as `lines_of` gives them. Raises OSError, also if
    it is no regular file."""
    data, start, _ = _read(path, offset=None, max_bytes=max_bytes)
    if start > 0:
        # The first line is incomplete. It is dropped unless it is the only one.
        ends = [at for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0]
        if ends and min(ends) + 1 < len(data):
            data = data[min(ends) + 1 :]
    lines = lines_of(data.decode("utf-8", "replace"), max_characters)
    if lines:
        return "\n".join(lines) + "\n"
    return ""


def read_window(
    path: Path, offset: int, max_bytes: int, *, partial: bool = False, as_written: bool = False
) -> LogWindow:
    """Read whole lines of a log.

    Args:
        offset: the byte at which they begin.
        max_bytes: of all lines together.
        partial: also read an unfinished line; without it only one that fills the window.
        as_written: carriage returns are no line ends.
    """
    data, start, size = _read(path, offset, max_bytes)
    end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
    if partial or (end == 0 and len(data) >= max_bytes):
        end = _whole_characters(data)
        if end == 0 and len(data) >= max_bytes:
            # The end of a line as long as the window can never fit.
            end = len(data)
    text = data[:end].decode("utf-8", "replace")
    if not as_written:
        lines = lines_of(text)
        text = "\n".join(lines)
        if lines and data[end - 1 : end] in (b"\n", b"\r"):
            text += "\n"
    return LogWindow(text, start, start + end, size)


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1


def _read(path: Path, offset: int | None, max_bytes: int) -> tuple[bytes, int, int]:
    """Bytes of a file, where they start, and its size. Without an offset: its end."""
    with open_regular(path) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        start = 0
        if offset is None:
            start = max(0, size - max_bytes)
        elif offset <= size:
            start = offset
        start, end = _around_gaps(descriptor, start, size, from_end=offset is None)
        file.seek(start)
        data = file.read(min(max_bytes, end - start))
    return data, start, size


def _around_gaps(descriptor: int, start: int, size: int, *, from_end: bool) -> tuple[int, int]:
    """(start, end) of the next stretch without a gap; with ``from_end`` of the last one."""
    try:
        while start < size:
            start = os.lseek(descriptor, start, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
            if not from_end or end >= size:
                return start, max(end, start)
            start = end
    except OSError:
        # A gap up to the end (ENXIO), or a file system without gaps.
        return start, size
    return start, size


def _whole_characters(data: bytes) -> int:
    """The length of the data without a character that is cut off at its end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(data) - len(decoder.getstate()[0])
