"""Parse launchers' failure reports: which rank failed first, and how the others were ended. Pure.

A command may run several launchers, in sequence or nested, so its output may hold several reports.
Formats: ``torch.distributed.elastic.multiprocessing.errors.ChildFailedError.format_msg`` of PyTorch
2 (torchrun, accelerate), ``torch.multiprocessing.spawn`` and the process observer of Lightning 2.
"""

from __future__ import annotations

import re
import signal
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from gputui.runs.logs import lines_of

_ROOT = "Root Cause (first observed failure):"
_FAILURES = "Failures:"
_BORDER = re.compile(r"^(?:={3,}|-{3,})$")
_INDEX = re.compile(r"^\[\d+\]:$")
_FIELD = re.compile(r"^  (?P<name>time|host|rank|exitcode|error_file|traceback) *: ?(?P<value>.*)$")
_RANK = re.compile(r"^(?P<rank>\d+) \(local_rank: \d+\)")
_EXIT = re.compile(r"^(?P<code>-?\d+) \(pid: (?P<pid>\d+)\)")
_LOG = re.compile(r"^[WEI]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ \S+\] (?P<message>.*)$")
_ASKED = re.compile(r"^Sending process (?P<number>\d+) closing signal ")
_FORCED = re.compile(r"^Unable to shutdown process (?P<number>\d+) via .*forcefully exiting via ")
_GOT_SIGNAL = re.compile(r"^Received (?P<number>\d+) death signal, shutting down workers")
# How other launchers report the process whose failure ended all others.
_LIGHTNING = re.compile(
    r"\[rank: (?P<rank>\d+)\] Child process with PID (?P<pid>\d+) terminated with code (?P<code>-?\d+)\. Forcefully"
)
_SPAWN_RAISED = re.compile(r"^-- Process (?P<rank>\d+) terminated with the following error:$")
_SPAWN_ENDED = re.compile(
    r"^(?:\w+\.)*ProcessExitedException: process (?P<rank>\d+) terminated with "
    r"(?:signal (?P<signal>SIG\w+)|exit code (?P<code>\d+))"
)
SURVIVED_SECONDS = 120.0  # ranks that end with the first one do so within a minute

_NO_TRACEBACK = re.compile(r"^(?:Signal \d+ \(\S+\) received by PID \d+|To enable traceback see: \S+|<N/A>)$")

REPORTERS = ("torchrun", "the launcher")
"""The names of reports' authors: torchrun, or a launcher that does not name itself."""


class RankFailure(Struct, frozen=True):
    """The entry of one rank.

    Attributes:
        exit_code: negative for a signal.
        pid: 0 if unknown.
        at: in whole seconds: the time of the error file, else when torchrun noticed (unix seconds, by the time zone of
            this machine).
    """

    rank: int
    exit_code: int
    pid: int = 0
    at: float | None = None
    traceback: str | None = None


class LauncherReport(Struct, frozen=True):
    """The report in a launcher's output.

    Attributes:
        root: the rank that the launcher takes for the cause, which may be wrong if a peer was lost; None if torchrun
            was killed before it could write it.
        others: the other failed ranks.
        signalled: PIDs that torchrun asked to end.
        forced: those that it then killed.
        got_signal: the signal that asked torchrun itself to end.
        rest: the output up to and with the report, without torchrun's table.
        launcher: the author, as named in sentences.
        ended_itself: it kills its own process along with the ranks.
    """

    root: RankFailure | None
    others: tuple[RankFailure, ...] = ()
    signalled: frozenset[int] = frozenset()
    forced: frozenset[int] = frozenset()
    got_signal: int | None = None
    rest: str = ""
    launcher: str = REPORTERS[0]
    ended_itself: bool = False

    @property
    def failed_at(self) -> float | None:
        """When the supposed cause failed."""
        if self.root is None:
            return None
        return self.root.at

    @property
    def failures(self) -> tuple[RankFailure, ...]:
        """All failed ranks, the supposed root cause first."""
        if self.root is not None:
            return (self.root, *self.others)
        return self.others


