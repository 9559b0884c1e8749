"""All that the agent remembers of a run while it is active: its attempt, its phase, and the GPUs that it has left.

A run goes through the phases in the order of this file; what a phase needs to know is in the phase. Nothing else of the
agent keeps a state by run. What must outlive the agent is in the store and in the run's folder, not here.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gputui.agent.health.attempt_state import AttemptState
from gputui.agent.jobs import Job
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.recovery.checkpoint_ledger import Rows
from gputui.recovery.checkpoint_search import CheckpointChoice, CheckpointSearch, UnmatchedPattern
from gputui.recovery.classify import Incident
from gputui.recovery.evidence import Evidence, Observation
from gputui.redaction import BY_LOOK, Redactor
from gputui.runs.executors.process import ExecutorProcess
from gputui.runs.gpu_locks import HeldLocks
from gputui.runs.identity import ProcessIdentity, send_signal
from gputui.store.attempts import Attempt
from gputui.store.placements import PlacementView

TERM_BEFORE_KILL_SECONDS = 2.0
UNKILLABLE_SECONDS = 30.0


# --- an attempt -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class GpuProgress:
    """The newest step of an attempt and since when it is that (monotonic); ``is_ending``: it was found without a GPU
    that it needs."""

    step: int | None
    moved_at: float
    is_ending: bool = False


class Looked(NamedTuple):
    """``folder`` with its links resolved, and the ledger after a look into it. ``is_recorded``: others see there that
    the attempt lives."""

    folder: str
    rows: Rows
    is_recorded: bool


@dataclass(slots=True)
class CheckpointLook:
    """When an attempt's checkpoints are looked for next (monotonic), and the look that is under way."""

    due_at: float
    search: CheckpointSearch | None = None
    job: Job[Looked] | None = None
    is_reported: bool = False


@dataclass(slots=True)
class LiveAttempt:
    """One attempt of which processes may exist."""

    record: Attempt
    # The process that serves it.
    executor: ExecutorProcess
    # Memory in use on each of its GPUs before it began, by UUID.
    baseline_bytes: Mapping[str, int | None] = field(default_factory=dict)
    # When this executor was started (monotonic).
    served_since: float = float("-inf")
    # Its run's specification, resolved; None if this gputui cannot understand it.
    resolved: ResolvedRun | None = None
    # Reads the state of its health from the store, after a restart of the agent; then ``watched`` is set.
    history: Job[AttemptState] | None = None
    watched: AttemptState | None = None
    # After an unexpected error its health is not looked at until then (monotonic).
    unwatched_until: float = float("-inf")
    gpu_progress: GpuProgress | None = None
    checkpoint_look: CheckpointLook | None = None
    # Where it is, as stored; None on this machine, or if nothing was reported yet.
    placement: PlacementView | None = None
    # When the reports of its executor were last read (monotonic); kept for attempts that are elsewhere.
    reports_read_at: float = float("-inf")


# --- what is read after its end --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Task:
    """Where to look: the attempt's folder, and where its checkpoints are, None if its profile names none.
    ``unanswered`` is why the checkpoints' folder is not to be looked into: a look there did not end. ``shared_with``
    are the runs that were on its GPU, too, shortly before the end."""

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
    observed: tuple[Observation, ...] = ()
    unanswered: str | None = None
    shared_with: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found, without the secrets in it. ``incident`` says why the attempt ended, should it have failed;
    ``checkpoints`` is the ledger after it, with what may be resumed from where it did; None if the profile names no
    checkpoints. ``unmatched``: nothing was ever found by their pattern."""

    evidence: Evidence
    incident: Incident
    checkpoints: CheckpointChoice | None
    unmatched: UnmatchedPattern | None = None


# --- phases -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Adopting:
    """A predecessor left it with an attempt, which is not taken over yet."""


@dataclass(slots=True)
class Starting:
    """Its executor was started; its command was not yet seen to do something. ``looked_at`` (monotonic) for that."""

    looked_at: float = float("-inf")


@dataclass(slots=True)
class Running:
    """Its command was seen to do something."""


@dataclass(slots=True)
class Sweeping:
    """Its executor has ended. What it left behind is ended since ``since`` (monotonic); ``is_reading_rest``: its
    metrics files hold more than one turn can read. ``ended_clock`` (monotonic) and ``ended_at`` (UTC unix seconds):
    when nothing of it was left."""

    since: float | None = None
    is_reading_rest: bool = False
    ended_at: float | None = None
    ended_clock: float = 0.0

    def end_leftovers(self, left: list[ProcessIdentity], now: float) -> bool:
        """End the processes that an executor left behind. True when there is no more to be done: what is left cannot be
        killed. ``now`` is monotonic."""
        if self.since is None:
            self.since = now
            for process in left:
                send_signal(process, signal.SIGTERM)
                send_signal(process, signal.SIGCONT)
            return False
        if now - self.since > UNKILLABLE_SECONDS:
            return True
        if now - self.since > TERM_BEFORE_KILL_SECONDS:
            for process in left:
                send_signal(process, signal.SIGKILL)
        return False


@dataclass(slots=True)
class Postmortem:
    """What the attempt left is read by ``job``, as ``task`` says; where that fails, it is begun again from ``swept``.
    ``is_reported``: the run's page shows it."""

    swept: Sweeping
    task: Task
    job: Job[Findings]
    is_reported: bool = False


