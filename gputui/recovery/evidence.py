"""The evidence on an attempt's end, collected within bounds and stored as JSON.

Only `collect` reads files. Pure functions draw conclusions, so that stored evidence can be
classified again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gputui.recovery.tracebacks import plain
from gputui.runs.foreign_json import read_foreign_json
from gputui.runs.launchers import FOR_RANKS
from gputui.runs.logs import FIRST_NODE, Stream, node_folders, rank_logs, tail_text

TAIL_BYTES = 256 * 1024  # a traceback of each of many ranks is in it
TAIL_LINES = 4000
MAX_ERROR_FILE_BYTES = 1024 * 1024  # a traceback has some kilobytes
MAX_ERROR_FILES = 256  # one per rank of a large node, with those of restarts
NEARLY_FULL_PERCENT = 90.0  # below it the kernel kills nobody for want of memory


class KilledRank(Struct, frozen=True):
    """A rank that was killed by a signal before the attempt was asked to end."""

    rank: int
    pid: int
    signal: int


class ExitRecord(Struct, frozen=True):
    """The executor's ``exit.json``.

    Attributes:
        code: the command's exit code; None if a signal ended it or nothing was started.
        signal: the signal that ended the command.
        started_at: when the executor began (UTC unix seconds).
        ended_at: when the command was over (UTC unix seconds).
        stop_requested: the executor was asked to end it.
        forced: it had to be killed.
        oom_kills_cgroup: kills for want of memory in the executor's control group shortly before the end; None if
            unknown.
        oom_kills_host: kills for want of memory on the whole machine in the same time; None if unknown.
        disk_free_bytes: free space for its logs when the command ended; None if unknown.
        cpu_seconds: of the command and its descendants.
        survivors: processes that SIGKILL did not end.
        error: why nothing could be started.
        lease_conflict: the GPUs whose locks another process held.
        ended_by: the kind of end by the run's target; None if the target did not end it.
        ended_reason: the target's message.
        target: its name; None for this machine.
        killed_ranks: the ranks that a signal ended while nobody had asked for an end, in order.
        stop_signal: the first signal that asked the executor to end the attempt; its command got SIGTERM.
    """

    code: int | None = None
    signal: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    stop_requested: bool = False
    forced: bool = False
    oom_kills_cgroup: int | None = None
    oom_kills_host: int | None = None
    disk_free_bytes: int | None = None
    cpu_seconds: float | None = None
    survivors: tuple[int, ...] = ()
    error: str | None = None
    lease_conflict: tuple[str, ...] = ()
    ended_by: str | None = None
    ended_reason: str | None = None
    target: str | None = None
    killed_ranks: tuple[KilledRank, ...] = ()
    stop_signal: int | None = None

    @property
    def clean(self) -> bool:
        return self.code == 0 and self.error is None and not self.lease_conflict and self.ended_by is None

    @property
    def is_unkillable(self) -> bool:
        """True if the command itself survived SIGKILL."""
        return bool(self.survivors) and self.code is None and self.signal is None

    @property
    def oom_killed(self) -> bool:
        """True if the kernel's OOM killer struck the attempt shortly before its end. If the count
        of its control group is known, other kills on the host do not concern it."""
        if self.oom_kills_cgroup is None:
            return bool(self.oom_kills_host)
        return bool(self.oom_kills_cgroup)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ExitRecord:
        """Read ``exit.json``. A malformed record says nothing."""
        kills = data.get("oom_kills") or {}
        recorded = {name: value for name, value in data.items() if value is not None}
        try:
            return msgspec.convert({**recorded, **{f"oom_kills_{name}": count for name, count in kills.items()}}, cls)
        except (AttributeError, msgspec.ValidationError):
            return cls()


class ErrorFile(Struct, frozen=True):
    """An error file of torchelastic. ``rank`` is None for torchrun's copy of the first one."""

    rank: int | None
    message: str
    callstack: str | None
    at: float | None


class EvidenceLog(Struct, frozen=True):
    """The end of one log file, which was last written at ``written_at``."""

    rank: int | None
    stream: Stream
    text: str
    written_at: float | None = None


class ObservedCause(Struct, frozen=True):
    """An observation of the agent while the attempt ran.

    Attributes:
        kind: of the incident that it explains.
        at: when it was observed (UTC unix seconds).
        ended_run: the agent ended the attempt for it; else it is a report of the driver.
        gpu: the UUID of the affected GPU.
        contained: that GPU remains usable.
        distant: it was so long before the end that any other cause is likelier.
    """

    kind: str
    at: float
    text: str
    rank: int | None = None
    step: int | None = None
    ended_run: bool = True
    gpu: str | None = None
    contained: bool = False
    distant: bool = False