def parse_reports(text: str) -> list[LauncherReport]:
    """Parse a command's output.

    Returns:
        A report for each table of torchrun, in order, and one for the text after the last table, if not blank. Missing
        parts are None or empty.
    """
    lines = lines_of(text)
    reports = []
    at = 0
    for root in [number for number, line in enumerate(lines) if line == _ROOT]:
        if root < at:
            continue
        entries, end = _entries(lines, root + 1)
        head = lines[at:root]
        start = len(head) - 1 - head[::-1].index(_FAILURES) if _FAILURES in head else len(head)
        # Above "Failures:" are a border, the title and another border.
        rest = head[: max(0, start - 3)]
        roots = _failures(entries)
        first_failure = roots[0] if roots else None
        reports.append(_report(rest, first_failure, _failures(_entries(head, start + 1)[0])))
        at = end
    if any(line.strip() for line in lines[at:]):
        reports.append(_of_other_launcher(lines[at:]))
    times = [report.failed_at for report in reports]
    last = max((time for time in times if time is not None), default=0.0)
    # A report this much older than the last one is of a failure that the command survived.
    oldest = last - SURVIVED_SECONDS
    return [report for report, time in zip(reports, times, strict=True) if time is None or time >= oldest]


def _report(lines: list[str], root: RankFailure | None = None, others: Sequence[RankFailure] = ()) -> LauncherReport:
    messages = [logged["message"] for line in lines if (logged := _LOG.match(line))]

    def numbers(pattern: re.Pattern[str]) -> list[int]:
        return [int(match["number"]) for message in messages if (match := pattern.match(message))]

    return LauncherReport(
        root,
        tuple(others),
        signalled=frozenset(numbers(_ASKED)),
        forced=frozenset(numbers(_FORCED)),
        got_signal=next(iter(numbers(_GOT_SIGNAL)), None),
        rest="".join(f"{line}\n" for line in lines),
    )


def _of_other_launcher(lines: list[str]) -> LauncherReport:
    """The report of text without a table: another launcher's, or only the text."""
    report = _report(lines)
    for line in lines:
        for pattern in (_LIGHTNING, _SPAWN_RAISED, _SPAWN_ENDED):
            if match := pattern.search(line):
                groups = match.groupdict()
                rank = int(groups["rank"])
                code = groups.get("code")
                number = int(code) if code else -_signal_number(groups.get("signal"))
                root = RankFailure(rank, number or 1, int(groups.get("pid") or 0))
                return replace(report, root=root, launcher=REPORTERS[1], ended_itself=pattern is _LIGHTNING)
    return report


def _signal_number(name: str | None) -> int:
    return next((number.value for number in signal.Signals if number.name == name), 0)


def _entries(lines: list[str], at: int) -> tuple[list[dict[str, str]], int]:
    """The fields of the entries from line ``at`` to the next border, and the line after it."""
    entries: list[dict[str, str]] = []
    while at < len(lines) and not _BORDER.match(lines[at]):
        line = lines[at]
        at += 1
        if _INDEX.match(line):
            entries.append({})
        elif entries and "traceback" in entries[-1]:
            entries[-1]["traceback"] += f"\n{line}"
        elif entries and (match := _FIELD.match(line)):
            entries[-1][match["name"]] = match["value"]
    return entries, at + 1


def _failures(entries: list[dict[str, str]]) -> list[RankFailure]:
    failures = []
    for entry in entries:
        rank = _RANK.match(entry.get("rank", ""))
        code = _EXIT.match(entry.get("exitcode", ""))
        if rank is None or code is None:
            continue
        at = None
        with suppress(ValueError):
            at = datetime.strptime(entry.get("time", "").strip(), "%Y-%m-%d_%H:%M:%S").timestamp()
        first, _, rest = entry.get("traceback", "").partition("\n")
        traceback: str | None = f"{first}\n{textwrap.dedent(rest)}".strip()
        if not traceback or _NO_TRACEBACK.match(traceback):
            traceback = None
        failures.append(
            RankFailure(
                rank=int(rank["rank"]),
                exit_code=int(code["code"]),
                pid=int(code["pid"]),
                at=at,
                traceback=traceback,
            )
        )
    return failures
