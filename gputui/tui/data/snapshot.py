"""What the whole screen shows, as one immutable value; the feed builds it, the panes draw it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from gputui.curves.model import ChartData, ChartRequest
from gputui.recovery.cost import Cost
from gputui.store.agent import AgentView
from gputui.store.alerts import AlertView
from gputui.store.attempts import Attempt
from gputui.store.events import EventView
from gputui.store.hardware import GpuEventView, GpuView, HostView, Quarantined
from gputui.store.queue import QueuePause
from gputui.store.rollups import GpuHistory, HostHistory
from gputui.store.run_history import DecisionView, IncidentView
from gputui.store.runs import Run

if TYPE_CHECKING:
    # Loaded by those who open the pages that show them.
    from gputui.runs.process_table import HostProcess
    from gputui.store.metrics.intake import Intake
    from gputui.store.studies import RungValue, StudyRecord, StudyState, TrialRecord
    from gputui.store.timeline import Span, Timeline
    from gputui.studies.spec import StudySpec

HISTORY_BUCKETS = 60
"""Buckets of a short history."""

HISTORY_SECONDS = 600.0
"""How far short histories reach back."""

GPU_SPANS_SECONDS = (600.0, 3600.0, 21_600.0, 86_400.0)
"""How far the charts of a GPU's page may reach back."""


class RankRow(NamedTuple):
    """How one rank does, from its newest metrics lines. ``slowdown`` is its own time in a step over the median of all
    ranks' own times."""

    rank: int
    step: int | None = None
    at: float | None = None
    step_seconds: float | None = None
    data_seconds: float | None = None
    comm_seconds: float | None = None
    samples_per_second: float | None = None
    memory_bytes: float | None = None
    slowdown: float | None = None

    @property
    def own_seconds(self) -> float | None:
        """What a step takes without the wait for other ranks."""
        if self.step_seconds is None:
            return None
        return self.step_seconds - min(self.comm_seconds or 0.0, self.step_seconds)

    @property
    def waiting_fraction(self) -> float | None:
        """The share of a step spent waiting for data."""
        if self.data_seconds is None or not self.step_seconds:
            return None
        return self.data_seconds / self.step_seconds

    @property
    def is_slow(self) -> bool:
        """Whether this rank holds the others up."""
        return self.slowdown is not None and self.slowdown >= STRAGGLER_RATIO


STRAGGLER_RATIO = 1.2
"""A rank whose step, without the wait for its peers, takes this much longer than the median's holds them up."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come, from its metrics. ``report_seconds``: how far apart its lines with a new step are."""

    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    losses: tuple[float | None, ...] = ()
    steps_per_second: float | None = None
    report_seconds: float | None = None
    seconds_left: float | None = None
    newest_at: float | None = None
    ranks: Mapping[int, RankRow] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in the table. ``cost`` is what its incidents cost together, None where it had none."""

    run: Run
    progress: Progress
    cost: Cost | None = None


@dataclass(frozen=True, slots=True)
class MachineState:
    """What holds for the machine as a whole: GPUs that no run gets (by UUID), whether the queue is paused, and how many
    XIDs each GPU had within the last day (by UUID)."""

    quarantined: Mapping[str, Quarantined] = field(default_factory=dict)
    queue_pause: QueuePause | None = None
    xids: Mapping[str, int] = field(default_factory=dict)


class AlertsState(NamedTuple):
    """Alerts, the severest first: those that ``last``, and, while their page is open, the newest of those that are
    ``over``."""

    last: tuple[AlertView, ...] = ()
    over: tuple[AlertView, ...] = ()


class GpuPage(NamedTuple):
    """What the page of one GPU shows beyond its row. ``history`` and ``memory_temperatures`` cover the last
    ``span_seconds`` in equal buckets; ``events`` are the driver's reports, newest first."""

    uuid: str
    span_seconds: float
    history: GpuHistory | None
    memory_temperatures: tuple[float | None, ...]
    events: tuple[GpuEventView, ...]
    leased_since: float | None


class StudyRow(NamedTuple):
    """A study that goes on: how many of its trials are over and running, how many it will have (None where its budget
    counts something else), and the best value so far with its trial."""

    study_id: str
    name: str
    state: StudyState
    over: int
    running: int
    wanted: int | None
    best: float | None
    best_number: int | None


class StudyPage(NamedTuple):
    """Everything about the study whose page is open. ``spec`` is None where this gputui does not understand it;
    ``rungs`` are the values of each trial by its number; ``known`` are the ids of all studies, newest first."""

    study: StudyRecord
    spec: StudySpec | None
    trials: tuple[TrialRecord, ...]
    rungs: Mapping[int, tuple[RungValue, ...]]
    gpu_hours: float
    known: tuple[str, ...]


class ProcessSet(NamedTuple):
    """Processes of this machine by PID: those on the GPUs that can be seen here, and all of our runs. ``core_percents``
    is how busy each CPU core was since the reading before."""

    hosts: Mapping[int, HostProcess]
    core_percents: tuple[float | None, ...] = ()


class LogTail(NamedTuple):
    """The end of a log file, harmless text. ``labels`` name the logs that hold anything; ``problem`` is a sentence
    when this one cannot be read.

    ``levels`` are those of the lines (`gputui.runs.log_levels.Level`). ``first`` numbers the first line; a line keeps
    its number while the log grows. ``is_whole`` says that the file begins with it. ``past_note`` says how the log of a
    past moment is to be read. ``source`` tells one file from another of the same label, as a new attempt's.
    """

    label: str | None = None
    labels: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    problem: str | None = None
    levels: bytes = b""
    first: int = 0
    is_whole: bool = True
    past_note: str = ""
    source: str = ""