@dataclass(slots=True)
class DiskLook:
    """What is known of the room on a disk, and the look that is under way."""

    text: str
    job: Job[tuple[int, int]] | None = None


@dataclass(slots=True)
class ResumeCheck:
    """Whether the checkpoint at ``path`` is still the one that was chosen; ``is_noticed``: its end was noticed."""

    path: str
    search: CheckpointSearch
    job: Job[CheckpointChoice | None]
    is_noticed: bool = False


@dataclass(slots=True)
class Waiting:
    """No attempt: it waits for the next one. ``due_at`` (monotonic) is when its back-off ends, None once it is queued;
    ``free_disk`` and ``pruning`` are preconditions that are being looked at. Of a queued run, ``resume_check`` is under
    way; ``checked`` is the path that was found unchanged, None if it could not be looked at, and when (monotonic);
    ``short_since`` (monotonic): GPUs are missing that only a person or a driver can bring back."""

    due_at: float | None = None
    free_disk: DiskLook | None = None
    pruning: Job[list[Path]] | None = None
    resume_check: ResumeCheck | None = None
    checked: tuple[str | None, float] | None = None
    short_since: float | None = None


Phase = Adopting | Starting | Running | Sweeping | Postmortem | Waiting


# --- the GPUs that it has left ----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Releasing:
    """GPUs that an ended attempt of the run had. Their memory must be back (``baseline_bytes``: what was in use before,
    None where it is not known), and no process of ``attempt`` (None: of the run) left; without an answer, ``deadline``
    (monotonic) counts. ``is_held``: processes live that nothing could end, and ``locks`` keep others from the GPUs."""

    attempt: int | None
    baseline_bytes: Mapping[str, int | None]
    ended_at: float
    deadline: float
    is_held: bool = False
    locks: HeldLocks | None = None


# --- a run ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Trouble:
    """An unexpected error: its part is left alone until ``until`` (monotonic); ``reported`` is the reported text,
    None if all was well since."""

    until: float = float("-inf")
    reported: str | None = None


@dataclass(slots=True)
class ActiveRun:
    """One run. ``attempt`` is there from Starting to Postmortem. The GPUs of ended attempts are released beside the
    wait for the next one, which may be over first: where a process cannot be killed, it takes other GPUs."""

    run_id: str
    phase: Phase | None = None
    attempt: LiveAttempt | None = None
    releasing: list[Releasing] = field(default_factory=list)
    trouble: Trouble = field(default_factory=Trouble)

    @property
    def is_idle(self) -> bool:
        """Whether nothing has to be remembered of it."""
        is_waiting = self.phase is not None and self.phase != Waiting()
        return not is_waiting and self.attempt is None and not self.releasing and self.trouble.reported is None

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
        """The run, which is active from now on."""
        return self._runs.setdefault(run_id, ActiveRun(run_id))

    def attempt(self, run_id: str) -> LiveAttempt | None:
        """The run's attempt of which processes may exist."""
        run = self._runs.get(run_id)
        return None if run is None else run.attempt

    def attempts(self) -> list[LiveAttempt]:
        """Every attempt of which processes may exist."""
        return [run.attempt for run in self._runs.values() if run.attempt is not None]

    def running(self) -> list[LiveAttempt]:
        """Every attempt whose command has not ended, as far as is known."""
        return [
            run.attempt
            for run in self._runs.values()
            if run.attempt is not None and isinstance(run.phase, Starting | Running)
        ]

    def releasing(self) -> list[tuple[ActiveRun, Releasing]]:
        return [(run, entry) for run in self._runs.values() for entry in run.releasing]

    def waiting(self) -> list[tuple[ActiveRun, Waiting]]:
        return [(run, run.phase) for run in self._runs.values() if isinstance(run.phase, Waiting)]

    def waiting_of(self, run_id: str) -> Waiting:
        """The wait of a run that has no attempt."""
        run = self.of(run_id)
        if not isinstance(run.phase, Waiting):
            run.phase = Waiting()
        return run.phase

    def forget_idle(self) -> None:
        """Forget the runs of which nothing is to be remembered."""
        self._runs = {run_id: run for run_id, run in self._runs.items() if not run.is_idle}
