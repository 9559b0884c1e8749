"""The state of an active run in memory: its attempt, its phase, and the GPUs that it is releasing.

A run goes through the phases in the order of this file, and a phase carries the data legal in it.
What must outlive the agent is in the store and in the run's folder.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from gputui.agent.health.watched import WatchedAttempt
from gputui.agent.jobs import Job
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.core.redaction import BY_LOOK, Redactor
from gputui.recovery.checkpoints.ledger import Rows
from gputui.recovery.checkpoints.search import CheckpointChoice, CheckpointSearch, UnmatchedPattern
from gputui.recovery.classify import Incident
from gputui.recovery.evidence import Evidence, ObservedCause
from gputui.runs.executors.process import ExecutorProcess
from gputui.runs.gpu_locks import HeldLocks
from gputui.runs.identity import ProcessIdentity, send_signal
from gputui.store.attempts import Attempt
from gputui.store.placements import PlacementView

TERM_BEFORE_KILL_SECONDS = 2.0
UNKILLABLE_SECONDS = 30.0


class FolderClaim:
    """The lock of a checkpoint folder, until nobody has this object any more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)


class CheckpointScan(NamedTuple):
    """Result of a scan at a time (UTC unix seconds); ``claim`` locks the folder."""

    search: CheckpointSearch
    rows: Rows
    at: float
    claim: FolderClaim | None


@dataclass(slots=True)
class CheckpointWatch:
    """The next scan for an attempt's checkpoints (monotonic), the one that runs, the real folder."""

    due_at: float = -math.inf
    job: Job[CheckpointScan] | None = None
    is_reported: bool = False
    folder: str | None = None


@dataclass(slots=True)
class LiveAttempt:
    """An attempt that may have live processes. Times are monotonic."""

    record: Attempt
    executor: ExecutorProcess
    # Memory in use on each of its GPUs before it began, by UUID.
    baseline_bytes: Mapping[str, int | None] = field(default_factory=dict)
    # When this executor was started.
    served_since: float = -math.inf
    # The run's resolved specification, set when the executor is watched.
    resolved: ResolvedRun | None = None
    watched: WatchedAttempt | None = None
    # Health checks are skipped until then after an unexpected error.
    unwatched_until: float = -math.inf
    checkpoint_watch: CheckpointWatch = field(default_factory=CheckpointWatch)
    # The stored placement; None on this machine, or before the first report.
    placement: PlacementView | None = None
    # When the reports of a remote executor were last read.
    reports_read_at: float = -math.inf


class PostmortemTask(Struct, frozen=True):
    """Input of a postmortem. ``checkpoints`` is None if the profile names none; ``unanswered`` is
    why their folder must not be read. ``shared_with`` are runs that used its GPU near the end."""

    folder: Path
    attempt: Attempt
    exit_record: Mapping[str, Any] | None
    survivors: tuple[int, ...]
    launcher: str
    rebooted: bool
    ended_at: float
    checkpoints: CheckpointSearch | None
    checkpoints_wanted: int
    redactor: Redactor = BY_LOOK
    observed: tuple[ObservedCause, ...] = ()
    unanswered: str | None = None
    shared_with: tuple[str, ...] = ()


class PostmortemResult(NamedTuple):
    """Result of a postmortem, redacted. ``incident`` is the cause if the attempt failed.
    ``checkpoints`` is the updated ledger, after a failure with candidates to resume from; None if
    the profile names no checkpoints. ``unmatched``: the pattern never matched a file."""

    evidence: Evidence
    incident: Incident
    checkpoints: CheckpointChoice | None
    unmatched: UnmatchedPattern | None = None


@dataclass(slots=True)
class Adopting:
    """The former agent, or a former executor, left an attempt that is not taken over yet."""


@dataclass(slots=True)
class Starting:
    """The command has shown no activity; ``looked_at`` is the last check (monotonic)."""

    looked_at: float = -math.inf


@dataclass(slots=True)
class Running:
    """The command has shown activity."""


