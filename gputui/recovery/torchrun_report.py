"""What torchrun itself writes about an end: which rank failed first, and what it did to the others. Pure.

Format: ``torch.distributed.elastic.multiprocessing.errors.ChildFailedError.format_msg`` of PyTorch 2.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from datetime import datetime

from gputui.runs.logs import lines_of

_ROOT = "Root Cause (first observed failure):"
_FAILURES = "Failures:"
_BORDER = re.compile(r"^(?:={3,}|-{3,})$")
_INDEX = re.compile(r"^\[\d+\]:$")
_FIELD = re.compile(r"^  (time|host|rank|exitcode|error_file|traceback) *: ?(.*)$")
_RANK = re.compile(r"^(\d+) \(local_rank: (\d+)\)")
_EXIT = re.compile(r"^(-?\d+) \(pid: (\d+)\)")
_LOG = re.compile(r"^[WEI]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ \S+\] (.*)$")
_ASKED = re.compile(r"^Sending process (\d+) closing signal ")
_FORCED = re.compile(r"^Unable to shutdown process (\d+) via .*forcefully exiting via ")
_GOT_SIGNAL = re.compile(r"^Received (\d+) death signal, shutting down workers")
_NO_TRACEBACK = re.compile(r"^(?:Signal \d+ \(\S+\) received by PID \d+|To enable traceback see: \S+|<N/A>)$")


@dataclass(frozen=True, slots=True)
class RankFailure:
    """One rank's entry. ``exit_code`` is negative for a signal; ``time`` is local and in whole seconds: that of the
    error file where there is one, else when torchrun noticed."""

    rank: int
    local_rank: int
    exit_code: int
    pid: int
    time: str
    error_file: str | None
    traceback: str | None

    @property
    def at(self) -> float | None:
        """``time`` as seconds of the local calendar: only the differences between such mean anything."""
        try:
            moment = datetime.strptime(self.time, "%Y-%m-%d_%H:%M:%S")
        except ValueError:
            return None
        return (moment - datetime(1970, 1, 1)).total_seconds()


@dataclass(frozen=True, slots=True)
class TorchrunReport:
    """What torchrun's output tells. ``root`` is its own guess at the cause, which a lost peer can mislead.

    Attributes:
        root, others: the failed ranks; None and empty where torchrun was killed before it could write them.
        asked: pids that torchrun asked to end; forced: those that it then killed.
        got_signal: the signal by which torchrun itself was asked to end.
        rest: its output without the report.
    """

    root: RankFailure | None
    others: tuple[RankFailure, ...] = ()
    asked: frozenset[int] = frozenset()
    forced: frozenset[int] = frozenset()
    got_signal: int | None = None
    rest: str = ""

    @property
    def failures(self) -> tuple[RankFailure, ...]:
        """All failed ranks, the supposed root cause first."""
        return (self.root, *self.others) if self.root is not None else self.others


@dataclass(slots=True)
class _Entry:
    fields: dict[str, str] = field(default_factory=dict)
    traceback: list[str] = field(default_factory=list)


def parse_report(text: str) -> TorchrunReport:
    """Read torchrun's output; everything that is not there is None or empty."""
    lines = lines_of(text)
    asked: set[int] = set()
    forced: set[int] = set()
    got_signal: int | None = None
    for line in lines:
        logged = _LOG.match(line)
        if logged is None:
            continue
        message = logged[1]
        if match := _ASKED.match(message):
            asked.add(int(match[1]))
        elif match := _FORCED.match(message):
            forced.add(int(match[1]))
        elif (match := _GOT_SIGNAL.match(message)) and got_signal is None:
            got_signal = int(match[1])
    root, others, rest = _failures(lines)
    return TorchrunReport(root, others, frozenset(asked), frozenset(forced), got_signal, "\n".join(rest) + "\n")


def _failures(lines: list[str]) -> tuple[RankFailure | None, tuple[RankFailure, ...], list[str]]:
    if _ROOT not in lines:
        return None, (), lines
    at = len(lines) - 1 - lines[::-1].index(_ROOT)
    head = lines[:at]
    start = len(head) - 1 - head[::-1].index(_FAILURES) if _FAILURES in head else at
    root_entries, end = _entries(lines, at + 1)
    other_entries, _ = _entries(lines[:at], start + 1)
    roots = [failure for entry in root_entries if (failure := _failure(entry)) is not None]
    others = [failure for entry in other_entries if (failure := _failure(entry)) is not None]
    # Above "Failures:" stand a border, the title and another border.
    return (roots[0] if roots else None), tuple(others), lines[: max(0, start - 3)] + lines[end:]


def _entries(lines: list[str], at: int) -> tuple[list[_Entry], int]:
    """The entries from line ``at`` to the next border, and the number of the line behind that."""
    entries: list[_Entry] = []
    in_traceback = False
    while at < len(lines) and not _BORDER.match(lines[at]):
        line = lines[at]
        at += 1
        if _INDEX.match(line):
            entries.append(_Entry())
            in_traceback = False
        elif entries and not in_traceback and (match := _FIELD.match(line)):
            entries[-1].fields[match[1]] = match[2]
            in_traceback = match[1] == "traceback"
        elif entries and in_traceback:
            entries[-1].traceback.append(line)
    return entries, at + 1


def _failure(entry: _Entry) -> RankFailure | None:
    rank, code = _RANK.match(entry.fields.get("rank", "")), _EXIT.match(entry.fields.get("exitcode", ""))
    if rank is None or code is None:
        return None
    error_file = entry.fields.get("error_file", "").strip()
    first = entry.fields.get("traceback", "")
    traceback = f"{first}\n{textwrap.dedent(chr(10).join(entry.traceback))}".strip()
    return RankFailure(
        rank=int(rank[1]),
        local_rank=int(rank[2]),
        exit_code=int(code[1]),
        pid=int(code[2]),
        time=entry.fields.get("time", "").strip(),
        error_file=None if error_file in ("", "<N/A>") else error_file,
        traceback=None if not traceback or _NO_TRACEBACK.match(traceback) else traceback,
    )