class Checkpoint(NamedTuple):
    """One checkpoint, harmless text. ``is_valid`` is None while its content was not checked; ``why`` says what was
    checked, or what is wrong with it. ``modified_at`` is UTC unix seconds. ``attempt`` wrote it, None is unknown;
    ``refused`` says why the run will not go on from it."""

    name: str
    step: int | None
    size_bytes: int | None
    modified_at: float | None
    is_valid: bool | None = None
    why: str = ""
    attempt: int | None = None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointList:
    """The newest checkpoints, the newest first, of ``count`` that there are. ``is_known`` is off until somebody has
    looked; ``is_elsewhere``: only the run's target sees them."""

    newest: tuple[Checkpoint, ...] = ()
    count: int = 0
    is_known: bool = False
    is_elsewhere: bool = False

    def written_by(self, at: float) -> CheckpointList:
        """Those that were there at a past moment, as far as they still are."""
        kept = tuple(each for each in self.newest if each.modified_at is not None and each.modified_at <= at)
        return replace(self, newest=kept, count=self.count - len(self.newest) + len(kept))


@dataclass(frozen=True, slots=True)
class RunPage:
    """Everything about the run whose page is open. ``charts`` answers what the page asked for, None before it asked.
    ``intake`` is what became of its metrics lines, None where that is not known (a past moment).
    ``costs`` are those of the incidents by their id; ``checkpoints`` is None where the profile names no place;
    ``sinks`` are those that write its metrics elsewhere, ``data_events`` what was reported of them, of its metrics and
    its checkpoints."""

    run: Run
    launched: Mapping[str, object]
    progress: Progress
    metric_names: tuple[str, ...]
    attempts: tuple[Attempt, ...]
    incidents: tuple[IncidentView, ...]
    decisions: tuple[DecisionView, ...]
    log: LogTail
    charts: ChartData | None = None
    costs: Mapping[int, Cost] = field(default_factory=dict)
    checkpoints: CheckpointList | None = None
    intake: Intake | None = None
    sinks: tuple[str, ...] = ()
    data_events: tuple[EventView, ...] = ()


@dataclass(frozen=True, slots=True)
class Moment:
    """A past moment as it is asked for. ``at`` is UTC unix seconds; ``ticks`` counts on from there to events,
    incidents and alerts (negative: backwards). Where nothing was recorded at ``at``, ``direction`` (-1, 0 or 1) says
    whether to go on to the nearest moment before it, to stay, or to go to the nearest one behind it."""

    at: float
    ticks: int = 0
    direction: int = 0


@dataclass(frozen=True, slots=True)
class Interest:
    """What the screen looks at beyond the overview: the run whose page is open, the log chosen there and whether far
    back, the checkpoint whose content is to be checked, what its charts show, and the runs whose charts lie over each
    other; the GPU whose page is open, and how far its charts reach back; whether the
    pages of alerts, of processes and of studies are open, and the study that is shown there, None for the newest; the
    past moment that is looked at, None for the present."""

    run_id: str | None = None
    log_label: str | None = None
    is_log_deep: bool = False
    checkpoint_to_check: str | None = None
    charts: ChartRequest | None = None
    compared: tuple[str, ...] = ()
    gpu_uuid: str | None = None
    gpu_span_seconds: float = GPU_SPANS_SECONDS[0]
    alerts: bool = False
    processes: bool = False
    studies: bool = False
    study_id: str | None = None
    moment: Moment | None = None


class Past(NamedTuple):
    """That the snapshot is not of the present. ``now`` is, in UTC unix seconds; ``asked`` is what led here."""

    asked: Moment
    now: float
    timeline: Timeline
    gap: Span | None = None
    """The stretch without a recording in which the moment lies."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of everything. ``at`` is UTC unix seconds: the present, or the moment that ``past`` tells about.
    ``compared`` are the charts of several runs, by run. ``idle_since`` is read while the page of processes is open:
    since when (UTC unix seconds) a process has held memory of a GPU that computes nothing, by the GPU's UUID and the
    PID. ``trouble`` is a sentence about the database when it cannot be read; what was read before stays in place
    then."""

    at: float
    agent: AgentView | None = None
    gpus: tuple[GpuView, ...] = ()
    gpu_history: Mapping[str, GpuHistory] = field(default_factory=dict)
    host: HostView | None = None
    host_history: HostHistory | None = None
    runs: tuple[RunRow, ...] = ()
    events: tuple[EventView, ...] = ()
    page: RunPage | None = None
    compared: Mapping[str, ChartData] = field(default_factory=dict)
    machine: MachineState = field(default_factory=MachineState)
    gpu_page: GpuPage | None = None
    processes: ProcessSet | None = None
    idle_since: Mapping[tuple[str, int], float] = field(default_factory=dict)
    alerts: AlertsState = field(default_factory=AlertsState)
    studies: tuple[StudyRow, ...] = ()
    study_page: StudyPage | None = None
    trouble: str | None = None
    past: Past | None = None

    @property
    def has_data(self) -> bool:
        """Whether anything was ever read."""
        return self.agent is not None or bool(self.gpus or self.runs)