@dataclass(slots=True)
class Sweeping:
    """The executor has ended; its leftover processes are being killed since ``since`` (monotonic).
    ``is_reading_rest``: its metrics files hold more than one turn can read. No process was left at
    ``ended_clock`` (monotonic), which is ``ended_at`` (UTC unix seconds)."""

    since: float | None = None
    is_reading_rest: bool = False
    ended_at: float | None = None
    ended_clock: float = 0.0

    def end_leftovers(self, left: list[ProcessIdentity], now: float) -> bool:
        """Signal the leftover processes: SIGTERM first, SIGKILL later. True if they have survived
        that for too long. ``now`` is monotonic."""
        is_first = self.since is None
        self.since = now if self.since is None else self.since
        is_late = now - self.since > TERM_BEFORE_KILL_SECONDS
        for process in left if is_first or is_late else ():
            send_signal(process, signal.SIGKILL if is_late else signal.SIGTERM)
            send_signal(process, signal.SIGCONT)
        return now - self.since > UNKILLABLE_SECONDS


@dataclass(slots=True)
class Postmortem:
    """A job examines what the attempt left; if it fails, the run returns to ``swept``."""

    swept: Sweeping
    task: PostmortemTask
    job: Job[PostmortemResult]
    # Whether the run's page says so.
    is_reported: bool = False


@dataclass(slots=True)
class Waiting:
    """No attempt exists; the run waits for the next one. Times are monotonic."""

    # The end of its back-off, None once it is queued.
    due_at: float | None = None
    # The last answer about the disk.
    disk_text: str | None = None
    # Whether the queued run may begin from a checkpoint, which one, and when that was checked.
    checked: tuple[bool, str | None, float] = (False, None, -math.inf)
    # Since when GPUs are missing that only a person or the driver can bring back.
    short_since: float | None = None


Phase = Adopting | Starting | Running | Sweeping | Postmortem | Waiting


@dataclass(slots=True, eq=False)
class Releasing:
    """A GPU of an ended attempt. It is free once its memory is back at ``baseline_bytes`` (None:
    unknown) and no process of ``attempt`` (None: of the run) is left, or at ``deadline``
    (monotonic) if the driver does not answer. ``is_held``: unkillable processes hold it, and
    ``locks`` keep other homes from it."""

    attempt: int | None
    uuid: str
    baseline_bytes: int | None
    ended_at: float
    deadline: float
    is_held: bool = False
    locks: HeldLocks | None = None


@dataclass(slots=True)
class ActiveRun:
    """One run. ``attempt`` is set from Starting to Postmortem. GPUs of ended attempts are released
    while the run waits for its next attempt, which may start on other GPUs before."""

    run_id: str
    phase: Phase | None = None
    attempt: LiveAttempt | None = None
    releasing: list[Releasing] = field(default_factory=list)

    def begin(self, attempt: LiveAttempt) -> None:
        self.attempt, self.phase = attempt, Starting()


class ActiveRuns:
    """The active runs of one state directory, by run id."""

    def __init__(self) -> None:
        self._runs: dict[str, ActiveRun] = {}

    def __iter__(self) -> Iterator[ActiveRun]:
        return iter(list(self._runs.values()))

    def get(self, run_id: str) -> ActiveRun | None:
        return self._runs.get(run_id)

    def of(self, run_id: str) -> ActiveRun:
        """The run; it becomes active if it was not."""
        return self._runs.setdefault(run_id, ActiveRun(run_id))

    def attempt(self, run_id: str) -> LiveAttempt | None:
        """The run's attempt that may have live processes."""
        return self._runs[run_id].attempt if run_id in self._runs else None

    def attempts(self, *phases: type[Phase]) -> list[LiveAttempt]:
        """All attempts that may have live processes; with ``phases``, those in one of them."""
        runs = [run for run in self if not phases or isinstance(run.phase, phases)]
        return [run.attempt for run in runs if run.attempt is not None]

    def running(self) -> list[LiveAttempt]:
        """All attempts whose command is not known to have ended."""
        return self.attempts(Starting, Running)

    def sweeping(self) -> list[Sweeping]:
        return [run.phase for run in self if isinstance(run.phase, Sweeping)]

    def releasing(self) -> list[tuple[ActiveRun, Releasing]]:
        return [(run, entry) for run in self for entry in run.releasing]

    def waiting(self) -> list[tuple[ActiveRun, Waiting]]:
        return [(run, run.phase) for run in self if isinstance(run.phase, Waiting)]

    def waiting_of(self, run_id: str) -> Waiting:
        """The waiting phase of a run without attempt, entered if it was in no phase."""
        run = self.of(run_id)
        if not isinstance(run.phase, Waiting):
            run.phase = Waiting()
        return run.phase

    def forget_idle(self) -> None:
        """Drop runs without state worth keeping."""
        for run in self:
            if run.phase in (None, Waiting()) and run.attempt is None and not run.releasing:
                del self._runs[run.run_id]
