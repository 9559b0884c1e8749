"""An attempt that may have live processes, in memory: its executor, its phase, and what is found
when it ends.

A phase carries the data legal in it. What must outlive the agent is in the store and in the run's
folder.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from gputui.agent.health.watched import WatchedAttempt
from gputui.agent.jobs import Job
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.recovery.checkpoints.choices import CheckpointChoice
from gputui.recovery.checkpoints.search import CheckpointSearch, UnmatchedPattern
from gputui.recovery.classify import Incident
from gputui.recovery.evidence import AttemptGpus, Evidence, ObservedCause
from gputui.runs.executors.process import ExecutorProcess
from gputui.runs.identity import ProcessIdentity, send_signal
from gputui.store.attempts import Attempt
from gputui.store.placements import PlacementView

TERM_BEFORE_KILL_SECONDS = 2.0  # enough to close files; nobody saves by then
UNKILLABLE_SECONDS = 30.0  # as in the shim: a driver may take as long


class PostmortemTask(Struct, frozen=True):
    """Input of a postmortem.

    Attributes:
        folder: the attempt's.
        exit_record: what its executor wrote at the end; None if that died.
        survivors: processes that cannot be killed.
        rebooted: the machine went down while the attempt ran.
        ended_at: UTC unix seconds.
        checkpoints: None if the profile names none.
        observed: what was observed while it ran, and ended it.
        unanswered: why the folder of checkpoints must not be read.
        reads_logs: false if something in the logs could not be examined: the exit alone counts.
        shared_with: runs that used its GPU near the end.
        gpus: its GPUs, and the use of their memory near the end.
        last_step_at: UTC unix seconds; None if its lines have no times of their own.
    """

    resolved: ResolvedRun
    folder: Path
    attempt: Attempt
    exit_record: Mapping[str, Any] | None
    survivors: tuple[int, ...]
    rebooted: bool
    ended_at: float
    checkpoints: CheckpointSearch | None
    observed: tuple[ObservedCause, ...] = ()
    unanswered: str | None = None
    reads_logs: bool = True
    shared_with: tuple[str, ...] = ()
    gpus: AttemptGpus = AttemptGpus()
    last_step_at: float | None = None


class PostmortemResult(NamedTuple):
    """Result of a postmortem, redacted.

    Attributes:
        incident: the cause if the attempt failed.
        checkpoints: the updated ledger, after a failure with candidates to resume from; None if the profile
            names no checkpoints.
        unmatched: the pattern of checkpoints, if it never matched a file.
    """

    evidence: Evidence
    incident: Incident
    checkpoints: CheckpointChoice | None
    unmatched: UnmatchedPattern | None = None


@dataclass(slots=True)
class Serving:
    """The executor serves the attempt. ``is_noted``: its run is stored as running."""

    is_noted: bool = False


@dataclass(slots=True)
class Sweeping:
    """The executor has ended; its leftover processes are being killed.

    Attributes:
        since: when the first signal was sent (monotonic).
        is_reading_rest: its metrics files hold more than one turn can read.
        ended_at: when no process was left (UTC unix seconds).
        ended_clock: the same by the monotonic clock.
        awaits: what has to happen next, as the end of a sentence.
    """

    since: float | None = None
    is_reading_rest: bool = False
    ended_at: float | None = None
    ended_clock: float = 0.0
    awaits: str = ""

    def end_leftovers(self, leftovers: list[ProcessIdentity], now: float) -> bool:
        """Signal the leftover processes: SIGTERM first, SIGKILL later; ``now`` is monotonic.

        Returns:
            Whether they have survived that for too long.
        """
        is_first = self.since is None
        if self.since is None:
            self.since = now
        is_late = now - self.since > TERM_BEFORE_KILL_SECONDS
        if is_first or is_late:
            number = signal.SIGKILL if is_late else signal.SIGTERM
            for process in leftovers:
                send_signal(process, number)
                send_signal(process, signal.SIGCONT)
        return now - self.since > UNKILLABLE_SECONDS


@dataclass(slots=True)
class Postmortem:
    """A job examines what the attempt left; if it fails, the attempt returns to ``swept``."""

    swept: Sweeping
    task: PostmortemTask
    job: Job[PostmortemResult]


Phase = Serving | Sweeping | Postmortem


@dataclass(slots=True)
class LiveAttempt:
    """An attempt that may have live processes.

    Attributes:
        record: its row.
        executor: the process that serves it.
        resolved: its run.
        served_since: when this executor was started (monotonic).
        placement: the stored placement; None on this machine, or before the first report.
        reports_read_at: when the reports of a remote executor were last read (monotonic).
        seen_at: when this agent last saw a process of it (UTC unix seconds).
        over_since: when its end was noticed (monotonic).
        is_late: the log says that its end takes long.
    """

    record: Attempt
    executor: ExecutorProcess
    resolved: ResolvedRun
    served_since: float = -math.inf
    phase: Phase = field(default_factory=Serving)
    watched: WatchedAttempt | None = None
    placement: PlacementView | None = None
    reports_read_at: float = -math.inf
    seen_at: float | None = None
    over_since: float | None = None
    is_late: bool = False

    @property
    def is_running(self) -> bool:
        """True if its command is not known to have ended."""
        return isinstance(self.phase, Serving)