class AttemptGpus(Struct, frozen=True):
    """The GPUs of an attempt.

    ``memory_percent`` is the highest part of one's memory that was in use in its last seconds; None is unknown.
    """

    count: int = 0
    memory_percent: float | None = None

    @property
    def is_roomy(self) -> bool:
        """True if no memory was nearly full, so that a text that mostly means that means something
        else."""
        return self.memory_percent is not None and self.memory_percent < NEARLY_FULL_PERCENT


class Evidence(Struct, frozen=True):
    """The evidence on the end of an attempt. Times are UTC unix seconds.

    Attributes:
        exit: None if the executor left no record.
        launcher: a name in LAUNCHERS.
        started_at: when the command began; None if it never did.
        last_step: of its metrics.
        last_step_at: the time that the line of that step states.
        rebooted: the machine was rebooted since its start.
        observed: what the agent saw while it ran.
        errors: its error files.
        tails: the ends of its logs.
        problems: unreadable files.
        shared_with: runs that used its GPU shortly before the end.
        gpus: its GPUs, and the use of their memory near the end.
        python: the interpreter, and why it was taken.
    """

    exit: ExitRecord | None = None
    launcher: str = FOR_RANKS.name
    started_at: float | None = None
    ended_at: float | None = None
    last_step: int | None = None
    last_step_at: float | None = None
    rebooted: bool = False
    observed: tuple[ObservedCause, ...] = ()
    errors: tuple[ErrorFile, ...] = ()
    tails: tuple[EvidenceLog, ...] = ()
    problems: tuple[str, ...] = msgspec.field(default=())
    shared_with: tuple[str, ...] = ()
    gpus: AttemptGpus = AttemptGpus()
    python: str | None = None

    def to_json(self) -> dict[str, Any]:
        shape: dict[str, Any] = msgspec.to_builtins(self)
        return shape

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Evidence:
        """Rebuild stored evidence. Raises ValueError if it is malformed."""
        return msgspec.convert(data, cls)


def collect(attempt_dir: Path, **fields: Any) -> Evidence:
    """Collect the evidence in an attempt's folder; ``fields`` are the other fields of `Evidence`.

    At most the last TAIL_BYTES and TAIL_LINES of each log are kept. Missing, damaged or unreadable
    files do not affect the rest.
    """
    problems: list[str] = []
    tails: list[EvidenceLog] = []
    for log in rank_logs(attempt_dir):
        try:
            text = plain(_last_lines(tail_text(log.path, TAIL_BYTES, TAIL_BYTES)))
            tails.append(EvidenceLog(log.rank, log.stream, text, log.path.stat().st_mtime))
        except OSError as error:
            problem = str(error)
            if log.rank is not None:
                problem = f"{log.path.name} of rank {log.rank}: {problem}"
            problems.append(problem)
    errors: list[ErrorFile] = []
    for rank, path in _error_files(attempt_dir):
        try:
            errors.append(read_error_file(path, rank))
        except (OSError, ValueError) as error:
            problems.append(f"{path.relative_to(attempt_dir)}: {error}")
    return Evidence(errors=tuple(errors), tails=tuple(tails), problems=tuple(problems), **fields)


def _last_lines(text: str) -> str:
    """The last TAIL_LINES lines: a log of empty lines would take seconds to search."""
    head = text.rsplit("\n", TAIL_LINES + 1)
    if len(head) == TAIL_LINES + 2:
        return text[len(head[0]) + 1 :]
    return text


def read_error_file(path: Path, rank: int | None) -> ErrorFile:
    """Read one error file. Raises OSError, or ValueError if it is malformed."""
    data = read_foreign_json(path, MAX_ERROR_FILE_BYTES)
    message = None
    if isinstance(data, dict):
        message = data.get("message")
    if isinstance(message, str):
        return ErrorFile(rank, message, callstack=None, at=_number(data.get("timestamp")))
    if not isinstance(message, dict) or not isinstance(message.get("message"), str):
        raise ValueError("no message in it")
    extra = message.get("extraInfo")
    if not isinstance(extra, dict):
        return ErrorFile(rank, message["message"], callstack=None, at=None)
    callstack = extra.get("py_callstack")
    if not isinstance(callstack, str):
        callstack = None
    return ErrorFile(rank, message["message"], callstack, _number(extra.get("timestamp")))


def _error_files(attempt_dir: Path) -> list[tuple[int | None, Path]]:
    """The error files of all ranks on all nodes, and torchrun's copy of the first one."""
    files: list[tuple[int | None, Path]] = [
        (first_rank + int(path.parent.name), path)
        for first_rank, node in node_folders(attempt_dir)
        for path in sorted(node.glob("ranks/**/error.json"))
        if path.parent.name.isascii() and path.parent.name.isdigit()
    ]
    files = files[-MAX_ERROR_FILES:]
    copy = attempt_dir / FIRST_NODE / "error.json"
    if copy.exists():
        files.append((None, copy))
    return files


def _number(value: Any) -> float | None:
    """A finite number, also if it is text, as torchelastic's times are."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if math.isfinite(number):
        return number
    return None
